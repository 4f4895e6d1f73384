//! Who had an address first.
//!
//! Two pods of one network with the same address cannot both be published: whoever connects would reach either. The pod
//! that had it first keeps it. A pod that is being deleted steps back for one that is not: its address is being handed
//! over, which is no conflict.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

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

/// All addresses of all networks, each with the pods that have it, in the order in which they got it.
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

#[derive(Clone, Debug)]
struct Claim {
    holder: Holder,
    terminating: bool,
}

impl Ledger {
    /// A pod has an address, now or still. Returns whether that is news for other pods that have it, too.
    pub fn claim(&mut self, network: &Network, address: IpAddr, holder: &Holder, terminating: bool) -> bool {
        let claim = Claim { holder: holder.clone(), terminating };
        if !self.addresses.contains_key(network) {
            self.addresses.insert(network.clone(), HashMap::new());
        }
        let Some(addresses) = self.addresses.get_mut(network) else { return false };
        let holders = addresses.entry(address).or_insert_with(|| Holders::One(claim.clone()));
        let is_news = match holders.as_mut_slice().iter_mut().find(|known| known.holder == *holder) {
            Some(known) => std::mem::replace(&mut known.terminating, terminating) != terminating,
            None => {
                holders.push(claim);
                true
            }
        };
        let contested = holders.as_slice().len() > 1;
        if contested {
            self.contested.insert((network.clone(), address));
        }
        contested && is_news
    }

    /// A pod no longer has an address.
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

    /// The pod that an address is published for.
    pub fn winner(&self, network: &Network, address: IpAddr) -> Option<&Holder> {
        let claims = self.holders(network, address);
        let staying = claims.iter().find(|claim| !claim.terminating);
        staying.or_else(|| claims.first()).map(|claim| &claim.holder)
    }

    /// The pods that have the address and are neither the winner nor being deleted, in the order in which they got it.
    pub fn losers(&self, network: &Network, address: IpAddr) -> impl Iterator<Item = &Holder> {
        let winner = self.winner(network, address);
        let staying = self.holders(network, address).iter().filter(|claim| !claim.terminating);
        staying.map(|claim| &claim.holder).filter(move |holder| Some(*holder) != winner)
    }

    /// All pods that have the address.
    pub fn pods(&self, network: &Network, address: IpAddr) -> impl Iterator<Item = &ObjectKey> {
        self.holders(network, address).iter().map(|claim| &claim.holder.pod)
    }

    /// How many addresses have more than one holder.
    pub fn contested(&self) -> usize {
        self.contested.len()
    }

    /// Sorts the holders of every contested address. A ledger that was filled from lists knows nothing of who came
    /// first; `rank` tells what there is to know, the first to keep the address having the lowest.
    pub fn settle<R: Ord>(&mut self, rank: impl Fn(&Network, IpAddr, &Holder) -> R) {
        for (network, address) in &self.contested {
            let holders = self.addresses.get_mut(network).and_then(|addresses| addresses.get_mut(address));
            if let Some(holders) = holders {
                let claims = holders.as_mut_slice();
                claims.sort_by_cached_key(|claim| rank(network, *address, &claim.holder));
            }
        }
    }

    fn holders(&self, network: &Network, address: IpAddr) -> &[Claim] {
        let holders = self.addresses.get(network).and_then(|addresses| addresses.get(&address));
        holders.map_or(&[], Holders::as_slice)
    }
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
mod tests {
    use multinet_crds::NetworkKind;

    use super::*;

    fn network() -> Network {
        Network {
            kind: NetworkKind::NetworkAttachmentDefinition,
            namespace: Some("vision".into()),
            name: "rdma-a".into(),
        }
    }

    fn holder(name: &str) -> Holder {
        let pod = ObjectKey { namespace: "vision".into(), name: name.into() };
        Holder { pod, uid: format!("uid-{name}") }
    }

    const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 168, 111, 5));

    #[test]
    fn the_first_keeps_the_address() {
        let (network, mut ledger) = (network(), Ledger::default());
        assert!(!ledger.claim(&network, ADDRESS, &holder("b"), false));
        assert!(ledger.claim(&network, ADDRESS, &holder("a"), false));
        assert!(!ledger.claim(&network, ADDRESS, &holder("b"), false), "still");
        assert_eq!(ledger.winner(&network, ADDRESS), Some(&holder("b")));
        assert_eq!(ledger.losers(&network, ADDRESS).collect::<Vec<_>>(), [&holder("a")]);
        assert_eq!((ledger.contested(), ledger.pods(&network, ADDRESS).count()), (1, 2));

        ledger.release(&network, ADDRESS, &holder("b"));
        assert_eq!(ledger.winner(&network, ADDRESS), Some(&holder("a")));
        assert_eq!((ledger.contested(), ledger.losers(&network, ADDRESS).count()), (0, 0));
        ledger.release(&network, ADDRESS, &holder("a"));
        ledger.release(&network, ADDRESS, &holder("a"));
        assert_eq!(ledger.winner(&network, ADDRESS), None);
        assert!(ledger.addresses.is_empty());
    }

    #[test]
    fn who_leaves_steps_back_and_is_no_conflict() {
        let (network, mut ledger) = (network(), Ledger::default());
        ledger.claim(&network, ADDRESS, &holder("old"), false);
        ledger.claim(&network, ADDRESS, &holder("old"), true);
        assert_eq!(ledger.winner(&network, ADDRESS), Some(&holder("old")), "nobody else has it");
        assert!(ledger.claim(&network, ADDRESS, &holder("new"), false));
        assert_eq!(ledger.winner(&network, ADDRESS), Some(&holder("new")));
        assert_eq!(ledger.losers(&network, ADDRESS).count(), 0);
        assert!(ledger.claim(&network, ADDRESS, &holder("new"), true), "the old one gets it back");
        assert_eq!(ledger.winner(&network, ADDRESS), Some(&holder("old")));
    }

    #[test]
    fn a_pod_of_the_same_name_is_another_pod() {
        let (network, mut ledger) = (network(), Ledger::default());
        let again = Holder { uid: "another".into(), ..holder("a") };
        ledger.claim(&network, ADDRESS, &holder("a"), false);
        ledger.claim(&network, ADDRESS, &again, false);
        ledger.release(&network, ADDRESS, &holder("a"));
        assert_eq!(ledger.winner(&network, ADDRESS), Some(&again));
    }

    #[test]
    fn networks_are_apart() {
        let mut ledger = Ledger::default();
        let other = Network { name: "rdma-b".into(), ..network() };
        ledger.claim(&network(), ADDRESS, &holder("a"), false);
        assert!(!ledger.claim(&other, ADDRESS, &holder("b"), false));
        assert_eq!(ledger.winner(&other, ADDRESS), Some(&holder("b")));
    }

    #[test]
    fn what_lists_cannot_tell_is_settled_once() {
        let (network, mut ledger) = (network(), Ledger::default());
        for name in ["c", "a", "b"] {
            ledger.claim(&network, ADDRESS, &holder(name), false);
        }
        ledger.settle(|_, _, holder| (holder.pod.name != "b", holder.uid.clone()));
        assert_eq!(ledger.winner(&network, ADDRESS), Some(&holder("b")));
        assert_eq!(ledger.losers(&network, ADDRESS).collect::<Vec<_>>(), [&holder("a"), &holder("c")]);
    }
}
