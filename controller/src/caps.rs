//! Limits on published addresses: per pod and network, per service, and per namespace (pure).
//!
//! multinet-dns keeps every address in memory. Without limits, one tenant could use up memory that
//! all tenants share. Addresses above a limit are left out. Published addresses stay; the others
//! follow by the age of their pods.
//!
//! The number of addresses per namespace is kept up to date incrementally. A service counts with
//! the larger of two numbers: the addresses it was last given, and those its slices still contain.
//! Addresses that others publish for the service are added. A process that has just started knows
//! the slices only. Services that got fewer addresses than they have wait for room in the
//! namespace. They are queued one at a time when room appears.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::Hash;

use multinet_crds::conditions::CappedReason;
use multinet_runtime::ObjectKey;

use crate::name_summary::NameSummary;

/// Limits on the number of published addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Maximum number of addresses that are published for a pod on one network.
    pub pod: usize,
    /// Maximum number of addresses that are published for a service, over all of its networks.
    pub service: usize,
    /// Maximum number of addresses that are published for all services of a namespace together.
    pub namespace: usize,
}

impl Default for Caps {
    fn default() -> Self {
        Self { pod: 64, service: 50_000, namespace: 200_000 }
    }
}

/// Number of addresses that the controller may publish for a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// The configured limits, which messages about left-out addresses name.
    pub caps: Caps,
    /// The limit per service, less the addresses that other writers publish for the service.
    pub service: usize,
    /// The namespace's limit, less the addresses of all other services in the namespace and of
    /// others for this service.
    pub namespace: usize,
}

impl Room {
    /// Returns the smaller of the two limits, with the reason that names it.
    pub fn most(&self) -> (usize, CappedReason) {
        if self.namespace <= self.service {
            (self.namespace, CappedReason::AddressesPerNamespace)
        } else {
            (self.service, CappedReason::AddressesPerService)
        }
    }
}

/// Chooses `room` of `things`: published ones first, then the others in their order.
pub(crate) fn choose<T: Eq + Hash>(
    room: usize,
    things: impl Iterator<Item = T> + Clone,
    is_published: impl Fn(&T) -> bool,
) -> HashSet<T> {
    let published = things.clone().filter(&is_published);
    let new = things.filter(|thing| !is_published(thing));
    published.chain(new).take(room).collect()
}

/// Addresses of a service that are left out because of limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capped {
    /// Pods with more addresses on a network than the limit per pod.
    pub pods: NameSummary,
    /// Number of addresses left out because of the limit per pod.
    pub beyond_pods: usize,
    /// The limit of the service or namespace that applies, and the number of addresses left out
    /// because of it.
    pub beyond: Option<(CappedReason, usize)>,
    /// The configured limits, which the condition's message names.
    pub caps: Caps,
}

impl Capped {
    /// Returns the reason for condition Capped; `None` if nothing is left out.
    pub fn reason(&self) -> Option<CappedReason> {
        let by_pod = (self.beyond_pods > 0).then_some(CappedReason::AddressesPerPod);
        self.beyond.map(|(reason, _)| reason).or(by_pod)
    }

    /// Returns the condition's message: how many addresses are left out, why, and what to do.
    pub fn message(&self) -> String {
        let Caps { pod, service, namespace } = self.caps;
        let mut parts = Vec::new();
        if let Some((reason, count)) = self.beyond {
            let (limit, of, remedy, flag) = match reason {
                CappedReason::AddressesPerNamespace => (
                    namespace,
                    "namespace",
                    "delete unused services, or move some to another namespace",
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
                "{count} addresses are left out, since at most {limit} of a {of} are published: {remedy}, or raise {flag} of \
                 multinet-controller"
            ));
        }
        if self.beyond_pods > 0 {
            let (count, pods) = (self.beyond_pods, &self.pods);
            parts.push(format!(
                "{count} addresses are left out, since at most {pod} of a pod on a network are published ({pods}): give the pods fewer, or \
                 raise --max-addresses-per-pod of multinet-controller"
            ));
        }
        parts.join("; ")
    }
}

/// Numbers of published addresses of each service and namespace, from which their room follows.
#[derive(Debug)]
pub struct Counts {
    caps: Caps,
    services: HashMap<ObjectKey, Count>,
    namespaces: HashMap<String, NamespaceCount>,
}

/// Numbers of addresses of one service: planned, written by the controller, written by others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    /// Number of addresses in the service's last plan.
    given: usize,
    /// Number of addresses in the service's slices that the controller has written.
    written: usize,
    /// Number of addresses in slices that others have written for the service.
    foreign: usize,
}

#[derive(Debug, Default)]
struct NamespaceCount {
    /// Sum over all services: the larger of `given` and `written`, plus `foreign`.
    total: usize,
    /// Sum of `given` and `foreign` over all services in the namespace.
    promised: usize,
    /// Names of the services that get fewer addresses because of the limit per namespace.
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
    /// Creates counts without any services.
    pub fn new(caps: Caps) -> Self {
        Self { caps, services: HashMap::new(), namespaces: HashMap::new() }
    }

    /// Returns how many addresses the controller may publish for `service`.
    pub fn room(&self, service: &ObjectKey) -> Room {
        let count = self.services.get(service).copied().unwrap_or_default();
        let namespace = self.namespaces.get(&service.namespace);
        let (total, promised) = namespace.map_or((0, 0), |namespace| (namespace.total, namespace.promised));
        // While endpoints of another service move between slices, its slices contain more than it
        // was given. This service keeps what it was given in the meantime.
        let kept = count.given.min(self.caps.namespace.saturating_sub(promised - count.given));
        Room {
            caps: self.caps,
            service: self.caps.service.saturating_sub(count.foreign),
            namespace: self.caps.namespace.saturating_sub(total - count.own()).max(kept),
        }
    }

    /// Records how many addresses a service was given, and whether it waits for room in its
    /// namespace. Returns a waiting service that has room now.
    pub fn set_given(&mut self, service: &ObjectKey, given: usize, waits: bool) -> Option<ObjectKey> {
        let waiting = &mut self.namespaces.entry(service.namespace.clone()).or_default().waiting;
        if waits {
            waiting.insert(service.name.clone());
        } else {
            waiting.remove(&service.name);
        }
        self.change(service, |count| count.given = given)
    }

    /// Records how many addresses the service's own slices contain. Returns a waiting service that
    /// has room now.
    pub fn set_written(&mut self, service: &ObjectKey, written: usize) -> Option<ObjectKey> {
        self.change(service, |count| count.written = written)
    }

    /// Records how many addresses the slices of others contain for the service. Returns a waiting
    /// service that has room now.
    pub fn set_foreign(&mut self, service: &ObjectKey, foreign: usize) -> Option<ObjectKey> {
        self.change(service, |count| count.foreign = foreign)
    }

    /// Forgets what services were given and which of them wait. A new leader calls this, since
    /// another process may have decided differently in between.
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
        Some(service.beside(next))
    }
}

#[cfg(test)]
mod tests;
