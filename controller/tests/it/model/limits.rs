//! Checks of the cluster at rest with limits that are low enough to apply. They hold for any
//! order in which pods got their addresses.

use std::collections::BTreeMap;

use multinet_controller::caps::Caps;
use multinet_crds::MultiNetworkEndpointSlice;
use multinet_runtime::ObjectKey;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::check::{is_alive, shown, slices_of};
use super::cluster::{Cluster, OwnedSlice as _};
use super::expected::Expected;
use super::services::{Service, alias};
use super::simulation::Simulation;

pub(crate) const CAPS: Caps = Caps { pod: 2, service: 5, namespace: 8 };

/// Checks that published addresses are correct and within the limits, and that each omitted one
/// exceeds a limit.
pub(crate) fn check(simulation: &Simulation) -> Result<(), TestCaseError> {
    let cluster = &simulation.cluster;
    let mut namespaces: BTreeMap<&str, usize> = BTreeMap::new();
    let ours = |slice: &MultiNetworkEndpointSlice| slice.service().is_some() && is_alive(slice);
    for (key, slice) in cluster.slices.iter().filter(|(_, slice)| ours(slice)) {
        *namespaces.entry(&key.namespace).or_default() += slice.spec.endpoints.len();
    }
    for (namespace, count) in &namespaces {
        prop_assert!(*count <= CAPS.namespace, "{} addresses of {}", count, namespace);
    }
    for (key, service) in cluster.services.iter().filter(|(_, service)| !service.is_deleted) {
        let Expected::Ours(ours) = Expected::of(cluster, &simulation.told.order, key, service) else {
            continue;
        };
        let mut published = 0;
        let mut by_pod: BTreeMap<(&str, String), usize> = BTreeMap::new();
        for slice in slices_of(cluster, key) {
            let alias_of = slice.spec.network.alias();
            for endpoint in &slice.spec.endpoints {
                let found = shown(endpoint, &ours);
                let is_true = ours.groups.iter().any(|(place, family, endpoints)| {
                    alias(*place) == alias_of
                        && *family == slice.spec.address_type
                        && endpoints.iter().any(|wanted| shown(wanted, &ours) == found)
                });
                prop_assert!(is_true, "{} has the wrong {:?}", key, endpoint);
                published += 1;
                let uid = endpoint.target_ref.as_ref().and_then(|target| target.uid.clone());
                *by_pod.entry((alias_of, uid.unwrap_or_default())).or_default() += 1;
            }
        }
        prop_assert!(published <= CAPS.service, "{} addresses of {}", published, key);
        prop_assert!(by_pod.values().all(|count| *count <= CAPS.pod), "{}: {:?}", key, by_pod);

        let all = ours.groups.iter().map(|(_, _, endpoints)| endpoints.len()).sum::<usize>();
        let reason = reason(service);
        prop_assert_eq!(reason.is_some(), published < all, "{}: {:?}, {} of {}", key, reason, published, all);
        if reason == Some("AddressesPerNamespace") {
            prop_assert!(total(cluster, key) >= CAPS.namespace, "{} waits below the limit", key);
        }
    }
    Ok(())
}

/// Returns the number of addresses in all slices of the service's namespace, including those of
/// other writers.
fn total(cluster: &Cluster, service: &ObjectKey) -> usize {
    let slices = cluster.slices.iter().filter(|(key, _)| key.namespace == service.namespace);
    slices.map(|(_, slice)| slice.spec.endpoints.len()).sum()
}

fn reason(service: &Service) -> Option<&str> {
    let conditions = service.status["conditions"].as_array()?;
    conditions.iter().find(|condition| condition["type"] == "Capped")?["reason"].as_str()
}
