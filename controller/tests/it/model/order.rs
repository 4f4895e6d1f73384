//! Who had an address first, by the order in which the controller was told.

use std::collections::BTreeMap;
use std::net::IpAddr;

use multinet_runtime::ObjectKey;

use super::expected::{Network, Sources};

/// A pod, and its uid.
type Holder = (ObjectKey, String);

/// All holders of every address of every network, the first one first.
#[derive(Debug, Default)]
pub(crate) struct Order {
    holders: BTreeMap<(Network, IpAddr), Vec<Holder>>,
}

impl Order {
    /// Something has been told: who has lost an address is out, who has got one comes last.
    pub(crate) fn follow(&mut self, told: &Sources<'_>) {
        let mut now: BTreeMap<(Network, IpAddr), Vec<Holder>> = BTreeMap::new();
        for (&key, pod) in &told.pods {
            for place in told.held(key, pod) {
                now.entry(place).or_default().push((key.clone(), pod.uid.clone()));
            }
        }
        for (place, holders) in &mut self.holders {
            let still = now.get(place);
            holders.retain(|holder| still.is_some_and(|still| still.contains(holder)));
        }
        for (place, holders) in now {
            let known = self.holders.entry(place).or_default();
            for holder in holders {
                if !known.contains(&holder) {
                    known.push(holder);
                }
            }
        }
        self.holders.retain(|_, holders| !holders.is_empty());
    }

    /// Sorts the holders of each address.
    pub(crate) fn settle<R: Ord>(&mut self, rank: impl Fn(&Network, IpAddr, &Holder) -> R) {
        for ((network, address), holders) in &mut self.holders {
            holders.sort_by_key(|holder| rank(network, *address, holder));
        }
    }

    /// Who the address is published for: the first that is not being deleted, else the first.
    pub(crate) fn winner(
        &self,
        now: &Sources<'_>,
        network: &Network,
        address: IpAddr,
    ) -> Option<(&ObjectKey, &str)> {
        let holders = self.of(network, address);
        let staying = holders.iter().find(|holder| is_staying(now, holder));
        staying.or_else(|| holders.first()).map(|(key, uid)| (key, uid.as_str()))
    }

    /// Whether several pods have the address that are not being deleted.
    pub(crate) fn is_contested(&self, now: &Sources<'_>, network: &Network, address: IpAddr) -> bool {
        self.of(network, address).iter().filter(|holder| is_staying(now, holder)).count() > 1
    }

    /// All addresses with their holders.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&(Network, IpAddr), &Vec<Holder>)> {
        self.holders.iter()
    }

    fn of(&self, network: &Network, address: IpAddr) -> &[Holder] {
        self.holders.get(&(network.clone(), address)).map_or(&[], Vec::as_slice)
    }
}

fn is_staying(now: &Sources<'_>, (key, uid): &Holder) -> bool {
    now.pods.get(key).is_some_and(|pod| pod.uid == *uid && !pod.is_deleted)
}
