//! Selects the parts of an object's metadata to keep.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};

use super::Kind;

/// Choice of the labels or annotations that a view keeps.
#[derive(Clone, Copy, Debug)]
pub enum Keep {
    /// No labels or annotations.
    None,
    /// Labels or annotations with these keys.
    Only(&'static [&'static str]),
    /// Labels or annotations with keys that this function accepts.
    If(fn(&str) -> bool),
    /// All labels or annotations.
    All,
}

/// Metadata that identifies an object, its times, and the labels and annotations that its kind
/// keeps.
#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase", bound = "")]
struct Metadata<K: Kind> {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    #[serde(default, deserialize_with = "labels::<K, _>")]
    labels: Option<BTreeMap<String, String>>,
    #[serde(default, deserialize_with = "annotations::<K, _>")]
    annotations: Option<BTreeMap<String, String>>,
    owner_references: Option<Vec<OwnerReference>>,
    #[serde(skip)]
    kind: PhantomData<K>,
}

/// Deserializes the metadata of an object of kind `K`.
pub(super) fn decode<'de, K: Kind, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let Metadata::<K> {
        name,
        namespace,
        uid,
        resource_version,
        generation,
        creation_timestamp,
        deletion_timestamp,
        labels,
        annotations,
        owner_references,
        kind: PhantomData,
    } = serde::Deserialize::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name,
        namespace,
        uid,
        resource_version,
        generation,
        creation_timestamp,
        deletion_timestamp,
        labels,
        annotations,
        owner_references: owner_references.filter(|_| K::OWNERS),
        ..ObjectMeta::default()
    })
}

type Texts = Option<BTreeMap<String, String>>;

fn labels<'de, K: Kind, D: Deserializer<'de>>(deserializer: D) -> Result<Texts, D::Error> {
    deserializer.deserialize_option(TextsVisitor(K::LABELS))
}

fn annotations<'de, K: Kind, D: Deserializer<'de>>(deserializer: D) -> Result<Texts, D::Error> {
    deserializer.deserialize_option(TextsVisitor(K::ANNOTATIONS))
}

struct TextsVisitor(Keep);

impl<'de> Visitor<'de> for TextsVisitor {
    type Value = Texts;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("texts by key")
    }

    fn visit_none<E>(self) -> Result<Texts, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Texts, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Texts, D::Error> {
        deserializer.deserialize_map(self)
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Texts, M::Error> {
        let mut kept = BTreeMap::new();
        while let Some(key) = map.next_key_seed(Key(self.0))? {
            match key {
                Some(key) => {
                    kept.insert(key, map.next_value()?);
                }
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(Some(kept).filter(|kept| !kept.is_empty()))
    }
}

/// Deserializer of the key of a label or annotation: `None` if the view does not keep it.
struct Key(Keep);

impl<'de> DeserializeSeed<'de> for Key {
    type Value = Option<String>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<String>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Key {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<Option<String>, E> {
        let is_kept = match self.0 {
            Keep::None => false,
            Keep::Only(keys) => keys.contains(&key),
            Keep::If(accepts) => accepts(key),
            Keep::All => true,
        };
        Ok(is_kept.then(|| key.to_owned()))
    }
}
