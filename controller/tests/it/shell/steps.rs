//! Tests of writes without failures.

use std::time::Duration;

use http::{Method, StatusCode};
use serde_json::json;

use super::rig::{Rig, SLICES, addresses, pod, service};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_pod_becomes_a_slice_and_then_a_status() {
    let mut rig = Rig::leading();
    let service = service("infer", "infer");
    rig.pods(&[pod("infer-0", "infer", 1)]);
    rig.service(&service);

    let create = rig.api.expect(Method::POST, SLICES).await;
    assert_eq!(addresses(&create.body), ["192.168.0.1"]);
    assert_eq!(create.query("fieldManager").as_deref(), Some("multinet-controller"));
    rig.api.expect_no_request().await;
    create.store("10");

    let status = rig.status_of("infer").await;
    assert_eq!(status.query("fieldManager").as_deref(), Some("multinet-controller"));
    assert_eq!(status.query("force").as_deref(), Some("true"));
    assert_eq!(status.at("/metadata/resourceVersion"), "1", "the write must apply to the read version only");
    assert_eq!(status.at("/status/endpoints"), &json!({"ready": 1, "total": 1}));
    status.apply_to(&service, "11");
    rig.api.expect_no_request_for(60 * SECOND).await;
    assert_eq!(
        rig.metric("multinet_controller_writes_total{kind=\"MultiNetworkEndpointSlice\",verb=\"create\",result=\"ok\"}"),
        1.0
    );
    assert_eq!(rig.metric("multinet_controller_endpoints{state=\"ready\"}"), 1.0);
    assert_eq!(rig.metric("multinet_controller_queue_depth"), 0.0);
}

#[tokio::test(start_paused = true)]
async fn an_update_names_the_version_that_it_replaces() {
    let mut rig = Rig::leading();
    let (_, slice) = rig.written_service().await;
    let path = format!("{SLICES}/{}", slice["metadata"]["name"].as_str().unwrap());
    for (number, version) in [(2, "10"), (3, "20"), (4, "30")] {
        // The watch has not shown the controller's own writes yet.
        rig.pods(&[pod(&format!("infer-{number}"), "infer", number)]);
        let update = rig.api.expect(Method::PUT, &path).await;
        assert_eq!(update.at("/metadata/resourceVersion"), version);
        assert_eq!(addresses(&update.body).len(), usize::from(number));
        update.store(&format!("{number}0"));
        rig.api.expect_no_request().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_burst_of_changes_results_in_one_write() {
    let mut rig = Rig::leading();
    rig.written_service().await;
    let more: Vec<_> = (2..50).map(|number| pod(&format!("infer-{number}"), "infer", number)).collect();
    rig.pods(&more);
    let update = rig.api.expect(Method::PUT, SLICES).await;
    assert_eq!(addresses(&update.body).len(), 49);
    update.store("20");
    rig.api.expect_no_request().await;
}

#[tokio::test(start_paused = true)]
async fn numbers_in_a_status_wait_for_more_numbers() {
    let mut rig = Rig::leading();
    let (service, _) = rig.written_service().await;
    let begun = tokio::time::Instant::now();
    for number in 2..=4 {
        rig.pods(&[pod(&format!("infer-{number}"), "infer", number)]);
        rig.api.expect(Method::PUT, SLICES).await.store(&format!("{number}0"));
        rig.api.expect_no_request_for(SECOND / 4).await;
    }
    let status = rig.status_of("infer").await;
    assert!(begun.elapsed() >= SECOND * 3 / 2, "since the last of them: {:?}", begun.elapsed());
    assert_eq!(status.at("/metadata/resourceVersion"), "11", "that of the status before");
    assert_eq!(status.at("/status/endpoints"), &json!({"ready": 4, "total": 4}));
    status.apply_to(&service, "50");
    rig.api.expect_no_request_for(60 * SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn an_urgent_change_is_written_to_the_status_at_once() {
    let mut rig = Rig::leading();
    rig.written_service().await;
    // Another pod with the same address causes a conflict.
    rig.pods(&[pod("infer-1", "infer", 1)]);
    let begun = tokio::time::Instant::now();
    let status = rig.status_of("infer").await;
    assert_eq!(begun.elapsed(), Duration::ZERO);
    let conditions = status.at("/status/conditions").as_array().unwrap();
    let conflict = conditions.iter().find(|condition| condition["type"] == "AddressConflict").unwrap();
    assert_eq!(conflict["status"], "True");
}

#[tokio::test(start_paused = true)]
async fn conditions_of_others_are_not_applied() {
    let mut rig = Rig::leading();
    let mut service = service("infer", "infer");
    let foreign = json!({
        "type": "example.com/Audited", "status": "True", "reason": "Fine", "message": "",
        "lastTransitionTime": "2026-11-21T09:00:00Z",
    });
    service["status"] = json!({"conditions": [foreign]});
    rig.service(&service);
    let status = rig.status_of("infer").await;
    let conditions = status.at("/status/conditions").as_array().unwrap();
    let types: Vec<&str> = conditions.iter().map(|condition| condition["type"].as_str().unwrap()).collect();
    assert!(types.contains(&"Accepted") && !types.contains(&"example.com/Audited"), "{types:?}");
}

#[tokio::test(start_paused = true)]
async fn slices_left_by_a_service_are_deleted_and_no_others() {
    let mut rig = Rig::leading();
    let (_, slice) = rig.written_service().await;
    rig.service_gone("infer");
    let name = slice["metadata"]["name"].as_str().unwrap();
    let delete = rig.api.expect(Method::DELETE, &format!("{SLICES}/{name}")).await;
    assert_eq!(
        delete.at("/preconditions"),
        &json!({"uid": format!("uid-of-{name}"), "resourceVersion": "10"}),
        "the very version that was planned on"
    );
    let gone = json!({"kind": "multinetworkendpointslices", "name": name});
    delete.status_with(404, "not found", &gone);
    rig.api.expect_no_request_for(60 * SECOND).await;
    assert_eq!(rig.metric("multinet_controller_slices"), 0.0);
}

#[tokio::test(start_paused = true)]
async fn addresses_are_removed_after_others_have_been_added() {
    let mut rig = Rig::leading();
    let mut service = service("infer", "infer");
    let mut both = pod("infer-0", "infer", 1);
    let attached = json!([{"name": "vision/rdma-a", "interface": "net1", "ips": ["192.168.0.1", "fd00::1"]}]);
    both["metadata"]["annotations"]["k8s.v1.cni.cncf.io/network-status"] = attached.to_string().into();
    rig.pods(std::slice::from_ref(&both));
    rig.service(&service);
    for version in ["10", "11"] {
        rig.api.expect(Method::POST, SLICES).await.store(version);
    }
    rig.status_of("infer").await.apply_to(&service, "12");

    // One step contains more pods than fit, the removal of IPv6, and a label for every slice.
    service["metadata"]["labels"] = json!({"team": "vision"});
    service["metadata"]["generation"] = 2.into();
    service["spec"]["ipFamilies"] = json!(["IPv4"]);
    let more: Vec<_> = (1..=100).map(|number| pod(&format!("infer-{number}"), "infer", number + 1)).collect();
    rig.pods(&more);
    rig.service(&service);
    for (method, version) in [(Method::POST, "20"), (Method::PUT, "21"), (Method::DELETE, "")] {
        let request = rig.api.expect(method, SLICES).await;
        rig.api.expect_no_request().await;
        if version.is_empty() {
            request.json(StatusCode::OK, &json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}));
        } else {
            request.store(version);
        }
    }
    rig.status_of("infer").await;
    assert_eq!(rig.metric("multinet_controller_slices"), 2.0);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_finishes_requests_and_begins_none() {
    let mut rig = Rig::leading();
    rig.written_service().await;
    rig.pods(&[pod("infer-1", "infer", 2)]);
    let update = rig.api.expect(Method::PUT, SLICES).await;
    rig.shutdown.cancel();
    rig.pod_gone("infer-0");
    rig.api.expect_no_request().await;
    assert!(!rig.task.is_finished());
    update.store("20");
    rig.task.await.unwrap();
    rig.api.expect_no_request().await;
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_abandons_requests_that_hang() {
    let mut rig = Rig::leading();
    rig.written_service().await;
    rig.pods(&[pod("infer-1", "infer", 2)]);
    let _never_answered = rig.api.expect(Method::PUT, SLICES).await;
    let begun = tokio::time::Instant::now();
    rig.shutdown.cancel();
    rig.task.await.unwrap();
    assert!(begun.elapsed() <= 6 * SECOND, "{:?}", begun.elapsed());
}
