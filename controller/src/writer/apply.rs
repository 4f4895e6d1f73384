//! The requests that make a service's objects what they should be.

use std::fmt::Debug;

use futures::future::{join, join_all};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Resource};
use multinet_crds::{MultiNetworkEndpointSlice, MultiNetworkService, labels};
use multinet_runtime::Guarded;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::failure::{Failure, Verdict};
use super::{Job, Next, Writer};
use crate::metrics::{Reason, Verb};
use crate::slices::{Plan, SliceId};
use crate::work::{StatusWrite, Work};
use crate::world::World;

/// Who writes, as the API server's audit log and the `managedFields` of services say it.
pub(super) const FIELD_MANAGER: &str = "multinet-controller";

/// How often in one turn a service is planned anew, when its objects turn out to be others than we knew.
const ATTEMPTS: u32 = 4;

/// How many slices and how many mirrors one turn writes at most. The rest is planned anew after the
/// turns of others: in one turn, a huge service would keep the others of its namespace from being
/// looked at, and what changes of it meanwhile from being written.
const WRITES: usize = 128;

/// Amount of a service's writes that a turn has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Done {
    /// Nothing was to be written.
    Nothing,
    /// All that was to be written.
    All,
    /// As much as is done in one turn.
    Part,
}

/// Why work was not finished.
#[derive(Debug)]
pub(super) enum Abandoned {
    /// Somebody else may be at it.
    NotLeader,
    /// It has to be tried again.
    Failed(Failure),
}

/// A kind of object that a service has a list of.
trait Part:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + Serialize + DeserializeOwned
{
    fn stored(self, world: &World);
    fn removed(world: &World, id: &SliceId);
}

impl Part for MultiNetworkEndpointSlice {
    fn stored(self, world: &World) {
        world.stored_slice(self);
    }

    fn removed(world: &World, id: &SliceId) {
        world.removed_slice(id);
    }
}

impl Part for EndpointSlice {
    fn stored(self, world: &World) {
        world.stored_mirror(self);
    }

    fn removed(world: &World, id: &SliceId) {
        world.removed_mirror(id);
    }
}

/// What has become of several requests.
#[derive(Debug, Default)]
struct Results {
    is_stale: bool,
    is_over: bool,
    failure: Option<Failure>,
}

impl Results {
    fn new(results: impl IntoIterator<Item = Result<(), Verdict>>) -> Self {
        results.into_iter().map(Self::from).fold(Self::default(), Self::and)
    }

    fn and(self, other: Self) -> Self {
        Self {
            is_stale: self.is_stale || other.is_stale,
            is_over: self.is_over || other.is_over,
            failure: self.failure.or(other.failure),
        }
    }

    fn are_good(&self) -> bool {
        !self.is_stale && !self.is_over && self.failure.is_none()
    }
}

impl From<Result<(), Verdict>> for Results {
    fn from(result: Result<(), Verdict>) -> Self {
        match result {
            Ok(()) | Err(Verdict::Done) => Self::default(),
            Err(Verdict::Stale) => Self { is_stale: true, ..Self::default() },
            Err(Verdict::Unknown(failure)) => Self { is_stale: true, failure: Some(failure), is_over: false },
            Err(Verdict::Failed(failure)) => Self { failure: Some(failure), ..Self::default() },
            Err(Verdict::NotLeader) => Self { is_over: true, ..Self::default() },
        }
    }
}

impl Writer {
    /// Writes what is to be written for a service.
    pub(super) async fn bring_in_step(&self, job: Job<'_>, merges: bool) -> Result<Done, Abandoned> {
        let (mut last, mut done) = (None, Done::Nothing);
        for _ in 0..ATTEMPTS {
            let mut work = self.plan(job, merges).await;
            let mut results = if work.doubtful {
                Results { is_stale: true, ..Results::default() }
            } else if work.is_empty() {
                return Ok(done);
            } else {
                let is_cut = work.slices.cut(WRITES) | work.mirrors.cut(WRITES);
                done = if is_cut { Done::Part } else { Done::All };
                let (slices, mirrors) =
                    join(self.apply(job, work.slices), self.apply(job, work.mirrors)).await;
                slices.and(mirrors)
            };
            if results.is_over {
                return Err(Abandoned::NotLeader);
            }
            if !results.is_stale {
                return results.failure.map_or(Ok(done), |failure| Err(Abandoned::Failed(failure)));
            }
            self.refresh(job).await?;
            // What fails is not helped by asking it for more at once, if there is more.
            if let Some(failure) = results.failure.take_if(|failure| failure.is_of_the_server()) {
                let is_done = self.plan(job, false).await.is_empty();
                return if is_done { Ok(Done::All) } else { Err(Abandoned::Failed(failure)) };
            }
            if !work.doubtful {
                self.metrics
                    .retry(results.failure.as_ref().map_or(Reason::Conflict, |failure| failure.reason));
            }
            last = results.failure;
        }
        // What was listed last is not what is there any more, or a request fails again and again.
        Err(Abandoned::Failed(last.unwrap_or_else(Failure::conflict::<MultiNetworkEndpointSlice>)))
    }

    /// Plans the writes of a service. Planning a huge one takes long, and the world is locked meanwhile: that takes turns,
    /// too.
    async fn plan(&self, Job { service, .. }: Job<'_>, merges: bool) -> Work {
        let _permit = self.looks.acquire(service).await;
        if merges { self.world.work_or_merge(service) } else { self.world.work(service) }
    }

    /// Creates, then updates, then deletes: what a slice loses has been written to another before.
    async fn apply<S: Part>(&self, job: Job<'_>, plan: Plan<S>) -> Results {
        let Plan { create, update, delete } = plan;
        let created = join_all(create.iter().map(|slice| self.create(job, slice))).await;
        let updated = join_all(update.iter().map(|slice| self.update(job, slice))).await;
        let written = Results::new(created.into_iter().chain(updated));
        if !written.are_good() {
            return written;
        }
        Results::new(join_all(delete.iter().map(|id| self.delete::<S>(job, id))).await)
    }

    async fn create<S: Part>(&self, job: Job<'_>, slice: &S) -> Result<(), Verdict> {
        let api = self.api_of(slice);
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let stored = self.send::<S, _>(job, Verb::Create, api.create(&params, slice)).await?;
        stored.stored(&self.world);
        Ok(())
    }

    /// The cheapest verb that notices another writer: PUT names the version that it replaces.
    async fn update<S: Part>(&self, job: Job<'_>, slice: &S) -> Result<(), Verdict> {
        let api = self.api_of(slice);
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let name = slice.meta().name.as_deref().unwrap_or_default();
        let stored = self.send::<S, _>(job, Verb::Update, api.replace(name, &params, slice)).await?;
        stored.stored(&self.world);
        Ok(())
    }

    async fn delete<S: Part>(&self, job: Job<'_>, id: &SliceId) -> Result<(), Verdict> {
        let api = Api::<S>::namespaced(self.client.clone(), &id.key.namespace);
        let params = DeleteParams::default().preconditions(Preconditions {
            uid: Some(id.uid.clone()),
            resource_version: Some(id.resource_version.clone()),
        });
        match self.send::<S, _>(job, Verb::Delete, api.delete(&id.key.name, &params)).await {
            Ok(_) | Err(Verdict::Done) => {
                S::removed(&self.world, id);
                Ok(())
            }
            Err(verdict) => Err(verdict),
        }
    }

    /// Applies a status to the version of the service that it was made for. (The uid would be no
    /// precondition: the API server passes over it in what is applied to a status.)
    pub(super) async fn write_status(&self, job: Job<'_>, write: StatusWrite) -> Result<Next, Abandoned> {
        let StatusWrite { service, resource_version, status, .. } = write;
        let kind = MultiNetworkService::kind(&());
        let body = json!({
            "apiVersion": MultiNetworkService::api_version(&()),
            "kind": kind,
            "metadata": {
                "name": service.name, "namespace": service.namespace, "resourceVersion": resource_version,
            },
            "status": status,
        });
        let api = Api::<MultiNetworkService>::namespaced(self.client.clone(), &service.namespace);
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let patch = Patch::Apply(&body);
        let request = api.patch_status(&service.name, &params, &patch);
        match self.send::<MultiNetworkService, _>(job, Verb::Apply, request).await {
            Ok(stored) => {
                self.world.stored_service(stored);
                Ok(Next::Done)
            }
            Err(Verdict::Done) => Ok(Next::Done),
            Err(Verdict::Stale) => {
                self.metrics.retry(Reason::Conflict);
                Ok(Next::Again)
            }
            Err(Verdict::Unknown(failure) | Verdict::Failed(failure)) => Err(Abandoned::Failed(failure)),
            Err(Verdict::NotLeader) => Err(Abandoned::NotLeader),
        }
    }

    /// Asks what there is of a service, and tells the world.
    async fn refresh(&self, job: Job<'_>) -> Result<(), Abandoned> {
        let (slices, mirrors) = join(self.list(job), self.list(job)).await;
        self.world.refreshed(job.service, slices?, mirrors?);
        Ok(())
    }

    async fn list<S: Part>(&self, job: Job<'_>) -> Result<Vec<S>, Abandoned> {
        let service = job.service;
        let api = Api::<Guarded<S>>::namespaced(self.client.clone(), &service.namespace);
        // Not by who manages them: that label may be lost.
        let selector = format!("{}={}", labels::SERVICE_NAME, service.name);
        // No version: as new as the request, and so newer than any answer before it.
        let params = ListParams::default().labels(&selector);
        match self.send::<S, _>(job, Verb::List, api.list(&params)).await {
            Ok(list) => Ok(list
                .items
                .into_iter()
                .filter_map(|object| match object {
                    Guarded::Good(object) => Some(object),
                    // The watch tells of it.
                    Guarded::Bad(_) => None,
                })
                .collect()),
            Err(Verdict::Done | Verdict::Stale) => Ok(Vec::new()),
            Err(Verdict::Unknown(failure) | Verdict::Failed(failure)) => Err(Abandoned::Failed(failure)),
            Err(Verdict::NotLeader) => Err(Abandoned::NotLeader),
        }
    }

    fn api_of<S: Part>(&self, slice: &S) -> Api<S> {
        Api::namespaced(self.client.clone(), slice.meta().namespace.as_deref().unwrap_or_default())
    }
}
