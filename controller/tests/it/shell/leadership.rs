//! Tests that a process without leadership writes nothing.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::Method;
use kube::Api;
use multinet_controller::views;
use multinet_runtime::{
    Guarded, Index, Leadership, LeaseConfig, LeaseMetrics, ObjectKey, Readiness, Refresh, WatchConfig,
    WatchMetrics, lease, watch,
};
use multinet_testing::fake_api::{FakeApi, Fate, LeaseLink, LeaseServer};
use prometheus_client::registry::Registry;
use serde_json::Value;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::rig::{Rig, SLICES, pod, service};

const SECOND: Duration = Duration::from_secs(1);

/// Returns leadership by a lease of 15 s. The API server can be cut off.
pub(crate) fn election(is_cut: &Arc<AtomicBool>) -> Leadership {
    election_for(15 * SECOND, is_cut)
}

/// Returns leadership by a lease of the given duration.
fn election_for(duration: Duration, is_cut: &Arc<AtomicBool>) -> Leadership {
    let config = LeaseConfig {
        namespace: "multinet-system".into(),
        name: "multinet-controller".into(),
        identity: "test".into(),
        duration,
    };
    let is_cut = Arc::clone(is_cut);
    let link =
        LeaseLink::new(move |_| if is_cut.load(Ordering::Relaxed) { Fate::Lost } else { Fate::AT_ONCE });
    let client = LeaseServer::new(&config.namespace, &config.name).client(link);
    let shutdown = CancellationToken::new();
    let metrics = LeaseMetrics::default();
    let (leadership, campaign) = lease(client, config, metrics, shutdown, std::future::pending());
    tokio::spawn(campaign);
    leadership
}

#[tokio::test(start_paused = true)]
async fn a_standby_writes_nothing_and_a_new_leader_everything() {
    let is_cut = Arc::new(AtomicBool::new(true));
    let mut rig = Rig::start(election(&is_cut), 32);
    rig.pods(&[pod("infer-0", "infer", 1), pod("detect-0", "detect", 2)]);
    rig.service(&service("infer", "infer"));
    rig.api.expect_no_request_for(120 * SECOND).await;
    assert_eq!(rig.metric("multinet_controller_queue_depth"), 0.0, "nothing piles up");

    rig.service(&service("detect", "detect"));
    is_cut.store(false, Ordering::Relaxed);
    let mut services = Vec::new();
    for _ in 0..2 {
        let create = rig.api.expect(Method::POST, SLICES).await;
        services.push(create.at("/metadata/labels/multinetwork.numaproj.io~1service-name").clone());
    }
    services.sort_by_key(Value::to_string);
    assert_eq!(services, ["detect", "infer"]);
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_cut_off_stops_in_time_and_starts_again() {
    let is_cut = Arc::new(AtomicBool::new(false));
    let mut rig = Rig::start(election(&is_cut), 32);
    let (_, slice) = rig.written_service().await;

    is_cut.store(true, Ordering::Relaxed);
    let cut = Instant::now();
    // The last renewal was up to 2 s ago. Writes may begin until at least 8 s after the cut, and
    // end by 13.5 s.
    tokio::time::sleep(7 * SECOND).await;
    rig.pods(&[pod("infer-1", "infer", 2)]);
    let under_way = rig.api.expect(Method::PUT, SLICES).await;
    rig.api.expect_no_request_for(60 * SECOND).await;
    assert!(under_way.is_cancelled());
    assert!(cut.elapsed() > 60 * SECOND);
    rig.pods(&[pod("infer-2", "infer", 3)]);
    rig.api.expect_no_request_for(60 * SECOND).await;
    assert_eq!(
        rig.metric(
            "multinet_controller_writes_total{kind=\"MultiNetworkEndpointSlice\",verb=\"update\",result=\"given_up\"}"
        ),
        1.0
    );

    // Another process has led meanwhile, and has changed the slice.
    is_cut.store(false, Ordering::Relaxed);
    let update = rig.api.expect(Method::PUT, SLICES).await;
    assert_eq!(update.at("/spec/endpoints").as_array().unwrap().len(), 3);
    update.status(409, "the object has been modified");
    let mut slice = slice;
    slice["metadata"]["resourceVersion"] = "77".into();
    rig.lists("infer", &[slice]).await;
    let update = rig.api.expect(Method::PUT, SLICES).await;
    assert_eq!(update.at("/metadata/resourceVersion"), "77");
}

#[tokio::test(start_paused = true)]
async fn a_request_ends_with_the_term_it_began_in() {
    let is_cut = Arc::new(AtomicBool::new(false));
    let mut rig = Rig::start(election(&is_cut), 32);
    rig.written_service().await;
    is_cut.store(true, Ordering::Relaxed);
    let cut = Instant::now();
    tokio::time::sleep(7 * SECOND).await;
    rig.pods(&[pod("infer-1", "infer", 2)]);
    let under_way = rig.api.expect(Method::PUT, SLICES).await;
    while !under_way.is_cancelled() {
        tokio::time::sleep(SECOND / 10).await;
        assert!(cut.elapsed() < 14 * SECOND, "another process may hold the lease now");
    }
}

/// The lease is shorter than the time limit of a request.
#[tokio::test(start_paused = true)]
async fn a_request_goes_on_while_the_lease_is_renewed() {
    let is_cut = Arc::new(AtomicBool::new(false));
    let mut rig = Rig::start(election_for(5 * SECOND, &is_cut), 32);
    rig.written_service().await;
    rig.pods(&[pod("infer-1", "infer", 2)]);
    let under_way = rig.api.expect(Method::PUT, SLICES).await;
    rig.api.expect_no_request_for(9 * SECOND).await;
    assert!(!under_way.is_cancelled());
    under_way.store("12");
    rig.status_of("infer").await;
}

/// This happens, for example, if the conversion webhook of the kind is broken.
#[tokio::test(start_paused = true)]
async fn a_kind_that_cannot_be_listed_delays_writing_only_for_a_while() {
    let refresh = Refresh::default();
    let (client, _silent) = FakeApi::new();
    let nodes = WatchConfig {
        refresh: refresh.clone(),
        ..WatchConfig::new(Api::<Guarded<views::NodeView>>::all(client), "")
    };
    let ready = Readiness::default().register("nodes");
    let metrics = WatchMetrics::register(&mut Registry::default());
    tokio::spawn(watch(nodes, Arc::new(Nobody), ready, metrics, CancellationToken::new()));
    tokio::task::yield_now().await;

    let mut rig = Rig::start_with(Leadership::always(), refresh, 32, 100);
    rig.pods(&[pod("infer-0", "infer", 1)]);
    rig.service(&service("infer", "infer"));
    rig.api.expect_no_request_for(29 * SECOND).await;
    rig.api.expect(Method::POST, SLICES).await;
    assert_eq!(rig.logged("WARN", "has not listed nodes within 30 s;"), 1);
}

struct Nobody;

impl<K> Index<K> for Nobody {
    fn apply(&self, _: K) {}

    fn delete(&self, _: &ObjectKey) {}

    fn reset(&self, _: &HashSet<ObjectKey>) {}

    fn commit(&self) {}
}
