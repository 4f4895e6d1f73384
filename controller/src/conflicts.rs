//! Decides which pod holds an address.
//!
//! Several pods of one network may report the same address. Which of them is published is decided within each namespace, so that
//! no tenant can silence another:
//!
//! 1. a pod that a service selects before one that none does,
//! 2. ready before not ready,
//! 3. staying before being deleted,
//! 4. the one that is published already,
//! 5. the older one.
//!
//! The pods of one virtual machine (KubeVirt) hand their address over to each other: among them the one on the machine's node comes
//! before the one that is published already. Neither that nor a pod that is being deleted is a conflict.
//!
//! Thousands of pods may have one address, by mistake or by malice, and each of them changes often: what an event of one of them costs
//! does not grow with their number. (Of a virtual machine's pods, only the best few dozen are looked at.)

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

/// A pod that has an address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder {
    /// Namespace and name.
    pub pod: ObjectKey,
    /// Tells pods of one name apart.
    pub uid: String,
}

/// Facts about a pod that decide whether it holds an address.
#[derive(Clone, Debug, Default)]
pub struct HolderState {
    /// The names of the services that publish the pod's addresses on this network.
    pub services: Arc<[String]>,
    /// It serves and is not being deleted.
    pub is_ready: bool,
    /// It is being deleted.
    pub is_terminating: bool,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// The virtual machine that it runs, if any.
    pub machine: Option<String>,
    /// It is on the node that the virtual machine is on.
    pub is_on_machine_node: bool,
    /// The ResourceClaim that the address is of, if any.
    pub claim: Option<String>,
}

/// Role of a pod for an address that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The address is published for it, if a service selects it.
    Holds,
    /// The address is published for another pod of its namespace, and that is as it should be: it is being deleted, or runs the same
    /// virtual machine.
    HandsOver,
    /// The address is published for another pod of its namespace.
    LeftOut {
        /// Both have the address from one ResourceClaim.
        shares_claim: bool,
    },
}

/// A pod's claim to an address that other pods have, too.
#[derive(Clone, Copy, Debug)]
pub struct AddressClaim<'a> {
    /// Its role for the address, within its namespace.
    pub role: Role,
    /// A pod of another namespace reports the address, and stays.
    pub is_elsewhere: bool,
    side: &'a Side,
}

/// Pods of a namespace that an address is not published for, since it is for another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rivals<'a> {
    /// The pod that holds the address.
    pub holder: &'a ObjectKey,
    /// It is published for the address, and answered.
    pub is_answered: bool,
    /// The others.
    pub left_out: NameSummary,
    /// All of them have the address from one ResourceClaim.
    pub share_claim: bool,
}

impl<'a> AddressClaim<'a> {
    /// Returns the pods of the namespace between which the address is in conflict, if it is.
    pub fn rivals(&self) -> Option<Rivals<'a>> {
        self.side.rivals()
    }
}

/// All addresses of all networks, each with the pods that have it.
#[derive(Debug, Default)]
pub struct AddressLedger {
    addresses: HashMap<Network, HashMap<IpAddr, Holders>>,
    /// Addresses with more than one holder.
    contested: BTreeSet<(Network, IpAddr)>,
}

/// Most addresses have one holder: nothing more is kept of those.
#[derive(Debug)]
enum Holders {
    One(Arc<Holder>),
    Many(Box<Contest>),
}

/// The pods with the same address, by their namespace: two or more.
#[derive(Debug, Default)]
struct Contest {
    sides: BTreeMap<String, Side>,
}

impl AddressLedger {
    /// Notes that a pod has an address, and how it stands now. Returns the services that this is news for, besides the pod's own.
    pub fn update(
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

    /// Notes that a pod no longer has an address. Returns the services that this is news for, besides the pod's own.
    pub fn release(&mut self, network: &Network, address: IpAddr, holder: &Holder) -> Vec<ObjectKey> {
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

    /// Returns a pod's claim to an address that it has; `None` if no other pod has it.
    pub fn contest(&self, network: &Network, address: IpAddr, pod: &ObjectKey) -> Option<AddressClaim<'_>> {
        // The usual case costs one comparison.
        if self.contested.is_empty() {
            return None;
        }
        let contest = self.contest_of(network, address)?;
        let side = contest.sides.get(&pod.namespace)?;
        let is_elsewhere = contest.is_elsewhere(&pod.namespace);
        Some(AddressClaim { role: side.role(pod)?, is_elsewhere, side })
    }

    /// Returns whether several pods have any one address.
    pub fn is_contested(&self) -> bool {
        !self.contested.is_empty()
    }

    /// Returns how many addresses several pods have that should not.
    pub fn conflicts(&self) -> usize {
        let contests =
            self.contested.iter().filter_map(|(network, address)| self.contest_of(network, *address));
        contests.filter(|contest| contest.is_conflict()).count()
    }

    /// Decides every contested address anew, for a new leader: a pod that the slices publish (`is_published`) is ahead. Where they
    /// publish none, no pod is ahead if nothing was known before (`is_first`).
    pub fn adopt_published(
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
    /// Takes out a pod of several. Returns the services that this is news for.
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
    /// Notes how a pod stands.
    fn put(&mut self, holder: &Arc<Holder>, state: HolderState) {
        self.sides.entry(holder.pod.namespace.clone()).or_default().put(holder, state);
    }

    /// Notes that the address is published for a pod.
    fn published(&mut self, holder: &Arc<Holder>) {
        if let Some(side) = self.sides.get_mut(&holder.pod.namespace) {
            side.published(holder);
        }
    }

    /// Decides which pod of a namespace holds the address. Returns the services that anything is news for.
    fn decide(&mut self, namespace: &str) -> Vec<ObjectKey> {
        if let Some(side) = self.sides.get_mut(namespace) {
            side.decide();
        }
        self.changed_services()
    }

    /// Returns the services of the sides that show something else than before.
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

    /// Returns whether a pod of another namespace than this has the address, and stays.
    fn is_elsewhere(&self, namespace: &str) -> bool {
        self.sides.iter().any(|(other, side)| other != namespace && side.is_staying())
    }

    /// Returns whether any pod's claim to the address is one that should not be.
    fn is_conflict(&self) -> bool {
        self.sides.values().any(|side| side.left_out() > 0)
            || self.sides.len() > 1 && self.sides.values().any(Side::is_staying)
    }

    /// Returns the one pod that is left, with its services.
    fn only(&self) -> Option<(Arc<Holder>, Vec<ObjectKey>)> {
        let (namespace, side) = self.sides.first_key_value().filter(|_| self.sides.len() == 1)?;
        Some((side.only()?, side.services(namespace).collect()))
    }
}

#[cfg(test)]
mod tests;
