//! Comparison with Kubernetes: pods go through scripted lives, while kube-controller-manager writes
//! slices of a headless Service and multinet-controller those of a MultiNetworkService. After every
//! step, both must report the same conditions.

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use kube::api::DynamicObject;
use multinet_testing::pods::{Nic, Pod, Pods};
use multinet_testing::replica::BOUND;
use multinet_testing::slices::{CORE_MANAGED_BY, Slices};
use multinet_testing::wait::eventually;
use serde_json::{Value, json};

use crate::controller::stage::{Scene, infer};

/// Step in the life of a pod.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// The pod is created, with its interface and its address on the default network.
    Created,
    /// The kubelet starts it.
    Running,
    Ready,
    NotReady,
    /// A user deletes it with a grace period.
    Deleted,
    /// It is removed from the API server.
    Removed,
    Phase(&'static str),
    /// Its label changes, so that no service selects it.
    Unselected,
    Selected,
}

use Step::*;

/// Lives of pods: the steps, and after each the conditions ready, serving and terminating that
/// Kubernetes reports; `""` if the pod is no endpoint.
const LIVES: &[(&str, &[(Step, &str)])] = &[
    ("serves", &[(Created, "---"), (Running, "---"), (Ready, "rs-"), (Removed, "")]),
    ("flaps", &[(Created, "---"), (Running, "---"), (Ready, "rs-"), (NotReady, "---"), (Ready, "rs-")]),
    ("early", &[(Created, "---"), (Ready, "rs-"), (Running, "---")]),
    ("drains", &[(Created, "---"), (Running, "---"), (Ready, "rs-"), (Deleted, "-st"), (Removed, "")]),
    (
        "drains-and-fails",
        &[
            (Created, "---"),
            (Running, "---"),
            (Ready, "rs-"),
            (Deleted, "-st"),
            (NotReady, "--t"),
            (Removed, ""),
        ],
    ),
    ("never-served", &[(Created, "---"), (Running, "---"), (Deleted, "--t"), (Ready, "-st"), (Removed, "")]),
    ("deleted-while-pending", &[(Created, "---"), (Deleted, "--t"), (Removed, "")]),
    (
        "succeeds",
        &[(Created, "---"), (Running, "---"), (Ready, "rs-"), (Phase("Succeeded"), ""), (Removed, "")],
    ),
    ("fails", &[(Created, "---"), (Running, "---"), (Ready, "rs-"), (Phase("Failed"), ""), (Deleted, "")]),
    (
        "drains-and-succeeds",
        &[(Created, "---"), (Running, "---"), (Ready, "rs-"), (Deleted, "-st"), (Phase("Succeeded"), "")],
    ),
    (
        "lost",
        &[(Created, "---"), (Running, "---"), (Ready, "rs-"), (Phase("Unknown"), "rs-"), (NotReady, "---")],
    ),
    (
        "relabelled",
        &[
            (Created, "---"),
            (Running, "---"),
            (Ready, "rs-"),
            (Unselected, ""),
            (NotReady, ""),
            (Selected, "---"),
        ],
    ),
];

/// Returns the state of a pod's endpoint where the service publishes addresses that are not ready.
fn published(state: &str) -> String {
    if state.is_empty() { String::new() } else { format!("r{}", &state[1..]) }
}

/// Slices of the same pods, by Kubernetes and by multinet-controller.
struct Pair {
    core: Slices<k8s_openapi::api::discovery::v1::EndpointSlice>,
    ours: Slices<DynamicObject>,
}

impl Pair {
    async fn make(scene: &Scene, name: &str, publish: bool) -> Result<Self> {
        scene
            .apply(json!({
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": name},
                "spec": {
                    "clusterIP": "None",
                    "selector": {"app": "infer"},
                    "ports": [{"name": "rdma", "port": 18515}],
                    "publishNotReadyAddresses": publish,
                },
            }))
            .await?;
        let mut spec = infer();
        spec["publishNotReadyAddresses"] = json!(publish);
        scene.service(name, spec).await?;
        let core = Slices::of_core(&scene.namespace, name)
            .with_label(CORE_MANAGED_BY, "endpointslice-controller.k8s.io");
        Ok(Self { core, ours: scene.slices(name)? })
    }

    /// Waits until both report exactly this state of a pod.
    async fn agree_on(&self, pod: &str, state: &str) -> Result<()> {
        let expected: Vec<&str> = Some(state).filter(|state| !state.is_empty()).into_iter().collect();
        eventually(&format!("both to report {expected:?} for the pod {pod}"), BOUND, async || {
            let (core, ours) = (self.core.endpoints().await?, self.ours.endpoints().await?);
            let (core, ours) = (of_pod(&core, pod), of_pod(&ours, pod));
            ensure!(core == expected && ours == expected, "Kubernetes reports {core:?}, ours {ours:?}");
            Ok(())
        })
        .await
    }
}

/// Returns the states in the lines of a pod.
fn of_pod<'a>(lines: &'a [String], pod: &str) -> Vec<&'a str> {
    let words = lines.iter().filter_map(|line| line.rsplit_once(' '));
    words.filter(|(line, _)| line.ends_with(&format!(" {pod}"))).map(|(_, state)| state).collect()
}

async fn apply(pods: &Pods, name: &str, address: &str, step: Step) -> Result<()> {
    match step {
        Created => {
            let pod = Pod::new(name).nics(&[Nic::new("rdma-a", &[address])]);
            pods.create(pod).await?;
            let own = address.replace("10.1.", "10.244.200.").replace(".200.0.", ".200.");
            pods.status(name, json!({"podIP": own, "podIPs": [{"ip": own}]})).await?;
        }
        Running => {
            pods.phase(name, "Running").await?;
            pods.ready(name, false).await?;
        }
        Ready => drop(pods.ready(name, true).await?),
        NotReady => drop(pods.ready(name, false).await?),
        Deleted => pods.terminate(name).await?,
        Removed => pods.remove(name).await?,
        Phase(phase) => drop(pods.phase(name, phase).await?),
        Unselected => drop(pods.label(name, "app", Some("other")).await?),
        Selected => drop(pods.label(name, "app", Some("infer")).await?),
    }
    Ok(())
}

#[tokio::test]
async fn conditions_are_those_that_kubernetes_writes() -> Result<()> {
    let scene = Scene::new("parity").await?;
    scene.network("rdma-a").await?;
    let ready = Pair::make(&scene, "ready", false).await?;
    let all = Pair::make(&scene, "all", true).await?;
    let lives = LIVES.iter().enumerate().map(async |(number, (name, steps))| {
        let address = format!("10.1.0.{}", number + 1);
        for (at, (step, state)) in steps.iter().enumerate() {
            apply(&scene.pods, name, &address, *step).await?;
            let at = || format!("life {name:?}, step {at}: {step:?}");
            ready.agree_on(name, state).await.with_context(at)?;
            all.agree_on(name, &published(state))
                .await
                .with_context(|| format!("{}, all published", at()))?;
        }
        anyhow::Ok(())
    });
    try_join_all(lives).await?;

    // After all steps, all slices agree.
    for pair in [&ready, &all] {
        let pods = |lines: Vec<String>, skip: usize| -> Vec<String> {
            let mut pods: Vec<String> =
                lines.iter().map(|line| line.split(' ').skip(skip).collect::<Vec<_>>().join(" ")).collect();
            pods.sort_unstable();
            pods
        };
        let (core, ours) = (pods(pair.core.endpoints().await?, 1), pods(pair.ours.endpoints().await?, 2));
        ensure!(core == ours && !core.is_empty(), "Kubernetes reports {core:?}, ours {ours:?}");
    }
    Ok(())
}

#[tokio::test]
async fn details_are_those_that_kubernetes_writes() -> Result<()> {
    let scene = Scene::new("details").await?;
    scene.network("rdma-a").await?;
    let pair = Pair::make(&scene, "headless", false).await?;
    // The Service has the name of the pods' subdomain, so that Kubernetes writes their hostnames.
    scene.pods.start(Pod::new("a").hostname("infer-0").nic("rdma-a", &["10.1.0.1"])).await?;
    scene.pods.start(Pod::new("b").node("gpu-2").nic("rdma-a", &["10.1.0.2"])).await?;
    pair.agree_on("a", "rs-").await?;
    pair.agree_on("b", "rs-").await?;
    let (core, ours) = (pair.core.only().await?, pair.ours.only().await?);
    let by_pod = |endpoints: &Value| -> Vec<Value> {
        let mut found: Vec<Value> = endpoints.as_array().cloned().unwrap_or_default();
        found.sort_by_key(|endpoint| endpoint["targetRef"]["name"].as_str().map(ToOwned::to_owned));
        for endpoint in &mut found {
            // These fields differ on a second network.
            if let Some(fields) = endpoint.as_object_mut() {
                fields.remove("addresses");
                fields.remove("device");
            }
        }
        found
    };
    let (core, ours) = (by_pod(&json!(core.endpoints)), by_pod(&ours.data["spec"]["endpoints"]));
    ensure!(core == ours && core.len() == 2, "Kubernetes reports {core:#?}, ours {ours:#?}");
    ensure!(ours[0]["hostname"] == "infer-0" && ours[0]["zone"] == "a", "{:#}", ours[0]);
    Ok(())
}
