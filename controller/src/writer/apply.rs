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

use super::failure::{Failure, RequestError};
use super::{Followup, Job, Writer};
use crate::index::ClusterIndex;
use crate::metrics::{Reason, Verb};
use crate::slices::{Plan, SliceId};
use crate::work::{StatusWrite, Work};

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
pub(super) enum Progress {
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
trait OwnedSlice:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + Serialize + DeserializeOwned
{
    fn record_stored(self, index: &ClusterIndex);
    fn record_deleted(index: &ClusterIndex, id: &SliceId);
}

impl OwnedSlice for MultiNetworkEndpointSlice {
    fn record_stored(self, index: &ClusterIndex) {
        index.record_stored_slice(self);
    }

    fn record_deleted(index: &ClusterIndex, id: &SliceId) {
        index.record_deleted_slice(id);
    }
}

impl OwnedSlice for EndpointSlice {
    fn record_stored(self, index: &ClusterIndex) {
        index.record_stored_mirror(self);
    }

    fn record_deleted(index: &ClusterIndex, id: &SliceId) {
        index.record_deleted_mirror(id);
    }
}

/// What has become of several requests.
#[derive(Debug, Default)]
struct BatchResult {
    is_stale: bool,
    is_over: bool,
    failure: Option<Failure>,
}

impl BatchResult {
    fn new(results: impl IntoIterator<Item = Result<(), RequestError>>) -> Self {
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

impl From<Result<(), RequestError>> for BatchResult {
    fn from(result: Result<(), RequestError>) -> Self {
        match result {
            Ok(()) | Err(RequestError::Done) => Self::default(),
            Err(RequestError::Stale) => Self { is_stale: true, ..Self::default() },
            Err(RequestError::Unknown(failure)) => {
                Self { is_stale: true, failure: Some(failure), is_over: false }
            }
            Err(RequestError::Failed(failure)) => Self { failure: Some(failure), ..Self::default() },
            Err(RequestError::NotLeader) => Self { is_over: true, ..Self::default() },
        }
    }
}

impl Writer {
    /// Writes what is to be written for a service.
    pub(super) async fn sync_slices(&self, job: Job<'_>, merges: bool) -> Result<Progress, Abandoned> {
        let (mut last, mut done) = (None, Progress::Nothing);
        for _ in 0..ATTEMPTS {
            let mut work = self.plan(job, merges).await;
            let mut results = if work.needs_list {
                BatchResult { is_stale: true, ..BatchResult::default() }
            } else if work.is_empty() {
                return Ok(done);
            } else {
                let is_cut = work.slices.cut(WRITES) | work.mirrors.cut(WRITES);
                done = if is_cut { Progress::Part } else { Progress::All };
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
                return if is_done { Ok(Progress::All) } else { Err(Abandoned::Failed(failure)) };
            }
            if !work.needs_list {
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
        let _permit = self.planning.acquire(service).await;
        if merges { self.index.work_or_merge(service) } else { self.index.work(service) }
    }

    /// Creates, then updates, then deletes: what a slice loses has been written to another before.
    async fn apply<S: OwnedSlice>(&self, job: Job<'_>, plan: Plan<S>) -> BatchResult {
        let Plan { create, update, delete } = plan;
        let created = join_all(create.iter().map(|slice| self.create(job, slice))).await;
        let updated = join_all(update.iter().map(|slice| self.update(job, slice))).await;
        let written = BatchResult::new(created.into_iter().chain(updated));
        if !written.are_good() {
            return written;
        }
        BatchResult::new(join_all(delete.iter().map(|id| self.delete::<S>(job, id))).await)
    }

    async fn create<S: OwnedSlice>(&self, job: Job<'_>, slice: &S) -> Result<(), RequestError> {
        let api = self.api_of(slice);
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let stored = self.send::<S, _>(job, Verb::Create, api.create(&params, slice)).await?;
        stored.record_stored(&self.index);
        Ok(())
    }

    /// The cheapest verb that notices another writer: PUT names the version that it replaces.
    async fn update<S: OwnedSlice>(&self, job: Job<'_>, slice: &S) -> Result<(), RequestError> {
        let api = self.api_of(slice);
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let name = slice.meta().name.as_deref().unwrap_or_default();
        let stored = self.send::<S, _>(job, Verb::Update, api.replace(name, &params, slice)).await?;
        stored.record_stored(&self.index);
        Ok(())
    }

    async fn delete<S: OwnedSlice>(&self, job: Job<'_>, id: &SliceId) -> Result<(), RequestError> {
        let api = Api::<S>::namespaced(self.client.clone(), &id.key.namespace);
        let params = DeleteParams::default().preconditions(Preconditions {
            uid: Some(id.uid.clone()),
            resource_version: Some(id.resource_version.clone()),
        });
        match self.send::<S, _>(job, Verb::Delete, api.delete(&id.key.name, &params)).await {
            Ok(_) | Err(RequestError::Done) => {
                S::record_deleted(&self.index, id);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Applies a status to the version of the service that it was made for. (The uid would be no
    /// precondition: the API server passes over it in what is applied to a status.)
    pub(super) async fn write_status(&self, job: Job<'_>, write: StatusWrite) -> Result<Followup, Abandoned> {
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
                self.index.record_stored_service(stored);
                Ok(Followup::Done)
            }
            Err(RequestError::Done) => Ok(Followup::Done),
            Err(RequestError::Stale) => {
                self.metrics.retry(Reason::Conflict);
                Ok(Followup::Again)
            }
            Err(RequestError::Unknown(failure) | RequestError::Failed(failure)) => {
                Err(Abandoned::Failed(failure))
            }
            Err(RequestError::NotLeader) => Err(Abandoned::NotLeader),
        }
    }

    /// Asks what there is of a service, and tells the world.
    async fn refresh(&self, job: Job<'_>) -> Result<(), Abandoned> {
        let (slices, mirrors) = join(self.list(job), self.list(job)).await;
        self.index.replace_listed(job.service, slices?, mirrors?);
        Ok(())
    }

    async fn list<S: OwnedSlice>(&self, job: Job<'_>) -> Result<Vec<S>, Abandoned> {
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
            Err(RequestError::Done | RequestError::Stale) => Ok(Vec::new()),
            Err(RequestError::Unknown(failure) | RequestError::Failed(failure)) => {
                Err(Abandoned::Failed(failure))
            }
            Err(RequestError::NotLeader) => Err(Abandoned::NotLeader),
        }
    }

    fn api_of<S: OwnedSlice>(&self, slice: &S) -> Api<S> {
        Api::namespaced(self.client.clone(), slice.meta().namespace.as_deref().unwrap_or_default())
    }
}
