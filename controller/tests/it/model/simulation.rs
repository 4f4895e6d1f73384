//! A cluster with a controller. Operations are applied to it until it is at rest.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use multinet_controller::caps::Caps;
use multinet_controller::index::{ClusterIndex, Settings};
use multinet_controller::queue::Queue;
use multinet_controller::work::OptionalApi;
use multinet_crds::NetworkKind;
use multinet_runtime::ObjectKey;
use tokio::time::timeout;

use super::clock;
use super::cluster::{Cluster, OwnedSlice as _};
use super::edits;
use super::expected::Network;
use super::objects::{Class, Nad, Template};
use super::operations::{Edit, Operation};
use super::watches::{Kind, Told, Watches};
use super::writer::{Fate, Job};

/// Zone of the services' host names.
pub(crate) const ZONE: &str = "z.test";

/// A time that is longer than any pause of the queue.
const LONG: Duration = Duration::from_secs(100);

pub(crate) struct Simulation {
    pub(crate) cluster: Cluster,
    pub(crate) told: Told,
    pub(crate) index: ClusterIndex,
    pub(crate) queue: Arc<Queue>,
    limit: usize,
    pub(crate) caps: Caps,
    jobs: Vec<Job>,
}

impl Simulation {
    /// Starts a controller that leads in this cluster.
    pub(crate) fn new(limit: usize, caps: Caps, cluster: Cluster) -> Self {
        let (index, queue) = controller(limit, caps);
        let mut simulation =
            Self { cluster, told: Told::default(), index, queue, limit, caps, jobs: Vec::new() };
        simulation.start(usize::MAX);
        simulation
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    pub(crate) fn mirror_limit(&self) -> usize {
        mirror_limit(self.limit)
    }

    pub(crate) fn watches(&mut self) -> Watches<'_> {
        Watches { cluster: &mut self.cluster, told: &mut self.told, index: &self.index }
    }

    /// Applies an operation.
    pub(crate) async fn apply(&mut self, operation: &Operation) {
        match operation.clone() {
            Operation::Deliver(kind, count) => self.watches().deliver(kind, count),
            Operation::DeliverAll => drop(self.watches().deliver_all()),
            Operation::Lose(kind) => self.watches().break_watch(kind),
            Operation::List(kind, ahead, breaks_off) => self.watches().list(kind, ahead, breaks_off),
            Operation::Repeat(kind, place) => self.watches().repeat(kind, place),
            Operation::Serve(api, is_served) => self.watches().serve(api, is_served),
            Operation::Take => {
                if let Some(item) = self.queue.next().now_or_never() {
                    self.jobs.push(Job::new(item));
                }
            }
            Operation::Step(place, fate) => {
                if !self.jobs.is_empty() {
                    let job = self.jobs.remove(place % self.jobs.len());
                    self.jobs.extend(job.step(&self.index, &mut self.cluster, fate));
                }
            }
            Operation::Work(count) => {
                for _ in 0..count {
                    let Some(item) = self.queue.next().now_or_never() else { break };
                    self.finish(Job::new(item));
                }
            }
            Operation::Race(place, edit, before) => self.race(place, edit, before),
            Operation::Wait => tokio::time::advance(Duration::from_secs(1)).await,
            Operation::Rest => self.rest().await,
            Operation::Lead => {
                self.rest().await;
                self.queue.close();
                self.adopt_published(false);
                self.lead();
            }
            Operation::Restart(ahead) => self.restart(ahead),
            other => change(&mut self.cluster, other),
        }
    }

    /// Delivers all events and does all work, until the cluster is at rest.
    ///
    /// # Panics
    /// If the cluster is never at rest.
    pub(crate) async fn rest(&mut self) {
        for _ in 0..100 {
            let mut is_busy = self.watches().deliver_all();
            while let Some(job) = self.jobs.pop() {
                self.finish(job);
                is_busy = true;
            }
            for _ in 0..20 {
                let Ok(item) = timeout(LONG, self.queue.next()).await else { break };
                self.finish(Job::new(item));
                is_busy = true;
            }
            if !is_busy {
                return;
            }
        }
        let last: Vec<_> = self.cluster.writes.iter().rev().take(9).collect();
        panic!("the cluster is never at rest; the last writes: {last:?}");
    }

    /// Gives a write a conflict, so that the writer lists the slices. A slice changes while the
    /// list is under way, or before it, so that the list contains the change.
    fn race(&mut self, place: usize, edit: Edit, before: bool) {
        if before {
            edits::edit_slice(&mut self.cluster, place, edit);
            self.watches().deliver(Kind::Slices, usize::MAX);
        }
        let mut next = self.queue.next().now_or_never().map(Job::new);
        while let Some(job) = next.take_if(|job| !job.has_asked()) {
            next = job.step(&self.index, &mut self.cluster, Fate::Conflict);
        }
        if !before && next.is_some() {
            edits::edit_slice(&mut self.cluster, place, edit);
            self.watches().deliver(Kind::Slices, usize::MAX);
        }
        self.jobs.extend(next);
    }

    /// Takes all services out of the queue, in their order, as jobs.
    pub(crate) fn take_all(&mut self) -> Vec<Job> {
        std::iter::from_fn(|| self.queue.next().now_or_never()).map(Job::new).collect()
    }

    /// Does a job without failures.
    pub(crate) fn finish(&mut self, job: Job) {
        let mut next = Some(job);
        while let Some(job) = next {
            next = job.step(&self.index, &mut self.cluster, Fate::Fine);
        }
    }

    /// Queues all services, as a new leader does.
    pub(crate) fn queue_all(&mut self) {
        self.index.all_services().iter().for_each(|service| self.queue.add(service));
    }

    /// Kills the controller in any state, and starts it again.
    fn restart(&mut self, ahead: usize) {
        self.jobs.clear();
        (self.index, self.queue) = controller(self.limit, self.caps);
        self.told = Told::default();
        self.start(ahead);
    }

    fn start(&mut self, ahead: usize) {
        let (has_multus, has_dra) = (self.cluster.has_multus, self.cluster.has_dra);
        let mut watches = self.watches();
        watches.serve(OptionalApi::Multus, has_multus);
        watches.serve(OptionalApi::Dra, has_dra);
        // The kind that is listed first varies.
        let mut kinds = Kind::ALL;
        kinds.rotate_left(ahead % Kind::ALL.len());
        for kind in kinds {
            watches.list(kind, ahead, false);
        }
        self.adopt_published(true);
        self.lead();
    }

    fn lead(&mut self) {
        self.queue.open();
        self.queue_all();
    }

    /// Begins a new term in the model of holders, in which the contents of the slices take
    /// precedence.
    fn adopt_published(&mut self, is_first: bool) {
        let mut published: BTreeSet<(Network, IpAddr, String)> = BTreeSet::new();
        for (key, slice) in &self.told.slices {
            if slice.service().is_none() || slice.metadata.deletion_timestamp.is_some() {
                continue;
            }
            let network = &slice.spec.network;
            let namespace = network.namespace(&key.namespace).unwrap_or_default().to_owned();
            let network = Network { kind: network.kind.as_str(), namespace, name: network.name.clone() };
            for endpoint in &slice.spec.endpoints {
                let target = endpoint.target_ref.as_ref().and_then(|target| target.uid.clone());
                if let (Some(Ok(address)), Some(uid)) = (endpoint.address(), target) {
                    published.insert((network.clone(), address, uid));
                }
            }
        }
        let mut order = std::mem::take(&mut self.told.order);
        order.adopt_published(&self.told.sources(), is_first, |network, address, (_, uid)| {
            published.contains(&(network.clone(), address, uid.clone()))
        });
        self.told.order = order;
    }
}

/// Returns a limit that differs from `limit`, so that the two cannot be confused unnoticed.
fn mirror_limit(limit: usize) -> usize {
    8 - limit.min(7)
}

fn controller(limit: usize, caps: Caps) -> (ClusterIndex, Arc<Queue>) {
    let queue = Arc::new(Queue::default());
    let settings =
        Settings { zone: ZONE.to_owned(), limit, mirror_limit: mirror_limit(limit), caps, clock: clock::now };
    (ClusterIndex::new(settings, Arc::clone(&queue)), queue)
}

/// Changes objects.
fn change(cluster: &mut Cluster, operation: Operation) {
    match operation {
        Operation::Pod(key, pod) => edits::put_pod(cluster, &key, pod),
        Operation::Recreate(key, pod) => {
            cluster.pods.remove(&key);
            edits::put_pod(cluster, &key, pod);
        }
        Operation::Ready(key, ready) => edits::change_pod(cluster, &key, |pod| edits::set_ready(pod, ready)),
        Operation::Sandbox(key, has) => edits::change_pod(cluster, &key, |pod| pod.has_sandbox = has),
        Operation::Report(key, report) => edits::change_pod(cluster, &key, |pod| pod.report = report),
        Operation::Terminate(key) => edits::change_pod(cluster, &key, |pod| pod.is_deleted = true),
        Operation::RemovePod(key) => drop(cluster.pods.remove(&key)),
        Operation::Claim(key, claim, reserved) => edits::put_claim(cluster, &key, claim, &reserved),
        Operation::RemoveClaim(key) => drop(cluster.claims.remove(&key)),
        Operation::Devices(key, Some(slice)) => cluster.put(&key, slice),
        Operation::Devices(key, None) => drop(cluster.devices.remove(&key)),
        Operation::Node(key, Some(node)) => cluster.put(&key, node),
        Operation::Node(key, None) => drop(cluster.nodes.remove(&key)),
        Operation::Network(kind, key, exists) => change_network(cluster, kind, &key, exists),
        Operation::CoreService(key, Some(service)) => cluster.put(&key, service),
        Operation::CoreService(key, None) => drop(cluster.core_services.remove(&key)),
        Operation::Service(key, spec) => edits::put_service(cluster, &key, spec),
        Operation::RecreateService(key, spec) => {
            cluster.services.remove(&key);
            edits::put_service(cluster, &key, spec);
        }
        Operation::TerminateService(key) => {
            if let Some(mut service) = cluster.services.get(&key).cloned() {
                service.is_deleted = true;
                cluster.put(&key, service);
            }
        }
        Operation::RemoveService(key) => drop(cluster.services.remove(&key)),
        Operation::CollectGarbage => cluster.collect_garbage(),
        Operation::Foreign(key, service, is_named) => edits::put_foreign(cluster, &key, service, is_named),
        Operation::EditSlice(place, edit) => edits::edit_slice(cluster, place, edit),
        Operation::EditMirror(place, edit) => edits::edit_mirror(cluster, place, edit),
        other => unreachable!("{other:?} is no change of objects"),
    }
}

fn change_network(cluster: &mut Cluster, kind: NetworkKind, key: &ObjectKey, exists: bool) {
    match (kind, exists) {
        (NetworkKind::NetworkAttachmentDefinition, true) => cluster.put(key, Nad),
        (NetworkKind::NetworkAttachmentDefinition, false) => drop(cluster.nads.remove(key)),
        (NetworkKind::DeviceClass, true) => cluster.put(key, Class),
        (NetworkKind::DeviceClass, false) => drop(cluster.classes.remove(key)),
        (NetworkKind::ResourceClaimTemplate, true) => cluster.put(key, Template),
        (NetworkKind::ResourceClaimTemplate, false) => drop(cluster.templates.remove(key)),
    }
}
