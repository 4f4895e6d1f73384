//! Elections while the API server does not answer, or refuses requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use http::Method;
use multinet_testing::fake_api::{Fate, LeaseLink};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use crate::candidate::{Candidate, SECOND, logs, server};

/// Switch for the state of a link: good, one of the faults below, or the status of refused writes.
#[derive(Clone, Default)]
struct Switch(Arc<AtomicU16>);

const GOOD: u16 = 0;
const CUT: u16 = 1;
const UNREACHABLE: u16 = 2;
/// Requests are carried out, and their answers are lost.
const MUTE: u16 = 3;

impl Switch {
    fn set(&self, state: u16) {
        self.0.store(state, Ordering::SeqCst);
    }

    /// Returns a link that follows the switch.
    fn link(&self) -> LeaseLink {
        let state = Arc::clone(&self.0);
        LeaseLink::new(move |method| match state.load(Ordering::SeqCst) {
            GOOD => Fate::AT_ONCE,
            CUT => Fate::Lost,
            UNREACHABLE => Fate::Unreachable,
            MUTE => Fate::AnswerLost { there: SECOND / 100 },
            _ if method == Method::GET => Fate::AT_ONCE,
            code => Fate::Refused(code),
        })
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_cut_off_loses_before_another_candidate_begins() {
    for state in [CUT, UNREACHABLE, 500, 503, 429] {
        let (logs, _logger) = logs();
        let (server, switch) = (server(), Switch::default());
        let mut a = Candidate::leading(&server, "a", switch.link()).await;
        let mut b = Candidate::start(&server, "b", Switch::default().link());
        sleep(30 * SECOND).await;

        let cut = Instant::now();
        switch.set(state);
        let end = a.leadership.write_deadline().unwrap();
        let took = a.loses().await;
        assert!((7.9..=10.1).contains(&took), "{state}: 10 s after the last renewal, {took} s after the cut");
        assert_eq!(a.leadership.write_deadline(), None);
        let lost = Instant::now();
        assert!(lost < end, "{state}: writes under way have time to end");
        b.gains().await;
        assert!(Instant::now() > end, "{state}: b waits for that");
        assert!(cut.elapsed() <= 17 * SECOND + SECOND / 10, "{state}: {:?}", cut.elapsed());
        assert_eq!(a.metric("multinet_leader"), 0.0);
        assert_eq!(logs.with("could not be renewed for 10s").len(), 1, "{state}");

        // Once connected again, a reads that b leads, and waits.
        switch.set(GOOD);
        let gained = timeout(600 * SECOND, a.leadership.changed(false)).await;
        assert!(gained.is_err() && b.leadership.is_leader());
        let trouble = logs.with("cannot");
        assert_eq!(trouble.len(), 1, "once per outage: {trouble:?}");
        assert_eq!(logs.with("ns/leader can be used again, after").len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lone_leader_that_was_cut_off_leads_again_under_a_new_term() {
    let (server, switch) = (server(), Switch::default());
    let mut a = Candidate::leading(&server, "a", switch.link()).await;
    switch.set(CUT);
    a.loses().await;
    sleep(100 * SECOND).await;
    switch.set(GOOD);
    assert!(a.gains().await <= 10.3, "after the request under way has timed out");
    assert_eq!(a.leadership.term(), 2);
    assert_eq!(server.spec("leaseTransitions"), 0);
    assert_eq!(a.metric("multinet_leader_transitions_total{change=\"gained\"}"), 2.0);
    assert_eq!(a.metric("multinet_leader_transitions_total{change=\"lost\"}"), 1.0);
}

#[tokio::test(start_paused = true)]
async fn deadlines_count_from_the_sending_of_a_renewal() {
    let slow = Fate::Answered { there: SECOND / 10, back: 2 * SECOND };
    let (server, start) = (server(), Instant::now());
    let link = LeaseLink::new(move |method| if method == Method::GET { Fate::AT_ONCE } else { slow });
    let a = Candidate::leading(&server, "a", link).await;
    assert_eq!(start.elapsed(), 2 * SECOND + SECOND / 10);
    assert_eq!(a.leadership.write_deadline(), Some(start + 13 * SECOND + SECOND / 2));
}

/// Opening the connection, with the first request, takes another four seconds.
#[tokio::test(start_paused = true)]
async fn an_api_server_that_takes_four_seconds_keeps_its_leader() {
    let slow = || {
        let mut connects = 4 * SECOND;
        LeaseLink::new(move |_| {
            let there = 2 * SECOND + std::mem::take(&mut connects);
            Fate::Answered { there, back: 2 * SECOND }
        })
    };
    let server = server();
    let mut a = Candidate::leading(&server, "a", slow()).await;
    let b = Candidate::start(&server, "b", slow());
    let lost = timeout(3600 * SECOND, a.leadership.changed(true)).await;
    assert!(lost.is_err() && a.leadership.term() == 1);
    assert!(!b.leadership.is_leader());
}

#[tokio::test(start_paused = true)]
async fn a_leader_keeps_the_lease_through_a_short_outage() {
    for state in [CUT, UNREACHABLE, MUTE, 500] {
        // The outage begins at various moments between two renewals.
        for moment in 0..8 {
            let (server, switch) = (server(), Switch::default());
            let mut a = Candidate::leading(&server, "a", switch.link()).await;
            sleep(5 * SECOND + moment * SECOND / 4).await;
            switch.set(state);
            sleep(5 * SECOND).await;
            switch.set(GOOD);
            let lost = timeout(60 * SECOND, a.leadership.changed(true)).await;
            assert!(lost.is_err() && a.leadership.term() == 1, "{state}, {moment}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_whose_answer_is_lost_counts_for_other_candidates_only() {
    let (server, switch) = (server(), Switch::default());
    let mut a = Candidate::leading(&server, "a", switch.link()).await;
    let b = Candidate::start(&server, "b", Switch::default().link());
    sleep(10 * SECOND).await;
    switch.set(MUTE);
    a.loses().await;
    sleep(SECOND).await;
    assert!(!b.leadership.is_leader());
    // b has seen the renewals of a all that time.
    switch.set(GOOD);
    assert!(a.gains().await <= 10.3);
    assert_eq!(a.leadership.term(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_leader_notices_a_lost_lease_with_the_next_renewal() {
    let (logs, _logger) = logs();
    let server = server();
    let mut a = Candidate::leading(&server, "a", Switch::default().link()).await;
    sleep(5 * SECOND).await;
    server.edit(|lease| lease["spec"]["holderIdentity"] = json!("somebody"));
    assert!(a.loses().await <= 2.1);
    assert_eq!(logs.with("WARN").len(), 1);
    assert_eq!(logs.with("ns/leader was taken over by somebody").len(), 1);
    // The new holder never renews the lease, so a takes it over.
    assert!(a.gains().await <= 17.1);
    assert_eq!((a.leadership.term(), server.spec("leaseTransitions")), (2, json!(1)));
}

#[tokio::test(start_paused = true)]
async fn a_missing_permission_is_logged_once_per_outage_with_its_remedy() {
    let (logs, _logger) = logs();
    let (server, switch) = (server(), Switch::default());
    switch.set(403);
    let mut a = Candidate::start(&server, "a", switch.link());
    sleep(60 * SECOND).await;
    assert!(!a.leadership.is_leader());
    let warning = "waiting for a role that grants get, create and update of leases.coordination.k8s.io in the namespace ns";
    assert_eq!(logs.with("WARN").len(), 1);
    assert_eq!(logs.with(warning).len(), 1);
    switch.set(GOOD);
    assert!(a.gains().await <= 2.1);
    assert_eq!(logs.with("ns/leader can be used again, after 6").len(), 1);

    // Another outage is logged again.
    switch.set(403);
    a.loses().await;
    assert_eq!(logs.with(warning).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_candidate_waits_for_a_missing_namespace() {
    let (logs, _logger) = logs();
    let (server, switch) = (server(), Switch::default());
    switch.set(404);
    let mut a = Candidate::start(&server, "a", switch.link());
    sleep(60 * SECOND).await;
    let warnings = logs.with("WARN");
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("cannot create the lease ns/leader; waiting for the namespace: because"));
    switch.set(GOOD);
    assert!(a.gains().await <= 2.1);
}
