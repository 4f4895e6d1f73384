//! Control plane to break, with services, changing pods, a DNS server, and a client that queries it
//! all the time.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DynamicObject, ListParams};
use kube::{Api, ResourceExt as _};
use multinet_testing::ask::ask;
use multinet_testing::cluster::Cluster;
use multinet_testing::controller::{Controller, ControllerOptions};
use multinet_testing::dns::{Edns, Query, Transport};
use multinet_testing::manifests::{SERVICE, SLICE};
use multinet_testing::objects::Namespace;
use multinet_testing::pods::Pods;
use multinet_testing::replica::{BOUND, Options, Replica};
use multinet_testing::slices::{CONTROLLER, CORE_MANAGED_BY, MANAGED_BY, SERVICE_NAME, Slices, api};
use multinet_testing::status::{FINE, Status};
use multinet_testing::wait::eventually;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::asker::{Asker, Subject};
use super::churn::{Churn, Worker};
use super::model::{ALL, MIRRORED, Model, SHARED, TOUCHED, services};
use super::random::Random;
use super::spoiler::Spoiler;
use crate::controller::stage::{infer, prepare, service, slice};

/// Number of pods at the start.
const PODS: usize = 16;

/// Core Service to which one of the services is mirrored.
const CORE: &str = "fast";

/// Slices of another writer, and their addresses.
const FOREIGN: [(&str, &str); 2] = [("shared-a", "10.8.0.1"), ("shared-b", "10.8.0.2")];

/// Time without writes after which all work counts as done. The longest pause is that of a status'
/// counts, a second after the last change.
const QUIET: Duration = Duration::from_millis(1500);

pub(super) struct Rig {
    // Before the cluster, so that its clients are dropped first.
    pub(super) dns: Replica,
    model: Model,
    namespace: Namespace,
    foreign: BTreeMap<String, String>,
    pub(super) random: Random,
    pub(super) cluster: Cluster,
}

impl Rig {
    /// Starts a control plane with additional flags for the API server, a DNS server, services and
    /// pods. No pod changes yet, and no controller runs.
    pub(super) async fn start(flags: &[&str]) -> Result<(Self, Worker)> {
        let mut random = Random::new();
        let cluster = Cluster::start_with(flags).await?;
        prepare(&cluster).await?;
        let namespace = cluster.temp_namespace("faults").await?;
        let kubeconfig = cluster.dns_server_kubeconfig(cluster.address()).await?;
        let dns = Options::new(&kubeconfig).start_ready().await?;
        let model = Model::default();
        let mut worker = Worker::new(Pods::of(&namespace), model.clone(), random.fork());
        let mut rig = Self { dns, model, namespace, foreign: BTreeMap::new(), random, cluster };
        rig.populate().await?;
        worker.populate(PODS).await?;
        Ok((rig, worker))
    }

    async fn populate(&mut self) -> Result<()> {
        self.apply(json!({
            "apiVersion": "k8s.cni.cncf.io/v1",
            "kind": "NetworkAttachmentDefinition",
            "metadata": {"name": "rdma-a"},
            "spec": {"config": r#"{"cniVersion": "1.0.0", "type": "macvlan", "master": "rail"}"#},
        }))
        .await?;
        let spec = json!({"clusterIP": "None", "ports": [{"name": "rdma", "port": 18515}]});
        let core = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": CORE}, "spec": spec});
        self.apply(core).await?;
        for name in services() {
            let mut spec = infer();
            spec["selector"] = if name == ALL { json!({}) } else { json!({"matchLabels": {"app": name}}) };
            if name == MIRRORED {
                spec["mirror"] = json!({"serviceName": CORE});
            }
            self.apply(service(name, spec)).await?;
        }
        for (name, address) in FOREIGN {
            let endpoints = json!([{"addresses": [address], "conditions": {"ready": true}}]);
            let labels = json!({SERVICE_NAME: SHARED, MANAGED_BY: "somebody-else"});
            let applied = self.apply(slice(name, labels, endpoints)).await?;
            self.foreign.insert(name.to_owned(), applied.resource_version().context("no version")?);
        }
        Ok(())
    }

    async fn apply(&self, object: Value) -> Result<DynamicObject> {
        self.namespace.apply(serde_json::from_value::<DynamicObject>(object)?).await
    }

    /// Returns the options of a controller with the shipped ServiceAccount and a fixed identity, as
    /// that of a container: after a restart, it need not wait for its own lease to expire.
    pub(super) async fn controller(&self) -> Result<ControllerOptions> {
        let kubeconfig = self.cluster.controller_kubeconfig(self.cluster.address()).await?;
        Ok(options(&kubeconfig).flag("--identity", "controller-0"))
    }

    /// Starts to query all services but [`TOUCHED`].
    pub(super) fn ask(&self) -> Result<Asker> {
        let subjects: Result<Vec<Subject>> = services()
            .filter(|service| *service != TOUCHED)
            .map(|service| {
                let domain = self.namespace.domain(service);
                Ok(Subject { service, domain, foreign: foreign(service)? })
            })
            .collect();
        Ok(Asker::begin(self.dns.dns(), subjects?, self.model.clone()))
    }

    /// Starts to spoil the slices of [`TOUCHED`].
    pub(super) fn spoil(&mut self) -> Result<Spoiler> {
        Ok(Spoiler::begin(self.slices(TOUCHED)?, self.random.fork()))
    }

    fn slices(&self, service: &str) -> Result<Slices<DynamicObject>> {
        Ok(Slices::of(&self.namespace, service)?.with_label(MANAGED_BY, CONTROLLER))
    }

    /// Stops changing pods. Waits until slices, mirrors, status and DNS match the model, and
    /// nothing is written any more.
    pub(super) async fn converges(&self, churn: Churn) -> Result<Worker> {
        let worker = churn.end().await?;
        worker.check().await?;
        for service in services() {
            let lines = self.model.lines(service);
            self.slices(service)?.are(&lines).await?;
            let pods = |lines: &mut dyn Iterator<Item = &String>| {
                lines.filter_map(|line| line.split(' ').nth(2)).collect::<BTreeSet<_>>().len()
            };
            let ready = pods(&mut lines.iter().filter(|line| line.ends_with(" rs-")));
            let status = Status::of(&self.namespace, service)?;
            status.is(&FINE).await?;
            let theirs = if service == SHARED { FOREIGN.len() } else { 0 };
            let total = pods(&mut lines.iter());
            status.counts((ready + theirs) as u64, (total + theirs) as u64).await?;
            self.answers(service).await?;
        }
        let mirrors = Slices::of_core(&self.namespace, CORE).with_label(CORE_MANAGED_BY, CONTROLLER);
        mirrors.are(&self.model.mirror_lines(MIRRORED)).await?;
        self.check_owners().await?;
        eventually("nothing to be written any more", BOUND, async || {
            let before = self.versions().await?;
            sleep(QUIET).await;
            let after = self.versions().await?;
            ensure!(before == after, "{before:#?} became {after:#?}");
            Ok(())
        })
        .await?;
        Ok(worker)
    }

    /// Waits until DNS answers exactly the ready addresses.
    async fn answers(&self, service: &str) -> Result<()> {
        let mut expected = self.model.ready(service);
        expected.extend(foreign(service)?);
        let domain = self.namespace.domain(service);
        for (rtype, is_v4) in [("A", true), ("AAAA", false)] {
            let mut expected: Vec<IpAddr> =
                expected.iter().copied().filter(|address| address.is_ipv4() == is_v4).collect();
            expected.sort_unstable();
            eventually(&format!("{domain} {rtype} to be {expected:?}"), BOUND, async || {
                let query = Query::new(&domain, rtype).edns(Edns::new(1232));
                let reply = ask(self.dns.dns(), Transport::Udp, &query).await?;
                let answered =
                    reply.data().iter().map(|data| data.parse()).collect::<Result<Vec<IpAddr>, _>>();
                let mut answered = answered.with_context(|| reply.text(""))?;
                answered.sort_unstable();
                ensure!(answered == expected, "it is\n{}", reply.text(""));
                Ok(())
            })
            .await?;
        }
        Ok(())
    }

    /// Fails if a slice of the controller lacks a label or its owner, or if a slice of another
    /// writer has been written.
    async fn check_owners(&self) -> Result<()> {
        let slices = api(self.namespace.objects().client(), self.namespace.name(), SLICE)?;
        let mut foreign = BTreeMap::new();
        for slice in slices.list(&ListParams::default()).await? {
            let (name, labels) = (slice.name_any(), slice.labels());
            if self.foreign.contains_key(&name) {
                foreign.insert(name, slice.resource_version().context("no version")?);
                continue;
            }
            let service =
                labels.get(SERVICE_NAME).with_context(|| format!("{name} has no service: {labels:?}"))?;
            let owners = slice.owner_references();
            ensure!(
                labels.get(MANAGED_BY).is_some_and(|by| by == CONTROLLER)
                    && owners.len() == 1
                    && owners[0].name == *service,
                "{name} has labels {labels:?} and owners {owners:?}"
            );
        }
        ensure!(foreign == self.foreign, "other writers' slices: {:?} became {foreign:?}", self.foreign);
        Ok(())
    }

    /// Returns the versions of all services, slices and mirrors.
    async fn versions(&self) -> Result<BTreeMap<String, String>> {
        let (client, namespace) = (self.namespace.objects().client(), self.namespace.name());
        let mut versions = BTreeMap::new();
        for kind in [SLICE, SERVICE] {
            for object in api(client.clone(), namespace, kind)?.list(&ListParams::default()).await? {
                let version = object.resource_version().context("no version")?;
                versions.insert(format!("{kind} {}", object.name_any()), version);
            }
        }
        for slice in Api::<EndpointSlice>::namespaced(client, namespace).list(&ListParams::default()).await? {
            versions.insert(
                format!("mirror {}", slice.name_any()),
                slice.resource_version().context("no version")?,
            );
        }
        Ok(versions)
    }

    /// Starts a controller, and checks that it syncs every service without writing anything.
    pub(super) async fn restart_writes_nothing(&self, options: &ControllerOptions) -> Result<Controller> {
        let before = self.versions().await?;
        let controller = options.start_ready().await?;
        controller.leads(true).await?;
        eventually("every service to be synced", BOUND, async || {
            let syncs = controller.metric("multinet_controller_sync_duration_seconds_count").await?;
            ensure!(syncs >= services().count() as u64, "{syncs} syncs");
            Ok(())
        })
        .await?;
        sleep(QUIET).await;
        let after = self.versions().await?;
        ensure!(before == after, "{before:#?} became {after:#?}");
        Ok(controller)
    }
}

/// Returns the options of a controller with slices so small that services have several, and that
/// addresses move between them.
pub(super) fn options(kubeconfig: &Path) -> ControllerOptions {
    ControllerOptions::controller(kubeconfig).flag("--max-endpoints-per-slice", "6")
}

/// Returns the addresses that other writers publish for a service.
fn foreign(service: &str) -> Result<Vec<IpAddr>> {
    let theirs = if service == SHARED { FOREIGN.as_slice() } else { &[] };
    Ok(theirs.iter().map(|(_, address)| address.parse()).collect::<Result<_, _>>()?)
}
