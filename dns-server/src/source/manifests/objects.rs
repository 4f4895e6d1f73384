//! Extraction of objects from documents: services and slices, good or bad. Pure.

use std::fmt;

use multinet_crds::labels;
pub(super) use multinet_crds::manifest::Kind;
use multinet_crds::manifest::{self, Manifest, Object};
use multinet_crds::validate::Violation;
use multinet_runtime::ObjectKey;
use serde_json::{Map, Value};

use super::documents::{self, Document};

/// Namespace of an object whose manifest names none, as with kubectl.
const DEFAULT_NAMESPACE: &str = "default";

/// The API group and version that are served.
const GROUP: &str = "multinetwork.numaproj.io";
const VERSION: &str = "v1alpha1";

/// Identity of an object, whichever file defines it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ObjectId {
    pub(super) kind: Kind,
    pub(super) key: ObjectKey,
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.key.namespace, self.key.name)
    }
}

/// Result of parsing one possible object of a document.
#[derive(Debug)]
pub(super) enum Candidate {
    /// An object that may be served, with faults of fields that are ignored or doubtful.
    Good(ObjectId, Object, Vec<Violation>),
    /// An object that may not be served, by name if it has one.
    Bad(Option<ObjectId>, Vec<Violation>),
    /// An object with our group or kind, but another version or an unknown kind.
    Unsupported(Violation),
}

/// A possible object, and its place in the manifest file.
#[derive(Debug)]
pub(super) struct ManifestItem {
    /// Number of the object's document in the file, from 1.
    pub(super) document: usize,
    /// Line of the file on which the object's document begins, from 1.
    pub(super) line: u64,
    pub(super) found: Candidate,
}

/// Returns all possible objects of a file, or the reason why it cannot be parsed.
pub(super) fn items(bytes: &[u8]) -> Result<Vec<ManifestItem>, String> {
    let items = documents::parse(bytes)?.into_iter().flat_map(|document| {
        let (number, line) = (document.number, document.line);
        candidates(document).into_iter().map(move |found| ManifestItem { document: number, line, found })
    });
    Ok(items.collect())
}

/// Returns the possible objects of a document: one, several from a list, or none.
fn candidates(document: Document) -> Vec<Candidate> {
    let mut found = Vec::new();
    collect_candidates(document.value, None, "", &mut found);
    found
}

/// Collects the possible objects in `value`. `listed` is the kind of the items of a typed list,
/// which need not name it themselves. `path` is the path of the value.
fn collect_candidates(mut value: Value, listed: Option<Kind>, path: &str, found: &mut Vec<Candidate>) {
    if let Some(kind) = listed
        && let Some(object) = value.as_object_mut()
    {
        object.entry("kind").or_insert_with(|| kind.to_string().into());
        object.entry("apiVersion").or_insert_with(|| format!("{GROUP}/{VERSION}").into());
    }
    let text = |field: &str| value.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (kind, version) = (text("kind"), text("apiVersion"));
    if let Some(of) = kind.strip_suffix("List")
        && let Some(Value::Array(items)) = value.get_mut("items").map(Value::take)
    {
        let listed: Option<Kind> = of.parse().ok().filter(|_| is_ours(&version));
        for (position, item) in items.into_iter().enumerate() {
            collect_candidates(item, listed, &format!("{path}items[{position}]."), found);
        }
        return;
    }
    match kind.parse::<Kind>().ok() {
        Some(kind) if is_ours(&version) => found.push(parse_object(kind, value, path)),
        Some(kind) => {
            let field = format!("{path}apiVersion");
            let message = format!("a {kind} is served if it says {GROUP}/{VERSION}, not {version:?}");
            found.push(Candidate::Unsupported(Violation::new(field, message)));
        }
        None if version.split('/').next() == Some(GROUP) => {
            let message = format!("{kind:?} is no kind of {GROUP} that is served");
            found.push(Candidate::Unsupported(Violation::new(format!("{path}kind"), message)));
        }
        None => {}
    }
}

fn is_ours(version: &str) -> bool {
    version.split_once('/') == Some((GROUP, VERSION))
}

fn parse_object(kind: Kind, mut value: Value, path: &str) -> Candidate {
    let id = match identify(kind, &mut value) {
        Ok(id) => id,
        Err(fault) => return Candidate::Bad(None, vec![with_prefix(path, fault)]),
    };
    let fault = |field: &str, message: &str| with_prefix(path, Violation::new(field, message));
    match manifest::admit(kind, value) {
        Ok(Manifest { object, ignored }) => {
            let doubt =
                |field: &String| fault(field, "is no field of the API and is ignored; is it misspelt?");
            let mut doubts: Vec<Violation> = ignored.iter().map(doubt).collect();
            if kind == Kind::Slice && !has_service(&object) {
                let message = "is not set, so that the slice belongs to no service";
                doubts.push(fault(&format!("metadata.labels[{}]", labels::SERVICE_NAME), message));
            }
            Candidate::Good(id, object, doubts)
        }
        Err(violations) => {
            let violations = violations.into_iter().map(|violation| with_prefix(path, violation));
            Candidate::Bad(Some(id), violations.collect())
        }
    }
}

fn has_service(object: &Object) -> bool {
    let labels = object.metadata().labels.as_ref();
    labels.is_some_and(|all| all.contains_key(labels::SERVICE_NAME))
}

/// Returns the object's identity, and fills in the default namespace if it has none.
fn identify(kind: Kind, value: &mut Value) -> Result<ObjectId, Violation> {
    let metadata = value
        .get_mut("metadata")
        .and_then(Value::as_object_mut)
        .ok_or_else(|| Violation::new("metadata", "must be set"))?;
    let name = text(metadata, "name")?.ok_or_else(|| Violation::new("metadata.name", "must be set"))?;
    let namespace = text(metadata, "namespace")?.unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned());
    metadata.insert("namespace".to_owned(), namespace.as_str().into());
    Ok(ObjectId { kind, key: ObjectKey { namespace, name } })
}

/// Returns a text of the metadata; `None` if it is absent, null or empty.
fn text(metadata: &Map<String, Value>, field: &str) -> Result<Option<String>, Violation> {
    match metadata.get(field) {
        Some(Value::String(text)) => Ok(Some(text.clone()).filter(|text| !text.is_empty())),
        Some(Value::Null) | None => Ok(None),
        Some(other) => {
            let message = format!("must be a string, is {other}; quote it");
            Err(Violation::new(format!("metadata.{field}"), message))
        }
    }
}

/// Puts the path of a list's item in front of a fault's field.
fn with_prefix(path: &str, fault: Violation) -> Violation {
    Violation { field: format!("{path}{}", fault.field), ..fault }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns the possible objects of a document, one per line.
    fn found(value: Value) -> Vec<String> {
        let join =
            |faults: Vec<Violation>| faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        let found = candidates(Document { number: 1, line: 1, value });
        let lines = found.into_iter().map(|found| match found {
            Candidate::Good(id, object, doubts) => {
                let metadata = object.metadata();
                assert_eq!(metadata.namespace.as_ref(), Some(&id.key.namespace));
                assert_eq!(metadata.name.as_ref(), Some(&id.key.name));
                format!("{id}, {}", join(doubts))
            }
            Candidate::Bad(Some(id), faults) => format!("bad {id}, {}", join(faults)),
            Candidate::Bad(None, faults) => format!("bad, {}", join(faults)),
            Candidate::Unsupported(fault) => format!("strange, {fault}"),
        });
        lines.collect()
    }

    fn service(metadata: Value) -> Value {
        json!({
            "apiVersion": "multinetwork.numaproj.io/v1alpha1",
            "kind": "MultiNetworkService",
            "metadata": metadata,
            "spec": {"networks": [{"name": "rail0"}]},
        })
    }

    fn with(mut value: Value, field: &str, to: Value) -> Value {
        value[field] = to;
        value
    }

    #[test]
    fn an_object_is_identified_by_kind_namespace_and_name() {
        let x = || service(json!({"name": "x", "namespace": "vision"}));
        let cases = [
            (x(), vec!["MultiNetworkService vision/x, "]),
            (service(json!({"name": "x"})), vec!["MultiNetworkService default/x, "]),
            (service(json!({"name": "x", "namespace": null})), vec!["MultiNetworkService default/x, "]),
            (service(json!({"name": "x", "namespace": ""})), vec!["MultiNetworkService default/x, "]),
            (service(json!({"name": true})), vec!["bad, metadata.name: must be a string, is true; quote it"]),
            (
                service(json!({"name": "x", "namespace": 5})),
                vec!["bad, metadata.namespace: must be a string, is 5; quote it"],
            ),
            (service(json!({"name": ""})), vec!["bad, metadata.name: must be set"]),
            (service(json!({"generateName": "x-"})), vec!["bad, metadata.name: must be set"]),
            (service(json!("x")), vec!["bad, metadata: must be set"]),
            (
                with(x(), "spec", json!({})),
                vec!["bad MultiNetworkService vision/x, spec.networks: must be set"],
            ),
            (
                with(x(), "status", json!({"endpoints": {"ready": 3, "total": 4}})),
                vec!["MultiNetworkService vision/x, "],
            ),
            (
                with(x(), "spce", json!({})),
                vec![
                    "MultiNetworkService vision/x, spce: is no field of the API and is ignored; is it misspelt?",
                ],
            ),
            (
                with(x(), "kind", json!("MultiNetworkEndpointSlice")),
                vec![
                    "bad MultiNetworkEndpointSlice vision/x, spec.addressType: must be set; spec.network: must be set",
                ],
            ),
        ];
        for (value, expected) in cases {
            assert_eq!(found(value.clone()), expected, "{value}");
        }
    }

    #[test]
    fn a_slice_should_name_its_service() {
        let slice = |labels: Value| {
            json!({
                "apiVersion": "multinetwork.numaproj.io/v1alpha1",
                "kind": "MultiNetworkEndpointSlice",
                "metadata": {"name": "x", "labels": labels},
                "spec": {"addressType": "IPv4", "network": {"name": "rail0"}, "endpoints": []},
            })
        };
        assert_eq!(
            found(slice(json!({"multinetwork.numaproj.io/service-name": "x"}))),
            ["MultiNetworkEndpointSlice default/x, ",]
        );
        assert_eq!(
            found(slice(json!({}))),
            [
                "MultiNetworkEndpointSlice default/x, metadata.labels[multinetwork.numaproj.io/service-name]: is not \
             set, so that the slice belongs to no service",
            ]
        );
    }

    #[test]
    fn an_object_of_another_kind_or_version_is_passed_over() {
        let x = || service(json!({"name": "x"}));
        let cases = [
            (json!("text"), vec![]),
            (json!([x()]), vec![]),
            (json!({"a": 1}), vec![]),
            (json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}}), vec![]),
            (json!({"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}), vec![]),
            (json!({"apiVersion": 1, "kind": ["MultiNetworkService"]}), vec![]),
            (
                with(x(), "apiVersion", json!("multinetwork.numaproj.io/v1")),
                vec![
                    "strange, apiVersion: a MultiNetworkService is served if it says multinetwork.numaproj.io/v1alpha1, \
                 not \"multinetwork.numaproj.io/v1\"",
                ],
            ),
            (
                with(x(), "apiVersion", json!(null)),
                vec![
                    "strange, apiVersion: a MultiNetworkService is served if it says multinetwork.numaproj.io/v1alpha1, not \"\"",
                ],
            ),
            (
                with(x(), "kind", json!("MultinetworkService")),
                vec![
                    "strange, kind: \"MultinetworkService\" is no kind of multinetwork.numaproj.io that is served",
                ],
            ),
        ];
        for (value, expected) in cases {
            assert_eq!(found(value.clone()), expected, "{value}");
        }
    }

    #[test]
    fn items_of_a_list_are_found() {
        let list = |kind: &str, version: &str, items: Vec<Value>| json!({"apiVersion": version, "kind": kind, "items": items});
        let untyped =
            |name: &str| json!({"metadata": {"name": name}, "spec": {"networks": [{"name": "rail0"}]}});
        let (x, bad) =
            (service(json!({"name": "x"})), with(service(json!({"name": "b"})), "spec", json!({})));
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}});
        assert_eq!(
            found(list("List", "v1", vec![pod, x.clone(), bad])),
            [
                "MultiNetworkService default/x, ",
                "bad MultiNetworkService default/b, items[2].spec.networks: must be set",
            ]
        );
        assert_eq!(
            found(list("MultiNetworkServiceList", "multinetwork.numaproj.io/v1alpha1", vec![untyped("x")])),
            ["MultiNetworkService default/x, ",]
        );
        assert_eq!(
            found(list("List", "v1", vec![list("List", "v1", vec![x])])),
            ["MultiNetworkService default/x, "]
        );
        assert!(found(list("PodList", "v1", vec![untyped("x")])).is_empty());
        assert!(found(json!({"apiVersion": "v1", "kind": "List"})).is_empty());
    }
}
