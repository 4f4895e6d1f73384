//! The seam between a watch and the code that makes something of the objects.

use std::collections::HashSet;
use std::fmt;

/// Namespace and name of a Kubernetes object: its identity within its kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// The namespace; empty for kinds without namespaces.
    pub namespace: String,
    /// The name; never empty in what a watch hands out.
    pub name: String,
}

impl fmt::Display for ObjectKey {
    /// `namespace/name`, or only the name where there is no namespace.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.name)
    }
}

/// Something that is kept up to date with all objects of kind `K`.
///
/// An index never sees streams, errors or clients, so that its tests are plain calls. [`watch`](crate::watch())
/// is what calls it in production, from one task and in the order in which the API server tells of
/// the changes. The calls should be short: nothing else of that watch happens meanwhile.
pub trait Index<K>: Send + Sync {
    /// `object` is new or has changed. The same version may be applied more than once.
    fn apply(&self, object: K);

    /// The object is gone. It may be one that was never applied.
    fn delete(&self, key: &ObjectKey);

    /// A list begins: up to its reset, what is applied may be a part of the whole. A list that breaks off is followed by another one.
    fn start(&self) {}

    /// End of a list: what was applied in it is current, and what is not in `live` is gone.
    ///
    /// A key in `live` need not have been applied: an object that cannot be decoded is alive, and its last
    /// good version stays. The first reset means that the index is in sync. Later ones follow whenever
    /// changes may have been missed.
    fn reset(&self, live: &HashSet<ObjectKey>);

    /// No further event is ready right now: publish what the calls before have changed.
    ///
    /// A burst of events is followed by one commit, which lets an index do the work per object or
    /// group once for the burst. Within a list there is none until its reset; a list that
    /// breaks off half-way is committed without one.
    fn commit(&self);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_shows_its_namespace_only_if_it_has_one() {
        let key = |namespace: &str| ObjectKey { namespace: namespace.into(), name: "infer".into() };
        assert_eq!(key("vision").to_string(), "vision/infer");
        assert_eq!(key("").to_string(), "infer");
    }
}
