//! Elections without faults, and handovers of leadership.

use multinet_testing::fake_api::{Fate, LeaseLink};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::candidate::{Candidate, DURATION, SECOND, logs, server};

fn good() -> LeaseLink {
    LeaseLink::new(|_| Fate::AT_ONCE)
}

#[tokio::test(start_paused = true)]
async fn a_lone_candidate_creates_the_lease_and_keeps_it() {
    let server = server();
    let mut a = Candidate::start(&server, "a", good());
    assert_eq!((a.leadership.is_leader(), a.metric("multinet_leader")), (false, 0.0));
    assert_eq!(a.gains().await, 0.0);
    let lease = server.lease().unwrap();
    assert_eq!(lease["spec"]["holderIdentity"], "a");
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 15);
    assert_eq!(lease["spec"]["leaseTransitions"], 0);
    assert_eq!(server.take_log(), ["GET 404", "POST 201"]);

    let lost = timeout(60 * SECOND, a.leadership.changed(true)).await;
    assert!(lost.is_err(), "it renews the lease");
    let renewals = server.take_log();
    assert!(renewals.iter().all(|request| request == "PUT 200"), "{renewals:?}");
    assert!((30..=40).contains(&renewals.len()), "every 1.5 to 2 s: {}", renewals.len());
    assert_eq!(a.leadership.term(), 1);
    assert_eq!(server.spec("acquireTime"), lease["spec"]["acquireTime"]);
    assert_eq!(a.metric("multinet_leader"), 1.0);
    assert_eq!(a.metric("multinet_leader_transitions_total{change=\"gained\"}"), 1.0);
    assert_eq!(a.metric("multinet_leader_transitions_total{change=\"lost\"}"), 0.0);
}

#[tokio::test(start_paused = true)]
async fn a_second_candidate_waits_while_the_first_renews() {
    let server = server();
    let a = Candidate::leading(&server, "a", good()).await;
    let mut b = Candidate::start(&server, "b", good());
    let gained = timeout(600 * SECOND, b.leadership.changed(false)).await;
    assert!(gained.is_err() && a.leadership.is_leader());
    assert_eq!(b.leadership.write_deadline(), None);
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_crashes_is_replaced_after_the_duration() {
    let server = server();
    let a = Candidate::leading(&server, "a", good()).await;
    let mut b = Candidate::start(&server, "b", good());
    sleep(20 * SECOND).await;
    a.task.abort();
    let took = b.gains().await;
    assert!((13.0..=17.1).contains(&took), "15 s after the last renewal, with the next read: {took}");
    assert_eq!((server.spec("holderIdentity"), server.spec("leaseTransitions")), (json!("b"), json!(1)));
    assert!(!a.leadership.is_leader(), "its leadership lapses without its task");
}

#[tokio::test(start_paused = true)]
async fn a_restarted_process_of_the_same_identity_leads_at_once() {
    let server = server();
    let a = Candidate::leading(&server, "a", good()).await;
    sleep(5 * SECOND).await;
    a.task.abort();
    let mut again = Candidate::start(&server, "a", good());
    assert_eq!(again.gains().await, 0.0);
    assert_eq!(server.spec("leaseTransitions"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_second_process_of_the_same_identity_takes_the_lease_once() {
    let (logs, _logger) = logs();
    let server = server();
    let mut a = Candidate::leading(&server, "a", good()).await;
    sleep(5 * SECOND).await;
    let mut twin = Candidate::leading(&server, "a", good()).await;
    assert!(a.loses().await <= 2.1, "with the next renewal");
    let lost = timeout(600 * SECOND, twin.leadership.changed(true)).await;
    assert!(lost.is_err() && !a.leadership.is_leader(), "they do not take it from each other in turns");
    assert_eq!(logs.with("give each process an identity of its own").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn shutdown_releases_the_lease_once_the_writers_have_ended() {
    let server = server();
    let mut a = Candidate::leading(&server, "a", good()).await;
    let mut b = Candidate::start(&server, "b", good());
    sleep(10 * SECOND).await;

    a.shutdown.cancel();
    // Its writers still need the lease, so it is renewed for longer than its duration.
    let lost = timeout(3 * DURATION, a.leadership.changed(true)).await;
    assert!(lost.is_err() && !b.leadership.is_leader() && !a.task.is_finished());

    a.stopped.cancel();
    let took = b.gains().await;
    assert!(took <= 2.1, "within a retry period: {took}");
    (&mut a.task).await.unwrap();
    assert!(!a.leadership.is_leader());
    assert_eq!(server.spec("leaseTransitions"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_released_lease_has_no_holder() {
    let server = server();
    let mut a = Candidate::leading(&server, "a", good()).await;
    a.stopped.cancel();
    sleep(5 * SECOND).await;
    assert!(a.leadership.is_leader(), "`stopped` counts only after `shutdown`");
    a.shutdown.cancel();
    a.loses().await;
    sleep(SECOND).await;
    assert!(a.task.is_finished());
    assert_eq!((server.spec("holderIdentity"), server.spec("leaseDurationSeconds")), (json!(""), json!(1)));
    assert_eq!(a.metric("multinet_leader"), 0.0);
    assert_eq!(a.metric("multinet_leader_transitions_total{change=\"lost\"}"), 1.0);
}

#[tokio::test(start_paused = true)]
async fn a_candidate_that_does_not_lead_ends_at_once_and_leaves_the_lease_alone() {
    let server = server();
    let _a = Candidate::leading(&server, "a", good()).await;
    let mut b = Candidate::start(&server, "b", good());
    sleep(SECOND).await;
    b.shutdown.cancel();
    timeout(SECOND, &mut b.task).await.expect("it does not wait for its writers").unwrap();
    assert_eq!(server.spec("holderIdentity"), "a");
}

#[tokio::test(start_paused = true)]
async fn a_release_takes_no_longer_than_one_request() {
    let server = server();
    let cut = CancellationToken::new();
    let link = LeaseLink::new({
        let cut = cut.clone();
        move |_| if cut.is_cancelled() { Fate::Lost } else { Fate::AT_ONCE }
    });
    let mut a = Candidate::leading(&server, "a", link).await;
    cut.cancel();
    a.shutdown.cancel();
    a.stopped.cancel();
    timeout(DURATION / 3 + SECOND / 10, &mut a.task).await.expect("it is still releasing the lease").unwrap();
    assert!(!a.leadership.is_leader());
    assert_eq!(server.spec("holderIdentity"), "a");
}

#[tokio::test(start_paused = true)]
async fn a_label_that_a_user_adds_to_the_lease_stays_and_leadership_goes_on() {
    let server = server();
    let mut a = Candidate::leading(&server, "a", good()).await;
    sleep(5 * SECOND).await;
    server.take_log();
    server.edit(|lease| lease["metadata"]["labels"] = json!({"team": "x"}));
    let lost = timeout(60 * SECOND, a.leadership.changed(true)).await;
    assert!(lost.is_err());
    assert_eq!(server.take_log()[..4], ["PUT 409", "GET 200", "PUT 200", "PUT 200"]);
    assert_eq!(server.lease().unwrap()["metadata"]["labels"]["team"], "x");
    assert_eq!(a.leadership.term(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_leader_creates_its_deleted_lease_again() {
    let server = server();
    let mut a = Candidate::leading(&server, "a", good()).await;
    let b = Candidate::start(&server, "b", good());
    sleep(5 * SECOND).await;
    server.delete();
    let lost = timeout(60 * SECOND, a.leadership.changed(true)).await;
    assert!(lost.is_err() && !b.leadership.is_leader());
    assert_eq!((server.spec("holderIdentity"), a.leadership.term()), (json!("a"), 1));
}

#[tokio::test(start_paused = true)]
async fn a_holder_written_by_hand_does_not_lead_before_the_leader_has_noticed() {
    let server = server();
    let mut a = Candidate::leading(&server, "a", good()).await;
    let mut b = Candidate::start(&server, "b", good());
    sleep(5 * SECOND).await;
    server.edit(|lease| lease["spec"]["holderIdentity"] = json!("b"));
    assert!(a.loses().await <= 2.1);
    let early = timeout(12 * SECOND, b.leadership.changed(false)).await;
    assert!(early.is_err() && !a.leadership.is_leader());
    // The edited lease is not renewed, so one of the candidates acquires it.
    sleep(5 * SECOND).await;
    assert_ne!(a.leadership.is_leader(), b.leadership.is_leader());
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_another_program_created_is_taken_over() {
    // The first two are free, as from a chart. The third has a holder that does not renew it.
    for (spec, limit) in [(json!({}), 0.1), (Value::Null, 0.1), (json!({"holderIdentity": "x"}), 17.1)] {
        let server = server();
        server.set(&spec);
        let mut a = Candidate::start(&server, "a", good());
        assert!(a.gains().await <= limit);
        assert_eq!(server.spec("leaseTransitions"), 1);
    }
}
