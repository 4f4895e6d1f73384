//! Cost to the API server of creating a service of many pods on two rails with two families.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, future, stream};
use kube::api::DynamicObject;
use multinet_testing::manifests::SERVICE;
use multinet_testing::pods::{Nic, Pod, Pods};
use multinet_testing::slices::Slices;
use multinet_testing::usage::cpu_seconds;
use multinet_testing::wait::eventually;
use serde_json::json;
use tokio::time::sleep;

use super::changes::PODS_EACH;
use super::stage::Stage;
use crate::side::Side;

/// The networks of the service.
const RAILS: [&str; 2] = ["rail0", "rail1"];

/// Concurrent requests while pods are created.
const AT_ONCE: usize = 8;

/// Bound until all addresses are in slices.
const BOUND: Duration = Duration::from_secs(120);

/// Pause until the controller has written everything, with merged slices and the status.
const SETTLED: Duration = Duration::from_secs(12);

/// The controller that runs during the creation of the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Controller {
    /// No controller, for the cost of the pods alone.
    None,
    /// multinet-controller with a limit of endpoints per slice.
    WithSlicesOf(usize),
    /// multinet-controller with the default limit.
    Default,
}

impl Controller {
    /// All compared controllers.
    pub(crate) const ALL: [Self; 3] = [Self::None, Self::WithSlicesOf(4), Self::Default];
}

/// Figures of one creation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Creation {
    pub(crate) controller: Controller,
    /// Slices in the end.
    pub(crate) objects: usize,
    /// CPU time of the API server, in seconds.
    pub(crate) cpu_seconds: f64,
}

/// Creates the service `rounds` times with each controller.
pub(crate) async fn measure(stage: &mut Stage, rounds: usize) -> Result<Vec<Creation>> {
    let mut all = Vec::new();
    for round in 0..rounds {
        for controller in Controller::ALL {
            match controller {
                Controller::None => {}
                Controller::WithSlicesOf(limit) => stage.start_with_slices_of(limit).await?,
                Controller::Default => stage.start(Side::Ours).await?,
            }
            if controller != Controller::None {
                stage.ready().await?;
            }
            sleep(SETTLED / 4).await;
            all.push(create(stage, controller, round).await?);
            stage.stop(Side::Ours).await?;
        }
    }
    Ok(all)
}

async fn create(stage: &Stage, controller: Controller, round: usize) -> Result<Creation> {
    let namespace = stage.cluster.temp_namespace("created").await?;
    let apiserver = stage.cluster.apiserver_pid().context("the API server does not run")?;
    for rail in RAILS {
        let network = json!({"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": {"name": rail}, "spec": {"config": "{}"}});
        namespace.apply(serde_json::from_value::<DynamicObject>(network)?).await?;
    }
    let service = json!({
        "apiVersion": "multinetwork.numaproj.io/v1alpha1", "kind": "MultiNetworkService",
        "metadata": {"name": "infer"},
        "spec": {
            "selector": {"matchLabels": {"app": "infer"}}, "networks": RAILS.map(|rail| json!({"name": rail})),
            "ports": [{"name": "rdma", "port": 18515, "protocol": "TCP"}],
        },
    });
    namespace.apply(serde_json::from_value::<DynamicObject>(service)?).await?;
    let (pods, slices) = (Pods::of(&namespace), Slices::of(&namespace, "infer")?);
    let before = cpu_seconds(apiserver)?;
    stream::iter(0..PODS_EACH)
        .map(|number| pods.start(pod(number, round)))
        .buffer_unordered(AT_ONCE)
        .try_for_each(|_| future::ready(Ok(())))
        .await?;
    if controller != Controller::None {
        eventually("all addresses in slices", BOUND, async || {
            let found = slices.list().await?;
            let endpoints = found.iter().filter_map(|slice| slice.data["spec"]["endpoints"].as_array());
            let endpoints: usize = endpoints.map(Vec::len).sum();
            ensure!(endpoints == PODS_EACH * RAILS.len() * 2, "{endpoints} endpoints");
            Ok(())
        })
        .await?;
    }
    sleep(SETTLED).await;
    let cpu_seconds = cpu_seconds(apiserver)? - before;
    let objects = slices.list().await?.len();
    // Otherwise the next controller would merge the slices.
    namespace.delete(SERVICE, "infer").await?;
    if controller != Controller::None {
        slices.are_gone().await?;
    }
    Ok(Creation { controller, objects, cpu_seconds })
}

fn pod(number: usize, round: usize) -> Pod {
    let nics: Vec<Nic> = (RAILS.iter().enumerate())
        .map(|(rail, name)| {
            let four = format!("10.{}.{round}.{}", 200 + rail, number + 1);
            let six = format!("fd00:{}:{round}::{:x}", rail + 1, number + 1);
            Nic::new(name, &[&four, &six]).interface(&format!("net{}", rail + 1))
        })
        .collect();
    Pod::new(&format!("infer-{number:03}")).nics(&nics)
}
