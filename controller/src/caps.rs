//! Limits on the addresses that are published: of a pod on a network, of a service, of a namespace (pure).
//!
//! multinet-dns has every address in memory, so that without limits one tenant could take what is there for all. Where there are too
//! many, nothing that is published makes way for something new: published addresses stay first, then come those of older pods.
//!
//! How many a namespace has is kept as it changes. A service counts with what it was last given or what its slices still hold,
//! whichever is more, and with what others have written for it; a process that has just started knows its slices only. Services that
//! got less than they have wait for room, and are told one at a time when there is some.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::Hash;

use multinet_crds::conditions::CappedReason;
use multinet_runtime::ObjectKey;

use crate::name_summary::NameSummary;

/// The limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Most addresses of a pod on a network.
    pub pod: usize,
    /// Most addresses of a service, on all of its networks together.
    pub service: usize,
    /// Most addresses of all services of a namespace.
    pub namespace: usize,
}

impl Default for Caps {
    fn default() -> Self {
        Self { pod: 64, service: 50_000, namespace: 200_000 }
    }
}

/// How many addresses the controller may publish for a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// The limits, for people.
    pub caps: Caps,
    /// The rest of the service's own limit, less the addresses that others have written for it.
    pub service: usize,
    /// Everything else in the namespace leaves so many of its limit.
    pub namespace: usize,
}

impl Room {
    /// Returns how many addresses there is room for, and the limit that says so.
    pub fn most(&self) -> (usize, CappedReason) {
        if self.namespace <= self.service {
            (self.namespace, CappedReason::AddressesPerNamespace)
        } else {
            (self.service, CappedReason::AddressesPerService)
        }
    }
}

/// Chooses which things stay if there is room for so many: published ones first, then in their order.
pub(crate) fn choose<T: Eq + Hash>(
    room: usize,
    things: impl Iterator<Item = T> + Clone,
    is_published: impl Fn(&T) -> bool,
) -> HashSet<T> {
    let published = things.clone().filter(&is_published);
    let new = things.filter(|thing| !is_published(thing));
    published.chain(new).take(room).collect()
}

/// Addresses of a service that limits leave out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capped {
    /// Pods that have more addresses on a network than are published.
    pub pods: NameSummary,
    /// How many addresses of theirs are left out for that.
    pub beyond_pods: usize,
    /// How many more are left out, and by which limit.
    pub beyond: Option<(CappedReason, usize)>,
    /// The limits.
    pub caps: Caps,
}

impl Capped {
    /// Returns the reason of the condition, if any addresses are left out.
    pub fn reason(&self) -> Option<CappedReason> {
        let by_pod = (self.beyond_pods > 0).then_some(CappedReason::AddressesPerPod);
        self.beyond.map(|(reason, _)| reason).or(by_pod)
    }

    /// Returns what is left out, why, and what to do.
    pub fn message(&self) -> String {
        let Caps { pod, service, namespace } = self.caps;
        let mut parts = Vec::new();
        if let Some((reason, count)) = self.beyond {
            let (limit, of, remedy, flag) = match reason {
                CappedReason::AddressesPerNamespace => (
                    namespace,
                    "namespace",
                    "remove services that nothing asks for, or move some to another namespace",
                    "--max-addresses-per-namespace",
                ),
                _ => (
                    service,
                    "service",
                    "divide its pods or networks among several services",
                    "--max-addresses-per-service",
                ),
            };
            parts.push(format!(
                "{count} addresses are left out, since at most {limit} of a {of} are published: {remedy}, or have {flag} of \
                 multinet-controller raised"
            ));
        }
        if self.beyond_pods > 0 {
            let (count, pods) = (self.beyond_pods, &self.pods);
            parts.push(format!(
                "{count} addresses are left out, since at most {pod} of a pod on a network are published ({pods}): give the pods fewer, or \
                 have --max-addresses-per-pod of multinet-controller raised"
            ));
        }
        parts.join("; ")
    }
}

/// How many addresses there are, by service and namespace.
#[derive(Debug)]
pub struct Counts {
    caps: Caps,
    services: HashMap<ObjectKey, Count>,
    namespaces: HashMap<String, Namespace>,
}

/// The addresses of a service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    /// It was last given so many.
    given: usize,
    /// Its slices that the controller has written hold so many.
    written: usize,
    /// Its other slices hold so many.
    foreign: usize,
}

#[derive(Debug, Default)]
struct Namespace {
    /// The addresses of all its services.
    total: usize,
    /// Sum of the addresses that its services were given, and of those that others have written for them.
    promised: usize,
    /// Services that got less than they have.
    waiting: BTreeSet<String>,
}

impl Count {
    fn own(self) -> usize {
        self.given.max(self.written)
    }

    fn all(self) -> usize {
        self.own() + self.foreign
    }
}

impl Counts {
    /// None yet.
    pub fn new(caps: Caps) -> Self {
        Self { caps, services: HashMap::new(), namespaces: HashMap::new() }
    }

    /// Returns how many addresses the controller may publish for a service.
    pub fn room(&self, service: &ObjectKey) -> Room {
        let count = self.services.get(service).copied().unwrap_or_default();
        let namespace = self.namespaces.get(&service.namespace);
        let (total, promised) = namespace.map_or((0, 0), |namespace| (namespace.total, namespace.promised));
        // While another service's endpoints move from slice to slice, its slices hold more than it was given: that is no reason
        // to take away what this one was given.
        let kept = count.given.min(self.caps.namespace.saturating_sub(promised - count.given));
        Room {
            caps: self.caps,
            service: self.caps.service.saturating_sub(count.foreign),
            namespace: self.caps.namespace.saturating_sub(total - count.own()).max(kept),
        }
    }

    /// Notes how many addresses a service was given, and whether it waits for room in its namespace. Returns the service that there is
    /// room for now.
    pub fn set_given(&mut self, service: &ObjectKey, given: usize, waits: bool) -> Option<ObjectKey> {
        let waiting = &mut self.namespaces.entry(service.namespace.clone()).or_default().waiting;
        if waits {
            waiting.insert(service.name.clone());
        } else {
            waiting.remove(&service.name);
        }
        self.change(service, |count| count.given = given)
    }

    /// Notes how many addresses the slices of a service hold that the controller has written. Returns the service that there is room
    /// for now.
    pub fn set_written(&mut self, service: &ObjectKey, written: usize) -> Option<ObjectKey> {
        self.change(service, |count| count.written = written)
    }

    /// Notes how many addresses the other slices of a service hold. Returns the service that there is room for now.
    pub fn set_foreign(&mut self, service: &ObjectKey, foreign: usize) -> Option<ObjectKey> {
        self.change(service, |count| count.foreign = foreign)
    }

    /// Forgets what services were given, and which wait for room, when another process may have decided in between.
    pub fn forget_given(&mut self) {
        let services: Vec<ObjectKey> = self.services.keys().cloned().collect();
        for service in &services {
            self.change(service, |count| count.given = 0);
        }
        self.namespaces.values_mut().for_each(|namespace| namespace.waiting.clear());
        self.namespaces.retain(|_, namespace| namespace.total > 0);
    }

    fn change(&mut self, service: &ObjectKey, change: impl FnOnce(&mut Count)) -> Option<ObjectKey> {
        let before = self.services.remove(service).unwrap_or_default();
        let mut after = before;
        change(&mut after);
        if after != Count::default() {
            self.services.insert(service.clone(), after);
        }
        let namespace = self.namespaces.entry(service.namespace.clone()).or_default();
        namespace.total = namespace.total - before.all() + after.all();
        namespace.promised =
            namespace.promised - (before.given + before.foreign) + after.given + after.foreign;
        if namespace.total == 0 && namespace.waiting.is_empty() {
            self.namespaces.remove(&service.namespace);
            return None;
        }
        let next = namespace.waiting.first().filter(|_| namespace.total < self.caps.namespace)?;
        Some(ObjectKey { namespace: service.namespace.clone(), name: next.clone() })
    }
}

#[cfg(test)]
mod tests;
