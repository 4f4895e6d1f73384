//! Two replicas, and faults of them and of everything around them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams};
use multinet_testing::http;
use multinet_testing::numaflow::BOUND;
use multinet_testing::wait::eventually;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::stage::{EDGE, NAMESPACE, Stage};
use crate::steps::{PLAN, image_of, requests};

/// Annotation of a Vertex whose change has the API server call the webhook.
const HASH: &str = "numaflow.numaproj.io/hash";

/// Fault during a rollout.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Leader,
    Follower,
    Both,
    Numaflow,
    ApiServer,
}

impl Fault {
    const ALL: [Self; 5] = [Self::Leader, Self::Both, Self::Follower, Self::Numaflow, Self::ApiServer];
}

/// Returns the certificates that API servers trust.
async fn trusted(stage: &Stage) -> Result<Vec<u8>> {
    let api = Api::<MutatingWebhookConfiguration>::all(stage.cluster.client().await?);
    let mut webhooks = api.get("multinet-numaflow").await?.webhooks.context("no webhooks")?;
    Ok(webhooks.remove(0).client_config.ca_bundle.context("no caBundle")?.0)
}

/// Sends a replica a Vertex as Numaflow writes it. Fails unless it injects. Returns the replica's
/// certificate.
async fn ask(stage: &Stage, port: u16, trusted: &[u8]) -> Result<Vec<u8>> {
    let mut vertex = stage.vertex("infer").await?.data;
    vertex["spec"]["metadata"] = json!({});
    let request = json!({"uid": "7", "namespace": NAMESPACE, "object": vertex});
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request});
    let url = format!("https://127.0.0.1:{port}/vertices");
    let (certificate, answer) = http::post_trusting(&url, trusted, &review).await?;
    ensure!(answer["response"]["patch"].is_string(), "{answer}");
    Ok(certificate)
}

/// Both replicas answer, with the certificate of the one Secret.
pub(crate) async fn both_replicas_answer(stage: &mut Stage) -> Result<()> {
    stage.start_replica(1, &[]).await?;
    ensure!(stage.leader().await? == 0, "the second replica leads");
    let trusted = trusted(stage).await?;
    let [one, other] = stage.ports;
    ensure!(ask(stage, one, &trusted).await? == ask(stage, other, &trusted).await?, "two certificates");
    Ok(())
}

/// The certificate is followed by another one, and no call of the webhook fails meanwhile.
pub(crate) async fn the_certificate_rotates_under_load(stage: &Stage) -> Result<()> {
    let before = ask(stage, stage.ports[0], &trusted(stage).await?).await?;
    let stop = Arc::new(AtomicBool::new(false));
    let load = tokio::spawn(load(stage.api("Vertex", "vertices").await?, Arc::clone(&stop)));
    // The next one is made after two thirds of a lifetime, and is in use a hundredth later.
    make_due(stage, "current", 0.7).await?;
    make_due(stage, "next", 0.02).await?;
    let mut certificates = Vec::new();
    for port in stage.ports {
        let renewed = eventually("another certificate", BOUND, async || {
            let found = ask(stage, port, &trusted(stage).await?).await?;
            ensure!(found != before, "it is the same");
            Ok(found)
        });
        certificates.push(renewed.await?);
    }
    ensure!(certificates[0] == certificates[1], "two certificates");
    stop.store(true, Ordering::Relaxed);
    let (calls, missed) = load.await??;
    ensure!(calls > 20 && missed == 0, "{missed} of {calls} calls were missed");
    Ok(())
}

/// Writes the Vertex infer as Numaflow does, again and again, without changing it. Returns the
/// number of writes, and of those that the webhook has missed.
async fn load(vertices: Api<DynamicObject>, stop: Arc<AtomicBool>) -> Result<(usize, usize)> {
    let (mut calls, mut missed) = (0, 0);
    let params = PatchParams { dry_run: true, ..PatchParams::default() };
    while !stop.load(Ordering::Relaxed) {
        let patch = json!({
            "metadata": {"annotations": {HASH: format!("load-{calls}")}},
            "spec": {"metadata": {"annotations": {PLAN: null}}},
        });
        let written = vertices.patch("frames-infer", &params, &Patch::Merge(patch)).await?;
        calls += 1;
        missed += usize::from(!written.data["spec"]["metadata"]["annotations"][PLAN].is_string());
        sleep(Duration::from_millis(20)).await;
    }
    Ok((calls, missed))
}

/// Ages a certificate in the Secret by this part of its lifetime.
async fn make_due(stage: &Stage, which: &str, part: f64) -> Result<()> {
    let secrets = Api::<Secret>::namespaced(stage.cluster.client().await?, "multinet-system");
    eventually(&format!("the certificate {which}"), BOUND, async || {
        let mut secret = secrets.get("multinet-numaflow").await?;
        let data =
            secret.data.as_mut().and_then(|data| data.get_mut("certificates.json")).context("no data")?;
        let mut store: Value = serde_json::from_slice(&data.0)?;
        let issued = &mut store[which];
        let (made, lifetime) = (issued["made"].as_u64(), issued["lifetime"].as_u64());
        let (made, lifetime) = made.zip(lifetime).context("it does not exist yet")?;
        issued["made"] = json!(made - (lifetime as f64 * part) as u64);
        *data = ByteString(serde_json::to_vec(&store)?);
        secrets.replace("multinet-numaflow", &Default::default(), &secret).await?;
        Ok(())
    })
    .await
}

/// The vertices end up with their plan, although everything around them fails while they change.
/// Each is reset no more often than there are plans and outages, and no Pipeline is blocked.
pub(crate) async fn outages_end_in_the_plan(stage: &mut Stage, outages: usize) -> Result<()> {
    let vertices = ["in", "decode", "infer"];
    let before = vertices.map(|vertex| stage.resets_of(vertex));
    let (mut image, mut network, mut plans) = (String::new(), "rdma-a", 0);
    for outage in 0..outages {
        let fault = Fault::ALL[outage % Fault::ALL.len()];
        image = format!("none.invalid/decode:{outage}");
        // Every other outage begins before Numaflow has written the vertex.
        let is_late = outage % 2 == 0;
        if is_late {
            stage.set_image(&image).await?;
            sleep(Duration::from_millis(fastrand::u64(..500))).await;
        }
        let down = stage.fail(fault).await?;
        if !is_late {
            stage.set_image(&image).await?;
        }
        if outage % 3 == 0 {
            network = if network == "rdma-a" { "rdma-b" } else { "rdma-a" };
            stage.annotate("frames", Some(&EDGE.replace("rdma-a", network))).await?;
            plans += 1;
        }
        stage.pods.run().await?;
        sleep(Duration::from_millis(fastrand::u64(..1000))).await;
        for replica in down {
            stage.start_replica(replica, &[]).await?;
        }
        let resets = vertices.map(|vertex| stage.resets_of(vertex));
        eprintln!("outage {outage}: {fault:?}, {resets:?} resets so far");
    }
    let replicas = stage.vertex("decode").await?.data["spec"]["replicas"].as_u64().context("no replicas")?;
    let has_plan = |pod: &Pod| {
        ensure!(image_of(pod) == Some(&image), "{:?}", image_of(pod));
        requests(Some(network))(pod)
    };
    let decode = stage.pods.until(("frames", "decode"), replicas as usize, has_plan).await;
    let infer = stage.pods.until(("frames", "infer"), 1, requests(Some(network))).await;
    if decode.is_err() || infer.is_err() {
        eprintln!("{}", stage.describe()?);
    }
    decode?;
    infer?;
    let leader = stage.leader().await?;
    let (_, state) = stage.replica(leader)?.get("debug/state").await?;
    let state: Value = serde_json::from_str(&state)?;
    ensure!(state[NAMESPACE]["outdated"] == json!([]), "{state:#}");
    for (vertex, before) in vertices.into_iter().zip(before) {
        let resets = stage.resets_of(vertex) - before;
        let most = if vertex == "in" { 0 } else { plans + outages };
        ensure!(resets <= most, "{vertex} was reset {resets} times, in {outages} outages with {plans} plans");
    }
    let status = stage.api("Pipeline", "pipelines").await?.get("frames").await?.data["status"].clone();
    ensure!(status["phase"] == "Running", "{status:#}");
    Ok(())
}

impl Stage {
    /// Brings a fault about. Returns the replicas that are down then.
    async fn fail(&mut self, fault: Fault) -> Result<Vec<usize>> {
        let leader = self.leader().await?;
        let down = match fault {
            Fault::Leader => vec![leader],
            Fault::Follower => vec![1 - leader],
            Fault::Both => vec![0, 1],
            Fault::Numaflow | Fault::ApiServer => vec![],
        };
        for replica in &down {
            self.kill_replica(*replica)?;
        }
        match fault {
            Fault::Numaflow => self.restart_numaflow().await?,
            Fault::ApiServer => self.cluster.start_apiserver().await?,
            Fault::Leader | Fault::Follower | Fault::Both => {}
        }
        Ok(down)
    }
}
