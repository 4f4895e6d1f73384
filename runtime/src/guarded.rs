//! Kubernetes objects that may fail to decode, so that one bad object does not fail a whole list.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::ObjectKey;

/// Length of the excerpt that an error shows before the position where decoding failed, in bytes.
const EXCERPT: usize = 60;

/// Object of kind `K` from the API server, whether or not it decodes as a `K`.
///
/// Decoding a `Guarded<K>` fails only if the text is not JSON. `metadata.managedFields` is dropped:
/// no caller reads it, and it is often a third of an object.
#[derive(Clone, Debug)]
pub enum Guarded<K> {
    /// The object decodes as a `K`.
    Good(K),
    /// The object does not decode, because the API server's schema of the kind is another than
    /// ours.
    Bad(Box<Undecodable>),
}

/// Object that does not decode: its identity, and the error.
#[derive(Clone, Debug)]
pub struct Undecodable {
    /// Metadata with `name`, `namespace` and `resourceVersion` only, as far as these decode.
    pub metadata: ObjectMeta,
    /// Error of the decoder, with an excerpt of the text before it.
    pub error: String,
}

impl<K: Resource> Guarded<K> {
    /// Returns the object's key; `None` if it has no name, which no API server sends.
    pub fn key(&self) -> Option<ObjectKey> {
        ObjectKey::of(self.meta())
    }
}

impl<K: Resource> Resource for Guarded<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(dt)
    }

    fn group(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::group(dt)
    }

    fn version(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::version(dt)
    }

    fn plural(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(dt)
    }

    fn metadata_api() -> bool {
        K::metadata_api()
    }

    fn meta(&self) -> &ObjectMeta {
        match self {
            Self::Good(object) => object.meta(),
            Self::Bad(object) => &object.metadata,
        }
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        match self {
            Self::Good(object) => object.meta_mut(),
            Self::Bad(object) => &mut object.metadata,
        }
    }
}

impl<'de, K: Resource + DeserializeOwned> Deserialize<'de> for Guarded<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Keep the text for the case of an error. kube's DeserializeGuard keeps a tree of values,
        // which takes three times as long for an EndpointSlice of 100 endpoints, and twice for a
        // Pod.
        let text = Box::<RawValue>::deserialize(deserializer)?;
        Ok(Self::from_text(text.get()))
    }
}

impl<K: Resource + DeserializeOwned> Guarded<K> {
    fn from_text(text: &str) -> Self {
        match serde_json::from_str::<K>(text) {
            Ok(mut object) => {
                object.meta_mut().managed_fields = None;
                Self::Good(object)
            }
            Err(error) => {
                Self::Bad(Box::new(Undecodable { metadata: identity(text), error: describe(&error, text) }))
            }
        }
    }
}

/// Reads the identity of an object that does not decode, ignoring everything else in it.
fn identity(text: &str) -> ObjectMeta {
    #[derive(Default, Deserialize)]
    struct Object<'a> {
        #[serde(borrow)]
        metadata: Option<&'a RawValue>,
    }
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata<'a> {
        #[serde(borrow)]
        name: Option<&'a RawValue>,
        #[serde(borrow)]
        namespace: Option<&'a RawValue>,
        #[serde(borrow)]
        resource_version: Option<&'a RawValue>,
    }
    let object: Object<'_> = serde_json::from_str(text).unwrap_or_default();
    let metadata: Metadata<'_> =
        object.metadata.and_then(|metadata| serde_json::from_str(metadata.get()).ok()).unwrap_or_default();
    let string = |value: Option<&RawValue>| value.and_then(|value| serde_json::from_str(value.get()).ok());
    ObjectMeta {
        name: string(metadata.name),
        namespace: string(metadata.namespace),
        resource_version: string(metadata.resource_version),
        ..ObjectMeta::default()
    }
}

/// Returns the error with an excerpt of the text before its position, because serde's error has no
/// path of the field.
fn describe(error: &serde_json::Error, text: &str) -> String {
    if error.line() != 1 {
        return error.to_string();
    }
    let end = text.floor_char_boundary(error.column());
    let start = text.floor_char_boundary(end.saturating_sub(EXCERPT));
    format!("{error}, after `{}`", &text[start..end])
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::api::{ObjectList, WatchEvent};

    use super::*;

    fn decode(text: &str) -> Guarded<ConfigMap> {
        serde_json::from_str(text).unwrap()
    }

    fn bad(text: &str) -> Undecodable {
        match decode(text) {
            Guarded::Bad(object) => *object,
            Guarded::Good(object) => panic!("{object:?} should not decode"),
        }
    }

    #[test]
    fn a_good_object_loses_its_managed_fields_only() {
        let text = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"n","labels":{"l":"1"},
            "managedFields":[{"manager":"kubectl","operation":"Apply","fieldsV1":{"f:data":{}}}]},"data":{"k":"v"}}"#;
        let object = decode(text);
        assert_eq!(object.key(), Some(ObjectKey { namespace: "n".into(), name: "a".into() }));
        let Guarded::Good(object) = object else { panic!("{object:?} should decode") };
        assert_eq!(object.metadata.managed_fields, None);
        assert_eq!(object.metadata.labels, Some([("l".to_owned(), "1".to_owned())].into()));
        assert_eq!(object.data, Some([("k".to_owned(), "v".to_owned())].into()));
    }

    #[test]
    fn a_bad_object_keeps_its_identity() {
        let object = bad(r#"{"metadata":{"name":"a","namespace":"n","resourceVersion":"7"},"data":"text"}"#);
        assert_eq!(object.metadata.name.as_deref(), Some("a"));
        assert_eq!(object.metadata.namespace.as_deref(), Some("n"));
        assert_eq!(object.metadata.resource_version.as_deref(), Some("7"));
        assert!(
            object.error.contains("invalid type") && object.error.contains(r#""data":"text"#),
            "{}",
            object.error
        );
    }

    #[test]
    fn a_bad_object_keeps_the_parts_of_its_identity_that_decode() {
        let object = bad(r#"{"metadata":{"name":"a","labels":[],"resourceVersion":7},"data":{}}"#);
        assert_eq!(object.metadata.name.as_deref(), Some("a"));
        assert_eq!(object.metadata.resource_version, None);

        for nameless in ["7", "null", "[]", r#"{"metadata":"none"}"#, r#"{"metadata":{"name":["a"]}}"#] {
            assert_eq!(decode(nameless).key(), None, "{nameless}");
        }
    }

    #[test]
    fn the_excerpt_does_not_split_characters() {
        let text =
            format!(r#"{{"metadata":{{"name":"a"}},"data":{{"k":"{}"}},"immutable":"ä"}}"#, "ä".repeat(100));
        assert!(bad(&text).error.contains("ää"));
    }

    #[test]
    fn an_object_nested_too_deep_for_the_decoder_is_a_bad_object() {
        let deep = "[".repeat(1000) + &"]".repeat(1000);
        let object = bad(&format!(r#"{{"metadata":{{"name":"deep"}},"x":{deep},"data":{deep}}}"#));
        assert_eq!(object.metadata.name.as_deref(), Some("deep"));
    }

    #[test]
    fn one_bad_object_does_not_fail_a_list_or_an_event() {
        let list = r#"{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"9"},"items":[
            {"metadata":{"name":"good"}},{"metadata":{"name":"bad"},"data":7},{"metadata":{"name":"fine"}}]}"#;
        let list: ObjectList<Guarded<ConfigMap>> = serde_json::from_str(list).unwrap();
        let good: Vec<bool> = list.items.iter().map(|item| matches!(item, Guarded::Good(_))).collect();
        assert_eq!(good, [true, false, true]);

        let event = r#"{"type":"MODIFIED","object":{"metadata":{"name":"bad"},"data":7}}"#;
        match serde_json::from_str(event).unwrap() {
            WatchEvent::Modified(Guarded::<ConfigMap>::Bad(object)) => {
                assert_eq!(object.metadata.name.as_deref(), Some("bad"));
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_object_decodes_from_a_value_as_from_text() {
        let value = serde_json::json!({"metadata": {"name": "a"}, "data": {"k": "v"}});
        let object: Guarded<ConfigMap> = serde_json::from_value(value).unwrap();
        assert_eq!(object.meta().name.as_deref(), Some("a"));
    }
}
