//! Tests of many services at once, and of services with few writes next to others with many.

use std::collections::BTreeSet;

use http::Method;
use multinet_runtime::Leadership;
use multinet_testing::fake_api::Request;
use serde_json::Value;

use super::rig::{Rig, SLICES, addresses, pod, service};

/// Path of another tenant's slices.
const OTHERS: &str = "/apis/multinetwork.numaproj.io/v1alpha1/namespaces/audio/multinetworkendpointslices";

/// Creates services with one pod each in a namespace, in one burst.
fn change(rig: &Rig, namespace: &str, services: u8) {
    let there = |object: Value| -> Value { object.to_string().replace("vision", namespace).parse().unwrap() };
    let name = |number: u8| format!("s{number}");
    let pods: Vec<_> =
        (1..=services).map(|number| there(pod(&name(number), &format!("app-{number}"), number))).collect();
    (1..=services).for_each(|number| rig.service(&there(service(&name(number), &format!("app-{number}")))));
    rig.pods(&pods);
}

/// Adds pods to a service, all at once.
fn grow(rig: &Rig, name: &str, pods: u16) {
    let pods: Vec<_> = (0..pods)
        .map(|number| {
            let pod = pod(&format!("{name}-{number}"), name, 1).to_string();
            pod.replace("192.168.0.1", &format!("10.7.{}.{}", number >> 8, number & 255)).parse().unwrap()
        })
        .collect();
    rig.pods(&pods);
    rig.service(&service(name, name));
}

/// Receives exactly `count` requests to create slices.
async fn creates(rig: &mut Rig, count: usize) -> Vec<Request> {
    let mut requests = Vec::new();
    for _ in 0..count {
        requests.push(rig.api.expect(Method::POST, SLICES).await);
    }
    rig.api.expect_no_request().await;
    requests
}

fn service_of(request: &Request) -> String {
    request.at("/metadata/labels/multinetwork.numaproj.io~1service-name").as_str().unwrap().to_owned()
}

#[tokio::test(start_paused = true)]
async fn a_burst_in_a_namespace_stays_within_its_request_limit() {
    let mut rig = Rig::start(Leadership::always(), 32);
    change(&rig, "vision", 20);
    let mut under_way = creates(&mut rig, 2).await;
    assert_ne!(service_of(&under_way[0]), service_of(&under_way[1]));
    under_way.pop().unwrap().store("10");
    // The next request is for the status of this service, or for another service.
    let _next = rig.api.next().await;
    rig.api.expect_no_request().await;
}

#[tokio::test(start_paused = true)]
async fn a_tenant_with_one_change_does_not_wait_for_the_work_of_another() {
    let mut rig = Rig::start(Leadership::always(), 32);
    change(&rig, "vision", 200);
    let _unanswered = creates(&mut rig, 2).await;
    change(&rig, "audio", 1);
    rig.api.expect(Method::POST, OTHERS).await.store("10");
    let status = rig.api.expect(Method::PATCH, "/namespaces/audio/multinetworkservices/s1/status").await;
    assert_eq!(status.at("/status/endpoints/total"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_service_with_many_slices_lets_another_one_go_first() {
    let mut rig = Rig::start(Leadership::always(), 32);
    grow(&rig, "big", 1000);
    let mut under_way = creates(&mut rig, 2).await;
    rig.pods(&[pod("small-0", "small", 1)]);
    rig.service(&service("small", "small"));
    rig.api.expect_no_request().await;
    under_way.pop().unwrap().store("10");
    let small = creates(&mut rig, 1).await;
    assert_eq!(service_of(&small[0]), "small");
    under_way.pop().unwrap().store("11");
    assert_eq!(service_of(&creates(&mut rig, 1).await[0]), "big");
}

#[tokio::test(start_paused = true)]
async fn a_huge_service_is_written_in_several_turns_before_its_status() {
    let mut rig = Rig::with_slices_of(1);
    grow(&rig, "huge", 300);
    let mut written = BTreeSet::new();
    let status = loop {
        let request = rig.api.next().await;
        if request.method == Method::PATCH {
            break request;
        }
        assert_eq!(request.method, Method::POST);
        written.extend(addresses(&request.body));
        request.store(&(10 + written.len()).to_string());
    };
    assert_eq!(written.len(), 300);
    assert_eq!(status.at("/status/endpoints/total"), 300);
    assert_eq!(rig.metric("multinet_controller_slices"), 300.0);
    assert_eq!(rig.metric("multinet_controller_sync_duration_seconds_count"), 3.0);
}

#[tokio::test(start_paused = true)]
async fn a_service_without_answers_does_not_block_others() {
    let mut rig = Rig::start(Leadership::always(), 32);
    change(&rig, "vision", 1);
    let _silent = rig.api.expect(Method::POST, SLICES).await;
    rig.pods(&[pod("s2", "app-2", 2)]);
    rig.service(&service("s2", "app-2"));
    rig.api.expect(Method::POST, SLICES).await.store("10");
    rig.status_of("s2").await.apply_to(&service("s2", "app-2"), "11");
}
