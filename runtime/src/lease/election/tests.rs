//! Requests of a candidate to the API server: the answers, their times, and the consequences.

use std::collections::BTreeMap;

use super::*;

/// Candidate "a" with a lease of 15 s, a clock, and its last request.
struct Candidate {
    election: Election,
    start: Instant,
    seconds: f64,
    request: Request,
}

impl Candidate {
    /// Starts a candidate, whose first request is a read.
    fn new() -> Self {
        let config = LeaseConfig {
            namespace: "ns".into(),
            name: "leader".into(),
            identity: "a".into(),
            duration: Duration::from_secs(15),
        };
        let mut election = Election::new(&config);
        let request = election.begin_round(wall(0.0));
        assert_eq!(request, Request::Read);
        Self { election, start: Instant::now(), seconds: 0.0, request }
    }

    /// Returns a candidate that leads since second 0, by version 1 of the lease.
    fn leader() -> Self {
        let mut candidate = Self::new();
        assert_eq!(candidate.gets(0.0, Answer::Absent), "not ours; create");
        assert_eq!(candidate.succeeds(0.0, "1"), "renewed; pause");
        candidate
    }

    /// Begins a round at second `at`. Returns its first request.
    fn round(&mut self, at: f64) -> String {
        self.seconds = at;
        self.request = self.election.begin_round(wall(at));
        describe(&self.request)
    }

    /// Begins a round with a read, which is answered at once.
    fn reads(&mut self, at: f64, answer: Answer) -> String {
        assert_eq!(self.round(at), "read");
        self.gets(at, answer)
    }

    /// Answers the last request at second `at`. Returns the conclusion and the next request.
    fn gets(&mut self, at: f64, answer: Answer) -> String {
        let (sent, now) = (self.instant(self.seconds), self.instant(at));
        self.seconds = at;
        let (ownership, next) = self.election.handle_answer(&self.request, sent, answer, now, wall(at));
        let ownership = match ownership {
            Ownership::Renewed => "renewed",
            Ownership::NotOurs => "not ours",
            Ownership::Unchanged => "unchanged",
        };
        let then = next.as_ref().map_or_else(|| "pause".to_owned(), describe);
        if let Some(next) = next {
            self.request = next;
        }
        format!("{ownership}; {then}")
    }

    /// Answers the last write with success. The lease then has the version `version`.
    fn succeeds(&mut self, at: f64, version: &str) -> String {
        let lease = self.wanted(version);
        self.gets(at, Answer::Lease(lease))
    }

    /// Returns the lease of the last write, as the API server has it thereafter.
    fn wanted(&self, version: &str) -> Box<Lease> {
        let (Request::Create(lease) | Request::Update(lease)) = &self.request else {
            panic!("the last request is not a write");
        };
        let mut lease = lease.clone();
        lease.metadata.resource_version = Some(version.to_owned());
        lease
    }

    fn instant(&self, seconds: f64) -> Instant {
        self.start + Duration::from_secs_f64(seconds)
    }
}

/// Formats a request as `update 3, a since 0 at 14, 15 s, 2 transitions`: the replaced version, the
/// holder, acquireTime, renewTime, the duration and leaseTransitions.
fn describe(request: &Request) -> String {
    let lease = match request {
        Request::Read => return "read".to_owned(),
        Request::Create(lease) => {
            assert_eq!(lease.metadata.resource_version, None);
            assert_eq!(lease.metadata.name.as_deref(), Some("leader"));
            return "create".to_owned();
        }
        Request::Update(lease) => lease,
    };
    let spec = lease.spec.as_ref().unwrap();
    let second = |time: &Option<MicroTime>| time.as_ref().unwrap().0.as_second();
    format!(
        "update {}, {} since {} at {}, {} s, {} transitions",
        lease.metadata.resource_version.as_ref().unwrap(),
        spec.holder_identity.as_ref().unwrap(),
        second(&spec.acquire_time),
        second(&spec.renew_time),
        spec.lease_duration_seconds.unwrap(),
        spec.lease_transitions.unwrap(),
    )
}

fn wall(seconds: f64) -> Timestamp {
    Timestamp::from_nanosecond((seconds * 1e9) as i128 + 123).unwrap()
}

/// Returns a lease of 15 s, with old timestamps that a candidate must ignore.
fn lease(holder: &str, version: &str) -> Lease {
    Lease {
        metadata: ObjectMeta { resource_version: Some(version.to_owned()), ..ObjectMeta::default() },
        spec: Some(LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: Some(15),
            acquire_time: Some(micros(Timestamp::UNIX_EPOCH)),
            renew_time: Some(micros(Timestamp::UNIX_EPOCH)),
            lease_transitions: Some(7),
            ..LeaseSpec::default()
        }),
    }
}

fn found(holder: &str, version: &str) -> Answer {
    Answer::Lease(Box::new(lease(holder, version)))
}

fn with_duration(seconds: Option<i32>) -> Answer {
    let mut lease = lease("b", "1");
    lease.spec.as_mut().unwrap().lease_duration_seconds = seconds;
    Answer::Lease(Box::new(lease))
}

#[test]
fn a_lease_that_does_not_exist_is_created() {
    let mut a = Candidate::new();
    assert_eq!(a.gets(0.5, Answer::Absent), "not ours; create");
    let spec = a.wanted("1").spec.unwrap();
    assert_eq!(spec.holder_identity.as_deref(), Some("a"));
    assert_eq!((spec.lease_duration_seconds, spec.lease_transitions), (Some(15), Some(0)));
    assert_eq!((spec.acquire_time, spec.renew_time), (Some(micros(wall(0.5))), Some(micros(wall(0.5)))));
    assert_eq!(a.succeeds(0.6, "1"), "renewed; pause");
    assert_eq!(a.round(2.0), "update 1, a since 0 at 2, 15 s, 0 transitions");
}

#[test]
fn a_candidate_whose_creation_conflicts_reads_the_lease_again() {
    let mut a = Candidate::new();
    assert_eq!(a.gets(0.0, Answer::Absent), "not ours; create");
    assert_eq!(a.gets(0.0, Answer::Conflict), "unchanged; read");
    assert_eq!(a.gets(0.0, found("b", "1")), "not ours; pause");
}

#[test]
fn a_lease_is_taken_over_once_it_has_not_changed_for_its_duration() {
    let mut a = Candidate::new();
    assert_eq!(a.gets(1.0, found("b", "1")), "not ours; pause");
    assert_eq!(a.reads(14.0, found("b", "2")), "not ours; pause", "the version alone is a change");
    assert_eq!(a.reads(16.5, found("b", "2")), "not ours; pause");
    assert_eq!(a.reads(28.9, found("b", "2")), "not ours; pause");
    assert_eq!(a.reads(29.0, found("b", "2")), "not ours; update 2, a since 29 at 29, 15 s, 8 transitions");
    assert_eq!(a.succeeds(29.1, "3"), "renewed; pause");
    assert_eq!(a.round(31.0), "update 3, a since 29 at 31, 15 s, 8 transitions");
}

#[test]
fn time_without_answers_counts_towards_the_duration() {
    let mut a = Candidate::new();
    assert_eq!(a.gets(0.0, found("b", "1")), "not ours; pause");
    for second in 1..20 {
        assert_eq!(a.reads(f64::from(second), Answer::Failed), "unchanged; pause");
    }
    assert_eq!(a.reads(20.0, found("b", "1")), "not ours; update 1, a since 20 at 20, 15 s, 8 transitions");
}

#[test]
fn the_longer_of_the_two_durations_counts() {
    // The duration in the lease, and the second at which it is free.
    for (duration, free) in [(Some(40), 40.0), (Some(1), 15.0), (Some(-3), 15.0), (None, 15.0)] {
        let mut a = Candidate::new();
        assert_eq!(a.gets(0.0, with_duration(duration)), "not ours; pause");
        assert_eq!(a.reads(free - 0.1, with_duration(duration)), "not ours; pause", "{duration:?}");
        assert!(a.reads(free, with_duration(duration)).contains("update 1, a since"), "{duration:?}");
    }
}

#[test]
fn a_lease_without_a_holder_is_free_at_once() {
    let mut a = Candidate::new();
    assert_eq!(a.gets(0.0, found("b", "1")), "not ours; pause");
    assert_eq!(a.reads(2.0, found("", "2")), "not ours; update 2, a since 2 at 2, 15 s, 8 transitions");
    // Another candidate was faster.
    assert_eq!(a.gets(2.0, Answer::Conflict), "unchanged; read");
    assert_eq!(a.gets(2.0, found("c", "3")), "not ours; pause");

    let mut bare = Candidate::new();
    let metadata = lease("", "1").metadata;
    let none = Answer::Lease(Box::new(Lease { metadata, spec: None }));
    assert_eq!(bare.gets(0.0, none), "not ours; update 1, a since 0 at 0, 15 s, 1 transitions");
}

#[test]
fn a_lease_of_the_same_identity_is_taken_over_at_once_after_a_start() {
    let mut a = Candidate::new();
    // A new claim, with leaseTransitions unchanged.
    assert_eq!(a.gets(3.0, found("a", "1")), "not ours; update 1, a since 3 at 3, 15 s, 7 transitions");
    // The same holds if the first attempts fail.
    assert_eq!(a.gets(3.0, Answer::Failed), "unchanged; read");
    assert_eq!(a.gets(3.0, Answer::Failed), "unchanged; pause");
    assert_eq!(a.reads(4.0, found("a", "1")), "not ours; update 1, a since 3 at 4, 15 s, 7 transitions");
    assert_eq!(a.succeeds(4.0, "2"), "renewed; pause");
}

#[test]
fn a_lease_of_the_same_identity_with_another_claim_belongs_to_another_process() {
    let mut leader = Candidate::leader();
    assert_eq!(leader.round(2.0), "update 1, a since 0 at 2, 15 s, 0 transitions");
    assert_eq!(leader.gets(2.0, Answer::Conflict), "unchanged; read");
    let mut other = lease("a", "2");
    other.spec.as_mut().unwrap().acquire_time = Some(micros(wall(1.0)));
    let other = Answer::Lease(Box::new(other));
    assert_eq!(leader.gets(2.0, other.clone()), "not ours; pause");
    assert!(!leader.election.holds());
    assert_eq!(leader.reads(16.9, other.clone()), "not ours; pause");
    assert_eq!(leader.reads(17.0, other), "not ours; update 2, a since 17 at 17, 15 s, 7 transitions");
}

#[test]
fn a_leader_reads_the_lease_again_when_a_renewal_fails() {
    for failure in [Answer::Conflict, Answer::Failed] {
        let mut a = Candidate::leader();
        assert_eq!(a.round(2.0), "update 1, a since 0 at 2, 15 s, 0 transitions");
        let before = a.wanted("1");
        assert_eq!(a.gets(3.0, failure.clone()), "unchanged; read");
        // It is still ours: our own write succeeded after all, or a user edited a label.
        let mut edited = before.clone();
        edited.metadata.resource_version = Some("2".to_owned());
        assert_eq!(
            a.gets(3.0, Answer::Lease(edited)),
            "unchanged; update 2, a since 0 at 3, 15 s, 0 transitions"
        );
        assert_eq!(a.succeeds(3.0, "3"), "renewed; pause");
        assert_eq!(a.round(5.0), "update 3, a since 0 at 5, 15 s, 0 transitions");
    }
}

#[test]
fn a_leader_that_reads_another_holder_has_lost_at_once() {
    let mut a = Candidate::leader();
    a.round(2.0);
    assert_eq!(a.gets(2.0, Answer::Conflict), "unchanged; read");
    assert_eq!(a.gets(2.0, found("b", "2")), "not ours; pause");
    assert!(!a.election.holds());
    assert_eq!(a.election.holder(), "b");
    assert_eq!(a.reads(16.9, found("b", "2")), "not ours; pause");
    assert_eq!(a.reads(17.0, found("b", "2")), "not ours; update 2, a since 17 at 17, 15 s, 8 transitions");
}

#[test]
fn a_claim_whose_answer_was_lost_is_recognised_later() {
    let mut a = Candidate::new();
    assert_eq!(a.gets(0.0, found("", "1")), "not ours; update 1, a since 0 at 0, 15 s, 8 transitions");
    let (first, _) = (a.wanted("2"), a.gets(1.0, Answer::Failed));
    // The write has not been carried out yet, so it is repeated. Then the first one is carried out.
    assert_eq!(a.gets(1.0, found("", "1")), "not ours; update 1, a since 0 at 1, 15 s, 8 transitions");
    assert_eq!(a.gets(1.0, Answer::Conflict), "unchanged; pause", "the round has used up its requests");
    assert_eq!(
        a.reads(3.0, Answer::Lease(first)),
        "unchanged; update 2, a since 0 at 3, 15 s, 8 transitions"
    );
    assert!(a.election.holds());
}

#[test]
fn a_round_has_a_bounded_number_of_requests() {
    let mut a = Candidate::leader();
    assert!(a.round(2.0).starts_with("update"));
    assert_eq!(a.gets(2.0, Answer::Failed), "unchanged; read");
    assert_eq!(a.gets(2.0, Answer::Failed), "unchanged; pause");
    assert_eq!(a.reads(4.0, Answer::Failed), "unchanged; pause");
    let mut version = 1;
    assert_eq!(a.round(6.0), "read");
    let mut requests = 1;
    loop {
        version += 1;
        let mut lease = lease("a", &version.to_string());
        lease.spec.as_mut().unwrap().acquire_time = Some(micros(wall(0.0)));
        let answer =
            if a.request == Request::Read { Answer::Lease(Box::new(lease)) } else { Answer::Conflict };
        if a.gets(6.0, answer).ends_with("pause") {
            break;
        }
        requests += 1;
        assert!(requests <= ROUND);
    }
}

#[test]
fn a_deleted_lease_is_free_only_after_its_duration() {
    let mut a = Candidate::new();
    assert_eq!(a.gets(0.0, found("b", "1")), "not ours; pause");
    // b may have renewed the lease until just now, and may create it again.
    assert_eq!(a.reads(10.0, Answer::Absent), "not ours; pause");
    assert_eq!(a.reads(24.9, Answer::Absent), "not ours; pause");
    assert_eq!(a.reads(25.0, Answer::Absent), "not ours; create");
}

#[test]
fn a_leader_creates_its_deleted_lease_again() {
    let mut a = Candidate::leader();
    a.round(2.0);
    assert_eq!(a.gets(2.0, Answer::Conflict), "unchanged; read");
    assert_eq!(a.gets(2.0, Answer::Absent), "unchanged; create");
    assert_eq!(a.succeeds(2.0, "9"), "renewed; pause");
    assert_eq!(a.round(4.0), "update 9, a since 0 at 4, 15 s, 0 transitions");
}

#[test]
fn a_leader_that_was_cut_off_for_long_waits_before_it_creates_the_lease() {
    let mut a = Candidate::leader();
    a.round(2.0);
    assert_eq!(a.gets(2.0, Answer::Failed), "unchanged; read");
    assert_eq!(a.gets(2.0, Answer::Failed), "unchanged; pause");
    // Another candidate may have led meanwhile.
    assert_eq!(a.reads(60.0, Answer::Absent), "not ours; pause");
    assert_eq!(a.reads(75.0, Answer::Absent), "not ours; create");
}

#[test]
fn a_write_that_leaves_the_version_as_it_was_renews_nothing() {
    let mut a = Candidate::leader();
    a.round(2.0);
    assert_eq!(a.succeeds(2.0, "1"), "unchanged; pause", "other candidates cannot see it");
}

#[test]
fn foreign_metadata_and_fields_of_the_lease_are_kept() {
    let mut a = Candidate::new();
    let mut other = lease("", "1");
    other.metadata.labels = Some(BTreeMap::from([("team".to_owned(), "x".to_owned())]));
    other.metadata.uid = Some("u".to_owned());
    other.spec.as_mut().unwrap().strategy = Some("OldestEmulationVersion".to_owned());
    a.gets(0.0, Answer::Lease(Box::new(other.clone())));
    let wanted = a.wanted("1");
    assert_eq!(wanted.metadata, other.metadata);
    assert_eq!(wanted.spec.unwrap().strategy, other.spec.unwrap().strategy);
}

#[test]
fn a_holder_releases_the_lease_by_removing_its_identity() {
    let mut a = Candidate::leader();
    let release = a.election.release(wall(4.0)).unwrap();
    assert_eq!(describe(&release), "update 1,  since 4 at 4, 1 s, 0 transitions");
    a.request = release;
    assert_eq!(a.succeeds(4.0, "2"), "not ours; pause");
    assert_eq!(a.election.release(wall(4.0)), None, "it is released already");
    assert_eq!(Candidate::new().election.release(wall(4.0)), None, "it was never held");
}
