//! Counts of what the index contains, for the metrics.

use super::State;

/// Numbers of objects, for the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Pods in all namespaces, selected or not.
    pub pods: usize,
    /// MultiNetworkServices in all namespaces.
    pub services: usize,
    /// MultiNetworkEndpointSlices that the controller manages.
    pub slices: usize,
    /// Core EndpointSlices of mirrors that the controller manages.
    pub mirrors: usize,
    /// Endpoints of the controller's slices that DNS answers with.
    pub ready: usize,
    /// Endpoints of the controller's slices that are neither ready nor terminating.
    pub not_ready: usize,
    /// Endpoints of the controller's slices that are terminating and not ready.
    pub terminating: usize,
    /// Addresses that pods are in conflict over.
    pub conflicts: usize,
    /// Pods whose network-status annotation cannot be read.
    pub unreadable: usize,
}

impl State {
    pub(super) fn totals(&self) -> Totals {
        let mut totals = Totals {
            pods: self.pods.len(),
            services: self.services.len(),
            slices: self.slices.len(),
            mirrors: self.mirrors.len(),
            conflicts: self.pods.ledger().conflicts(),
            unreadable: self.pods.iter().filter(|pod| !pod.report.unreadable.is_empty()).count(),
            ..Totals::default()
        };
        for endpoint in self.slices.iter().flat_map(|slice| &slice.spec.endpoints) {
            if endpoint.is_ready() {
                totals.ready += 1;
            } else if endpoint.conditions.is_terminating() {
                totals.terminating += 1;
            } else {
                totals.not_ready += 1;
            }
        }
        totals
    }
}
