//! Check for any manifest file: YAML, JSON, streams, lists or garbage. Reading it ends without a
//! panic.

/// Reads a manifest.
pub(crate) fn check(bytes: &[u8]) {
    multinet_dns::source::manifests::count_served(bytes);
}
