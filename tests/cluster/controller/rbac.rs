//! The controller needs exactly the shipped roles: the tests revoke one verb at a time, see the
//! controller report that it is missing, and grant it again.
//!
//! The API server has no streamed lists here, as before Kubernetes 1.34. With them, the controller
//! uses `list` only to read slices again after a conflict.

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
use multinet_testing::status::{Events, FINE, Status, describe};
use multinet_testing::wait::eventually;
use serde_json::{Value, json};

use crate::controller::stage::{infer, service};
use crate::roles::{NAMESPACE, Permission, Roles};
use crate::shared;

/// Verbs that a watch needs. A resource that grants one of them grants both.
const READING: [&str; 2] = ["list", "watch"];

/// Number of controllers that run at the same time.
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
        Roles::of_controller()?.permissions().into_iter().filter(is_for_reading).collect();
    ensure!(permissions.len() >= 22, "only {permissions:?}");
    stream::iter(permissions.iter().enumerate())
        .map(|(index, permission)| async move {
            let account = format!("reader-{index}");
            check_missing(cluster, &account, permission)
                .await
                .with_context(|| format!("without {permission}"))
        })
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

/// Checks that a controller without this permission does not get ready and says why, and gets ready
/// once the permission is granted. The controller has no role for the Lease, so that it never
/// writes.
async fn check_missing(cluster: &Cluster, account: &str, permission: &Permission) -> Result<()> {
    let objects = cluster.objects().await?;
    let roles = Roles::of_controller()?.of_account(account).without_lease();
    roles.clone().without(permission)?.apply(&objects).await?;
    // One write applied all permissions, so that one of the others stands for all.
    roles.wait_for_access(&objects.client(), permission, false).await?;
    let other = roles.permissions().into_iter().find(|other| other != permission).context("no other")?;
    roles.wait_for_access(&objects.client(), &other, true).await?;
    let kubeconfig = cluster.service_account_kubeconfig(NAMESPACE, account, cluster.address()).await?;
    let controller = ControllerOptions::controller(&kubeconfig).start().await?;

    let hint = format!("waiting for a role that grants list and watch of {}:", permission.title());
    let why = format!("cannot {} resource \"{}\"", permission.verb, permission.resource);
    eventually(&format!("/readyz to name {permission} as missing, and no other"), BOUND, async || {
        let (status, body) = controller.readyz().await?;
        let missed = body.matches("waiting for a role").count();
        let is_named = body.contains(&hint) && body.contains(&why);
        ensure!(status == 503 && is_named && missed == 1, "{status}: {body}");
        // The log line follows a moment later.
        let log = controller.log();
        ensure!(
            log.lines().any(|line| line.contains(&hint) && line.contains(&why)),
            "the log does not say so:\n{log}"
        );
        Ok(())
    })
    .await?;

    roles.apply(&objects).await?;
    controller.ready().await
}

/// Leading controller with the shipped roles, of which the test revokes one verb at a time.
struct Fixture {
    objects: Objects,
    roles: Roles,
    namespace: Namespace,
    pods: Pods,
    options: ControllerOptions,
    missed: Mutex<Vec<Permission>>,
}

impl Fixture {
    async fn start(cluster: &Cluster) -> Result<Self> {
        let namespace = cluster.temp_namespace("rbac").await?;
        let kubeconfig = cluster.controller_kubeconfig(cluster.address()).await?;
        let fixture = Self {
            objects: cluster.objects().await?,
            roles: Roles::of_controller()?,
            pods: Pods::of(&namespace),
            namespace,
            options: ControllerOptions::controller(&kubeconfig),
            missed: Mutex::default(),
        };
        fixture.network().await?;
        Ok(fixture)
    }

    /// Revokes a verb.
    async fn revoke(&self, group: &str, resource: &str, verb: &str) -> Result<Permission> {
        let permission = Permission::new(group, resource, verb);
        self.roles.clone().without(&permission)?.apply(&self.objects).await?;
        self.roles.wait_for_access(&self.objects.client(), &permission, false).await?;
        Ok(permission)
    }

    /// Grants a verb again, and records that the controller reported it as missing.
    async fn grant(&self, permission: Permission) -> Result<()> {
        self.roles.apply(&self.objects).await?;
        self.roles.wait_for_access(&self.objects.client(), &permission, true).await?;
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

    /// Deletes the network, and waits until the status of the service names it as missing.
    async fn remove_network(&self, service: &str) -> Result<()> {
        let types = TypeMeta {
            api_version: "k8s.cni.cncf.io/v1".to_owned(),
            kind: "NetworkAttachmentDefinition".to_owned(),
        };
        let networks = self.objects.api(&types, Some(self.namespace.name())).await?;
        networks.delete("rdma-a", &DeleteParams::default()).await?;
        self.status(service)?.is(&["ResolvedRefs=False NetworkNotFound"]).await.map(drop)
    }

    /// Creates a service for the pods that have its name as label.
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

    /// Waits until the status of a service names this permission as missing.
    async fn status_names(&self, service: &str, permission: &Permission) -> Result<()> {
        let needles = ["waiting for a role that grants", &permission.to_string()];
        self.status(service)?.explains("Programmed=False WriteFailed", &needles).await?;
        Ok(())
    }

    async fn slices(&self, controller: &Controller) -> Result<()> {
        self.service("plain", None).await?;
        let slices = Slices::of(&self.namespace, "plain")?.with_label(MANAGED_BY, CONTROLLER);
        let resource = "multinetworkendpointslices";

        let permission = self.revoke(OURS, resource, "create").await?;
        self.pods.start(Pod::new("a").label("app", "plain").nic("rdma-a", &["10.1.0.1"])).await?;
        self.status_names("plain", &permission).await?;
        self.grant(permission).await?;
        slices.are(&["rail0 10.1.0.1 a rs-"]).await?;

        let permission = self.revoke(OURS, resource, "update").await?;
        self.pods.ready("a", false).await?;
        self.status_names("plain", &permission).await?;
        self.grant(permission).await?;
        slices.are(&["rail0 10.1.0.1 a ---"]).await?;

        let permission = self.revoke(OURS, resource, "delete").await?;
        self.edit("plain", json!({"spec": {"ipFamilies": ["IPv6"]}})).await?;
        self.status_names("plain", &permission).await?;
        self.grant(permission).await?;
        slices.are_gone().await?;
        self.status("plain")?.is(&FINE).await?;

        let permission = self.revoke(OURS, "multinetworkservices/status", "patch").await?;
        self.edit("plain", json!({"spec": {"ttlSeconds": 7}})).await?;
        log_names(controller, &["waiting for a role that grants", &permission.to_string()]).await?;
        self.grant(permission).await?;
        self.status("plain")?.is(&FINE).await.map(drop)
    }

    async fn mirrors(&self) -> Result<()> {
        let spec = json!({"clusterIP": "None", "ports": [{"name": "rdma", "port": 18515}]});
        let core = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "fast"}, "spec": spec});
        self.apply(core).await?;
        self.service("mirrored", Some("fast")).await?;
        let mirrors = Slices::of_core(&self.namespace, "fast").with_label(CORE_MANAGED_BY, CONTROLLER);
        let (group, resource) = ("discovery.k8s.io", "endpointslices");

        let permission = self.revoke(group, resource, "create").await?;
        self.pods.start(Pod::new("b").label("app", "mirrored").nic("rdma-a", &["10.1.0.2"])).await?;
        self.status_names("mirrored", &permission).await?;
        self.grant(permission).await?;
        mirrors.are(&["10.1.0.2 b rs-"]).await?;

        let permission = self.revoke(group, resource, "update").await?;
        self.pods.start(Pod::new("c").label("app", "mirrored").nic("rdma-a", &["10.1.0.3"])).await?;
        self.status_names("mirrored", &permission).await?;
        self.grant(permission).await?;
        mirrors.are(&["10.1.0.2 b rs-", "10.1.0.3 c rs-"]).await?;

        let permission = self.revoke(group, resource, "delete").await?;
        self.edit("mirrored", json!({"spec": {"mirror": null}})).await?;
        self.status_names("mirrored", &permission).await?;
        self.grant(permission).await?;
        mirrors.are_gone().await?;
        self.status("mirrored")?.is(&FINE).await.map(drop)
    }

    async fn events(&self, controller: &Controller) -> Result<()> {
        // The log names only the first event that cannot be written. Without the other services,
        // no other event comes first.
        let services = api(self.objects.client(), self.namespace.name(), SERVICE)?;
        for other in ["plain", "mirrored"] {
            services.delete(other, &DeleteParams::default()).await?;
        }
        let events = Events::of(&self.namespace);
        self.service("warned", None).await?;
        let count = async || events.count(SERVICE, "warned", "NetworkNotFound").await;
        let (group, resource) = ("events.k8s.io", "events");

        let permission = self.revoke(group, resource, "create").await?;
        self.remove_network("warned").await?;
        log_names(controller, &["cannot write events", "cannot create resource \"events\""]).await?;
        ensure!(count().await? == 0, "an event was written without permission");
        self.grant(permission).await?;
        self.network().await?;
        self.status("warned")?.is(&FINE).await?;
        self.remove_network("warned").await?;
        events.warn(SERVICE, "warned", "NetworkNotFound", &["rdma-a"]).await?;

        // From now on, each event is a repetition, which is patched.
        let permission = self.revoke(group, resource, "patch").await?;
        self.network().await?;
        self.status("warned")?.is(&FINE).await?;
        self.remove_network("warned").await?;
        log_names(controller, &["cannot write events", "cannot patch resource \"events\""]).await?;
        let found = describe(&events.about(SERVICE, "warned").await?);
        ensure!(count().await? == 1, "a repetition was counted without permission: {found:#?}");
        self.grant(permission).await?;
        self.network().await?;
        self.status("warned")?.is(&FINE).await?;
        self.remove_network("warned").await?;
        eventually("the event to be counted", BOUND, async || {
            let found = count().await?;
            ensure!(found >= 2, "it is counted {found} times");
            Ok(())
        })
        .await
    }

    /// Checks that a controller without this verb does not lead until the verb is granted.
    async fn lease(&self, verb: &str) -> Result<()> {
        if verb == "create" {
            let leases: Api<Lease> = Api::namespaced(self.objects.client(), NAMESPACE);
            leases.delete("multinet-controller", &DeleteParams::default()).await?;
        }
        let permission = self.revoke("coordination.k8s.io", "leases", verb).await?;
        let mut controller = self.options.start_ready().await?;
        let cannot = format!("cannot {verb} resource \"leases\"");
        log_names(&controller, &["waiting for a role that grants get, create and update of leases", &cannot])
            .await?;
        ensure!(!controller.is_leader().await?, "it leads without {permission}");
        self.grant(permission).await?;
        controller.leads(true).await?;
        // Releases the lease.
        controller.terminate().await.map(drop)
    }
}

/// Waits for a line of the log that contains all `needles`.
async fn log_names(controller: &Controller, needles: &[&str]) -> Result<()> {
    eventually(&format!("a log line with {needles:?}"), BOUND, async || {
        let log = controller.log();
        let is_logged = log.lines().any(|line| needles.iter().all(|needle| line.contains(needle)));
        ensure!(is_logged, "the log is\n{log}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn every_verb_for_writing_is_needed() -> Result<()> {
    let (_guard, cluster) = shared::older_alone().await?;
    let fixture = Fixture::start(cluster).await?;
    let mut controller = fixture.options.start_ready().await?;
    controller.leads(true).await?;
    fixture.slices(&controller).await?;
    fixture.mirrors().await?;
    fixture.events(&controller).await?;
    ensure!(controller.terminate().await?.success(), "no graceful end");
    for verb in ["get", "update", "create"] {
        fixture.lease(verb).await.with_context(|| format!("without {verb} of leases"))?;
    }

    // The other test is about the permissions for reading.
    let mut shipped = fixture.roles.permissions();
    shipped.retain(|permission| !is_for_reading(permission));
    shipped.sort_unstable();
    let mut missed = fixture.missed.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
    missed.sort_unstable();
    ensure!(missed == shipped, "the roles grant {shipped:#?}, but the controller needs {missed:#?}");
    Ok(())
}
