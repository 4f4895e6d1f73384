//! Control planes that tests share. Each test uses a namespace of its own.

use anyhow::Result;
use multinet_testing::cluster::Cluster;
use multinet_testing::objects::{Objects, parse_folder};
use multinet_testing::tools::{definitions, files_in};
use serde_json::json;
use tokio::sync::{Mutex, MutexGuard, OnceCell};

use crate::controller::stage::{apply_multus, nodes, prepare};

/// Controllers of Kubernetes that tests need: the one that ours is compared with, and the one that
/// creates claims from templates. The garbage collector does not run.
const CONTROLLERS: &str = "endpointslice-controller,resourceclaim-controller";

/// Returns the control plane of most tests. It has our definitions and roles, nodes and Multus'
/// definition. Once a test of `multinet-controller` has started, the controller runs there.
pub(crate) async fn cluster() -> Result<&'static Cluster> {
    static SHARED: OnceCell<Cluster> = OnceCell::const_new();
    SHARED
        .get_or_try_init(|| async {
            let mut cluster = Cluster::start().await?;
            cluster.share()?;
            prepare(&cluster).await?;
            cluster.start_controller_manager(CONTROLLERS).await?;
            Ok(cluster)
        })
        .await
}

/// Flags that make the API server behave as before Kubernetes 1.34, without streamed lists and
/// without `resource.k8s.io/v1`.
const OLDER: [&str; 2] = [
    "--feature-gates=WatchList=false",
    "--runtime-config=resource.k8s.io/v1=false,resource.k8s.io/v1beta2=true",
];

/// Returns the control plane of an older cluster. Our definitions have no rules there, as an older
/// version of them might. Only controllers that a test starts run.
pub(crate) async fn older() -> Result<&'static Cluster> {
    static SHARED: OnceCell<Cluster> = OnceCell::const_new();
    SHARED
        .get_or_try_init(|| async {
            let mut cluster = Cluster::start_with(&OLDER).await?;
            cluster.share()?;
            let objects = cluster.objects().await?;
            apply_multus(&objects).await?;
            apply_loose_crds(&objects).await?;
            cluster.apply_rbac().await?;
            nodes(&objects).await?;
            Ok(cluster)
        })
        .await
}

/// Returns the same control plane, for one test at a time: for tests with a leading controller,
/// changes of the shipped roles, or counts over all namespaces.
pub(crate) async fn older_alone() -> Result<(MutexGuard<'static, ()>, &'static Cluster)> {
    static ALONE: Mutex<()> = Mutex::const_new(());
    let guard = ALONE.lock().await;
    Ok((guard, older().await?))
}

/// Applies our definitions without their schemas.
async fn apply_loose_crds(objects: &Objects) -> Result<()> {
    let mut applied = Vec::new();
    for mut crd in parse_folder("deploy/crds")? {
        crd.data["spec"]["versions"][0]["schema"]["openAPIV3Schema"] =
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        applied.push(objects.apply_object(&crd).await?);
    }
    for crd in applied {
        objects.established(&crd).await?;
    }
    Ok(())
}

/// Returns the control plane that validates manifests. It has our kinds and those of the operators
/// in the examples, and no controller runs.
pub(crate) async fn bystander() -> Result<&'static Cluster> {
    static SHARED: OnceCell<Cluster> = OnceCell::const_new();
    SHARED
        .get_or_try_init(|| async {
            let mut cluster = Cluster::start().await?;
            cluster.share()?;
            cluster.apply_crds().await?;
            let foreign = files_in("testing/src/foreign")?.into_iter().chain(definitions()?);
            cluster.objects().await?.define(foreign).await?;
            Ok(cluster)
        })
        .await
}
