//! Tests of the optional API groups: the watched version, and the start and end of the watches.

use std::sync::Arc;

use http::StatusCode;
use jiff::Timestamp;
use multinet_controller::caps::Caps;
use multinet_controller::index::{ClusterIndex, Settings};
use multinet_controller::metrics::ApiMetrics;
use multinet_controller::optional::OptionalApis;
use multinet_controller::queue::Queue;
use multinet_runtime::{Readiness, Refresh, WatchMetrics, Watches};
use multinet_testing::fake_api::{FakeApi, Request, WatchStream};
use multinet_testing::metrics::sample;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

const NADS: &str = "/apis/k8s.cni.cncf.io/v1/network-attachment-definitions";

struct Rig {
    api: FakeApi,
    readiness: Readiness,
    registry: Registry,
}

fn start() -> Rig {
    let (client, api) = FakeApi::new();
    let settings = Settings {
        zone: "multinet.cluster.local".into(),
        limit: 100,
        mirror_limit: 100,
        caps: Caps::default(),
        clock: Timestamp::now,
    };
    let index = Arc::new(ClusterIndex::new(settings, Arc::new(Queue::default())));
    let mut registry = Registry::default();
    let (watches, apis) = (WatchMetrics::register(&mut registry), ApiMetrics::register(&mut registry));
    let readiness = Readiness::default();
    let asked = readiness.register("API groups");
    let watches = Watches { client, refresh: Refresh::default(), index, metrics: watches };
    let optional = OptionalApis::new(watches, apis, CancellationToken::new());
    tokio::spawn(optional.run(readiness.clone(), asked));
    Rig { api, readiness, registry }
}

/// Returns the API server's list of these groups and versions.
fn groups(groups: &[(&str, &[&str])]) -> Value {
    let version = |group: &str, version: &&str| json!({"groupVersion": format!("{group}/{version}"), "version": version});
    let group = |(name, versions): &(&str, &[&str])| {
        let versions: Vec<Value> = versions.iter().map(|each| version(name, each)).collect();
        json!({"name": name, "versions": versions})
    };
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups.iter().map(group).collect::<Vec<_>>()})
}

impl Rig {
    /// Answers that the API server is ready and serves these groups.
    async fn begin(&mut self, found: &[(&str, &[&str])]) {
        self.api.expect(http::Method::GET, "/readyz").await.text(StatusCode::OK, "ok");
        self.poll(found).await;
    }

    /// Answers the next request for the list of groups.
    async fn poll(&mut self, found: &[(&str, &[&str])]) {
        let request = self.api.expect(http::Method::GET, "/apis").await;
        assert_eq!(request.uri.path(), "/apis");
        request.json(StatusCode::OK, &groups(found));
    }

    /// Returns the list requests that have begun, sorted by path.
    async fn lists(&mut self) -> Vec<Request> {
        let mut lists = Vec::new();
        while let Some(request) = self.api.now().await {
            assert_eq!(request.query("sendInitialEvents").as_deref(), Some("true"), "{request:?}");
            lists.push(request);
        }
        lists.sort_by_key(|request| request.uri.path().to_owned());
        lists
    }

    fn is_served(&self, group: &str) -> bool {
        let name = format!("multinet_controller_api_served{{group=\"{group}\"}}");
        sample(&self.registry, &name) == Some(1.0)
    }
}

fn paths(requests: &[Request]) -> Vec<&str> {
    requests.iter().map(|request| request.uri.path()).collect()
}

fn answer(lists: Vec<Request>) -> Vec<WatchStream> {
    let streams: Vec<WatchStream> = lists.into_iter().map(Request::stream).collect();
    streams.iter().for_each(|stream| stream.end_of_list("7"));
    streams
}

#[tokio::test(start_paused = true)]
async fn groups_count_as_absent_only_once_the_api_server_is_ready() {
    let mut rig = start();
    rig.api.expect(http::Method::GET, "/readyz").await.text(StatusCode::INTERNAL_SERVER_ERROR, "not yet");
    rig.api.expect(http::Method::GET, "/readyz").await.refuse();
    assert!(!rig.readiness.is_ready());
    rig.begin(&[("apps", &["v1"])]).await;
    rig.api.expect_no_request().await;
    assert!(rig.readiness.is_ready(), "a cluster need not have them");
    assert!(!rig.is_served("k8s.cni.cncf.io") && !rig.is_served("resource.k8s.io"));
}

#[tokio::test(start_paused = true)]
async fn a_forbidden_readiness_check_is_skipped() {
    let mut rig = start();
    rig.api.expect(http::Method::GET, "/readyz").await.status(403, "forbidden");
    rig.poll(&[]).await;
    rig.api.expect_no_request().await;
    assert!(rig.readiness.is_ready());
}

#[tokio::test(start_paused = true)]
async fn readiness_waits_for_groups_that_are_served_from_the_start() {
    let mut rig = start();
    rig.begin(&[("k8s.cni.cncf.io", &["v1"]), ("resource.k8s.io", &["v1beta1", "v1beta2"])]).await;
    let lists = rig.lists().await;
    assert_eq!(
        paths(&lists),
        [
            NADS,
            "/apis/resource.k8s.io/v1beta2/deviceclasses",
            "/apis/resource.k8s.io/v1beta2/resourceclaims",
            "/apis/resource.k8s.io/v1beta2/resourceclaimtemplates",
            "/apis/resource.k8s.io/v1beta2/resourceslices",
        ]
    );
    assert!(!rig.readiness.is_ready());
    let _streams = answer(lists);
    rig.readiness.until_ready().await;
    assert!(rig.is_served("k8s.cni.cncf.io") && rig.is_served("resource.k8s.io"));
}

#[tokio::test(start_paused = true)]
async fn a_group_that_appears_later_does_not_affect_readiness() {
    let mut rig = start();
    rig.begin(&[]).await;
    rig.poll(&[("k8s.cni.cncf.io", &["v1"])]).await;
    let lists = rig.lists().await;
    assert_eq!(paths(&lists), [NADS]);
    assert!(rig.readiness.is_ready(), "it was ready before");
    let _streams = answer(lists);
    rig.api.expect_no_request().await;
}

#[tokio::test(start_paused = true)]
async fn a_group_that_disappears_is_dropped_after_a_while() {
    let mut rig = start();
    let there: &[(&str, &[&str])] = &[("k8s.cni.cncf.io", &["v1"])];
    rig.begin(there).await;
    let streams = answer(rig.lists().await);
    // A failed request does not show the served groups.
    for _ in 0..20 {
        rig.api.expect(http::Method::GET, "/apis").await.refuse();
        streams[0].bookmark("7");
    }
    assert!(rig.is_served("k8s.cni.cncf.io"));
    let mut looks = 0;
    while rig.is_served("k8s.cni.cncf.io") {
        assert!(!streams[0].is_closed());
        rig.poll(&[]).await;
        streams[0].bookmark("7");
        rig.api.expect_no_request().await;
        looks += 1;
        assert!(looks < 10);
    }
    assert!(looks > 5, "{looks} looks are less than 30 s");
    assert!(streams[0].is_closed());
    rig.poll(there).await;
    assert_eq!(paths(&rig.lists().await), [NADS]);
}

#[tokio::test(start_paused = true)]
async fn another_version_is_watched_once_the_old_one_is_gone() {
    let mut rig = start();
    rig.begin(&[("resource.k8s.io", &["v1beta1"])]).await;
    let old = answer(rig.lists().await);
    rig.poll(&[("resource.k8s.io", &["v1", "v1beta1"])]).await;
    assert!(rig.lists().await.is_empty() && !old[0].is_closed());
    let lists = loop {
        old.iter().for_each(|stream| stream.bookmark("7"));
        match rig.api.next().await {
            request if request.uri.path() == "/apis" => {
                request.json(StatusCode::OK, &groups(&[("resource.k8s.io", &["v1"])]));
            }
            first => {
                let mut lists = rig.lists().await;
                lists.push(first);
                break lists;
            }
        }
    };
    assert_eq!(lists.len(), 4);
    assert!(lists.iter().all(|list| list.uri.path().starts_with("/apis/resource.k8s.io/v1/")));
    assert!(old.iter().all(WatchStream::is_closed), "both at once would contradict each other");
}
