//! The model's writer, which applies the controller's decisions to the cluster, wholly or partly.

use std::collections::VecDeque;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use multinet_controller::index::ClusterIndex;
use multinet_controller::queue::{Backoff, WorkItem};
use multinet_controller::slices::{Plan, SliceId};
use multinet_controller::work::{Outcome, StatusWrite};
use multinet_crds::{MultiNetworkEndpointSlice, labels};
use multinet_runtime::ObjectKey;
use serde_json::json;

use super::cluster::{Cluster, Holds, OwnedSlice, Refused, Write};

/// Number of times that a service is planned in one turn.
const ATTEMPTS: u32 = 4;

/// Number of consecutive failures before a service's status reports them.
const FAILURES_BEFORE_STATUS: u32 = 3;

/// Outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The request is processed normally.
    Fine,
    /// The response is 409, for any reason.
    Conflict,
    /// The response is 500, and the write was not made.
    Failed,
    /// The write was made, but there is no response.
    Lost,
    /// The write was not made, and there is no response.
    Vanished,
}

/// A service in progress.
pub(crate) struct Job {
    item: WorkItem,
    attempts: u32,
    stage: Stage,
    requests: VecDeque<Request>,
    slices: BatchResult,
    mirrors: BatchResult,
}

enum Stage {
    Plan,
    Write,
    List,
    Refresh(Vec<MultiNetworkEndpointSlice>, Vec<EndpointSlice>),
    /// Whether everything was written.
    Tell(bool),
}

enum Request {
    Slice(Verb<MultiNetworkEndpointSlice>),
    Mirror(Verb<EndpointSlice>),
}

enum Verb<S> {
    Create(S),
    Update(S),
    Delete(SliceId),
}

#[derive(Clone, Copy, Default)]
struct BatchResult {
    is_stale: bool,
    has_failed: bool,
}

impl BatchResult {
    fn are_good(self) -> bool {
        !self.is_stale && !self.has_failed
    }
}

impl Job {
    pub(crate) fn new(item: WorkItem) -> Self {
        let (slices, mirrors) = (BatchResult::default(), BatchResult::default());
        Self { item, attempts: 0, stage: Stage::Plan, requests: VecDeque::new(), slices, mirrors }
    }

    pub(crate) fn service(&self) -> ObjectKey {
        self.item.service().clone()
    }

    /// Returns whether a list is under way.
    pub(crate) fn has_asked(&self) -> bool {
        matches!(self.stage, Stage::Refresh(..))
    }

    /// Does the next step. Returns `None` if the job is finished.
    pub(crate) fn step(mut self, index: &ClusterIndex, cluster: &mut Cluster, fate: Fate) -> Option<Self> {
        let service = self.service();
        self.stage = match self.stage {
            Stage::Plan => self.plan(index, &service),
            Stage::Write => self.write(index, cluster, fate),
            Stage::List if fate == Fate::Failed => Stage::Tell(false),
            Stage::List => Stage::Refresh(listed(cluster, &service), listed(cluster, &service)),
            Stage::Refresh(slices, mirrors) => {
                index.replace_listed(&service, slices, mirrors);
                self.attempts += 1;
                if self.attempts == ATTEMPTS { Stage::Tell(false) } else { Stage::Plan }
            }
            Stage::Tell(is_done) => {
                self.report_outcome(index, cluster, is_done, fate);
                return None;
            }
        };
        Some(self)
    }

    fn plan(&mut self, index: &ClusterIndex, service: &ObjectKey) -> Stage {
        // The slices of some services are merged all the time.
        let work = index.work(service, service.name == "two");
        if work.needs_list {
            assert!(work.slices.is_empty() && work.mirrors.is_empty());
            return Stage::List;
        }
        let slices = Phases::new(work.slices, Request::Slice);
        let mirrors = Phases::new(work.mirrors, Request::Mirror);
        self.requests =
            [slices.writes, mirrors.writes, slices.deletes, mirrors.deletes].into_iter().flatten().collect();
        (self.slices, self.mirrors) = (BatchResult::default(), BatchResult::default());
        Stage::Write
    }

    fn write(&mut self, index: &ClusterIndex, cluster: &mut Cluster, fate: Fate) -> Stage {
        match self.requests.pop_front() {
            Some(Request::Slice(verb)) => {
                let stored = |slice| index.record_stored_slice(slice);
                self.slices =
                    send(cluster, verb, fate, self.slices, stored, |id| index.record_deleted_slice(id));
            }
            Some(Request::Mirror(verb)) => {
                let stored = |slice| index.record_stored_mirror(slice);
                self.mirrors =
                    send(cluster, verb, fate, self.mirrors, stored, |id| index.record_deleted_mirror(id));
            }
            None => {}
        }
        if !self.requests.is_empty() {
            Stage::Write
        } else if self.slices.is_stale || self.mirrors.is_stale {
            Stage::List
        } else {
            Stage::Tell(!self.slices.has_failed && !self.mirrors.has_failed)
        }
    }

    fn report_outcome(self, index: &ClusterIndex, cluster: &mut Cluster, is_done: bool, fate: Fate) {
        if !is_done && self.item.failures() + 1 < FAILURES_BEFORE_STATUS {
            return self.item.failed(Backoff::Service);
        }
        let written = if is_done { Ok(()) } else { Err("the API server has no room") };
        let Outcome { status, .. } = index.outcome(self.item.service(), written);
        let has_status = status.is_none_or(|status| write_status(index, cluster, status, fate));
        if is_done && has_status {
            self.item.done();
        } else {
            self.item.failed(Backoff::Service);
        }
    }
}

/// Requests for one kind: those that are sent first, and those that are sent if the first ones
/// succeeded.
struct Phases {
    writes: Vec<Request>,
    deletes: Vec<Request>,
}

impl Phases {
    fn new<S>(plan: Plan<S>, request: fn(Verb<S>) -> Request) -> Self {
        let creates = plan.create.into_iter().map(Verb::Create);
        let writes = creates.chain(plan.update.into_iter().map(Verb::Update)).map(request).collect();
        Self { writes, deletes: plan.delete.into_iter().map(Verb::Delete).map(request).collect() }
    }
}

/// Sends a request, and reports the response to the controller.
fn send<S: OwnedSlice>(
    cluster: &mut Cluster,
    verb: Verb<S>,
    fate: Fate,
    results: BatchResult,
    stored: impl FnOnce(S),
    removed: impl FnOnce(&SliceId),
) -> BatchResult
where
    Cluster: Holds<S>,
{
    let stale = BatchResult { is_stale: true, ..results };
    match fate {
        _ if matches!(verb, Verb::Delete(_)) && !results.are_good() => results,
        Fate::Failed => BatchResult { has_failed: true, ..results },
        Fate::Conflict | Fate::Vanished => stale,
        Fate::Lost => {
            let _ = perform(cluster, &verb);
            stale
        }
        Fate::Fine => match (perform(cluster, &verb), verb) {
            (Ok(Some(slice)), _) => {
                stored(slice);
                results
            }
            (Ok(None), Verb::Delete(id)) => {
                removed(&id);
                results
            }
            _ => stale,
        },
    }
}

fn perform<S: OwnedSlice>(cluster: &mut Cluster, verb: &Verb<S>) -> Result<Option<S>, Refused>
where
    Cluster: Holds<S>,
{
    match verb {
        Verb::Create(slice) => cluster.create(slice.clone()).map(Some),
        Verb::Update(slice) => cluster.update(slice.clone()).map(Some),
        Verb::Delete(id) => cluster.delete::<S>(id).map(|()| None),
    }
}

/// Lists a service's objects by the label with its name.
fn listed<S: OwnedSlice>(cluster: &mut Cluster, service: &ObjectKey) -> Vec<S>
where
    Cluster: Holds<S>,
{
    let objects = Holds::<S>::store(cluster).iter().map(|(_, slice)| slice);
    let is_listed = |slice: &&S| {
        slice.meta().namespace.as_ref() == Some(&service.namespace)
            && slice.label(labels::SERVICE_NAME) == Some(service.name.as_str())
    };
    objects.filter(is_listed).cloned().collect()
}

/// Writes a status. Returns whether the write was made and answered.
fn write_status(index: &ClusterIndex, cluster: &mut Cluster, write: StatusWrite, fate: Fate) -> bool {
    if matches!(fate, Fate::Failed | Fate::Conflict | Fate::Vanished) {
        return false;
    }
    let Some((version, service)) = cluster.services.objects.get(&write.service) else { return true };
    if version.to_string() != write.resource_version {
        return false;
    }
    let mut service = service.clone();
    assert!(service.status != json!(write.status), "the status is unchanged: {write:?}");
    service.status = json!(write.status);
    cluster.put(&write.service, service);
    cluster.writes.push(Write::Status(write.service.clone()));
    if fate == Fate::Lost {
        return false;
    }
    if let Some(stored) = cluster.service_object(&write.service) {
        index.record_stored_service(stored);
    }
    true
}
