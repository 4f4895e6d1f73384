//! Rules of metadata, which the API server checks for every object.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::check::{Check, quote};
use crate::syntax::{DNS_LABEL, DNS_SUBDOMAIN, LABEL_VALUE, QUALIFIED_NAME, TextKind};

/// Checks metadata. The object's name has to be of the kind `name`, which may be narrower than
/// Kubernetes' own rule.
pub(super) fn check(check: &mut Check, metadata: &ObjectMeta, name: &TextKind) {
    check.field("metadata", |check| {
        self::name(check, metadata, name);
        check.optional("namespace", metadata.namespace.as_ref(), &DNS_LABEL);
        check.field("labels", |check| {
            for (key, value) in metadata.labels.iter().flatten() {
                check.entry(quote(key), |check| {
                    key_of_label(check, key);
                    if !LABEL_VALUE.accepts(value) {
                        check.fail(format!("must be {LABEL_VALUE}; {} is not", quote(value)));
                    }
                });
            }
        });
        check.field("annotations", |check| {
            for key in metadata.annotations.iter().flatten().map(|(key, _)| key) {
                check.entry(quote(key), |check| key_of_label(check, &key.to_lowercase()));
            }
        });
    });
}

fn name(check: &mut Check, metadata: &ObjectMeta, kind: &TextKind) {
    match metadata.name.as_deref() {
        None | Some("") => check.field("name", |check| check.fail("must be set")),
        // Kubernetes' own rule comes first, then that of this kind.
        Some(name) => {
            check.text("name", name, if DNS_SUBDOMAIN.accepts(name) { kind } else { &DNS_SUBDOMAIN });
        }
    }
}

/// Checks a key of a label or annotation. Kubernetes limits its prefix to 253 characters and its
/// name to 63, but not both together.
fn key_of_label(check: &mut Check, key: &str) {
    let has_long_prefix = key.rsplit_once('/').is_some_and(|(prefix, _)| prefix.len() > DNS_SUBDOMAIN.max());
    if has_long_prefix || !QUALIFIED_NAME.matches(key) {
        check.fail(
            "must have a key such as name or example.com/name (name: 1 to 63 of A-Z, a-z, 0-9, -, _ and .)",
        );
    }
}
