//! Keeps the address ledger up to date with the pods: which pods have which address, and their
//! states.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use multinet_runtime::ObjectKey;

use super::dirty::Dirty;
use super::pods::{PodEntry, Pods};
use crate::conflicts::{Holder, HolderState};
use crate::model::Network;

/// Label of KubeVirt's pods with the node that their virtual machine is on.
const MACHINE_NODE: &str = "kubevirt.io/nodeName";

impl Pods {
    /// Decides contested addresses again; see
    /// [`AddressLedger::adopt_published`](crate::conflicts::AddressLedger::adopt_published).
    pub(super) fn adopt_published(
        &mut self,
        is_first: bool,
        is_published: impl Fn(&Network, IpAddr, &Holder) -> bool,
    ) {
        self.ledger.adopt_published(is_first, is_published);
    }

    /// Updates the address ledger for a pod that had the addresses `before`.
    pub(super) fn update_ledger(
        &mut self,
        key: &ObjectKey,
        before: &HashSet<(Network, IpAddr)>,
        at: Timestamp,
        dirty: &mut Dirty,
    ) {
        let Some(entry) = self.pods.get(key) else { return };
        let (holder, now) = (Arc::clone(&entry.holder), entry.addresses());
        for (network, address) in before.difference(&now) {
            dirty.mark(self.ledger.release(network, *address, &holder), at);
        }
        let mut services: HashMap<&Network, Arc<[String]>> = HashMap::new();
        for (network, address) in &now {
            let own = services.entry(network).or_insert_with(|| publishers(&self.networks, entry, network));
            let state = |other: &Holder| {
                if *other == *holder {
                    state(entry, network, *address, Arc::clone(own))
                } else {
                    state_of(&self.pods, &self.networks, network, *address, other)
                }
            };
            dirty.mark(self.ledger.update(network, *address, &holder, state), at);
        }
    }

    /// Updates the ledger for pods whose services have changed, but not their addresses.
    pub(super) fn decide_all(&mut self, pods: &[ObjectKey], dirty: &mut Dirty) {
        if self.ledger.is_contested() {
            let at = dirty.now();
            for key in pods {
                let now = self.pods.get(key).map(PodEntry::addresses).unwrap_or_default();
                self.update_ledger(key, &now, at, dirty);
            }
        }
    }

    /// Removes a deleted pod from the address ledger.
    pub(super) fn release(&mut self, entry: &PodEntry, at: Timestamp, dirty: &mut Dirty) {
        for (network, address) in entry.addresses() {
            dirty.mark(self.ledger.release(&network, address, &entry.holder), at);
        }
    }
}

/// Returns the state of a pod for an address. Looks the pod up first.
fn state_of(
    pods: &BTreeMap<ObjectKey, PodEntry>,
    networks: &HashMap<ObjectKey, Vec<Network>>,
    network: &Network,
    address: IpAddr,
    holder: &Holder,
) -> HolderState {
    let Some(entry) = pods.get(&holder.pod).filter(|entry| entry.pod.uid == holder.uid) else {
        return HolderState::default();
    };
    state(entry, network, address, publishers(networks, entry, network))
}

/// Returns the state of a pod for an address. `services` publish the pod's addresses on the
/// network.
fn state(entry: &PodEntry, network: &Network, address: IpAddr, services: Arc<[String]>) -> HolderState {
    let pod = &entry.pod;
    let attachment = (entry.interfaces().attachments.iter())
        .find(|attachment| attachment.networks.contains(network) && attachment.addresses.contains(&address));
    let claimed = attachment.and_then(|attachment| attachment.claimed.as_ref());
    HolderState {
        services,
        is_ready: pod.is_ready(),
        is_terminating: pod.terminating,
        created: pod.created,
        machine: pod.machine.clone(),
        is_on_machine_node: pod.node.is_some() && pod.labels.get(MACHINE_NODE) == pod.node.as_ref(),
        claim: claimed.map(|device| device.claim.clone()),
    }
}

/// Returns the names of the services that publish a pod's addresses on a network.
fn publishers(
    networks: &HashMap<ObjectKey, Vec<Network>>,
    entry: &PodEntry,
    network: &Network,
) -> Arc<[String]> {
    let publishes = |service: &&String| {
        let service = entry.pod.key.beside(*service);
        networks.get(&service).is_some_and(|networks| networks.contains(network))
    };
    entry.services.iter().filter(publishes).cloned().collect()
}
