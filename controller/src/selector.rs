//! Finds the services that select a pod, without evaluating every selector.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use kube::core::{Expression, Selector, SelectorExt as _};
use multinet_runtime::ObjectKey;

use crate::multimap::MultiMap;

type Label = (String, String);

/// The selectors of all services.
///
/// A selector that requires a label to have a certain value, or one of several, is indexed by these
/// values. It is evaluated only for pods that have one of them. Selectors that require no value
/// (`Exists`, `NotIn`, or an empty selector) are evaluated for every pod of their namespace.
#[derive(Debug, Default)]
pub(crate) struct Selectors {
    namespaces: HashMap<String, NamespaceSelectors>,
}

#[derive(Debug, Default)]
struct NamespaceSelectors {
    selectors: HashMap<String, Selector>,
    by_label: MultiMap<Label, String>,
    unfiled: BTreeSet<String>,
}

impl Selectors {
    /// Sets the selector of a service.
    pub(crate) fn insert(&mut self, service: &ObjectKey, selector: Selector) {
        self.remove(service);
        let namespace = self.namespaces.entry(service.namespace.clone()).or_default();
        let labels = demanded(&selector);
        if labels.is_empty() {
            namespace.unfiled.insert(service.name.clone());
        }
        for label in labels {
            namespace.by_label.insert(label, service.name.clone());
        }
        namespace.selectors.insert(service.name.clone(), selector);
    }

    /// Removes the selector of a service.
    pub(crate) fn remove(&mut self, service: &ObjectKey) {
        let Some(namespace) = self.namespaces.get_mut(&service.namespace) else { return };
        let Some(selector) = namespace.selectors.remove(&service.name) else { return };
        namespace.unfiled.remove(&service.name);
        for label in demanded(&selector) {
            namespace.by_label.remove(&label, &service.name);
        }
        if namespace.selectors.is_empty() {
            self.namespaces.remove(&service.namespace);
        }
    }

    /// Returns the names of the services in `namespace` that select a pod with these labels.
    pub(crate) fn selecting(&self, namespace: &str, labels: &BTreeMap<String, String>) -> BTreeSet<String> {
        let Some(namespace) = self.namespaces.get(namespace) else { return BTreeSet::new() };
        let filed = labels.iter().flat_map(|(key, value)| {
            // A look-up needs a copy of the label. Labels are few and short.
            namespace.by_label.of(&(key.clone(), value.clone()))
        });
        let candidates = filed.chain(&namespace.unfiled);
        candidates.filter(|name| namespace.selects(name, labels)).cloned().collect()
    }

    /// Returns whether a service selects a pod with these labels.
    pub(crate) fn selects(&self, service: &ObjectKey, labels: &BTreeMap<String, String>) -> bool {
        self.namespaces
            .get(&service.namespace)
            .is_some_and(|namespace| namespace.selects(&service.name, labels))
    }
}

impl NamespaceSelectors {
    fn selects(&self, name: &str, labels: &BTreeMap<String, String>) -> bool {
        self.selectors.get(name).is_some_and(|selector| selector.matches(labels))
    }
}

/// Returns labels of which a pod must have at least one. They come from the first expression that
/// requires a value.
fn demanded(selector: &Selector) -> Vec<Label> {
    let demanding = selector.clone().into_iter().find_map(|expression| match expression {
        Expression::Equal(key, value) => Some(vec![(key, value)]),
        Expression::In(key, values) => Some(values.into_iter().map(|value| (key.clone(), value)).collect()),
        _ => None,
    });
    demanding.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

    use super::*;

    fn key(namespace: &str, name: &str) -> ObjectKey {
        ObjectKey { namespace: namespace.into(), name: name.into() }
    }

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    fn selector(pairs: &[(&str, &str)], expressions: &[(&str, &str, &[&str])]) -> Selector {
        let requirement = |&(key, operator, values): &(&str, &str, &[&str])| LabelSelectorRequirement {
            key: key.into(),
            operator: operator.into(),
            values: Some(values.iter().map(|&value| value.to_owned()).collect()),
        };
        LabelSelector {
            match_labels: Some(labels(pairs)),
            match_expressions: Some(expressions.iter().map(requirement).collect()),
        }
        .try_into()
        .unwrap()
    }

    fn selecting(selectors: &Selectors, namespace: &str, pairs: &[(&str, &str)]) -> Vec<String> {
        selectors.selecting(namespace, &labels(pairs)).into_iter().collect()
    }

    #[test]
    fn every_kind_of_selector_selects_pods() {
        let mut selectors = Selectors::default();
        selectors.insert(&key("a", "equal"), selector(&[("app", "x"), ("tier", "1")], &[]));
        selectors.insert(&key("a", "in"), selector(&[], &[("app", "In", &["x", "y"])]));
        selectors.insert(&key("a", "in-none"), selector(&[], &[("app", "In", &[])]));
        selectors.insert(&key("a", "exists"), selector(&[], &[("app", "Exists", &[])]));
        selectors.insert(&key("a", "not-in"), selector(&[], &[("app", "NotIn", &["x"])]));
        selectors.insert(&key("a", "absent"), selector(&[], &[("app", "DoesNotExist", &[])]));
        selectors.insert(&key("a", "all"), selector(&[], &[]));
        selectors.insert(&key("b", "elsewhere"), selector(&[("app", "x")], &[]));

        assert_eq!(selecting(&selectors, "a", &[("app", "x")]), ["all", "exists", "in"]);
        assert_eq!(
            selecting(&selectors, "a", &[("app", "x"), ("tier", "1")]),
            ["all", "equal", "exists", "in"]
        );
        assert_eq!(selecting(&selectors, "a", &[("app", "z")]), ["all", "exists", "not-in"]);
        assert_eq!(selecting(&selectors, "a", &[]), ["absent", "all", "not-in"]);
        assert_eq!(selecting(&selectors, "b", &[("app", "x")]), ["elsewhere"]);
        assert!(selectors.selects(&key("a", "in"), &labels(&[("app", "y")])));
        assert!(!selectors.selects(&key("a", "in"), &labels(&[("app", "z")])));
    }

    #[test]
    fn a_replaced_selector_is_removed_completely() {
        let mut selectors = Selectors::default();
        selectors.insert(&key("a", "s"), selector(&[("app", "x")], &[]));
        selectors.insert(&key("a", "s"), selector(&[("app", "y")], &[]));
        assert!(selecting(&selectors, "a", &[("app", "x")]).is_empty());
        assert_eq!(selecting(&selectors, "a", &[("app", "y")]), ["s"]);
        selectors.insert(&key("a", "s"), selector(&[], &[]));
        assert_eq!(selecting(&selectors, "a", &[("app", "y")]), ["s"]);
        selectors.remove(&key("a", "s"));
        selectors.remove(&key("a", "s"));
        assert!(selectors.namespaces.is_empty(), "{selectors:?}");
    }

    #[test]
    fn a_selector_with_a_value_is_indexed_by_it() {
        let mut selectors = Selectors::default();
        for number in 0..1000 {
            selectors
                .insert(&key("a", &format!("s{number}")), selector(&[("app", &number.to_string())], &[]));
        }
        let namespace = &selectors.namespaces["a"];
        assert!(namespace.unfiled.is_empty());
        assert!(namespace.by_label.keys().all(|label| namespace.by_label.of(label).count() == 1));
    }
}
