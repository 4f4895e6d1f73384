//! Tests of failures and of the recovery from them.

use std::time::Duration;

use http::Method;
use multinet_testing::fake_api::Request;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::rig::{Rig, SLICES, addresses, pod, service};

const SECOND: Duration = Duration::from_secs(1);

/// Returns the slice after a change by another writer.
fn changed(slice: &Value, version: &str) -> Value {
    let mut slice = slice.clone();
    slice["metadata"]["resourceVersion"] = version.into();
    slice["metadata"]["annotations"]["example.com/touched"] = "true".into();
    slice
}

/// Returns reason and message of condition Programmed.
fn programmed(status: &Request) -> (String, String) {
    let conditions = status.at("/status/conditions").as_array().unwrap();
    let condition = conditions.iter().find(|condition| condition["type"] == "Programmed").unwrap();
    let text = |key: &str| condition[key].as_str().unwrap().to_owned();
    (text("reason"), text("message"))
}

#[tokio::test(start_paused = true)]
async fn after_a_conflict_the_slices_are_listed_and_planned_anew() {
    let mut rig = Rig::leading();
    let (_, slice) = rig.written_service().await;
    rig.pods(&[pod("infer-1", "infer", 2)]);
    rig.api.expect(Method::PUT, SLICES).await.status(409, "the object has been modified");
    rig.lists("infer", &[changed(&slice, "19")]).await;
    let again = rig.api.expect(Method::PUT, SLICES).await;
    assert_eq!(again.at("/metadata/resourceVersion"), "19");
    assert_eq!(again.at("/metadata/annotations/example.com~1touched"), "true");
    again.store("20");
    rig.api.expect_no_request().await;
    assert_eq!(rig.logged("WARN", ""), 0, "that is routine");
    assert_eq!(rig.metric("multinet_controller_retries_total{reason=\"conflict\"}"), 1.0);
}

#[tokio::test(start_paused = true)]
async fn a_slice_that_a_user_deletes_is_created_again() {
    let mut rig = Rig::leading();
    let (_, slice) = rig.written_service().await;
    rig.pods(&[pod("infer-1", "infer", 2)]);
    let gone = json!({"kind": "multinetworkendpointslices", "name": slice["metadata"]["name"]});
    rig.api.expect(Method::PUT, SLICES).await.status_with(404, "not found", &gone);
    rig.lists("infer", &[]).await;
    let create = rig.api.expect(Method::POST, SLICES).await;
    assert_eq!(addresses(&create.body).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn repeated_conflicts_are_retried_with_pauses_and_then_reported() {
    let mut rig = Rig::leading();
    let (_, slice) = rig.written_service().await;
    rig.pods(&[pod("infer-1", "infer", 2)]);
    let mut version = 20;
    let begun = Instant::now();
    let status = loop {
        let request = rig.api.next().await;
        if request.method == Method::PATCH {
            break request;
        }
        assert_eq!(request.method, Method::PUT);
        request.status(409, "the object has been modified");
        version += 1;
        rig.lists("infer", &[changed(&slice, &version.to_string())]).await;
        assert!(version < 100, "without pauses");
    };
    let (reason, message) = programmed(&status);
    assert_eq!(reason, "WriteFailed");
    assert!(message.contains("audit log"), "{message}");
    assert!(begun.elapsed() >= SECOND / 4, "{:?}", begun.elapsed());
    assert_eq!(rig.logged("WARN", "vision/infer"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_write_without_answer_is_checked_before_it_is_repeated() {
    for is_done in [true, false] {
        let mut rig = Rig::leading();
        rig.pods(&[pod("infer-0", "infer", 1)]);
        rig.service(&service("infer", "infer"));
        let create = rig.api.expect(Method::POST, SLICES).await;
        let slice = create.stored("10");
        create.refuse();
        if is_done {
            rig.lists("infer", &[slice]).await;
        } else {
            rig.lists("infer", &[]).await;
            rig.api.expect(Method::POST, SLICES).await.store("10");
        }
        rig.status_of("infer").await;
        assert_eq!(rig.metric("multinet_controller_slices"), 1.0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_failing_api_server_is_not_asked_again_at_once() {
    let mut rig = Rig::leading();
    let (_, slice) = rig.written_service().await;
    rig.pods(&[pod("infer-1", "infer", 2)]);
    let begun = Instant::now();
    let mut writes = 0;
    while begun.elapsed() < 60 * SECOND {
        let request = rig.api.next().await;
        if request.method == Method::GET {
            match request.uri.path() {
                SLICES => request.list("9999", std::slice::from_ref(&slice)),
                _ => request.list("9999", &[]),
            }
        } else {
            writes += u32::from(request.method == Method::PUT);
            request.status(500, "etcdserver: mvcc: database space exceeded");
        }
    }
    assert!((5..40).contains(&writes), "{writes} writes in a minute");
}

#[tokio::test(start_paused = true)]
async fn a_write_that_was_made_despite_an_error_is_no_failure() {
    let mut rig = Rig::leading();
    rig.pods(&[pod("infer-0", "infer", 1)]);
    rig.service(&service("infer", "infer"));
    let create = rig.api.expect(Method::POST, SLICES).await;
    let slice = create.stored("10");
    create.status(500, "etcdserver: request timed out");
    rig.lists("infer", &[slice]).await;
    assert_eq!(programmed(&rig.status_of("infer").await).0, "Programmed");
    assert_eq!(rig.logged("WARN", ""), 0);
}

#[tokio::test(start_paused = true)]
async fn a_silent_api_server_gets_ten_seconds() {
    let mut rig = Rig::leading();
    rig.written_service().await;
    rig.pods(&[pod("infer-1", "infer", 2)]);
    let silent = rig.api.expect(Method::PUT, SLICES).await;
    let begun = Instant::now();
    let list = rig.api.expect(Method::GET, "slices").await;
    assert_eq!(begun.elapsed().as_secs(), 10);
    assert!(silent.is_cancelled());
    drop(list);
}

#[tokio::test(start_paused = true)]
async fn an_outage_and_its_end_are_logged_once() {
    let mut rig = Rig::leading();
    let (_, slice) = rig.written_service().await;
    rig.pods(&[pod("infer-1", "infer", 2)]);
    let begun = Instant::now();
    let mut attempts = 0;
    while begun.elapsed() < 60 * SECOND {
        rig.api.next().await.refuse();
        attempts += 1;
    }
    assert!(attempts < 100, "{attempts} requests in a minute");
    assert_eq!(rig.logged("WARN", "cannot be reached"), 1);
    loop {
        let request = rig.api.next().await;
        match (request.method.clone(), request.uri.path()) {
            (Method::GET, SLICES) => request.list("9999", std::slice::from_ref(&slice)),
            (Method::GET, _) => request.list("9999", &[]),
            (Method::PUT, _) => {
                request.store("20");
                break;
            }
            (Method::PATCH, _) => request.refuse(),
            other => panic!("{other:?}"),
        }
    }
    rig.status_of("infer").await.apply_to(&service("infer", "infer"), "30");
    rig.api.expect_no_request().await;
    assert_eq!(rig.logged("INFO", "written again"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_forbidden_write_is_reported_with_advice() {
    let mut rig = Rig::leading();
    rig.pods(&[pod("infer-0", "infer", 1), pod("detect-0", "detect", 2)]);
    for name in ["infer", "detect"] {
        rig.service(&service(name, name));
    }
    let mut told = 0;
    while told < 2 {
        let request = rig.api.next().await;
        if request.method == Method::PATCH {
            let (reason, message) = programmed(&request);
            assert_eq!(reason, "WriteFailed");
            let role = "a role that grants create of multinetworkendpointslices.multinetwork.numaproj.io";
            assert!(message.contains(role), "{message}");
            told += 1;
            let name = request.at("/metadata/name").as_str().unwrap().to_owned();
            request.apply_to(&service(&name, &name), "5");
        } else {
            request.status(403, "multinetworkendpointslices is forbidden");
        }
    }
    rig.api.expect_no_request().await;
    assert_eq!(rig.logged("WARN", "cannot write"), 1, "not for every service");

    // The role is granted. Both services are written without a change.
    let mut programmed_again = 0;
    while programmed_again < 2 {
        let request = rig.api.next().await;
        if request.method == Method::PATCH {
            assert_eq!(programmed(&request).0, "Programmed");
            let name = request.at("/metadata/name").as_str().unwrap().to_owned();
            request.apply_to(&service(&name, &name), "30");
            programmed_again += 1;
        } else {
            request.store("10");
        }
    }
    rig.api.expect_no_request().await;
    assert_eq!(rig.logged("INFO", "written again"), 1);
}

#[tokio::test(start_paused = true)]
async fn an_invalid_object_is_retried_only_after_long_pauses() {
    let mut rig = Rig::leading();
    rig.pods(&[pod("infer-0", "infer", 1)]);
    rig.service(&service("infer", "infer"));
    rig.api.expect(Method::POST, SLICES).await.status(422, "spec.endpoints[0]: Invalid value");
    let status = rig.status_of("infer").await;
    assert!(programmed(&status).1.contains("spec.endpoints[0]: Invalid value"));
    status.apply_to(&service("infer", "infer"), "5");
    rig.api.expect_no_request_for(14 * SECOND).await;
    // A change may resolve the problem.
    rig.pods(&[pod("infer-1", "infer", 2)]);
    rig.api.expect(Method::POST, SLICES).await.store("10");
}

#[tokio::test(start_paused = true)]
async fn a_pause_requested_by_the_api_server_is_respected() {
    let mut rig = Rig::leading();
    rig.written_service().await;
    rig.pods(&[pod("infer-1", "infer", 2)]);
    let busy = json!({"retryAfterSeconds": 7});
    rig.api.expect(Method::PUT, SLICES).await.status_with(429, "too many requests", &busy);
    let begun = Instant::now();
    tokio::task::yield_now().await;
    rig.pods(&[pod("infer-2", "infer", 3)]);
    let update = rig.api.expect(Method::PUT, SLICES).await;
    assert!(begun.elapsed() >= 7 * SECOND, "{:?}", begun.elapsed());
    assert_eq!(addresses(&update.body).len(), 3);
}

#[tokio::test(start_paused = true)]
async fn no_slice_is_written_to_a_terminating_namespace() {
    let terminating =
        json!({"kind": "multinetworkendpointslices", "causes": [{"reason": "NamespaceTerminating"}]});
    let gone = json!({"kind": "namespaces", "name": "vision"});
    for (code, details) in [(403, terminating), (404, gone)] {
        let mut rig = Rig::leading();
        rig.pods(&[pod("infer-0", "infer", 1)]);
        rig.service(&service("infer", "infer"));
        rig.api.expect(Method::POST, SLICES).await.status_with(code, "no", &details);
        let gone = json!({"kind": "multinetworkservices", "name": "infer"});
        rig.status_of("infer").await.status_with(404, "not found", &gone);
        rig.api.expect_no_request_for(60 * SECOND).await;
        assert_eq!(rig.logged("WARN", ""), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_status_for_a_service_that_has_changed_waits_for_the_watch() {
    let mut rig = Rig::leading();
    let mut service = service("infer", "infer");
    rig.service(&service);
    rig.status_of("infer").await.status(409, "the object has been modified");
    let begun = Instant::now();
    service["metadata"]["resourceVersion"] = "7".into();
    service["metadata"]["uid"] = "another".into();
    rig.service(&service);
    let status = rig.status_of("infer").await;
    assert_eq!(status.at("/metadata/resourceVersion"), "7");
    assert!(begun.elapsed() < SECOND);
    status.apply_to(&service, "8");
    rig.api.expect_no_request_for(60 * SECOND).await;
    assert_eq!(rig.logged("WARN", ""), 0);
}

#[tokio::test(start_paused = true)]
async fn a_failed_status_write_is_retried() {
    let mut rig = Rig::leading();
    rig.service(&service("infer", "infer"));
    rig.status_of("infer").await.status(500, "etcd has no leader");
    rig.status_of("infer").await.apply_to(&service("infer", "infer"), "5");
    rig.api.expect_no_request_for(60 * SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_write_of_numbers_is_retried_with_growing_pauses() {
    let mut rig = Rig::leading();
    let (service, _) = rig.written_service().await;
    rig.pods(&[pod("infer-1", "infer", 2)]);
    rig.api.expect(Method::PUT, SLICES).await.store("20");
    let begun = Instant::now();
    let mut attempts = 0;
    while begun.elapsed() < 60 * SECOND {
        rig.status_of("infer").await.refuse();
        attempts += 1;
    }
    assert!(attempts < 30, "{attempts} attempts in a minute");
    rig.status_of("infer").await.apply_to(&service, "30");
    rig.api.expect_no_request_for(60 * SECOND).await;
    assert_eq!((rig.logged("WARN", "cannot write"), rig.logged("INFO", "written again")), (1, 1));
}
