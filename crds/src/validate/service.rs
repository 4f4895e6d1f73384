//! Rules of MultiNetworkService.

use std::collections::HashMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

use super::check::{Check, quote};
use super::{Validate, common, metadata};
use crate::schema::{SELECTOR_ITEMS, TTL_SECONDS};
use crate::syntax::{DNS_LABEL, LABEL_VALUE, QUALIFIED_NAME};
use crate::{IpFamily, MultiNetworkService, MultiNetworkServiceSpec, NetworkReference};

/// Maximum number of networks of a service.
const MAX_NETWORKS: usize = 16;

impl Validate for MultiNetworkService {
    fn check(&self, check: &mut Check) {
        metadata::check(check, &self.metadata, &DNS_LABEL);
        let own = self.metadata.namespace.as_deref().unwrap_or_default();
        check.field("spec", |check| spec(check, &self.spec, own));
    }
}

/// Checks the spec of a service. `own` is its namespace, empty if unknown.
fn spec(check: &mut Check, spec: &MultiNetworkServiceSpec, own: &str) {
    if let Some(selector) = &spec.selector {
        check.field("selector", |check| self::selector(check, selector));
    }
    check.length("networks", spec.networks.len(), 1..=MAX_NETWORKS);
    check.items("networks", &spec.networks, common::network);
    check.unique("networks", "alias", spec.networks.iter().map(NetworkReference::alias));
    one_alias(check, &spec.networks, own);
    common::ports(check, &spec.ports);
    check.length("ipFamilies", spec.ip_families.len(), 1..=IpFamily::ALL.len());
    check.unique("ipFamilies", "", spec.ip_families.iter().map(|family| family.as_str()));
    if let Some(seconds) = spec.ttl_seconds {
        check.number("ttlSeconds", seconds, TTL_SECONDS);
    }
    if let Some(mirror) = &spec.mirror {
        check.field("mirror", |check| {
            check.text("serviceName", &mirror.service_name, &DNS_LABEL);
            check.optional("network", mirror.network.as_ref(), &DNS_LABEL);
            if let Some(alias) = mirror.network.as_deref().filter(|alias| spec.network(alias).is_none()) {
                let message = format!("must be the alias of one of the networks; {} is not", quote(alias));
                check.field("network", |check| check.fail(message));
            }
        });
    }
}

/// Requires that no network is listed under two aliases.
fn one_alias(check: &mut Check, networks: &[NetworkReference], own: &str) {
    // The first alias of each network, and the first other one.
    let mut known: HashMap<_, (&str, Option<&str>)> = HashMap::new();
    check.field("networks", |check| {
        for (index, network) in networks.iter().enumerate() {
            let alias = network.alias();
            let id = (network.kind, &network.name, network.namespace(own));
            let (first, second) = known.entry(id).or_insert((alias, None));
            let other = if *first == alias { *second } else { Some(*first) };
            if *first != alias {
                second.get_or_insert(alias);
            }
            if let Some(other) = other {
                check.entry(index, |check| {
                    check.fail(format!(
                        "each network may be listed once; {} {} is listed as {other} and {alias}: keep one of them",
                        network.kind.as_str(),
                        network.name,
                    ));
                });
            }
        }
    });
}

fn selector(check: &mut Check, selector: &LabelSelector) {
    let labels = selector.match_labels.iter().flatten();
    check.length("matchLabels", labels.clone().count(), 0..=SELECTOR_ITEMS);
    check.field("matchLabels", |check| {
        for (key, value) in labels {
            check.entry(quote(key), |check| {
                if !QUALIFIED_NAME.accepts(key) {
                    check.fail(format!("must have a key that is {QUALIFIED_NAME}"));
                }
                if !LABEL_VALUE.accepts(value) {
                    check.fail(format!("must be {LABEL_VALUE}; {} is not", quote(value)));
                }
            });
        }
    });
    let expressions = selector.match_expressions.as_deref().unwrap_or_default();
    check.length("matchExpressions", expressions.len(), 0..=SELECTOR_ITEMS);
    check.items("matchExpressions", expressions, requirement);
}

fn requirement(check: &mut Check, requirement: &LabelSelectorRequirement) {
    check.text("key", &requirement.key, &QUALIFIED_NAME);
    let values = requirement.values.as_deref().unwrap_or_default();
    check.length("values", values.len(), 0..=SELECTOR_ITEMS);
    check.items("values", values, |check, value| {
        if !LABEL_VALUE.accepts(value) {
            check.fail(format!("must be {LABEL_VALUE}; {} is not", quote(value)));
        }
    });
    let operator = requirement.operator.as_str();
    match (operator, values.is_empty()) {
        ("In" | "NotIn", false) | ("Exists" | "DoesNotExist", true) => {}
        ("In" | "NotIn", true) => {
            check.field("values", |check| {
                check.fail(format!("must not be empty for operator {operator}"));
            });
        }
        ("Exists" | "DoesNotExist", false) => {
            check.field("values", |check| {
                check.fail(format!("must be empty for operator {operator}"));
            });
        }
        _ => check.field("operator", |check| {
            check.fail(format!("must be In, NotIn, Exists or DoesNotExist; {} is not", quote(operator)));
        }),
    }
}
