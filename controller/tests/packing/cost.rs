//! How many writes a change costs: at least, and by core's EndpointSlice controller. Both count only; for slices that nobody
//! has edited.

use std::collections::HashMap;
use std::sync::Arc;

use multinet_controller::slices::{Desired, Group};
use multinet_crds::{Endpoint, IpFamily, MultiNetworkEndpointSlice};

type Existing = [Arc<MultiNetworkEndpointSlice>];

/// What core takes for the same endpoint.
type Key<'a> = (&'a str, Option<&'a str>, Option<&'a str>);

fn key(endpoint: &Endpoint) -> Key<'_> {
    let name = endpoint.target_ref.as_ref().and_then(|target| target.name.as_deref());
    (&endpoint.addresses[0], endpoint.hostname.as_deref(), name)
}

/// A slice of a wanted group.
struct Slice {
    /// How many endpoints it keeps.
    kept: usize,
    /// Whether it holds anything that is not wanted as it is.
    changed: bool,
}

/// The slices of a group, and how many endpoints are in none.
fn read(group: &Group, existing: &Existing) -> (Vec<Slice>, usize) {
    let wanted: HashMap<Key<'_>, &Endpoint> =
        group.endpoints.iter().map(|endpoint| (key(endpoint), endpoint)).collect();
    let slices: Vec<Slice> = existing
        .iter()
        .filter(|slice| slice.spec.network == group.network && slice.spec.address_type == group.family)
        .map(|slice| {
            let endpoints = &slice.spec.endpoints;
            let kept = endpoints.iter().filter(|endpoint| wanted.contains_key(&key(endpoint))).count();
            let changed = endpoints.iter().any(|endpoint| wanted.get(&key(endpoint)) != Some(&endpoint));
            Slice { kept, changed }
        })
        .collect();
    let missing = wanted.len() - slices.iter().map(|slice| slice.kept).sum::<usize>();
    (slices, missing)
}

/// How many slices of the family are of no wanted group.
fn unwanted(desired: &Desired, existing: &Existing, family: IpFamily) -> usize {
    let wanted = |slice: &MultiNetworkEndpointSlice| {
        desired.groups.iter().any(|group| group.family == family && group.network == slice.spec.network)
    };
    existing.iter().filter(|slice| slice.spec.address_type == family && !wanted(slice)).count()
}

/// The fewest writes that do: every slice that cannot stay as it is, and as many more as the endpoints need that find no
/// room there.
pub(crate) fn fewest(desired: &Desired, existing: &Existing, limit: usize) -> usize {
    let of_family = |family| {
        // Slices that go, and so can serve any group.
        let mut spare = unwanted(desired, existing, family);
        let (mut rewritten, mut needed) = (0, 0);
        for group in desired.groups.iter().filter(|group| group.family == family) {
            let (slices, missing) = read(group, existing);
            if group.endpoints.is_empty() {
                // One stays: one that is empty already, if there is any.
                let placeholder = usize::from(!slices.is_empty());
                spare += slices.len() - placeholder;
                rewritten += usize::from(slices.iter().all(|slice| slice.changed)) * placeholder;
                continue;
            }
            let partial: Vec<_> = slices.iter().filter(|slice| slice.changed && slice.kept > 0).collect();
            let room: usize = partial.iter().map(|slice| limit - slice.kept).sum();
            rewritten += partial.len();
            spare += slices.iter().filter(|slice| slice.kept == 0).count();
            needed += missing.saturating_sub(room).div_ceil(limit);
        }
        rewritten + needed.max(spare)
    };
    IpFamily::ALL.into_iter().map(of_family).sum()
}

/// The writes of core's controller (`k8s.io/endpointslice`, `reconcileByPortMapping` and `finalize`).
pub(crate) fn of_core(desired: &Desired, existing: &Existing, limit: usize) -> usize {
    IpFamily::ALL.into_iter().map(|family| of_core_in(desired, existing, limit, family)).sum()
}

fn of_core_in(desired: &Desired, existing: &Existing, limit: usize, family: IpFamily) -> usize {
    let (mut create, mut update) = (0, 0);
    let mut delete = unwanted(desired, existing, family);
    for group in desired.groups.iter().filter(|group| group.family == family) {
        let (slices, mut missing) = read(group, existing);
        if group.endpoints.is_empty() {
            delete += slices.len();
            continue;
        }
        let mut unchanged: Vec<usize> = Vec::new();
        for slice in &slices {
            match (slice.changed, slice.kept) {
                (false, kept) => unchanged.push(kept),
                (true, 0) => delete += 1,
                (true, kept) => {
                    update += 1;
                    missing -= missing.min(limit - kept);
                }
            }
        }
        while missing > 0 {
            let fits = missing < limit && unchanged.iter().any(|kept| kept + missing <= limit);
            update += usize::from(fits);
            create += usize::from(!fits);
            missing -= missing.min(limit);
        }
    }
    let count = existing.iter().filter(|slice| slice.spec.address_type == family).count();
    let is_wanted = desired.groups.iter().any(|group| group.family == family);
    if is_wanted && count > 0 && count == delete && create == 0 {
        let empty =
            existing.iter().any(|slice| slice.spec.address_type == family && slice.spec.endpoints.is_empty());
        match delete == 1 && empty {
            true => delete = 0,
            false => create = 1,
        }
    }
    create.max(delete) + update
}
