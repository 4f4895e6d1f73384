//! The controller works with exactly the roles that we ship, and needs every verb in them: each is
//! taken away, missed, and given back.
//!
//! The API server has no streamed lists here, as before Kubernetes 1.34: with them, `list` is used
//! only where slices are looked at once more after a conflict.

use std::sync::Mutex;

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams};
use kube::core::TypeMeta;
use multinet_testing::cluster::Cluster;
use multinet_testing::controller::{Controller, ControllerOptions};
use multinet_testing::manifests::SERVICE;
use multinet_testing::objects::{Namespace, Objects};
use multinet_testing::pods::{Pod, Pods};
use multinet_testing::replica::BOUND;
use multinet_testing::slices::{CONTROLLER, CORE_MANAGED_BY, MANAGED_BY, Slices, api};
use multinet_testing::status::{Events, FINE, Status, said};
use multinet_testing::wait::eventually;
use serde_json::{Value, json};

use crate::controller::roles::{NAMESPACE, Permission, Roles};
use crate::controller::stage::{infer, service};
use crate::shared;

/// The verbs that watches need. Whatever has them has both.
const READING: [&str; 2] = ["list", "watch"];

/// How many controllers run at once.
const AT_ONCE: usize = 4;

const OURS: &str = "multinetwork.numaproj.io";

/// Returns whether a permission is only for reading, which writes do not need.
fn is_for_reading(permission: &Permission) -> bool {
    READING.contains(&permission.verb.as_str())
}

#[tokio::test]
async fn every_verb_for_reading_is_needed() -> Result<()> {
    let cluster = shared::older().await?;
    let permissions: Vec<Permission> =
        Roles::shipped()?.permissions().into_iter().filter(is_for_reading).collect();
    ensure!(permissions.len() >= 22, "only {permissions:?}");
    stream::iter(permissions.iter().enumerate())
        .map(|(index, permission)| async move {
            let account = format!("reader-{index}");
            is_missed(cluster, &account, permission).await.with_context(|| format!("without {permission}"))
        })
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

/// A controller without this permission does not get ready, says why, and gets ready once it has
/// it. It has no role for the Lease, so that it never writes.
async fn is_missed(cluster: &Cluster, account: &str, permission: &Permission) -> Result<()> {
    let objects = cluster.objects().await?;
    let roles = Roles::shipped()?.of_account(account).without_lease();
    roles.clone().without(permission)?.apply(&objects).await?;
    // The others came with the same write.
    roles.grant(&objects.client(), permission, false).await?;
    let other = roles.permissions().into_iter().find(|other| other != permission).context("nothing else")?;
    roles.grant(&objects.client(), &other, true).await?;
    let kubeconfig = cluster.service_account_kubeconfig(NAMESPACE, account, cluster.address()).await?;
    let controller = ControllerOptions::controller(&kubeconfig).start().await?;

    let hint = format!("waiting for a role that grants list and watch of {}:", permission.title());
    let why = format!("cannot {} resource \"{}\"", permission.verb, permission.resource);
    eventually(&format!("/readyz to miss {permission}, and nothing else"), BOUND, async || {
        let (status, body) = controller.readyz().await?;
        let missed = body.matches("waiting for a role").count();
        let is_named = body.contains(&hint) && body.contains(&why);
        ensure!(status == 503 && is_named && missed == 1, "{status}: {body}");
        // The line comes a moment after that.
        let log = controller.log();
        ensure!(
            log.lines().any(|line| line.contains(&hint) && line.contains(&why)),
            "the log is silent:\n{log}"
        );
        Ok(())
    })
    .await?;

    roles.apply(&objects).await?;
    controller.ready().await
}

/// A controller that leads, with the roles that we ship, less one verb at a time.
struct Bench {
    objects: Objects,
    roles: Roles,
    namespace: Namespace,
    pods: Pods,
    options: ControllerOptions,
    missed: Mutex<Vec<Permission>>,
}

impl Bench {
    async fn set(cluster: &Cluster) -> Result<Self> {
        let namespace = cluster.temp_namespace("rbac").await?;
        let kubeconfig = cluster.controller_kubeconfig(cluster.address()).await?;
        let bench = Self {
            objects: cluster.objects().await?,
            roles: Roles::shipped()?,
            pods: Pods::of(&namespace),
            namespace,
            options: ControllerOptions::controller(&kubeconfig),
            missed: Mutex::default(),
        };
        bench.network().await?;
        Ok(bench)
    }

    /// Takes a verb away.
    async fn take(&self, group: &str, resource: &str, verb: &str) -> Result<Permission> {
        let permission = Permission::new(group, resource, verb);
        self.roles.clone().without(&permission)?.apply(&self.objects).await?;
        self.roles.grant(&self.objects.client(), &permission, false).await?;
        Ok(permission)
    }

    /// Gives a verb back, which was missed.
    async fn give(&self, permission: Permission) -> Result<()> {
        self.roles.apply(&self.objects).await?;
        self.roles.grant(&self.objects.client(), &permission, true).await?;
        self.missed.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(permission);
        Ok(())
    }

    async fn apply(&self, object: Value) -> Result<DynamicObject> {
        self.namespace.apply(serde_json::from_value::<DynamicObject>(object)?).await
    }

    async fn network(&self) -> Result<()> {
        let spec = json!({"config": r#"{"cniVersion": "1.0.0", "type": "macvlan", "master": "rail"}"#});
        let network = json!({
            "apiVersion": "k8s.cni.cncf.io/v1",
            "kind": "NetworkAttachmentDefinition",
            "metadata": {"name": "rdma-a"},
            "spec": spec,
        });
        self.apply(network).await.map(drop)
    }

    /// Takes the network away; the service says so.
    async fn remove_network(&self, service: &str) -> Result<()> {
        let types = TypeMeta {
            api_version: "k8s.cni.cncf.io/v1".to_owned(),
            kind: "NetworkAttachmentDefinition".to_owned(),
        };
        let networks = self.objects.api(&types, Some(self.namespace.name())).await?;
        networks.delete("rdma-a", &DeleteParams::default()).await?;
        self.status(service)?.is(&["ResolvedRefs=False NetworkNotFound"]).await.map(drop)
    }

    /// A service for the pods with its name as label.
    async fn service(&self, name: &str, mirror: Option<&str>) -> Result<()> {
        let mut spec = infer();
        spec["selector"] = json!({"matchLabels": {"app": name}});
        if let Some(mirror) = mirror {
            spec["mirror"] = json!({"serviceName": mirror});
        }
        self.apply(service(name, spec)).await?;
        self.status(name)?.is(&FINE).await.map(drop)
    }

    async fn edit(&self, service: &str, patch: Value) -> Result<()> {
        let services = api(self.objects.client(), self.namespace.name(), SERVICE)?;
        services.patch(service, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    fn status(&self, service: &str) -> Result<Status> {
        Status::of(&self.namespace, service)
    }

    /// Waits until a service's status says that it lacks this permission.
    async fn misses(&self, service: &str, permission: &Permission) -> Result<()> {
        let needles = ["waiting for a role that grants", &permission.to_string()];
        self.status(service)?.explains("Programmed=False WriteFailed", &needles).await?;
        Ok(())
    }

    async fn slices(&self, controller: &Controller) -> Result<()> {
        self.service("plain", None).await?;
        let slices = Slices::of(&self.namespace, "plain")?.with_label(MANAGED_BY, CONTROLLER);
        let resource = "multinetworkendpointslices";

        let permission = self.take(OURS, resource, "create").await?;
        self.pods.start(Pod::new("a").label("app", "plain").nic("rdma-a", &["10.1.0.1"])).await?;
        self.misses("plain", &permission).await?;
        self.give(permission).await?;
        slices.are(&["rail0 10.1.0.1 a rs-"]).await?;

        let permission = self.take(OURS, resource, "update").await?;
        self.pods.ready("a", false).await?;
        self.misses("plain", &permission).await?;
        self.give(permission).await?;
        slices.are(&["rail0 10.1.0.1 a ---"]).await?;

        let permission = self.take(OURS, resource, "delete").await?;
        self.edit("plain", json!({"spec": {"ipFamilies": ["IPv6"]}})).await?;
        self.misses("plain", &permission).await?;
        self.give(permission).await?;
        slices.are_gone().await?;
        self.status("plain")?.is(&FINE).await?;

        let permission = self.take(OURS, "multinetworkservices/status", "patch").await?;
        self.edit("plain", json!({"spec": {"ttlSeconds": 7}})).await?;
        says(controller, &["waiting for a role that grants", &permission.to_string()]).await?;
        self.give(permission).await?;
        self.status("plain")?.is(&FINE).await.map(drop)
    }

    async fn mirrors(&self) -> Result<()> {
        let spec = json!({"clusterIP": "None", "ports": [{"name": "rdma", "port": 18515}]});
        let core = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "fast"}, "spec": spec});
        self.apply(core).await?;
        self.service("mirrored", Some("fast")).await?;
        let mirrors = Slices::of_core(&self.namespace, "fast").with_label(CORE_MANAGED_BY, CONTROLLER);
        let (group, resource) = ("discovery.k8s.io", "endpointslices");

        let permission = self.take(group, resource, "create").await?;
        self.pods.start(Pod::new("b").label("app", "mirrored").nic("rdma-a", &["10.1.0.2"])).await?;
        self.misses("mirrored", &permission).await?;
        self.give(permission).await?;
        mirrors.are(&["10.1.0.2 b rs-"]).await?;

        let permission = self.take(group, resource, "update").await?;
        self.pods.start(Pod::new("c").label("app", "mirrored").nic("rdma-a", &["10.1.0.3"])).await?;
        self.misses("mirrored", &permission).await?;
        self.give(permission).await?;
        mirrors.are(&["10.1.0.2 b rs-", "10.1.0.3 c rs-"]).await?;

        let permission = self.take(group, resource, "delete").await?;
        self.edit("mirrored", json!({"spec": {"mirror": null}})).await?;
        self.misses("mirrored", &permission).await?;
        self.give(permission).await?;
        mirrors.are_gone().await?;
        self.status("mirrored")?.is(&FINE).await.map(drop)
    }

    async fn events(&self, controller: &Controller) -> Result<()> {
        // The log tells only of the first event that cannot be written: there are to be none about
        // others.
        let services = api(self.objects.client(), self.namespace.name(), SERVICE)?;
        for other in ["plain", "mirrored"] {
            services.delete(other, &DeleteParams::default()).await?;
        }
        let events = Events::of(&self.namespace);
        self.service("warned", None).await?;
        let count = async || events.count(SERVICE, "warned", "NetworkNotFound").await;
        let (group, resource) = ("events.k8s.io", "events");

        let permission = self.take(group, resource, "create").await?;
        self.remove_network("warned").await?;
        says(controller, &["cannot write events", "cannot create resource \"events\""]).await?;
        ensure!(count().await? == 0, "an event without leave to write it");
        self.give(permission).await?;
        self.network().await?;
        self.status("warned")?.is(&FINE).await?;
        self.remove_network("warned").await?;
        events.warn(SERVICE, "warned", "NetworkNotFound", &["rdma-a"]).await?;

        // From now on it is a repetition.
        let permission = self.take(group, resource, "patch").await?;
        self.network().await?;
        self.status("warned")?.is(&FINE).await?;
        self.remove_network("warned").await?;
        says(controller, &["cannot write events", "cannot patch resource \"events\""]).await?;
        let found = said(&events.about(SERVICE, "warned").await?);
        ensure!(count().await? == 1, "counted without leave to do so: {found:#?}");
        self.give(permission).await?;
        self.network().await?;
        self.status("warned")?.is(&FINE).await?;
        self.remove_network("warned").await?;
        eventually("the event to be counted", BOUND, async || {
            let found = count().await?;
            ensure!(found >= 2, "{found} times");
            Ok(())
        })
        .await
    }

    /// A controller that begins without this verb does not lead before it has it.
    async fn lease(&self, verb: &str) -> Result<()> {
        if verb == "create" {
            let leases: Api<Lease> = Api::namespaced(self.objects.client(), NAMESPACE);
            leases.delete("multinet-controller", &DeleteParams::default()).await?;
        }
        let permission = self.take("coordination.k8s.io", "leases", verb).await?;
        let mut controller = self.options.start_ready().await?;
        let cannot = format!("cannot {verb} resource \"leases\"");
        says(&controller, &["waiting for a role that grants get, create and update of leases", &cannot])
            .await?;
        ensure!(!controller.is_leader().await?, "it leads without {permission}");
        self.give(permission).await?;
        controller.leads(true).await?;
        // Gives the lease back.
        controller.terminate().await.map(drop)
    }
}

/// Waits for a line of the log that contains all of these.
async fn says(controller: &Controller, needles: &[&str]) -> Result<()> {
    eventually(&format!("the log to say {needles:?}"), BOUND, async || {
        let log = controller.log();
        let is_said = log.lines().any(|line| needles.iter().all(|needle| line.contains(needle)));
        ensure!(is_said, "the log is\n{log}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn every_verb_for_writing_is_needed() -> Result<()> {
    let (_guard, cluster) = shared::older_alone().await?;
    let bench = Bench::set(cluster).await?;
    let mut controller = bench.options.start_ready().await?;
    controller.leads(true).await?;
    bench.slices(&controller).await?;
    bench.mirrors().await?;
    bench.events(&controller).await?;
    ensure!(controller.terminate().await?.success(), "no graceful end");
    for verb in ["get", "update", "create"] {
        bench.lease(verb).await.with_context(|| format!("without {verb} of leases"))?;
    }

    // Those for reading are the other test's.
    let mut shipped = bench.roles.permissions();
    shipped.retain(|permission| !is_for_reading(permission));
    shipped.sort_unstable();
    let mut missed = bench.missed.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
    missed.sort_unstable();
    ensure!(missed == shipped, "we ship {shipped:#?}, but what is needed is {missed:#?}");
    Ok(())
}
