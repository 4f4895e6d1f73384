//! Many services at once.

use std::collections::BTreeSet;

use http::Method;
use multinet_runtime::Leadership;

use super::rig::{Rig, SLICES, pod, service};

/// As many services with a pod each, all of which change in one burst.
fn change(rig: &Rig, services: u8) {
    let name = |number: u8| format!("s{number}");
    let pods: Vec<_> =
        (1..=services).map(|number| pod(&name(number), &format!("app-{number}"), number)).collect();
    (1..=services).for_each(|number| rig.service(&service(&name(number), &format!("app-{number}"))));
    rig.pods(&pods);
}

#[tokio::test(start_paused = true)]
async fn all_services_of_a_burst_are_written_at_once() {
    let mut rig = Rig::start(Leadership::always(), 100);
    change(&rig, 100);
    let mut requests = Vec::new();
    for _ in 0..100 {
        requests.push(rig.api.now().await.expect("nobody has to wait"));
    }
    assert!(requests.iter().all(|request| request.method == Method::POST));
    let services: BTreeSet<String> = requests
        .iter()
        .map(|request| request.at("/metadata/labels/multinetwork.numaproj.io~1service-name").to_string())
        .collect();
    assert_eq!(services.len(), 100);
}

#[tokio::test(start_paused = true)]
async fn but_no_more_than_the_flag_allows() {
    let mut rig = Rig::start(Leadership::always(), 4);
    change(&rig, 20);
    let mut under_way = Vec::new();
    for _ in 0..4 {
        under_way.push(rig.api.expect(Method::POST, SLICES).await);
    }
    rig.api.quiet().await;
    under_way.pop().unwrap().store("10");
    // The status of this one, or another service: one request, whichever it is.
    let _next = rig.api.next().await;
    rig.api.quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_service_that_gets_no_answer_holds_up_nobody_else() {
    let mut rig = Rig::start(Leadership::always(), 4);
    change(&rig, 1);
    let _silent = rig.api.expect(Method::POST, SLICES).await;
    rig.pods(&[pod("s2", "app-2", 2)]);
    rig.service(&service("s2", "app-2"));
    rig.api.expect(Method::POST, SLICES).await.store("10");
    rig.status_of("s2").await.apply_to(&service("s2", "app-2"), "11");
}
