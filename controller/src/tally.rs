//! Counts of a service's pods that have endpoints, and of those that are ready.

use std::collections::BTreeMap;

use multinet_crds::{Endpoint, EndpointCounts, NetworkCounts};

use crate::name_summary::NameSummary;

/// Numbers of pods of a service that have endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Number of pods with endpoints on any network.
    pub endpoints: EndpointCounts,
    /// Numbers of pods on each network, in the order of the spec.
    pub networks: Vec<NetworkCounts>,
    /// Pods with endpoints of which none is ready.
    pub not_ready: NameSummary,
}

impl Tally {
    /// Creates a tally of zero pods on the networks with these aliases.
    pub(crate) fn of<'a>(aliases: impl Iterator<Item = &'a str>) -> Self {
        let counts = |alias: &str| NetworkCounts { alias: alias.to_owned(), ..NetworkCounts::default() };
        Self { networks: aliases.map(counts).collect(), ..Self::default() }
    }

    /// Counts a pod on the network `alias`: whether it has endpoints, ready ones, or lacks them.
    pub(crate) fn count_on_network(&mut self, alias: &str, is_there: bool, is_ready: bool, is_missing: bool) {
        if let Some(counts) = self.networks.iter_mut().find(|counts| counts.alias == alias) {
            counts.total += u32::from(is_there);
            counts.ready += u32::from(is_ready);
            counts.missing += u32::from(is_missing);
        }
    }

    /// Counts a pod over all networks: whether it has endpoints, and ready ones.
    pub(crate) fn count_pod(&mut self, name: &str, is_there: bool, is_ready: bool) {
        self.endpoints.total += u32::from(is_there);
        self.endpoints.ready += u32::from(is_ready);
        if is_there && !is_ready {
            self.not_ready.add(name);
        }
    }

    /// Replaces the counts by those of the pods in `slices`, each pod once. Keeps the numbers of
    /// missing pods.
    pub(crate) fn recount<'a>(&mut self, slices: impl Iterator<Item = &'a SlicePods>) {
        let mut pods: BTreeMap<&str, bool> = BTreeMap::new();
        let mut by_network: BTreeMap<(&str, &str), bool> = BTreeMap::new();
        for rows in slices {
            for (pod, is_ready) in &rows.pods {
                *pods.entry(pod).or_default() |= is_ready;
                *by_network.entry((&rows.alias, pod)).or_default() |= is_ready;
            }
        }
        (self.endpoints, self.not_ready) = (EndpointCounts::default(), NameSummary::default());
        for counts in &mut self.networks {
            (counts.ready, counts.total) = (0, 0);
        }
        for ((alias, _), is_ready) in by_network {
            self.count_on_network(alias, true, is_ready, false);
        }
        for (pod, is_ready) in pods {
            self.count_pod(pod, true, is_ready);
        }
    }
}

/// The network of a slice, and the pods that its endpoints belong to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SlicePods {
    alias: String,
    /// Name and readiness of each endpoint's pod. For an endpoint without a pod, the host name or
    /// the address stands for it.
    pods: Vec<(String, bool)>,
}

impl SlicePods {
    /// Reads the endpoints of a slice on the network `alias`.
    pub(crate) fn of(alias: &str, endpoints: &[Endpoint]) -> Self {
        let pods = endpoints.iter().map(|endpoint| {
            let target = endpoint.target_ref.as_ref().and_then(|target| target.name.as_ref());
            let name = target.or(endpoint.hostname.as_ref()).or_else(|| endpoint.addresses.first());
            (name.cloned().unwrap_or_default(), endpoint.is_ready())
        });
        Self { alias: alias.to_owned(), pods: pods.collect() }
    }

    /// Returns the number of endpoints.
    pub(crate) fn len(&self) -> usize {
        self.pods.len()
    }
}
