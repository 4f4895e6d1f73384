//! Decides which pod holds an address.
//!
//! Several pods may report the same address on the same network. The controller publishes it for
//! one pod per namespace, so that no tenant can displace another. Of the pods in a namespace, the
//! address goes to:
//!
//! 1. a pod that a service selects, before others,
//! 2. a ready pod, before others,
//! 3. a pod that is not being deleted, before others,
//! 4. the pod that the address is published for already,
//! 5. the oldest pod.
//!
//! The pods of one KubeVirt virtual machine hand their address over to each other. Among them, the
//! pod on the virtual machine's node precedes the published one. Such a hand-over is no conflict,
//! and neither is a pod that is being deleted.
//!
//! By mistake or malice, thousands of pods may have one address and change often. The cost of an
//! event for one of them does not grow with their number. To make this possible, only the best few
//! dozen pods of a virtual machine are examined.

mod side;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use multinet_runtime::ObjectKey;

use self::side::Side;
use crate::model::Network;
use crate::name_summary::NameSummary;

/// A pod that has an address on a secondary network.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Holder {
    /// Namespace and name of the pod.
    pub pod: ObjectKey,
    /// The pod's uid, which distinguishes pods of the same name.
    pub uid: String,
}

/// Facts about a pod that decide whether it holds an address.
#[derive(Clone, Debug, Default)]
pub(crate) struct HolderState {
    /// Names of the services that publish the pod's addresses on the network of the address.
    pub services: Arc<[String]>,
    /// Whether the pod is ready and not being deleted.
    pub is_ready: bool,
    /// Whether the pod is being deleted.
    pub is_terminating: bool,
    /// Creation time of the pod.
    pub created: Option<Timestamp>,
    /// Uid of the virtual machine that the pod runs, if any.
    pub machine: Option<String>,
    /// Whether the pod is on its virtual machine's node.
    pub is_on_machine_node: bool,
    /// Name of the ResourceClaim that provides the address, if any.
    pub claim: Option<String>,
}

/// Relation of a pod to one of its addresses: it holds the address, hands it over, or is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The pod holds the address: it is published if a service selects the pod.
    Holds,
    /// Another pod of the namespace holds the address, without a conflict: this pod is being
    /// deleted, or runs the same virtual machine.
    HandsOver,
    /// Another pod of the namespace holds the address, which is a conflict.
    LeftOut {
        /// Whether this pod and the holder have the address from the same ResourceClaim.
        shares_claim: bool,
    },
}

/// A pod's relation to an address that other pods have too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AddressClaim<'a> {
    /// Role of the pod among the pods of its namespace that have the address.
    pub role: Role,
    /// Whether a pod of another namespace has the address and is not being deleted.
    pub is_elsewhere: bool,
    side: &'a Side,
}

/// Conflict over an address between pods of one namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Conflict {
    /// The pod that holds the address.
    pub holder: ObjectKey,
    /// Whether DNS answers with the address: its holder is selected and ready.
    pub is_answered: bool,
    /// The other pods that have the address, for which it is not published.
    pub left_out: NameSummary,
    /// The ResourceClaim that all of these pods have the address from, if they share one.
    pub claim: Option<String>,
}

impl AddressClaim<'_> {
    /// Returns the conflict over the address, if there is one.
    pub(crate) fn conflict(&self) -> Option<Conflict> {
        self.side.conflict()
    }
}

/// The addresses on all networks, each with the pods that have it.
#[derive(Debug, Default)]
pub(crate) struct AddressLedger {
    addresses: HashMap<Network, HashMap<IpAddr, Holders>>,
    /// The addresses that several pods have, in one namespace or in several.
    contested: BTreeSet<(Network, IpAddr)>,
}

/// The pods that have an address. An address with one pod, which is the usual case, takes little
/// memory.
#[derive(Debug)]
enum Holders {
    One(Arc<Holder>),
    Many(Box<Contest>),
}

/// The pods that have the same address, two or more, by namespace.
#[derive(Debug, Default)]
struct Contest {
    sides: BTreeMap<String, Side>,
}

impl AddressLedger {
    /// Records that a pod has an address, and updates the pod's state. Returns the services that
    /// must be planned again, except for the pod's own.
    pub(crate) fn update(
        &mut self,
        network: &Network,
        address: IpAddr,
        holder: &Arc<Holder>,
        state: impl Fn(&Holder) -> HolderState,
    ) -> Vec<ObjectKey> {
        if !self.addresses.contains_key(network) {
            self.addresses.insert(network.clone(), HashMap::new());
        }
        let Some(addresses) = self.addresses.get_mut(network) else { return Vec::new() };
        let holders = match addresses.entry(address) {
            Entry::Vacant(entry) => {
                entry.insert(Holders::One(Arc::clone(holder)));
                return Vec::new();
            }
            Entry::Occupied(entry) => entry.into_mut(),
        };
        if let Holders::One(first) = holders {
            if first == holder {
                return Vec::new();
            }
            let mut contest = Box::new(Contest::default());
            contest.put(first, state(first));
            contest.published(first);
            *holders = Holders::Many(contest);
            self.contested.insert((network.clone(), address));
        }
        let Holders::Many(contest) = holders else { return Vec::new() };
        contest.put(holder, state(holder));
        contest.decide(&holder.pod.namespace)
    }

    /// Records that a pod no longer has an address. Returns the services that must be planned
    /// again, except for the pod's own.
    pub(crate) fn release(&mut self, network: &Network, address: IpAddr, holder: &Holder) -> Vec<ObjectKey> {
        let Some(addresses) = self.addresses.get_mut(network) else { return Vec::new() };
        let news = match addresses.get_mut(&address) {
            None => Vec::new(),
            Some(Holders::One(only)) => {
                if **only == *holder {
                    addresses.remove(&address);
                }
                Vec::new()
            }
            Some(holders @ Holders::Many(_)) => holders.release(holder),
        };
        if !matches!(addresses.get(&address), Some(Holders::Many(_))) && !self.contested.is_empty() {
            self.contested.remove(&(network.clone(), address));
        }
        if addresses.is_empty() {
            self.addresses.remove(network);
        }
        news
    }

    /// Returns a pod's relation to its address; `None` if no other pod has the address.
    pub(crate) fn contest(
        &self,
        network: &Network,
        address: IpAddr,
        pod: &ObjectKey,
    ) -> Option<AddressClaim<'_>> {
        // Usually no address is contested; then this is the only cost.
        if self.contested.is_empty() {
            return None;
        }
        let contest = self.contest_of(network, address)?;
        let side = contest.sides.get(&pod.namespace)?;
        let is_elsewhere = contest.is_elsewhere(&pod.namespace);
        Some(AddressClaim { role: side.role(pod)?, is_elsewhere, side })
    }

    /// Returns whether there is an address that several pods have.
    pub(crate) fn is_contested(&self) -> bool {
        !self.contested.is_empty()
    }

    /// Returns the number of addresses that pods are in conflict over.
    pub(crate) fn conflicts(&self) -> usize {
        let contests =
            self.contested.iter().filter_map(|(network, address)| self.contest_of(network, *address));
        contests.filter(|contest| contest.is_conflict()).count()
    }

    /// Decides every contested address again when this process becomes the leader. `is_published`
    /// tells whether a slice contains the address for a pod; such a pod takes precedence over other
    /// pods of its class. If no slice contains it, the current holder keeps precedence, unless this
    /// is the first call (`is_first`): the order of the initial lists means nothing.
    pub(crate) fn adopt_published(
        &mut self,
        is_first: bool,
        is_published: impl Fn(&Network, IpAddr, &Holder) -> bool,
    ) {
        for (network, address) in &self.contested {
            let holders = self.addresses.get_mut(network).and_then(|addresses| addresses.get_mut(address));
            let Some(Holders::Many(contest)) = holders else { continue };
            for side in contest.sides.values_mut() {
                side.adopt_published(is_first, |holder| is_published(network, *address, holder));
            }
            contest.changed_services();
        }
    }

    fn contest_of(&self, network: &Network, address: IpAddr) -> Option<&Contest> {
        match self.addresses.get(network)?.get(&address)? {
            Holders::One(_) => None,
            Holders::Many(contest) => Some(contest),
        }
    }
}

impl Holders {
    /// Removes one of several pods. Returns the services that must be planned again.
    fn release(&mut self, holder: &Holder) -> Vec<ObjectKey> {
        let Self::Many(contest) = self else { return Vec::new() };
        let namespace = &holder.pod.namespace;
        let Some(side) = contest.sides.get_mut(namespace) else { return Vec::new() };
        side.take(holder);
        if side.is_empty() {
            contest.sides.remove(namespace);
        }
        let news = contest.decide(namespace);
        let Some((only, services)) = contest.only() else { return news };
        *self = Self::One(only);
        services
    }
}

impl Contest {
    /// Adds a pod that has the address, or updates its state.
    fn put(&mut self, holder: &Arc<Holder>, state: HolderState) {
        self.sides.entry(holder.pod.namespace.clone()).or_default().put(holder, state);
    }

    /// Makes a pod the holder of its namespace, since the address is published for it already.
    fn published(&mut self, holder: &Arc<Holder>) {
        if let Some(side) = self.sides.get_mut(&holder.pod.namespace) {
            side.published(holder);
        }
    }

    /// Decides which pod of a namespace holds the address. Returns the services that must be
    /// planned again.
    fn decide(&mut self, namespace: &str) -> Vec<ObjectKey> {
        if let Some(side) = self.sides.get_mut(namespace) {
            side.decide();
        }
        self.changed_services()
    }

    /// Returns the services of the namespaces whose visible state has changed since the last call.
    fn changed_services(&mut self) -> Vec<ObjectKey> {
        let staying: Vec<bool> = self.sides.values().map(Side::is_staying).collect();
        let count = staying.iter().filter(|is_staying| **is_staying).count();
        let mut news = Vec::new();
        for ((namespace, side), is_staying) in self.sides.iter_mut().zip(staying) {
            if side.update_reported(count > usize::from(is_staying)) {
                news.extend(side.services(namespace));
            }
        }
        news
    }

    /// Returns whether a pod outside of `namespace` has the address and is not being deleted.
    fn is_elsewhere(&self, namespace: &str) -> bool {
        self.sides.iter().any(|(other, side)| other != namespace && side.is_staying())
    }

    /// Returns whether any pods are in conflict over the address.
    fn is_conflict(&self) -> bool {
        self.sides.values().any(|side| side.left_out() > 0)
            || self.sides.len() > 1 && self.sides.values().any(Side::is_staying)
    }

    /// Returns the only pod that still has the address, with its services; `None` if there are
    /// several.
    fn only(&self) -> Option<(Arc<Holder>, Vec<ObjectKey>)> {
        let (namespace, side) = self.sides.first_key_value().filter(|_| self.sides.len() == 1)?;
        Some((side.only()?, side.services(namespace).collect()))
    }
}

#[cfg(test)]
mod tests;
