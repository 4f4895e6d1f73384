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

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

use jiff::Timestamp;
use multinet_runtime::ObjectKey;

use crate::model::Network;

/// A pod that has an address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder {
    /// Namespace and name.
    pub pod: ObjectKey,
    /// Tells pods of one name apart.
    pub uid: String,
}

/// Facts about a pod that decide whether it holds an address.
#[derive(Clone, Copy, Debug, Default)]
pub struct Standing<'a> {
    /// A service publishes the pod's addresses on this network.
    pub is_selected: bool,
    /// It serves and is not being deleted.
    pub is_ready: bool,
    /// It is being deleted.
    pub is_terminating: bool,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// The virtual machine that it runs, if any.
    pub machine: Option<&'a str>,
    /// It is on the node that the virtual machine is on.
    pub is_at_home: bool,
    /// The ResourceClaim that the address is of, if any.
    pub claim: Option<&'a str>,
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

/// Claim of a pod to an address.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The pod.
    pub holder: Holder,
    /// Its role for the address, within its namespace.
    pub role: Role,
    /// It is published for the address, and answered.
    pub is_answered: bool,
    /// A pod of another namespace reports the address, and stays.
    pub is_elsewhere: bool,
}

/// All addresses of all networks, each with the pods that have it.
#[derive(Debug, Default)]
pub struct Ledger {
    addresses: HashMap<Network, HashMap<IpAddr, Holders>>,
    /// Addresses with more than one holder.
    contested: BTreeSet<(Network, IpAddr)>,
}

/// Most addresses have one holder: no allocation for those.
#[derive(Debug)]
enum Holders {
    One(Claim),
    Many(Vec<Claim>),
}

impl Ledger {
    /// Notes that a pod has an address, now or still. The holder is to be [decided](Self::decide) afterwards.
    pub fn claim(&mut self, network: &Network, address: IpAddr, holder: &Holder) {
        if !self.addresses.contains_key(network) {
            self.addresses.insert(network.clone(), HashMap::new());
        }
        let Some(addresses) = self.addresses.get_mut(network) else { return };
        let new =
            || Claim { holder: holder.clone(), role: Role::Holds, is_answered: false, is_elsewhere: false };
        let holders = addresses.entry(address).or_insert_with(|| Holders::One(new()));
        if holders.as_slice().iter().all(|known| known.holder != *holder) {
            holders.push(Claim { role: Role::LeftOut { shares_claim: false }, ..new() });
            self.contested.insert((network.clone(), address));
        }
    }

    /// Notes that a pod no longer has an address. The holder is to be [decided](Self::decide) afterwards.
    pub fn release(&mut self, network: &Network, address: IpAddr, holder: &Holder) {
        let Some(addresses) = self.addresses.get_mut(network) else { return };
        let Some(holders) = addresses.get_mut(&address) else { return };
        let rest: Vec<Claim> =
            holders.as_slice().iter().filter(|claim| claim.holder != *holder).cloned().collect();
        match rest.len() {
            0 => drop(addresses.remove(&address)),
            1 => *holders = rest.into_iter().next().map_or(Holders::Many(Vec::new()), Holders::One),
            _ => *holders = Holders::Many(rest),
        }
        let contested = addresses.get(&address).is_some_and(|holders| holders.as_slice().len() > 1);
        if addresses.is_empty() {
            self.addresses.remove(network);
        }
        if !contested {
            self.contested.remove(&(network.clone(), address));
        }
    }

    /// Decides which pod of each namespace holds an address. Returns whether that is news for any of the pods that have it.
    pub fn decide<'a>(
        &mut self,
        network: &Network,
        address: IpAddr,
        standing: impl Fn(&Holder) -> Standing<'a>,
    ) -> bool {
        let holders = self.addresses.get_mut(network).and_then(|addresses| addresses.get_mut(&address));
        let Some(claims) = holders.map(Holders::as_mut_slice) else { return false };
        if let [claim] = claims {
            let was_alone = claim.role == Role::Holds && !claim.is_elsewhere;
            (claim.role, claim.is_elsewhere) = (Role::Holds, false);
            return !was_alone;
        }
        let standings: Vec<Standing<'a>> = claims.iter().map(|claim| standing(&claim.holder)).collect();
        let winners = winners(claims, &standings);
        let elsewhere = elsewhere(claims, &standings);
        let mut is_news = false;
        for (place, claim) in claims.iter_mut().enumerate() {
            let (own, winner) = (&standings[place], &standings[winners[place]]);
            let role = if place == winners[place] {
                Role::Holds
            } else if own.is_terminating || own.machine.is_some() && own.machine == winner.machine {
                Role::HandsOver
            } else {
                Role::LeftOut { shares_claim: own.claim.is_some() && own.claim == winner.claim }
            };
            let is_answered = role == Role::Holds && own.is_selected && own.is_ready;
            let before = (claim.role, claim.is_answered, claim.is_elsewhere);
            (claim.role, claim.is_answered, claim.is_elsewhere) = (role, is_answered, elsewhere[place]);
            is_news |= before != (claim.role, claim.is_answered, claim.is_elsewhere);
        }
        is_news
    }

    /// Returns a pod's claim to an address that it has, and the claims of all pods that have it; `None` if no other pod has it.
    pub fn contest(&self, network: &Network, address: IpAddr, pod: &ObjectKey) -> Option<(&Claim, &[Claim])> {
        // The usual case costs one comparison.
        if self.contested.is_empty() {
            return None;
        }
        let claims = self.holders(network, address);
        let own = claims.iter().find(|claim| claim.holder.pod == *pod)?;
        (claims.len() > 1).then_some((own, claims))
    }

    /// All pods that have the address.
    pub fn pods(&self, network: &Network, address: IpAddr) -> impl Iterator<Item = &ObjectKey> {
        self.holders(network, address).iter().map(|claim| &claim.holder.pod)
    }

    /// Returns whether several pods have any one address.
    pub fn is_contested(&self) -> bool {
        !self.contested.is_empty()
    }

    /// Returns how many addresses several pods have that should not.
    pub fn conflicts(&self) -> usize {
        let is_conflict = |claim: &Claim| claim.is_elsewhere || matches!(claim.role, Role::LeftOut { .. });
        let contested = self.contested.iter();
        contested.filter(|(network, address)| self.holders(network, *address).iter().any(is_conflict)).count()
    }

    /// Decides every contested address anew, for a new leader: a pod that the slices publish (`is_published`) is ahead. Where they
    /// publish none, no pod is ahead if nothing was known before (`is_first`).
    pub fn settle<'a>(
        &mut self,
        is_first: bool,
        is_published: impl Fn(&Network, IpAddr, &Holder) -> bool,
        standing: impl Fn(&Network, IpAddr, &Holder) -> Standing<'a>,
    ) {
        for (network, address) in self.contested.clone() {
            let holders = self.addresses.get_mut(&network).and_then(|addresses| addresses.get_mut(&address));
            let Some(claims) = holders.map(Holders::as_mut_slice) else { continue };
            let published: Vec<bool> =
                claims.iter().map(|claim| is_published(&network, address, &claim.holder)).collect();
            let namespaces: HashSet<String> = (claims.iter().zip(&published))
                .filter(|(_, published)| **published)
                .map(|(claim, _)| claim.holder.pod.namespace.clone())
                .collect();
            for (claim, published) in claims.iter_mut().zip(published) {
                if published {
                    claim.role = Role::Holds;
                } else if is_first || namespaces.contains(&claim.holder.pod.namespace) {
                    claim.role = Role::LeftOut { shares_claim: false };
                }
            }
            self.decide(&network, address, |holder| standing(&network, address, holder));
        }
    }

    fn holders(&self, network: &Network, address: IpAddr) -> &[Claim] {
        let holders = self.addresses.get(network).and_then(|addresses| addresses.get(&address));
        holders.map_or(&[], Holders::as_slice)
    }
}

/// Returns for each claim the place of the one that holds the address in its namespace.
fn winners(claims: &[Claim], standings: &[Standing<'_>]) -> Vec<usize> {
    let rank = |place: usize, is_at_home: bool| {
        let (claim, standing) = (&claims[place], &standings[place]);
        let is_published = claim.role == Role::Holds && standing.is_selected;
        let age = Reverse((standing.created, &claim.holder));
        (standing.is_selected, standing.is_ready, !standing.is_terminating, is_at_home, is_published, age)
    };
    let namespace = |place: usize| claims[place].holder.pod.namespace.as_str();
    let mut best: HashMap<&str, usize> = HashMap::new();
    for place in 0..claims.len() {
        let best = best.entry(namespace(place)).or_insert(place);
        if rank(place, true) > rank(*best, true) {
            *best = place;
        }
    }
    for best in best.values_mut() {
        let Some(machine) = standings[*best].machine else { continue };
        let siblings = (0..claims.len()).filter(|&place| {
            standings[place].machine == Some(machine) && namespace(place) == namespace(*best)
        });
        *best = siblings.max_by_key(|&place| rank(place, standings[place].is_at_home)).unwrap_or(*best);
    }
    (0..claims.len()).map(|place| best[namespace(place)]).collect()
}

/// Returns for each claim whether one of another namespace stays.
fn elsewhere(claims: &[Claim], standings: &[Standing<'_>]) -> Vec<bool> {
    let staying: HashSet<&str> = (claims.iter().zip(standings))
        .filter(|(_, standing)| !standing.is_terminating)
        .map(|(claim, _)| claim.holder.pod.namespace.as_str())
        .collect();
    claims.iter().map(|claim| staying.iter().any(|other| *other != claim.holder.pod.namespace)).collect()
}

impl Holders {
    fn as_slice(&self) -> &[Claim] {
        match self {
            Self::One(claim) => std::slice::from_ref(claim),
            Self::Many(claims) => claims,
        }
    }

    fn as_mut_slice(&mut self) -> &mut [Claim] {
        match self {
            Self::One(claim) => std::slice::from_mut(claim),
            Self::Many(claims) => claims,
        }
    }

    fn push(&mut self, claim: Claim) {
        match self {
            Self::One(first) => *self = Self::Many(vec![first.clone(), claim]),
            Self::Many(claims) => claims.push(claim),
        }
    }
}

#[cfg(test)]
mod tests;
