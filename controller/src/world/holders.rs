//! Keeps the ledger in step with the pods: which of them has an address, and which of those holds it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;

use jiff::Timestamp;
use multinet_runtime::ObjectKey;

use super::dirty::Dirty;
use super::pods::{Entry, Pods, in_namespace};
use crate::conflicts::{Holder, Standing};
use crate::model::Network;

/// The label of KubeVirt's pods that names the node that their virtual machine is on.
const MACHINE_NODE: &str = "kubevirt.io/nodeName";

impl Pods {
    /// Decides anew which pods hold the addresses that several pods have; see [`Ledger::settle`](crate::conflicts::Ledger::settle).
    pub(super) fn settle(
        &mut self,
        is_first: bool,
        is_published: impl Fn(&Network, IpAddr, &Holder) -> bool,
    ) {
        let (pods, networks) = (&self.pods, &self.networks);
        self.ledger.settle(is_first, is_published, |network, address, holder| {
            standing(pods, networks, network, address, holder)
        });
    }

    /// Brings the ledger in step with the addresses that a pod has now and had `before`.
    pub(super) fn settle_addresses(
        &mut self,
        key: &ObjectKey,
        before: &HashSet<(Network, IpAddr)>,
        at: Timestamp,
        dirty: &mut Dirty,
    ) {
        let Some(entry) = self.pods.get(key) else { return };
        let (holder, now) = (entry.holder(), entry.addresses());
        for (network, address) in before.difference(&now) {
            self.ledger.release(network, *address, &holder);
            self.decide(network, *address, at, dirty);
        }
        for (network, address) in &now {
            self.ledger.claim(network, *address, &holder);
            self.decide(network, *address, at, dirty);
        }
    }

    /// Decides anew which pods hold the addresses that these pods have.
    pub(super) fn decide_all(&mut self, pods: &[ObjectKey], dirty: &mut Dirty) {
        if self.ledger.is_contested() {
            let at = dirty.now();
            let entries = pods.iter().filter_map(|key| self.pods.get(key));
            let addresses: HashSet<(Network, IpAddr)> = entries.flat_map(Entry::addresses).collect();
            for (network, address) in addresses {
                self.decide(&network, address, at, dirty);
            }
        }
    }

    /// Decides which pods hold an address. If that is news, the services that publish the network for any of the pods that have it are
    /// marked.
    pub(super) fn decide(&mut self, network: &Network, address: IpAddr, at: Timestamp, dirty: &mut Dirty) {
        let (pods, networks) = (&self.pods, &self.networks);
        let standing = |holder: &Holder| standing(pods, networks, network, address, holder);
        if self.ledger.decide(network, address, standing) {
            for pod in self.ledger.pods(network, address) {
                for service in self.pods.get(pod).iter().flat_map(|entry| &entry.services) {
                    let service = in_namespace(pod, service);
                    if publishes(&self.networks, &service, network) {
                        dirty.mark(service, at);
                    }
                }
            }
        }
    }
}

/// Returns the facts that decide whether a pod holds an address.
fn standing<'a>(
    pods: &'a BTreeMap<ObjectKey, Entry>,
    networks: &HashMap<ObjectKey, Vec<Network>>,
    network: &Network,
    address: IpAddr,
    holder: &Holder,
) -> Standing<'a> {
    let Some(entry) = pods.get(&holder.pod).filter(|entry| entry.pod.uid == holder.uid) else {
        return Standing::default();
    };
    let pod = &entry.pod;
    let attachment = (entry.interfaces().attachments.iter())
        .find(|attachment| attachment.networks.contains(network) && attachment.addresses.contains(&address));
    let claimed = attachment.and_then(|attachment| attachment.claimed.as_ref());
    let mut services = entry.services.iter();
    Standing {
        is_selected: services.any(|service| publishes(networks, &in_namespace(&pod.key, service), network)),
        is_ready: pod.is_ready(),
        is_terminating: pod.terminating,
        created: pod.created,
        machine: pod.machine.as_deref(),
        is_at_home: pod.node.is_some() && pod.labels.get(MACHINE_NODE) == pod.node.as_ref(),
        claim: claimed.map(|device| device.claim.as_str()),
    }
}

/// Returns whether a service publishes addresses on this network.
fn publishes(networks: &HashMap<ObjectKey, Vec<Network>>, service: &ObjectKey, network: &Network) -> bool {
    networks.get(service).is_some_and(|networks| networks.contains(network))
}
