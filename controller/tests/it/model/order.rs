//! Holders of each address, computed event by event from the controller's inputs.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use multinet_runtime::ObjectKey;

use super::expected::{Network, Sources, selects};
use super::services::{NetworkUse, Requirement, Service};

/// A pod and its uid.
pub(crate) type Holder = (ObjectKey, String);

type Place = (Network, IpAddr);

/// Holders of every address on every network.
#[derive(Debug, Default)]
pub(crate) struct Order {
    holders: BTreeMap<Place, BTreeSet<Holder>>,
    /// The pod of each namespace that the address is published for.
    published: BTreeMap<Place, BTreeSet<Holder>>,
    /// Selector and networks of each service when it was last valid.
    services: BTreeMap<ObjectKey, (Vec<Requirement>, Vec<NetworkUse>)>,
}

impl Order {
    /// Processes one event.
    pub(crate) fn follow(&mut self, told: &Sources<'_>, services: &BTreeMap<ObjectKey, Service>) {
        self.services.retain(|key, _| services.contains_key(key));
        for (key, service) in services.iter().filter(|(_, service)| service.spec.flaw.is_none()) {
            match &service.spec.selector {
                Some(selector) => {
                    self.services.insert(key.clone(), (selector.clone(), service.spec.networks.clone()));
                }
                None => drop(self.services.remove(key)),
            }
        }
        let places: BTreeSet<Place> = self.holders.keys().cloned().collect();
        let is_there = |(key, uid): &Holder| told.pods.get(key).is_some_and(|pod| pod.uid == *uid);
        for place in &places {
            if let Some(holders) = self.holders.get_mut(place) {
                holders.retain(is_there);
            }
            self.decide(told, place);
        }
        for (&key, pod) in &told.pods {
            let holder = (key.clone(), pod.uid.clone());
            let now = told.held(key, pod);
            for place in places.iter().chain(&now) {
                let holders = self.holders.entry(place.clone()).or_default();
                let has_changed = if now.contains(place) {
                    holders.insert(holder.clone())
                } else {
                    holders.remove(&holder)
                };
                if has_changed {
                    self.decide(told, place);
                }
            }
        }
        self.decide_all(told);
    }

    /// Begins a new leadership term, in which the contents of the slices take precedence.
    pub(crate) fn adopt_published(
        &mut self,
        told: &Sources<'_>,
        is_first: bool,
        is_published: impl Fn(&Network, IpAddr, &Holder) -> bool,
    ) {
        for (place, holders) in self.holders.iter().filter(|(_, holders)| holders.len() > 1) {
            let shown: BTreeSet<Holder> =
                holders.iter().filter(|holder| is_published(&place.0, place.1, holder)).cloned().collect();
            let published = self.published.entry(place.clone()).or_default();
            let namespaces: BTreeSet<&String> = shown.iter().map(|(key, _)| &key.namespace).collect();
            published.retain(|(key, _)| !is_first && !namespaces.contains(&key.namespace));
            published.extend(shown);
        }
        self.decide_all(told);
    }

    /// Returns the pod that the address is published for in a namespace.
    pub(crate) fn winner(&self, network: &Network, address: IpAddr, namespace: &str) -> Option<&Holder> {
        let mut published = self.published.get(&(network.clone(), address)).into_iter().flatten();
        published.find(|(key, _)| key.namespace == namespace)
    }

    /// Returns the pods that have the address and are not being deleted.
    pub(crate) fn staying(&self, now: &Sources<'_>, network: &Network, address: IpAddr) -> Vec<&Holder> {
        let holders = self.holders.get(&(network.clone(), address)).into_iter().flatten();
        holders.filter(|(key, _)| now.pods.get(key).is_some_and(|pod| !pod.is_deleted)).collect()
    }

    /// Returns all addresses with their holders.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Place, &BTreeSet<Holder>)> {
        self.holders.iter()
    }

    fn decide_all(&mut self, told: &Sources<'_>) {
        let places: Vec<Place> = self.holders.keys().cloned().collect();
        places.iter().for_each(|place| self.decide(told, place));
        self.holders.retain(|_, holders| !holders.is_empty());
        self.published.retain(|_, holders| !holders.is_empty());
    }

    fn decide(&mut self, told: &Sources<'_>, place: &Place) {
        let was_published = self.published.remove(place).unwrap_or_default();
        let holders = self.holders.get(place).cloned().unwrap_or_default();
        let mut best = BTreeMap::new();
        for holder in holders {
            let (key, _) = &holder;
            let Some(pod) = told.pods.get(key) else { continue };
            let is_selected = self.services.iter().any(|(service, (selector, networks))| {
                service.namespace == key.namespace
                    && selects(selector, pod)
                    && networks.iter().any(|network| Network::meant(network, &service.namespace) == place.0)
            });
            let rank = (
                !is_selected,
                pod.ready != Some(true) || pod.is_deleted,
                pod.is_deleted,
                !(is_selected && was_published.contains(&holder)),
                pod.created,
                holder.clone(),
            );
            let namespace =
                best.entry(key.namespace.clone()).or_insert_with(|| (rank.clone(), holder.clone()));
            if rank < namespace.0 {
                *namespace = (rank, holder);
            }
        }
        let best: BTreeSet<Holder> = best.into_values().map(|(_, holder)| holder).collect();
        self.published.insert(place.clone(), best);
    }
}
