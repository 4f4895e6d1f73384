//! Watches of a service through changes and outages, in real time with the shortest times to live.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::StreamExt;
use hickory_resolver::proto::op::ResponseCode;
use multinet_client::{Change, ResolveError, Watch};
use tokio::time::timeout;

use super::support::{FULL_NAME, Fault, IMPATIENT, SERVICE, Server, builder};

const RDMA: (&str, u16) = ("_rdma._tcp", 18515);
const SERVFAIL: Fault = Fault::Code(ResponseCode::ServFail);

async fn one_endpoint() -> Server {
    let server = Server::start().await;
    let mut zone = server.zone();
    zone.ttl = 1;
    zone.add_endpoint(FULL_NAME, "h0", RDMA, &["10.0.0.1 uid=a"]);
    drop(zone);
    server
}

async fn next(watch: &mut Watch) -> Change {
    timeout(Duration::from_secs(20), watch.next()).await.unwrap().unwrap()
}

/// Returns the uids of the endpoints in a change.
fn uids(change: &Change) -> Vec<&str> {
    match change {
        Change::Endpoints(resolved) => {
            resolved.endpoints.iter().filter_map(|endpoint| endpoint.uid()).collect()
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn changes_are_seen_at_the_time_to_live() {
    let server = one_endpoint().await;
    let mut watch = server.resolver().watch(SERVICE, "rdma");
    assert_eq!(uids(&next(&mut watch).await), ["a"]);

    server.zone().add_endpoint(FULL_NAME, "h1", RDMA, &["10.0.0.2 uid=b"]);
    assert_eq!(uids(&next(&mut watch).await), ["a", "b"]);

    // A new pod has the same name and address.
    server.zone().clear();
    server.zone().add_endpoint(FULL_NAME, "h0", RDMA, &["10.0.0.1 uid=c"]);
    assert_eq!(uids(&next(&mut watch).await), ["c"]);
}

#[tokio::test]
async fn the_search_path_is_walked_only_once() {
    let server = one_endpoint().await;
    let mut watch = server.resolver().watch(SERVICE, "rdma");
    assert_eq!(uids(&next(&mut watch).await), ["a"]);
    assert!(server.zone().asked().len() > 2);
    server.zone().add_endpoint(FULL_NAME, "h1", RDMA, &["10.0.0.2 uid=b"]);
    next(&mut watch).await;
    assert!(server.zone().asked().iter().all(|asked| asked.name.ends_with(FULL_NAME)));

    // The name that was found is kept even if it disappears, because another name of the search
    // path may belong to another service.
    server.zone().clear();
    server.zone().add_endpoint(SERVICE, "h0", RDMA, &["10.0.0.1 uid=c"]);
    assert!(matches!(next(&mut watch).await, Change::Held { error: ResolveError::NoSuchName { .. }, .. }));
    assert!(server.zone().asked().iter().all(|asked| asked.name.ends_with(FULL_NAME)));
}

#[tokio::test]
async fn an_outage_keeps_the_endpoints_and_is_reported_once() {
    let server = one_endpoint().await;
    let mut watch = server.resolver().watch(SERVICE, "rdma");
    let Change::Endpoints(first) = next(&mut watch).await else { panic!() };

    server.zone().faults.insert(String::new(), SERVFAIL);
    let change = next(&mut watch).await;
    assert!(matches!(&change, Change::Held { error: ResolveError::ServFail { .. }, .. }), "{change:?}");

    server.zone().faults.clear();
    server.zone().clear();
    let change = next(&mut watch).await;
    assert!(matches!(&change, Change::Held { error: ResolveError::NoSuchName { .. }, .. }), "{change:?}");

    server.zone().add_endpoint(FULL_NAME, "h0", RDMA, &["10.0.0.1 uid=a"]);
    assert_eq!(next(&mut watch).await, Change::Recovered);

    server.zone().add_endpoint(FULL_NAME, "h1", RDMA, &["10.0.0.2 uid=b"]);
    let Change::Endpoints(second) = next(&mut watch).await else { panic!() };
    assert_eq!(second.endpoints[0], first.endpoints[0]);
}

#[tokio::test]
async fn a_long_outage_is_reported_as_a_loss() {
    let server = one_endpoint().await;
    let hold = Duration::from_millis(1500);
    let resolver = builder(&[server.addr]).timeout(IMPATIENT).hold(hold).build().unwrap();
    let mut watch = resolver.watch(SERVICE, "rdma");
    next(&mut watch).await;
    server.zone().faults.insert(String::new(), Fault::Silence);
    assert!(matches!(next(&mut watch).await, Change::Held { error: ResolveError::Timeout { .. }, .. }));
    // The loss is reported while the next query is still waiting for its answer.
    assert!(matches!(next(&mut watch).await, Change::Lost { error: ResolveError::Timeout { .. } }));
    server.zone().faults.clear();
    assert_eq!(uids(&next(&mut watch).await), ["a"]);
}

#[tokio::test]
async fn a_service_that_is_created_later_is_found() {
    let server = Server::start().await;
    let mut watch = server.resolver().watch(SERVICE, "rdma");
    assert!(matches!(next(&mut watch).await, Change::Lost { error: ResolveError::NoSuchName { .. } }));
    server.zone().add_endpoint(FULL_NAME, "h0", RDMA, &["10.0.0.1 uid=a"]);
    assert_eq!(uids(&next(&mut watch).await), ["a"]);
}

#[tokio::test]
async fn a_refresh_does_not_wait_for_the_time_to_live() {
    let server = one_endpoint().await;
    server.zone().ttl = 300;
    let mut watch = server.resolver().watch(SERVICE, "rdma");
    next(&mut watch).await;
    server.zone().add_endpoint(FULL_NAME, "h1", RDMA, &["10.0.0.2 uid=b"]);
    watch.ask_soon();
    assert_eq!(uids(&next(&mut watch).await), ["a", "b"]);
}

#[tokio::test]
async fn a_watch_that_is_not_polled_blocks_no_other() {
    let server = Server::start().await;
    {
        let mut zone = server.zone();
        zone.ttl = 1;
        zone.glue = 0;
        for number in 0..64 {
            let host = format!("h{number}");
            zone.add_endpoint(FULL_NAME, &host, RDMA, &[&format!("10.0.0.{number} uid={number}")]);
            zone.faults.insert(format!("{host}.{FULL_NAME}"), Fault::Silence);
        }
        zone.add_endpoint("other.n", "h", RDMA, &["10.0.1.1 uid=other"]);
    }
    let resolver = server.impatient();
    let mut watch = resolver.watch(SERVICE, "rdma");
    // The watch uses all permitted queries, and all of them are unanswered.
    let mut on_their_way = BTreeSet::new();
    let all_are = async {
        while on_their_way.len() < 16 {
            let _ = timeout(Duration::from_millis(20), watch.next()).await;
            let asked = server.zone().asked();
            on_their_way
                .extend(asked.into_iter().map(|asked| asked.name).filter(|name| name.starts_with('h')));
        }
    };
    timeout(Duration::from_secs(20), all_are).await.unwrap();
    server.zone().faults.clear();

    // From now on, the test does not poll the watch.
    let found = timeout(Duration::from_secs(20), resolver.resolve("other.n.", "rdma")).await;
    assert_eq!(found.unwrap().unwrap().endpoints[0].uid(), Some("other"));

    // The pending queries end one way or another. A later answer is right.
    while !matches!(next(&mut watch).await, Change::Endpoints(now) if now.endpoints.len() == 64) {}
}

#[test]
fn a_watch_needs_no_runtime_before_it_is_polled() {
    let server = "127.0.0.1:53".parse().unwrap();
    let watch = builder(&[server]).build().unwrap().watch(SERVICE, "rdma");
    assert!(format!("{watch:?}").contains(SERVICE));
}
