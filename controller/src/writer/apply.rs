//! Sends the requests that bring a service's slices and status to the desired state.

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
use crate::limits::writes::{ATTEMPTS, WRITES};
use crate::metrics::{Reason, Verb};
use crate::slices::{Plan, SliceId};
use crate::work::{StatusWrite, Work};

/// Field manager of all writes, which appears in audit logs and in the `managedFields` of services.
pub(super) const FIELD_MANAGER: &str = "multinet-controller";

/// Part of the planned writes that a turn has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// No writes were needed.
    Nothing,
    /// All planned writes were made.
    All,
    /// The maximum number of writes per turn was made; more are needed.
    Part,
}

/// Reason why the work on a service was not finished.
#[derive(Debug)]
pub(super) enum Abandoned {
    /// This process is no longer the leader.
    NotLeader,
    /// A request failed and must be retried.
    Failed(Failure),
}

/// A kind of slice that the controller manages.
trait ManagedSlice:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + Serialize + DeserializeOwned
{
    fn record_stored(self, index: &ClusterIndex);
    fn record_deleted(index: &ClusterIndex, id: &SliceId);
}

impl ManagedSlice for MultiNetworkEndpointSlice {
    fn record_stored(self, index: &ClusterIndex) {
        index.record_stored_slice(self);
    }

    fn record_deleted(index: &ClusterIndex, id: &SliceId) {
        index.record_deleted_slice(id);
    }
}

impl ManagedSlice for EndpointSlice {
    fn record_stored(self, index: &ClusterIndex) {
        index.record_stored_mirror(self);
    }

    fn record_deleted(index: &ClusterIndex, id: &SliceId) {
        index.record_deleted_mirror(id);
    }
}

/// Combined result of several requests for a service.
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
    /// Plans and writes the slices and mirrors of a service. Lists them first if the index may be
    /// outdated.
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
            // Do not send a failing API server more requests at once.
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
        // The slices keep changing, or a request keeps failing.
        Err(Abandoned::Failed(last.unwrap_or_else(Failure::conflict::<MultiNetworkEndpointSlice>)))
    }

    /// Plans the writes of a service. Planning takes turns, since a huge service takes long and
    /// locks the index meanwhile.
    async fn plan(&self, Job { service, .. }: Job<'_>, merges: bool) -> Work {
        let _permit = self.planning.acquire(service).await;
        self.index.work(service, merges)
    }

    /// Sends the creates, then the updates, then the deletes. An endpoint that leaves a slice has
    /// thus been written to another one before.
    async fn apply<S: ManagedSlice>(&self, job: Job<'_>, plan: Plan<S>) -> BatchResult {
        let Plan { create, update, delete } = plan;
        let created = join_all(create.iter().map(|slice| self.create(job, slice))).await;
        let updated = join_all(update.iter().map(|slice| self.update(job, slice))).await;
        let written = BatchResult::new(created.into_iter().chain(updated));
        if !written.are_good() {
            return written;
        }
        BatchResult::new(join_all(delete.iter().map(|id| self.delete::<S>(job, id))).await)
    }

    async fn create<S: ManagedSlice>(&self, job: Job<'_>, slice: &S) -> Result<(), RequestError> {
        let api = self.api_of(slice);
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let stored = self.send::<S, _>(job, Verb::Create, api.create(&params, slice)).await?;
        stored.record_stored(&self.index);
        Ok(())
    }

    /// Updates a slice by PUT, the cheapest request that detects another writer: it names the
    /// version that it replaces.
    async fn update<S: ManagedSlice>(&self, job: Job<'_>, slice: &S) -> Result<(), RequestError> {
        let api = self.api_of(slice);
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let name = slice.meta().name.as_deref().unwrap_or_default();
        let stored = self.send::<S, _>(job, Verb::Update, api.replace(name, &params, slice)).await?;
        stored.record_stored(&self.index);
        Ok(())
    }

    async fn delete<S: ManagedSlice>(&self, job: Job<'_>, id: &SliceId) -> Result<(), RequestError> {
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

    /// Applies a status to the version of the service that it was computed for. (The uid cannot
    /// serve as a precondition: the API server ignores it when a status is applied.)
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

    /// Lists the slices and mirrors of a service, and passes them to the index.
    async fn refresh(&self, job: Job<'_>) -> Result<(), Abandoned> {
        let (slices, mirrors) = join(self.list(job), self.list(job)).await;
        self.index.replace_listed(job.service, slices?, mirrors?);
        Ok(())
    }

    async fn list<S: ManagedSlice>(&self, job: Job<'_>) -> Result<Vec<S>, Abandoned> {
        let service = job.service;
        let api = Api::<Guarded<S>>::namespaced(self.client.clone(), &service.namespace);
        // Do not select by the label `managed-by`, which may have been removed.
        let selector = format!("{}={}", labels::SERVICE_NAME, service.name);
        // Without a resourceVersion, the list is as new as the request, and so newer than any
        // answer before it.
        let params = ListParams::default().labels(&selector);
        match self.send::<S, _>(job, Verb::List, api.list(&params)).await {
            Ok(list) => Ok(list
                .items
                .into_iter()
                .filter_map(|object| match object {
                    Guarded::Good(object) => Some(object),
                    // The watch reports objects that cannot be decoded.
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

    fn api_of<S: ManagedSlice>(&self, slice: &S) -> Api<S> {
        Api::namespaced(self.client.clone(), slice.meta().namespace.as_deref().unwrap_or_default())
    }
}
