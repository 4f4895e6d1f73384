//! Limits of keys, by which no namespace fills etcd (pure).
//!
//! A service has keys for as many of its endpoints as fit into its limit, in the order of their
//! host names. If the services of a namespace have more keys than it may have, the newest that do
//! not fit have none. Both depend on the objects only, not on the order of their changes.

use std::collections::{BTreeMap, BTreeSet};

use multinet_runtime::ObjectKey;
use tracing::warn;

use crate::keys::Share;
use crate::limits::keys::{MAX_KEYS_OF_NAMESPACE, MAX_KEYS_OF_SERVICE};

/// Keys of all services, and the services that have none.
#[derive(Debug, Default)]
pub struct Quota {
    /// Creation time and share of each service.
    shares: BTreeMap<ObjectKey, (i64, Share)>,
    refused: BTreeSet<ObjectKey>,
}

/// Number of what has no keys because of a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Services beyond the limit of their namespace.
    pub services: usize,
    /// Endpoints beyond the limit of their service.
    pub endpoints: usize,
}

impl Quota {
    /// Sets the creation time and the share of a service; `None` if it has no ready endpoint.
    pub fn set(&mut self, key: &ObjectKey, share: Option<(i64, Share)>) {
        let before = self.shares.remove(key).map_or(0, |(_, share)| share.left_out);
        let Some((created, share)) = share else {
            self.refused.remove(key);
            return;
        };
        if share.left_out > 0 && before == 0 {
            warn!(
                namespace = key.namespace,
                service = key.name,
                endpoints = share.left_out,
                "the service has more than {MAX_KEYS_OF_SERVICE} keys, so that its last endpoints have none: split it, \
                 or give it fewer ports"
            );
        }
        self.shares.insert(key.clone(), (created, share));
    }

    /// Decides anew which services of a namespace have keys. Returns those for which that changes.
    pub fn settle(&mut self, namespace: &str) -> Vec<ObjectKey> {
        let first = ObjectKey { namespace: namespace.to_owned(), name: String::new() };
        let services = self.shares.range(first..).take_while(|(key, _)| key.namespace == namespace);
        let mut services: Vec<_> =
            services.map(|(key, (created, share))| (created, key, share.keys)).collect();
        let fits = services.iter().map(|(_, _, keys)| keys).sum::<usize>() <= MAX_KEYS_OF_NAMESPACE;
        if fits && self.refused.is_empty() {
            return Vec::new();
        }
        services.sort_unstable();
        let (mut room, mut changed) = (MAX_KEYS_OF_NAMESPACE, Vec::new());
        for (_, key, keys) in services {
            let fits = keys <= room;
            if fits {
                room -= keys;
            }
            if self.refused.contains(key) == fits {
                changed.push(key.clone());
            }
        }
        for key in &changed {
            if !self.refused.remove(key) {
                warn!(
                    namespace,
                    service = key.name,
                    "the services of the namespace have more than {MAX_KEYS_OF_NAMESPACE} keys, so that this one has \
                     none: delete services, or give them fewer ports"
                );
                self.refused.insert(key.clone());
            }
        }
        changed
    }

    /// Returns whether a service has keys.
    pub fn admits(&self, key: &ObjectKey) -> bool {
        !self.refused.contains(key)
    }

    /// Returns the number of services and endpoints without keys.
    pub fn left_out(&self) -> LeftOut {
        LeftOut {
            services: self.refused.len(),
            endpoints: self.shares.values().map(|(_, share)| share.left_out).sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey { namespace: "red".into(), name: name.into() }
    }

    fn share(keys: usize) -> Share {
        Share { endpoints: 1, left_out: 0, keys }
    }

    #[test]
    fn the_newest_services_that_do_not_fit_have_no_keys() {
        let half = MAX_KEYS_OF_NAMESPACE / 2;
        let mut quota = Quota::default();
        let other = ObjectKey { namespace: "blue".into(), name: "a".into() };
        quota.set(&other, Some((9, share(half))));
        // The order of changes does not matter, only the age.
        for (name, created, keys) in [("d", 4, 1), ("c", 3, half), ("b", 2, half), ("a", 1, half)] {
            quota.set(&key(name), Some((created, share(keys))));
        }
        assert_eq!(quota.settle("red"), [key("c"), key("d")]);
        assert!(quota.settle("blue").is_empty() && quota.admits(&other));
        assert!(quota.settle("red").is_empty());
        assert!(quota.admits(&key("a")) && quota.admits(&key("b")) && !quota.admits(&key("c")));
        assert_eq!(quota.left_out().services, 2);

        // A small service fits beside larger ones that do not.
        quota.set(&key("b"), Some((2, share(half - 1))));
        assert_eq!(quota.settle("red"), [key("d")]);
        quota.set(&key("a"), None);
        assert_eq!(quota.settle("red"), [key("c")]);
        quota.set(&key("d"), None);
        assert_eq!((quota.settle("red"), quota.left_out()), (Vec::new(), LeftOut::default()));
    }
}
