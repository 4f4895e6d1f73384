//! Differences between two sets of endpoints. Pure.

use std::collections::BTreeMap;

use multinet_client::Endpoint;
use serde::Serialize;

/// Kind of change of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum EndpointChange {
    Added,
    Removed,
    Changed,
}

/// Kind of a change, and the endpoint as it is now, or, if it was removed, as it was last.
pub(super) type Difference<'a> = (EndpointChange, &'a Endpoint);

/// Identity of an endpoint: target, port, and the pod's uid or name. A pod that follows another
/// under the same name and address is another endpoint.
type Key<'a> = (&'a str, u16, Option<&'a str>);

/// Returns the differences: first the endpoints that are gone, then those that are new or changed,
/// each in their order.
pub(super) fn differences<'a>(before: &'a [Endpoint], after: &'a [Endpoint]) -> Vec<Difference<'a>> {
    let old: BTreeMap<Key<'_>, &Endpoint> = before.iter().map(|endpoint| (key(endpoint), endpoint)).collect();
    let new: BTreeMap<Key<'_>, &Endpoint> = after.iter().map(|endpoint| (key(endpoint), endpoint)).collect();
    let gone = before.iter().filter(|endpoint| !new.contains_key(&key(endpoint)));
    let there = after.iter().filter_map(|endpoint| match old.get(&key(endpoint)) {
        None => Some((EndpointChange::Added, endpoint)),
        Some(last) if *last != endpoint => Some((EndpointChange::Changed, endpoint)),
        Some(_) => None,
    });
    gone.map(|endpoint| (EndpointChange::Removed, endpoint)).chain(there).collect()
}

fn key(endpoint: &Endpoint) -> Key<'_> {
    let pod = endpoint.pod.as_ref();
    let identity = pod.and_then(|pod| pod.uid.as_deref().or(pod.name.as_deref()));
    (&endpoint.target, endpoint.port, identity)
}
