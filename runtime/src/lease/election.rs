//! What to do next about the lease, from what has been observed of it and a clock. No I/O.
//!
//! A round is at most [`ROUND`] requests: the leader renews at once what it knows; whoever does not hold the lease,
//! or has just failed to write it, looks first. Every write names the version that it replaces, so that of two
//! candidates who saw the same lease one gets it.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::ObjectMeta;
use tokio::time::Instant;

use super::{LeaseConfig, Timing};

/// The most requests between two pauses: a write that fails, a look, another write, and a look for who was faster.
const ROUND: u32 = 4;

/// What the API server is asked.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Request {
    /// What the lease is.
    Read,
    /// To create it.
    Create(Box<Lease>),
    /// To replace the version that this one was made from.
    Update(Box<Lease>),
}

/// What the API server answers.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Answer {
    /// The lease, as it was read, or has been written.
    Lease(Box<Lease>),
    /// There is none.
    Absent,
    /// Nothing has been written: another version, or none, was there.
    Conflict,
    /// None that says anything. What was asked may have been done, or will be.
    Failed,
}

/// What an answer says about our leadership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ownership {
    /// The lease is ours, written just now.
    Renewed,
    /// It is not ours.
    NotOurs,
    /// Nothing new.
    Unchanged,
}

/// The lease as it was last observed.
#[derive(Debug)]
struct Observed {
    /// None: there was none.
    lease: Option<Lease>,
    /// From when on we may take it, if it does not change until then.
    free: Instant,
}

/// One candidate's view of an election.
#[derive(Debug)]
pub(super) struct Election {
    namespace: String,
    name: String,
    identity: String,
    timing: Timing,
    observed: Option<Observed>,
    /// The acquireTime of our last claim. It tells a lease that we hold from one that merely bears our name: another
    /// process may have been given the same, or somebody has written it there by hand.
    claim: Option<MicroTime>,
    /// Until when nobody else can have led, as we have led ourselves.
    undisputed: Option<Instant>,
    /// Whether `observed` is what we have written ourselves, and nothing has failed since.
    certain: bool,
    /// How many requests this round has had.
    requests: u32,
}

impl Election {
    pub(super) fn new(config: &LeaseConfig) -> Self {
        Self {
            namespace: config.namespace.clone(),
            name: config.name.clone(),
            identity: config.identity.clone(),
            timing: Timing::of(config.duration),
            observed: None,
            claim: None,
            undisputed: None,
            certain: false,
            requests: 0,
        }
    }

    /// Begins a round. `wall`: the time of day, which others only read.
    pub(super) fn begin_round(&mut self, wall: Timestamp) -> Request {
        self.requests = 1;
        match self.held() {
            Some(lease) if self.certain => self.renewal(lease, wall),
            _ => Request::Read,
        }
    }

    /// Takes the answer to `request`. Returns what it says about our leadership, and what to ask next in this round.
    pub(super) fn handle_answer(
        &mut self,
        request: &Request,
        sent: Instant,
        answer: Answer,
        now: Instant,
        wall: Timestamp,
    ) -> (Ownership, Option<Request>) {
        let (ownership, next) = match request {
            Request::Read => self.handle_read(answer, now, wall),
            Request::Create(_) | Request::Update(_) => self.handle_write(sent, answer, now),
        };
        let next = next.filter(|_| self.requests < ROUND);
        self.requests += 1;
        (ownership, next)
    }

    /// Whether the lease is ours, as far as we know.
    pub(super) fn holds(&self) -> bool {
        self.held().is_some()
    }

    /// Who holds the lease, as far as we know; empty if nobody does.
    pub(super) fn holder(&self) -> &str {
        self.observed.as_ref().and_then(|observed| observed.lease.as_ref()).map_or("", holder)
    }

    /// The lease without a holder, if it is ours to give back.
    pub(super) fn release(&self, wall: Timestamp) -> Option<Request> {
        let lease = self.held()?;
        let spec = LeaseSpec {
            holder_identity: Some(String::new()),
            lease_duration_seconds: Some(1),
            acquire_time: Some(micros(wall)),
            renew_time: Some(micros(wall)),
            ..lease.spec.clone().unwrap_or_default()
        };
        Some(Request::Update(Box::new(Lease { spec: Some(spec), ..lease.clone() })))
    }

    fn held(&self) -> Option<&Lease> {
        let lease = self.observed.as_ref()?.lease.as_ref()?;
        let acquired = lease.spec.as_ref().and_then(|spec| spec.acquire_time.as_ref());
        let ours = holder(lease) == self.identity && acquired.is_some() && acquired == self.claim.as_ref();
        ours.then_some(lease)
    }

    fn handle_read(&mut self, answer: Answer, now: Instant, wall: Timestamp) -> (Ownership, Option<Request>) {
        match answer {
            Answer::Lease(lease) => {
                let changed = self.observe(*lease, now);
                if let Some(lease) = self.held() {
                    return (Ownership::Unchanged, Some(self.renewal(lease, wall)));
                }
                if changed {
                    // Whatever we have sent for an earlier version will not be done any more.
                    self.claim = None;
                    self.undisputed = None;
                }
                (Ownership::NotOurs, self.take_over(now, wall))
            }
            Answer::Absent => {
                let ownership = self.observe_absence(now);
                (ownership, self.create(now, wall))
            }
            Answer::Conflict | Answer::Failed => (Ownership::Unchanged, None),
        }
    }

    fn handle_write(&mut self, sent: Instant, answer: Answer, now: Instant) -> (Ownership, Option<Request>) {
        self.certain = false;
        let Answer::Lease(lease) = answer else {
            return (Ownership::Unchanged, Some(Request::Read));
        };
        if !self.observe(*lease, now) {
            // Nothing was different from what was there (does our clock stand still?), so nobody saw us alive.
            return (Ownership::Unchanged, None);
        }
        if !self.holds() {
            // Somebody changes what is written, between us and the storage.
            return (Ownership::NotOurs, None);
        }
        self.certain = true;
        self.undisputed = Some(sent + self.timing.write_deadline);
        (Ownership::Renewed, None)
    }

    /// Remembers a lease that was observed just now. Returns whether it has changed since the last time.
    ///
    /// Only that tells whether its holder lives. When that was by the holder's clock (renewTime) says nothing here.
    fn observe(&mut self, lease: Lease, now: Instant) -> bool {
        let known = self.observed.as_ref().and_then(|observed| observed.lease.as_ref());
        if known.is_some_and(|known| same_version(known, &lease)) {
            return false;
        }
        // Who bears our name when we look first is our predecessor, in a container that has been restarted.
        let ours = self.observed.is_none() && holder(&lease) == self.identity;
        let free = if ours || holder(&lease).is_empty() {
            now
        } else {
            now + hold_time(&lease, self.timing.duration)
        };
        self.observed = Some(Observed { lease: Some(lease), free });
        true
    }

    /// Remembers that there is no lease. If there was one, its holder may not have noticed yet that it is
    /// gone, and is given the time.
    fn observe_absence(&mut self, now: Instant) -> Ownership {
        match &mut self.observed {
            None => self.observed = Some(Observed { lease: None, free: now }),
            Some(Observed { lease: None, .. }) => {}
            Some(Observed { lease: Some(lease), .. }) => {
                let hold_time = hold_time(lease, self.timing.duration);
                self.observed = Some(Observed { lease: None, free: now + hold_time });
            }
        }
        // Until somebody else creates it, an undisputed leader goes on.
        if self.undisputed.is_some_and(|until| now < until) {
            Ownership::Unchanged
        } else {
            Ownership::NotOurs
        }
    }

    /// The lease as it is when we hold it from now on, if we may.
    fn take_over(&mut self, now: Instant, wall: Timestamp) -> Option<Request> {
        let Observed { lease, free } = self.observed.as_ref()?;
        let lease = lease.as_ref().filter(|_| *free <= now)?;
        let spec = lease.spec.clone().unwrap_or_default();
        let transitions = spec.lease_transitions.unwrap_or(0);
        let same_name = holder(lease) == self.identity;
        let transitions = if same_name { transitions } else { transitions.saturating_add(1) };
        // The same claim for the same version: an earlier attempt may yet get through.
        let claim = self.claim.clone().unwrap_or_else(|| micros(wall));
        let spec = LeaseSpec { lease_transitions: Some(transitions), ..self.spec(spec, claim.clone(), wall) };
        let update = Request::Update(Box::new(Lease { spec: Some(spec), ..lease.clone() }));
        self.claim = Some(claim);
        Some(update)
    }

    fn create(&mut self, now: Instant, wall: Timestamp) -> Option<Request> {
        let free = self.observed.as_ref().map_or(now, |observed| observed.free);
        if now < free && self.undisputed.is_none_or(|until| until <= now) {
            return None;
        }
        let claim = self.claim.clone().unwrap_or_else(|| micros(wall));
        let spec = LeaseSpec { lease_transitions: Some(0), ..LeaseSpec::default() };
        let spec = self.spec(spec, claim.clone(), wall);
        let metadata = ObjectMeta {
            namespace: Some(self.namespace.clone()),
            name: Some(self.name.clone()),
            ..ObjectMeta::default()
        };
        self.claim = Some(claim);
        Some(Request::Create(Box::new(Lease { metadata, spec: Some(spec) })))
    }

    fn renewal(&self, lease: &Lease, wall: Timestamp) -> Request {
        let spec = lease.spec.clone().unwrap_or_default();
        let claim = spec.acquire_time.clone().unwrap_or_else(|| micros(wall));
        let spec = self.spec(spec, claim, wall);
        Request::Update(Box::new(Lease { spec: Some(spec), ..lease.clone() }))
    }

    fn spec(&self, spec: LeaseSpec, claim: MicroTime, wall: Timestamp) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(self.timing.seconds),
            acquire_time: Some(claim),
            renew_time: Some(micros(wall)),
            ..spec
        }
    }
}

fn holder(lease: &Lease) -> &str {
    lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default()
}

/// For how long a lease that does not change is its holder's: what it says itself, and not less than what we
/// would claim. (During a change of the configuration, both may be.)
fn hold_time(lease: &Lease, own: Duration) -> Duration {
    let seconds = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds).unwrap_or(0);
    own.max(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
}

fn same_version(a: &Lease, b: &Lease) -> bool {
    a.metadata.resource_version == b.metadata.resource_version && a.metadata.uid == b.metadata.uid
}

/// The time as it comes back from the API server, which keeps microseconds.
fn micros(time: Timestamp) -> MicroTime {
    MicroTime(Timestamp::from_microsecond(time.as_microsecond()).unwrap_or(time))
}

#[cfg(test)]
mod tests;
