//! Interface between a watch and the code that keeps the objects.

use std::collections::HashSet;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Namespace and name of a Kubernetes object, which identify it within its kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// Namespace of the object; empty for cluster-scoped kinds.
    pub namespace: String,
    /// Name of the object; never empty in the keys that a watch passes on.
    pub name: String,
}

impl ObjectKey {
    /// Returns the key of the object that has this metadata; `None` if it has no name.
    pub fn of(metadata: &ObjectMeta) -> Option<Self> {
        Some(Self::from(metadata)).filter(|key| !key.name.is_empty())
    }

    /// Returns the key of the object `name` in the same namespace.
    #[must_use]
    pub fn beside(&self, name: impl Into<String>) -> Self {
        Self { namespace: self.namespace.clone(), name: name.into() }
    }
}

/// Takes namespace and name as they are; absent ones are empty.
impl From<&ObjectMeta> for ObjectKey {
    fn from(metadata: &ObjectMeta) -> Self {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        Self { namespace: text(&metadata.namespace), name: text(&metadata.name) }
    }
}

impl fmt::Display for ObjectKey {
    /// Formats as `namespace/name`, or only the name for cluster-scoped kinds.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.name)
    }
}

/// Store that a watch keeps up to date with all objects of kind `K`.
///
/// An index sees no streams, errors or clients, so that tests call it directly. In production
/// [`watch`](crate::watch()) calls it, from one task and in the order of the API server's events.
/// Calls should be short, because they hold up the watch.
pub trait Index<K>: Send + Sync {
    /// Adds or replaces an object. The same version may be applied more than once.
    fn apply(&self, object: K);

    /// Removes an object. It may be one that was never applied.
    fn delete(&self, key: &ObjectKey);

    /// Begins a list of all objects. Until [`reset`](Self::reset), the applied objects may be only
    /// a part of them. A list that breaks off is followed by another `start`.
    fn start(&self) {}

    /// Ends a list: removes all objects whose keys are not in `live`.
    ///
    /// A key in `live` need not have been applied: an object that cannot be decoded still exists,
    /// and its last good version stays. After the first reset the index is in sync. Later resets
    /// follow whenever the watch may have missed changes.
    fn reset(&self, live: &HashSet<ObjectKey>);

    /// Publishes the changes of the calls before. Called when no further event is ready.
    ///
    /// A burst of events is followed by one commit, so that an index can do its work per object or
    /// group once for the burst. Within a list, the first commit follows its reset. A list that
    /// breaks off is committed without a reset.
    fn commit(&self);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_without_a_namespace_shows_only_its_name() {
        let key = |namespace: &str| ObjectKey { namespace: namespace.into(), name: "infer".into() };
        assert_eq!(key("vision").to_string(), "vision/infer");
        assert_eq!(key("").to_string(), "infer");
    }
}
