//! Decides what to write and to report for one service.

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Resource;
use multinet_crds::conditions::{CappedReason, ConditionType, find};
use multinet_crds::{
    MultiNetworkEndpointSlice, MultiNetworkService, MultiNetworkServiceSpec, MultiNetworkServiceStatus,
    NetworkReference, labels,
};
use multinet_runtime::ObjectKey;
use strum::VariantArray as _;

use super::{Selection, ServiceState, Settings, State};
use crate::endpoints::{Collected, Inputs, collect};
use crate::mirror::{self, DesiredMirror};
use crate::model::{Claim, Member, Pod};
use crate::slices::metadata::label;
use crate::slices::planner::remove;
use crate::slices::{self, Desired, Owner, PackOptions};
use crate::status::{Evaluation, differ_in_counts_only, event_content, status};
use crate::tally::{SlicePods, Tally};
use crate::work::{Notice, Outcome, StatusWrite, Work};

impl State {
    pub(super) fn work(&mut self, key: &ObjectKey, merges: bool) -> Work {
        self.recount();
        self.slices.begin_work(key);
        self.mirrors.begin_work(key);
        if self.slices.needs_list(key) || self.mirrors.needs_list(key) {
            return Work { needs_list: true, ..Work::default() };
        }
        if let Some(service) = self.services.get_mut(key) {
            // Changes from now on belong to the next plan.
            let triggers = [service.writing, service.trigger.take()];
            service.writing = triggers.into_iter().flatten().min();
        }
        let Some(service) = self.services.get(key) else {
            if self.undecodable.contains(key) {
                return Work::default();
            }
            // A service that is not in the index may be new. Slices of others that it controls are
            // deleted through their ownerReferences.
            let mut slices = self.slices.of(key);
            slices.retain(|slice| slices::is_labelled(slice));
            return Work {
                slices: remove(&slices),
                mirrors: remove(&self.mirrors.of(key)),
                ..Work::default()
            };
        };
        let unresolved = self.references.unresolved(key);
        let mut evaluation = match &service.selection {
            Selection::Invalid(violations) => Evaluation::Invalid(violations.clone()),
            Selection::NoSelector => {
                let aliases = service.object.spec.networks.iter().map(NetworkReference::alias);
                let mut tally = Tally::of(aliases);
                // Others may have made the service the controller of their slices.
                let slices = self.slices.of(key);
                let owned = slices.iter().filter(|slice| {
                    let name = label(&slice.metadata, labels::SERVICE_NAME);
                    !slices::is_labelled(slice) && name == Some(&key.name)
                });
                let owned: Vec<SlicePods> = owned.map(|slice| rows(slice)).collect();
                tally.recount(owned.iter().chain(self.foreign_slices.of(key)));
                Evaluation::NoSelector(tally, unresolved)
            }
            Selection::Pods(_) => {
                let mut collected = self.collect(key, &service.object.spec);
                let foreign_slices = self.foreign_slices.of(key);
                if !foreign_slices.is_empty() {
                    let own = collected.groups.iter();
                    let own: Vec<SlicePods> =
                        own.map(|group| SlicePods::of(group.network.alias(), &group.endpoints)).collect();
                    collected.tally.recount(own.iter().chain(foreign_slices));
                }
                Evaluation::Collected(Box::new(collected), unresolved)
            }
        };
        let mut work = self.plan(key, service, &evaluation, false);
        if merges && work.is_empty() {
            work = self.plan(key, service, &evaluation, true);
        }
        if service.object.metadata.deletion_timestamp.is_some() {
            // The garbage collector deletes the slices of a deleted service through their
            // ownerReferences. Until then, endpoints may leave them, but no slice is created.
            work.slices.create.clear();
            work.mirrors.create.clear();
        }
        self.seed = self.seed.wrapping_add(1);
        let (given, waits) = match &mut evaluation {
            Evaluation::Collected(collected, _) => {
                // The slices contain the endpoints too. The status needs only the other facts, so
                // this saves memory.
                let groups = std::mem::take(&mut collected.groups);
                let given = groups.iter().map(|group| group.endpoints.len()).sum();
                let waits = matches!(collected.capped.beyond, Some((CappedReason::AddressesPerNamespace, _)));
                (given, waits)
            }
            Evaluation::Invalid(_) | Evaluation::NoSelector(..) => (0, false),
        };
        self.woken.extend(self.counts.set_given(key, given, waits));
        if let Some(service) = self.services.get_mut(key) {
            service.evaluation = Some(evaluation);
        }
        work
    }

    pub(super) fn could_merge(&self, key: &ObjectKey) -> bool {
        let (slices, mirrors) = (self.slices.of(key), self.mirrors.of(key));
        let slices = slices.iter().map(|slice| {
            ((slice.spec.network.alias(), slice.spec.address_type.as_str()), slice.spec.endpoints.len())
        });
        let mirrors =
            mirrors.iter().map(|mirror| (("", mirror.address_type.as_str()), mirror.endpoints.len()));
        let Settings { limit, mirror_limit, .. } = self.settings;
        slices::could_merge(slices, limit) || slices::could_merge(mirrors, mirror_limit)
    }

    fn collect(&self, key: &ObjectKey, spec: &MultiNetworkServiceSpec) -> Collected {
        let slices = self.slices.of(key);
        let inputs = Inputs {
            ledger: self.pods.ledger(),
            zones: &self.zones,
            slices: &slices,
            room: self.counts.room(key),
        };
        collect(&key.namespace, spec, self.pods.of(key), inputs)
    }

    fn plan(&self, key: &ObjectKey, service: &ServiceState, evaluation: &Evaluation, merges: bool) -> Work {
        let owner = Owner {
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            uid: service.object.metadata.uid.clone().unwrap_or_default(),
        };
        let (slices, mirrors) = (self.slices.of(key), self.mirrors.of(key));
        let collected = match evaluation {
            Evaluation::Invalid(_) => return Work::default(),
            Evaluation::NoSelector(..) => {
                // The new writer of the slices may have made the service their controller.
                let ours: Vec<_> = slices.into_iter().filter(|slice| slices::is_labelled(slice)).collect();
                return Work { slices: remove(&ours), mirrors: remove(&mirrors), ..Work::default() };
            }
            Evaluation::Collected(collected, _) => collected,
        };
        let mirror = self.desired_mirror(&owner, service, collected);
        let desired = Desired {
            owner,
            labels: service.object.metadata.labels.clone().unwrap_or_default(),
            ports: service.object.spec.ports.clone(),
            groups: collected.groups.clone(),
        };
        let Settings { limit, mirror_limit, .. } = self.settings;
        let packing = PackOptions { limit, seed: self.seed, merges };
        let mirror_packing = PackOptions { limit: mirror_limit, ..packing };
        Work {
            needs_list: false,
            slices: slices::plan(&desired, &slices, packing, service.writing),
            mirrors: mirror::plan(mirror.as_ref(), &mirrors, mirror_packing, service.writing),
        }
    }

    fn desired_mirror(
        &self,
        owner: &Owner,
        service: &ServiceState,
        collected: &Collected,
    ) -> Option<DesiredMirror> {
        let mirror = service.object.spec.mirror.as_ref()?;
        let target = ObjectKey { namespace: owner.namespace.clone(), name: mirror.service_name.clone() };
        self.references.is_usable(&target).then(|| DesiredMirror {
            owner: owner.clone(),
            service: mirror.service_name.clone(),
            ports: service.object.spec.ports.clone(),
            endpoints: collected.mirrored(mirror.network.as_deref()),
        })
    }

    pub(super) fn outcome(&mut self, key: &ObjectKey, written: Result<(), &str>) -> Outcome {
        let now = Time(self.dirty.now());
        self.slices.end_work(key);
        self.mirrors.end_work(key);
        let Some(service) = self.services.get_mut(key) else { return Outcome::default() };
        if written.is_ok() {
            service.writing = None;
        }
        let Some(evaluation) = &service.evaluation else { return Outcome::default() };
        if service.object.metadata.deletion_timestamp.is_some() {
            return Outcome::default();
        }
        let new = without_foreign_conditions(status(
            &service.object,
            evaluation,
            written,
            &self.settings.zone,
            &now,
        ));
        let old = own_status(&service.object);
        service.status = Some(new.clone());
        // Another writer may keep changing our part of the status. Repair it at the slow rate of
        // changed numbers, to avoid a write fight.
        service.is_edited &= old != new;
        let urgent = !service.is_edited && !differ_in_counts_only(&old, &new);
        let mut notices = notices_of_service(&service.object, &old, &new, &mut service.notified);
        notices.extend(self.notices_of_pods(key));
        let service = &self.services[key].object;
        let status = (old != new).then(|| StatusWrite {
            service: key.clone(),
            resource_version: service.metadata.resource_version.clone().unwrap_or_default(),
            status: new,
            urgent,
        });
        Outcome { status, notices }
    }

    /// Returns notices about unreadable annotations and claims of the pods that the service
    /// selects. Each is returned once per pod and text while the problem lasts.
    fn notices_of_pods(&mut self, key: &ObjectKey) -> Vec<Notice> {
        let complaints = self.pods.of(key).map(|Member { pod, .. }| {
            (pod.uid.clone(), complaints(pod, self.pods.claims_of(pod).map(|(_, claim)| claim)))
        });
        // Usually no pod has a problem.
        let complaints: Vec<_> =
            complaints.filter(|(uid, now)| !now.is_empty() || self.notified.contains_key(uid)).collect();
        let mut notices = Vec::new();
        for (uid, now) in complaints {
            let mut notified = self.notified.remove(&uid).unwrap_or_default();
            notified.retain(|reason, _| now.iter().any(|notice| notice.reason == *reason));
            for notice in now {
                if notified.get(&notice.reason) != Some(&notice.note) {
                    notified.insert(notice.reason.clone(), notice.note.clone());
                    notices.push(notice);
                }
            }
            if !notified.is_empty() {
                self.notified.insert(uid, notified);
            }
        }
        notices
    }
}

fn rows(slice: &MultiNetworkEndpointSlice) -> SlicePods {
    SlicePods::of(slice.spec.network.alias(), &slice.spec.endpoints)
}

/// Returns the part of the service's status that the controller owns.
pub(super) fn own_status(service: &MultiNetworkService) -> MultiNetworkServiceStatus {
    without_foreign_conditions(service.status.clone().unwrap_or_default())
}

fn without_foreign_conditions(mut status: MultiNetworkServiceStatus) -> MultiNetworkServiceStatus {
    let conditions =
        ConditionType::VARIANTS.iter().filter_map(|&kind| find(&status.conditions, kind).cloned());
    status.conditions = conditions.collect();
    status
}

/// Returns notices about a service: one for each bad condition whose [content](event_content) has
/// changed. A failure to write slices is not among them, since it is the operator's concern; it is
/// logged.
fn notices_of_service(
    service: &MultiNetworkService,
    old: &MultiNetworkServiceStatus,
    new: &MultiNetworkServiceStatus,
    notified: &mut Vec<(&'static str, String)>,
) -> Vec<Notice> {
    let bad = [
        (ConditionType::Accepted, "False"),
        (ConditionType::ResolvedRefs, "False"),
        (ConditionType::AddressConflict, "True"),
        (ConditionType::Capped, "True"),
    ];
    let mut notices = Vec::new();
    for (kind, status) in bad {
        notified.retain(|(known, _)| *known != kind.as_str() || is_bad(new, kind, status));
        let Some(condition) = find(&new.conditions, kind).filter(|condition| condition.status == status)
        else {
            continue;
        };
        // The old status may have been written by an earlier process, which has published its
        // notices.
        let is_old =
            find(&old.conditions, kind).is_some_and(|old| event_content(old) == event_content(condition));
        let (reason, explanation) = event_content(condition);
        let said = (kind.as_str(), format!("{reason}: {explanation}"));
        if is_old || notified.contains(&said) {
            continue;
        }
        notified.retain(|(known, _)| *known != kind.as_str());
        notified.push(said);
        notices.push(Notice {
            regarding: service.object_ref(&()),
            reason: condition.reason.clone(),
            note: condition.message.clone(),
        });
    }
    notices
}

fn is_bad(status: &MultiNetworkServiceStatus, kind: ConditionType, bad: &str) -> bool {
    find(&status.conditions, kind).is_some_and(|condition| condition.status == bad)
}

/// Returns notices about the unusable parts of a pod's annotations and claims, at most one per
/// reason. Returns none for a pod that cannot have secondary interfaces.
fn complaints<'a>(pod: &Pod, claims: impl Iterator<Item = &'a Claim>) -> Vec<Notice> {
    if !pod.has_networks() {
        return Vec::new();
    }
    let unreadable = lines(&pod.report.unreadable).map(|lines| ("NetworkStatusUnreadable", lines));
    let rejected = lines(&pod.report.rejected).map(|lines| ("NetworkStatusRejected", lines));
    let claims: Vec<String> = claims
        .filter_map(|claim| Some(format!("ResourceClaim {}: {}", claim.key.name, claim.unreadable.as_ref()?)))
        .collect();
    let claims = lines(&claims).map(|lines| ("ResourceClaimRejected", lines));
    let regarding = ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(pod.key.namespace.clone()),
        name: Some(pod.key.name.clone()),
        uid: Some(pod.uid.clone()),
        ..ObjectReference::default()
    };
    let notice = |(reason, note): (&str, String)| Notice {
        regarding: regarding.clone(),
        reason: reason.to_owned(),
        note,
    };
    unreadable.into_iter().chain(rejected).chain(claims).map(notice).collect()
}

/// Joins texts by semicolons into one line. Returns `None` if there are none.
fn lines(all: &[impl ToString]) -> Option<String> {
    (!all.is_empty()).then(|| all.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
}
