//! From what is wanted and what exists to what must be written, for any kind of slice.

use std::hash::Hash;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use multinet_crds::{IpFamily, Port};

use super::metadata::CommonMetadata;
use super::names::Names;
use super::pack::{Content, Entry, Fate, Found, Wanted, pack};
use super::{Plan, SliceId};

/// A kind of slice.
pub(crate) trait Slice: Resource<DynamicType = ()> + Clone {
    /// An endpoint.
    type Entry: Entry + Clone;

    /// What all endpoints of a slice have in common, apart from the ports.
    type Group: Hash;

    /// A label that a slice keeps for life: readers may file slices under it. One with another value is replaced, not
    /// written anew.
    const FIXED_LABEL: Option<&'static str>;

    /// The family of a group's addresses.
    fn family_of(group: &Self::Group) -> IpFamily;

    /// The family of the slice's addresses, if it is one that we know.
    fn family(&self) -> Option<IpFamily>;

    /// Whether the slice is one of the group.
    fn is_of(&self, group: &Self::Group) -> bool;

    /// Whether the slice has these ports.
    fn has_ports(&self, ports: &[Port]) -> bool;

    /// The slice's endpoints.
    fn entries(&self) -> &[Self::Entry];

    /// A slice of these parts.
    fn build(metadata: ObjectMeta, group: &Self::Group, ports: &[Port], entries: Vec<Self::Entry>) -> Self;
}

/// What the slices of a service should say.
pub(crate) struct DesiredSlices<'a, S: Slice> {
    /// Labels, owner and annotation.
    pub(crate) common: CommonMetadata<'a>,
    /// What the names of new slices start with.
    pub(crate) prefix: &'a str,
    /// The ports of every endpoint.
    pub(crate) ports: &'a [Port],
    /// The endpoints by group.
    pub(crate) groups: Vec<(S::Group, Vec<&'a S::Entry>)>,
}

/// How endpoints are packed into slices.
#[derive(Clone, Copy, Debug)]
pub struct PackOptions {
    /// How many endpoints a slice may have.
    pub limit: usize,
    /// Varies the names of new slices.
    pub seed: u64,
    /// Some of the slices that are half empty are merged.
    pub merges: bool,
}

impl<S: Slice> DesiredSlices<'_, S> {
    /// The fewest writes that make the slices say it. With `merges`, they leave fewer slices.
    pub(crate) fn plan(&self, existing: &[Arc<S>], packing: PackOptions) -> Plan<S> {
        let PackOptions { limit, seed, merges } = packing;
        let taken = existing.iter().filter_map(|slice| slice.meta().name.clone()).collect();
        let mut names = Names::new(self.prefix, &self.common.owner.uid, seed, taken);
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

/// The plan that removes all of `existing`.
pub(crate) fn remove<S: Slice>(existing: &[Arc<S>]) -> Plan<S> {
    Plan {
        delete: alive(existing).into_iter().map(|slice| SliceId::of(slice.meta())).collect(),
        ..Plan::default()
    }
}

/// The slices that are not being deleted, by name.
fn alive<S: Slice>(existing: &[Arc<S>]) -> Vec<&S> {
    let mut alive: Vec<&S> =
        existing.iter().map(Arc::as_ref).filter(|slice| slice.meta().deletion_timestamp.is_none()).collect();
    alive.sort_unstable_by(|a, b| a.meta().name.cmp(&b.meta().name));
    alive
}
