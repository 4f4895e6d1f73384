//! The order of the versions of an object, by `resourceVersion`.

use kube::Resource;

/// Returns whether `new` is a newer version than `old`. Versions of one kind compare as numbers
/// (documented since Kubernetes 1.35, and always true for etcd). A version that is no number counts
/// as newer if it differs.
pub(super) fn is_newer<S: Resource>(new: &S, old: &S) -> bool {
    let version =
        |object: &S| object.meta().resource_version.as_deref().and_then(|text| text.parse::<u128>().ok());
    match (version(new), version(old)) {
        (Some(new), Some(old)) => new > old,
        _ => new.meta().resource_version != old.meta().resource_version,
    }
}

/// Returns whether the version that the watch shows replaces the known one: it is newer, or it is
/// another version in a list that is made after the known one was seen (`was_seen`). An older
/// version in such a list comes from a restored backup.
pub(super) fn supersedes<S: Resource>(shown: &S, known: &S, was_seen: bool) -> bool {
    is_newer(shown, known) || was_seen && shown.meta().resource_version != known.meta().resource_version
}
