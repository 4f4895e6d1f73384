//! State machine of one candidate: decides the next request from the answers so far and a clock. No
//! I/O.
//!
//! A round has at most [`ROUND`] requests. A leader writes the lease at once. A candidate that does
//! not hold the lease, or has just failed to write it, reads it first. Every write names the
//! version that it replaces, so that of two candidates that read the same version one gets the
//! lease.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::ObjectMeta;
use tokio::time::Instant;

use super::{LeaseConfig, Timing};

/// Largest number of requests between two pauses: a write that fails, a read, another write, and a
/// read to find out which candidate was faster.
const ROUND: u32 = 4;

/// Request to the API server about the lease.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Request {
    /// Reads the lease.
    Read,
    /// Creates the lease.
    Create(Box<Lease>),
    /// Replaces the lease, if its resourceVersion is still that of this value.
    Update(Box<Lease>),
}

/// Answer of the API server to a [`Request`].
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Answer {
    /// The lease as it was read or written.
    Lease(Box<Lease>),
    /// The lease does not exist.
    Absent,
    /// Nothing was written, because the lease had another version or did not exist.
    Conflict,
    /// An error or a timeout. A write may still have happened, or happen later.
    Failed,
}

/// Conclusion from an answer about whether this process holds the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ownership {
    /// This process holds the lease: it has just written it.
    Renewed,
    /// This process does not hold the lease.
    NotOurs,
    /// The answer tells nothing new about the holder of the lease.
    Unchanged,
}

/// The lease as it was last observed.
#[derive(Debug)]
struct Observed {
    /// The lease object; `None` if it did not exist.
    lease: Option<Lease>,
    /// Time at which this process may take the lease, if it does not change until then.
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
    /// acquireTime of our last claim. It distinguishes a lease that we hold from one that merely
    /// has our identity, because another process has the same or a user wrote it by hand.
    claim: Option<MicroTime>,
    /// Time until which no other candidate can have led, because we did.
    undisputed: Option<Instant>,
    /// Whether `observed` is our own last write, and no request has failed since.
    certain: bool,
    /// Number of requests in this round so far, of which [`ROUND`] are allowed.
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

    /// Begins a round. Returns its first request. `wall` is the time of day, which is only written
    /// into the lease for people to read.
    pub(super) fn begin_round(&mut self, wall: Timestamp) -> Request {
        self.requests = 1;
        match self.held() {
            Some(lease) if self.certain => self.renewal(lease, wall),
            _ => Request::Read,
        }
    }

    /// Handles the answer to `request`, sent at `sent`. Returns what it says about the ownership of
    /// the lease, and the next request of this round.
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

    /// Returns whether this process holds the lease, as last observed.
    pub(super) fn holds(&self) -> bool {
        self.held().is_some()
    }

    /// Returns the identity in the lease, as last observed; empty if the lease is free.
    pub(super) fn holder(&self) -> &str {
        self.observed.as_ref().and_then(|observed| observed.lease.as_ref()).map_or("", holder)
    }

    /// Returns the request that releases the lease by removing its holder, if this process holds
    /// it.
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
                    // A write of ours for an earlier version cannot succeed any more.
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
            // The write changed nothing, perhaps because our clock stands still. Without a new
            // resourceVersion, other candidates do not see that we are alive, so it renews nothing.
            return (Ownership::Unchanged, None);
        }
        if !self.holds() {
            // An admission webhook or the like has changed what we wrote.
            return (Ownership::NotOurs, None);
        }
        self.certain = true;
        self.undisputed = Some(sent + self.timing.write_deadline);
        (Ownership::Renewed, None)
    }

    /// Remembers the lease as observed now. Returns whether its version has changed since the last
    /// time.
    ///
    /// Only a change shows that the holder is alive. renewTime does not, because it is the time of
    /// another machine's clock.
    fn observe(&mut self, lease: Lease, now: Instant) -> bool {
        let known = self.observed.as_ref().and_then(|observed| observed.lease.as_ref());
        if known.is_some_and(|known| same_version(known, &lease)) {
            return false;
        }
        // A holder with our identity on the first read is this container before its restart.
        let ours = self.observed.is_none() && holder(&lease) == self.identity;
        let free = if ours || holder(&lease).is_empty() {
            now
        } else {
            now + hold_time(&lease, self.timing.duration)
        };
        self.observed = Some(Observed { lease: Some(lease), free });
        true
    }

    /// Remembers that the lease does not exist. If it did before, its holder may not have noticed
    /// the deletion yet, so that the lease is free only after its hold time.
    fn observe_absence(&mut self, now: Instant) -> Ownership {
        match &mut self.observed {
            None => self.observed = Some(Observed { lease: None, free: now }),
            Some(Observed { lease: None, .. }) => {}
            Some(Observed { lease: Some(lease), .. }) => {
                let hold_time = hold_time(lease, self.timing.duration);
                self.observed = Some(Observed { lease: None, free: now + hold_time });
            }
        }
        // An undisputed leader goes on until another candidate creates the lease.
        if self.undisputed.is_some_and(|until| now < until) {
            Ownership::Unchanged
        } else {
            Ownership::NotOurs
        }
    }

    /// Returns the request by which this process takes the lease over, if the lease is free.
    fn take_over(&mut self, now: Instant, wall: Timestamp) -> Option<Request> {
        let Observed { lease, free } = self.observed.as_ref()?;
        let lease = lease.as_ref().filter(|_| *free <= now)?;
        let spec = lease.spec.clone().unwrap_or_default();
        let transitions = spec.lease_transitions.unwrap_or(0);
        let same_name = holder(lease) == self.identity;
        let transitions = if same_name { transitions } else { transitions.saturating_add(1) };
        // Repeat the claim of an earlier attempt for this version. If that attempt succeeds after
        // all, the lease is recognised as ours.
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

/// Returns how long a lease that does not change belongs to its holder: its own duration, but at
/// least ours. The two differ while replicas with a changed configuration are rolled out.
fn hold_time(lease: &Lease, own: Duration) -> Duration {
    let seconds = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds).unwrap_or(0);
    own.max(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
}

fn same_version(a: &Lease, b: &Lease) -> bool {
    a.metadata.resource_version == b.metadata.resource_version && a.metadata.uid == b.metadata.uid
}

/// Rounds a time to microseconds, as the API server stores it, so that it compares equal.
fn micros(time: Timestamp) -> MicroTime {
    MicroTime(Timestamp::from_microsecond(time.as_microsecond()).unwrap_or(time))
}

#[cfg(test)]
mod tests;
