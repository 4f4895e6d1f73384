//! The writer: what the controller decides, done to the cluster, whole or not.

use std::collections::VecDeque;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use multinet_controller::queue::{Pause, Turn};
use multinet_controller::slices::{Plan, SliceId};
use multinet_controller::work::{Outcome, StatusWrite};
use multinet_controller::world::World;
use multinet_crds::{MultiNetworkEndpointSlice, labels};
use multinet_runtime::ObjectKey;
use serde_json::json;

use super::cluster::{Cluster, Holds, Refused, Write, Written};

/// How often in one turn a service is planned.
const ATTEMPTS: u32 = 4;

/// How often a service fails before its status says so.
const PATIENCE: u32 = 3;

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// What the API server makes of it.
    Fine,
    /// 409, for whatever reason.
    Conflict,
    /// 500: it was not done.
    Failed,
    /// It was done, but there was no answer.
    Lost,
    /// There was no answer, and it was not done.
    Vanished,
}

/// A service in work.
pub(crate) struct Job {
    turn: Turn,
    attempts: u32,
    stage: Stage,
    requests: VecDeque<Request>,
    slices: Results,
    mirrors: Results,
}

enum Stage {
    Plan,
    Write,
    List,
    Refresh(Vec<MultiNetworkEndpointSlice>, Vec<EndpointSlice>),
    /// Whether all was written.
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
struct Results {
    is_stale: bool,
    has_failed: bool,
}

impl Results {
    fn are_good(self) -> bool {
        !self.is_stale && !self.has_failed
    }
}

impl Job {
    pub(crate) fn new(turn: Turn) -> Self {
        let (slices, mirrors) = (Results::default(), Results::default());
        Self { turn, attempts: 0, stage: Stage::Plan, requests: VecDeque::new(), slices, mirrors }
    }

    pub(crate) fn service(&self) -> ObjectKey {
        self.turn.service().clone()
    }

    /// Whether the answer to a list is under way.
    pub(crate) fn has_asked(&self) -> bool {
        matches!(self.stage, Stage::Refresh(..))
    }

    /// Does the next thing. `None` if the job is over.
    pub(crate) fn step(mut self, world: &World, cluster: &mut Cluster, fate: Fate) -> Option<Self> {
        let service = self.service();
        self.stage = match self.stage {
            Stage::Plan => self.plan(world, &service),
            Stage::Write => self.write(world, cluster, fate),
            Stage::List if fate == Fate::Failed => Stage::Tell(false),
            Stage::List => Stage::Refresh(listed(cluster, &service), listed(cluster, &service)),
            Stage::Refresh(slices, mirrors) => {
                world.refreshed(&service, slices, mirrors);
                self.attempts += 1;
                if self.attempts == ATTEMPTS { Stage::Tell(false) } else { Stage::Plan }
            }
            Stage::Tell(is_done) => {
                self.tell(world, cluster, is_done, fate);
                return None;
            }
        };
        Some(self)
    }

    fn plan(&mut self, world: &World, service: &ObjectKey) -> Stage {
        // Some services have their slices merged all the time.
        let work = if service.name == "two" { world.work_or_merge(service) } else { world.work(service) };
        if work.doubtful {
            assert!(work.slices.is_empty() && work.mirrors.is_empty());
            return Stage::List;
        }
        let slices = Phases::new(work.slices, Request::Slice);
        let mirrors = Phases::new(work.mirrors, Request::Mirror);
        self.requests =
            [slices.writes, mirrors.writes, slices.deletes, mirrors.deletes].into_iter().flatten().collect();
        (self.slices, self.mirrors) = (Results::default(), Results::default());
        Stage::Write
    }

    fn write(&mut self, world: &World, cluster: &mut Cluster, fate: Fate) -> Stage {
        match self.requests.pop_front() {
            Some(Request::Slice(verb)) => {
                let stored = |slice| world.stored_slice(slice);
                self.slices = send(cluster, verb, fate, self.slices, stored, |id| world.removed_slice(id));
            }
            Some(Request::Mirror(verb)) => {
                let stored = |slice| world.stored_mirror(slice);
                self.mirrors = send(cluster, verb, fate, self.mirrors, stored, |id| world.removed_mirror(id));
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

    fn tell(self, world: &World, cluster: &mut Cluster, is_done: bool, fate: Fate) {
        if !is_done && self.turn.failures() + 1 < PATIENCE {
            return self.turn.failed(Pause::Own);
        }
        let written = if is_done { Ok(()) } else { Err("the API server has no room") };
        let Outcome { status, .. } = world.outcome(self.turn.service(), written);
        let has_status = status.is_none_or(|status| write_status(world, cluster, status, fate));
        if is_done && has_status {
            self.turn.done();
        } else {
            self.turn.failed(Pause::Own);
        }
    }
}

/// Requests of one kind: those that go first, and those that go if these went well.
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

/// Sends a request, and tells the controller of the answer.
fn send<S: Written>(
    cluster: &mut Cluster,
    verb: Verb<S>,
    fate: Fate,
    results: Results,
    stored: impl FnOnce(S),
    removed: impl FnOnce(&SliceId),
) -> Results
where
    Cluster: Holds<S>,
{
    let stale = Results { is_stale: true, ..results };
    match fate {
        _ if matches!(verb, Verb::Delete(_)) && !results.are_good() => results,
        Fate::Failed => Results { has_failed: true, ..results },
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

fn perform<S: Written>(cluster: &mut Cluster, verb: &Verb<S>) -> Result<Option<S>, Refused>
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
fn listed<S: Written>(cluster: &mut Cluster, service: &ObjectKey) -> Vec<S>
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

/// Whether it was done, and there was an answer.
fn write_status(world: &World, cluster: &mut Cluster, write: StatusWrite, fate: Fate) -> bool {
    if matches!(fate, Fate::Failed | Fate::Conflict | Fate::Vanished) {
        return false;
    }
    let Some((version, service)) = cluster.services.objects.get(&write.service) else { return true };
    if version.to_string() != write.resource_version {
        return false;
    }
    let mut service = service.clone();
    assert!(service.status != json!(write.status), "a status that is there already: {write:?}");
    service.status = json!(write.status);
    cluster.put(&write.service, service);
    cluster.writes.push(Write::Status(write.service.clone()));
    if fate == Fate::Lost {
        return false;
    }
    if let Some(stored) = cluster.service_object(&write.service) {
        world.stored_service(stored);
    }
    true
}
