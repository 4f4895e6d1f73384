//! Compares the desired slices with the existing ones, and plans the writes, for any kind of slice.

use std::hash::Hash;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use multinet_crds::{IpFamily, Port};

use super::metadata::CommonMetadata;
use super::names::SliceNames;
use super::pack::{Content, Fate, Found, PackEntry, Wanted, pack};
use super::{Plan, SliceId};

/// A kind of slice, as the planner reads and builds it.
pub(crate) trait Slice: Resource<DynamicType = ()> + Clone {
    /// Type of an endpoint.
    type Entry: PackEntry + Clone;

    /// Properties, other than ports, that all endpoints of a slice have in common.
    type Group: Hash;

    /// Label that must never change on a slice, since readers may index slices by it. A slice with
    /// another value is replaced instead of updated.
    const FIXED_LABEL: Option<&'static str>;

    /// Returns the family of a group's addresses.
    fn family_of(group: &Self::Group) -> IpFamily;

    /// Returns the family of the slice's addresses, if it is a known one.
    fn family(&self) -> Option<IpFamily>;

    /// Returns whether the slice belongs to `group`.
    fn is_of(&self, group: &Self::Group) -> bool;

    /// Returns whether the slice has these ports.
    fn has_ports(&self, ports: &[Port]) -> bool;

    /// Returns the slice's endpoints.
    fn entries(&self) -> &[Self::Entry];

    /// Builds a slice of `group` with these ports and endpoints.
    fn build(metadata: ObjectMeta, group: &Self::Group, ports: &[Port], entries: Vec<Self::Entry>) -> Self;
}

/// Desired content of a service's slices of one kind.
pub(crate) struct DesiredSlices<'a, S: Slice> {
    /// Labels, owner and annotation of the slices.
    pub(crate) common: CommonMetadata<'a>,
    /// Prefix of the names of new slices.
    pub(crate) prefix: &'a str,
    /// The ports of every endpoint.
    pub(crate) ports: &'a [Port],
    /// The endpoints by group.
    pub(crate) groups: Vec<(S::Group, Vec<&'a S::Entry>)>,
}

/// Options for packing endpoints into slices.
#[derive(Clone, Copy, Debug)]
pub struct PackOptions {
    /// Maximum number of endpoints in a slice.
    pub limit: usize,
    /// Number that varies the names of new slices from plan to plan.
    pub seed: u64,
    /// Whether slices that fit together are merged.
    pub merges: bool,
}

impl<S: Slice> DesiredSlices<'_, S> {
    /// Plans the fewest writes that lead to the desired slices. Merging can need more writes, but
    /// leaves fewer slices.
    pub(crate) fn plan(&self, existing: &[Arc<S>], packing: PackOptions) -> Plan<S> {
        let PackOptions { limit, seed, merges } = packing;
        let taken = existing.iter().filter_map(|slice| slice.meta().name.clone()).collect();
        let mut names = SliceNames::new(self.prefix, &self.common.owner.uid, seed, taken);
        let existing = alive(existing);

        let wanted: Vec<_> = (self.groups.iter())
            .map(|(group, entries)| Wanted { family: S::family_of(group), entries: entries.clone() })
            .collect();
        let found: Vec<_> = existing.iter().map(|slice| self.find(slice)).collect();
        let packing = pack(&wanted, &found, limit, merges);

        let mut plan = Plan::default();
        for (slice, fate) in existing.iter().zip(packing.fates) {
            match fate {
                Fate::Keep => {}
                Fate::Write(content) => {
                    plan.update.push(self.build(self.common.update(slice.meta()), content));
                }
                Fate::Delete => plan.delete.push(SliceId::of(slice.meta())),
            }
        }
        for content in packing.create {
            let metadata = self.common.create(names.next(&self.groups[content.group].0));
            plan.create.push(self.build(metadata, content));
        }
        plan
    }

    fn find<'s>(&self, slice: &'s S) -> Found<'s, S::Entry> {
        let label = |key: &str| slice.meta().labels.as_ref().and_then(|labels| labels.get(key));
        let fixed = S::FIXED_LABEL.and_then(label);
        if fixed.is_some() && fixed != S::FIXED_LABEL.and_then(|key| self.common.labels.get(key)) {
            return Found { family: None, group: None, intact: false, entries: slice.entries() };
        }
        Found {
            family: slice.family(),
            group: self.groups.iter().position(|(group, _)| slice.is_of(group)),
            intact: slice.has_ports(self.ports) && self.common.matches(slice.meta()),
            entries: slice.entries(),
        }
    }

    fn build(&self, metadata: ObjectMeta, content: Content<'_, S::Entry>) -> S {
        let entries = content.entries.into_iter().cloned().collect();
        S::build(metadata, &self.groups[content.group].0, self.ports, entries)
    }
}

/// Plans the deletion of all existing slices.
pub(crate) fn remove<S: Slice>(existing: &[Arc<S>]) -> Plan<S> {
    Plan {
        delete: alive(existing).into_iter().map(|slice| SliceId::of(slice.meta())).collect(),
        ..Plan::default()
    }
}

/// Returns the slices that are not being deleted, sorted by name.
fn alive<S: Slice>(existing: &[Arc<S>]) -> Vec<&S> {
    let mut alive: Vec<&S> =
        existing.iter().map(Arc::as_ref).filter(|slice| slice.meta().deletion_timestamp.is_none()).collect();
    alive.sort_unstable_by(|a, b| a.meta().name.cmp(&b.meta().name));
    alive
}
