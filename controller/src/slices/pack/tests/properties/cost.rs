//! Number of writes that a change costs: the minimum, and that of Kubernetes' EndpointSlice
//! controller. Both are for slices that only the controller has written.

use super::{FAMILIES, Groups, IpFamily, Slice, common};

/// A slice of a wanted group.
struct Kept {
    /// Number of endpoints that it keeps.
    count: usize,
    /// Whether it contains anything that is not wanted as it is.
    changed: bool,
}

/// Returns the slices of a group, and the number of its endpoints that are in no slice.
fn read(number: usize, wanted: &str, existing: &[Slice]) -> (Vec<Kept>, usize) {
    let of_group = existing.iter().filter(|slice| slice.group == Some(number));
    let slices: Vec<Kept> = of_group
        .map(|slice| Kept {
            count: common(&slice.letters, wanted).len(),
            changed: slice.letters.chars().any(|letter| !wanted.contains(letter)),
        })
        .collect();
    let missing = wanted.len() - slices.iter().map(|slice| slice.count).sum::<usize>();
    (slices, missing)
}

/// Returns the wanted groups of a family.
fn of_family(groups: &Groups, family: IpFamily) -> impl Iterator<Item = (usize, &str)> {
    let groups = groups.iter().map(|(number, wanted)| (*number, wanted.as_str()));
    groups.filter(move |(number, _)| FAMILIES[*number] == family)
}

/// Counts the slices of a family that belong to no wanted group.
fn unwanted(groups: &Groups, existing: &[Slice], family: IpFamily) -> usize {
    let of_family = existing.iter().filter(|slice| slice.family == Some(family));
    of_family.filter(|slice| slice.group.is_none_or(|group| !groups.contains_key(&group))).count()
}

/// Returns the minimum number of writes: one for each slice that cannot stay as it is, and one for
/// each further slice that the remaining endpoints need.
pub(super) fn fewest(groups: &Groups, existing: &[Slice], limit: usize) -> usize {
    let of_family = |family| {
        // Number of slices that can be given to any group.
        let mut spare = unwanted(groups, existing, family);
        let (mut rewritten, mut needed) = (0, 0);
        for (number, wanted) in of_family(groups, family) {
            let (slices, missing) = read(number, wanted, existing);
            if wanted.is_empty() {
                // One slice stays, preferably one that is empty already.
                let placeholder = usize::from(!slices.is_empty());
                spare += slices.len() - placeholder;
                rewritten += usize::from(slices.iter().all(|slice| slice.changed)) * placeholder;
                continue;
            }
            let partial: Vec<_> = slices.iter().filter(|slice| slice.changed && slice.count > 0).collect();
            let room: usize = partial.iter().map(|slice| limit - slice.count).sum();
            rewritten += partial.len();
            spare += slices.iter().filter(|slice| slice.count == 0).count();
            needed += missing.saturating_sub(room).div_ceil(limit);
        }
        rewritten + needed.max(spare)
    };
    IpFamily::ALL.into_iter().map(of_family).sum()
}

/// Counts the writes of Kubernetes' controller (`k8s.io/endpointslice`, `reconcileByPortMapping`
/// and `finalize`).
pub(super) fn of_core(groups: &Groups, existing: &[Slice], limit: usize) -> usize {
    IpFamily::ALL.into_iter().map(|family| of_core_in(groups, existing, limit, family)).sum()
}

fn of_core_in(groups: &Groups, existing: &[Slice], limit: usize, family: IpFamily) -> usize {
    let (mut create, mut update) = (0, 0);
    let mut delete = unwanted(groups, existing, family);
    for (number, wanted) in of_family(groups, family) {
        let (slices, mut missing) = read(number, wanted, existing);
        if wanted.is_empty() {
            delete += slices.len();
            continue;
        }
        let mut unchanged: Vec<usize> = Vec::new();
        for slice in &slices {
            match (slice.changed, slice.count) {
                (false, count) => unchanged.push(count),
                (true, 0) => delete += 1,
                (true, count) => {
                    update += 1;
                    missing -= missing.min(limit - count);
                }
            }
        }
        while missing > 0 {
            let fits = missing < limit && unchanged.iter().any(|count| count + missing <= limit);
            update += usize::from(fits);
            create += usize::from(!fits);
            missing -= missing.min(limit);
        }
    }
    let slices: Vec<_> = existing.iter().filter(|slice| slice.family == Some(family)).collect();
    let is_wanted = of_family(groups, family).next().is_some();
    if is_wanted && !slices.is_empty() && slices.len() == delete && create == 0 {
        match delete == 1 && slices[0].letters.is_empty() {
            true => delete = 0,
            false => create = 1,
        }
    }
    create.max(delete) + update
}
