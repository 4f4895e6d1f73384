//! Common parts of all tests of the controller: one controller and one DNS server, and a namespace
//! for each test.

use anyhow::Result;
use kube::api::{DynamicObject, Patch, PatchParams};
use multinet_testing::cluster::Cluster;
use multinet_testing::controller::{Controller, ControllerOptions};
use multinet_testing::manifests::{SERVICE, SLICE};
use multinet_testing::objects::{Namespace, Objects};
use multinet_testing::pods::Pods;
use multinet_testing::process::print_tail;
use multinet_testing::replica::{Options, Replica};
use multinet_testing::slices::{CONTROLLER, CORE_MANAGED_BY, MANAGED_BY, Slices, api};
use multinet_testing::status::{Events, Status};
use multinet_testing::tools::repository;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::shared;

/// Programs that run for all tests of the controller.
pub(crate) struct Stage {
    pub(crate) cluster: &'static Cluster,
    pub(crate) controller: Controller,
    pub(crate) dns: Replica,
}

impl Stage {
    /// Returns the stage that all tests share.
    pub(crate) async fn shared() -> Result<&'static Self> {
        static SHARED: OnceCell<Stage> = OnceCell::const_new();
        SHARED.get_or_try_init(Self::start).await
    }

    async fn start() -> Result<Self> {
        let cluster = shared::cluster().await?;
        let kubeconfig = cluster.dns_server_kubeconfig(cluster.address()).await?;
        let dns = Options::new(&kubeconfig).start_ready().await?;
        let kubeconfig = cluster.controller_kubeconfig(cluster.address()).await?;
        let controller = ControllerOptions::controller(&kubeconfig).start_ready().await?;
        Ok(Self { cluster, controller, dns })
    }
}

/// Creates the kinds, roles and nodes that every test needs: `gpu-1` in zone `a`, and `gpu-2` in
/// none.
pub(crate) async fn prepare(cluster: &Cluster) -> Result<()> {
    apply_multus(&cluster.objects().await?).await?;
    prepare_without_multus(cluster).await
}

/// Creates the same kinds, roles and nodes, without NetworkAttachmentDefinitions.
pub(crate) async fn prepare_without_multus(cluster: &Cluster) -> Result<()> {
    cluster.apply_crds().await?;
    cluster.apply_rbac().await?;
    nodes(&cluster.objects().await?).await
}

/// Creates the nodes that every test needs.
pub(crate) async fn nodes(objects: &Objects) -> Result<()> {
    node(objects, "gpu-1", Some("a")).await?;
    node(objects, "gpu-2", None).await
}

/// Defines NetworkAttachmentDefinitions, and waits until the API server serves them.
pub(crate) async fn apply_multus(objects: &Objects) -> Result<()> {
    let file = repository().join("testing/src/programs/node/crds/network-attachment-definitions.yaml");
    for crd in objects.apply_file(&file).await? {
        objects.established(&crd).await?;
    }
    Ok(())
}

/// Creates a node in a zone, or in none.
pub(crate) async fn node(objects: &Objects, name: &str, zone: Option<&str>) -> Result<()> {
    let labels = zone.map(|zone| json!({"topology.kubernetes.io/zone": zone})).unwrap_or_default();
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}});
    objects.apply_object(&serde_json::from_value(node)?).await.map(drop)
}

/// One test's namespace on the shared stage. Dropping it prints the end of the controller's log,
/// which the harness shows if the test fails.
pub(crate) struct Scene {
    pub(crate) namespace: Namespace,
    pub(crate) pods: Pods,
    pub(crate) events: Events,
    pub(crate) stage: &'static Stage,
}

impl Scene {
    /// Creates a namespace on the shared stage.
    pub(crate) async fn new(prefix: &str) -> Result<Self> {
        let stage = Stage::shared().await?;
        let namespace = stage.cluster.temp_namespace(prefix).await?;
        let (pods, events) = (Pods::of(&namespace), Events::of(&namespace));
        Ok(Self { namespace, pods, events, stage })
    }

    /// Creates a namespace with a NetworkAttachmentDefinition `rdma-a`, and a service `infer` on
    /// it, alias `rail0`.
    pub(crate) async fn with_service(prefix: &str) -> Result<Self> {
        let scene = Self::new(prefix).await?;
        scene.network("rdma-a").await?;
        scene.service("infer", infer()).await?;
        Ok(scene)
    }

    /// Applies an object into the namespace.
    pub(crate) async fn apply(&self, object: Value) -> Result<DynamicObject> {
        self.namespace.apply(serde_json::from_value::<DynamicObject>(object)?).await
    }

    /// Applies a MultiNetworkService.
    pub(crate) async fn service(&self, name: &str, spec: Value) -> Result<DynamicObject> {
        self.apply(service(name, spec)).await
    }

    /// Changes a MultiNetworkService.
    pub(crate) async fn edit_service(&self, name: &str, patch: Value) -> Result<()> {
        let services = api(self.namespace.objects().client(), self.namespace.name(), SERVICE)?;
        services.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    /// Creates a NetworkAttachmentDefinition.
    pub(crate) async fn network(&self, name: &str) -> Result<()> {
        self.apply(json!({
            "apiVersion": "k8s.cni.cncf.io/v1",
            "kind": "NetworkAttachmentDefinition",
            "metadata": {"name": name},
            "spec": {"config": r#"{"cniVersion": "1.0.0", "type": "macvlan", "master": "rail"}"#},
        }))
        .await
        .map(drop)
    }

    /// Returns the slices of a MultiNetworkService that the controller writes.
    pub(crate) fn slices(&self, service: &str) -> Result<Slices<DynamicObject>> {
        Ok(Slices::of(&self.namespace, service)?.with_label(MANAGED_BY, CONTROLLER))
    }

    /// Returns the mirrored slices of a core Service.
    pub(crate) fn mirrors(&self, service: &str) -> Slices<k8s_openapi::api::discovery::v1::EndpointSlice> {
        Slices::of_core(&self.namespace, service).with_label(CORE_MANAGED_BY, CONTROLLER)
    }

    /// Returns access to the status of a MultiNetworkService.
    pub(crate) fn status(&self, service: &str) -> Result<Status> {
        Status::of(&self.namespace, service)
    }

    /// Waits until `multinet-dns` answers a service's name with these addresses. No addresses stand
    /// for a name that does not exist.
    pub(crate) async fn answers(&self, service: &str, rtype: &str, data: &[&str]) -> Result<()> {
        self.stage.dns.answers(&self.namespace.domain(service), rtype, data).await
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        print_tail(&self.stage.controller.log_file());
    }
}

/// Returns a MultiNetworkService.
pub(crate) fn service(name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "multinetwork.numaproj.io/v1alpha1",
        "kind": SERVICE,
        "metadata": {"name": name},
        "spec": spec,
    })
}

/// Returns the spec of most tests' service: all pods with `app=infer`, on the network `rdma-a`,
/// alias `rail0`.
pub(crate) fn infer() -> Value {
    json!({
        "selector": {"matchLabels": {"app": "infer"}},
        "networks": [{"name": "rdma-a", "alias": "rail0"}],
        "ports": [{"name": "rdma", "port": 18515, "protocol": "TCP", "appProtocol": "multinet-rdma"}],
    })
}

/// Returns one of our slices, as a user might write it by hand.
pub(crate) fn slice(name: &str, labels: Value, endpoints: Value) -> Value {
    json!({
        "apiVersion": "multinetwork.numaproj.io/v1alpha1",
        "kind": SLICE,
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "addressType": "IPv4",
            "network": {"name": "rdma-a", "alias": "rail0"},
            "ports": [{"name": "rdma", "port": 18515, "protocol": "TCP", "appProtocol": "multinet-rdma"}],
            "endpoints": endpoints,
        },
    })
}
