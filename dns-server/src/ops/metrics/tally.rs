//! Counters of queries. `metrics/tallies.rs` assigns them to threads.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::histogram::{BYTES, Histogram, NANOSECONDS, bucket_of_size, bucket_of_time};
use crate::answer::cookie::CookieStatus;
use crate::answer::proto::Proto;
use crate::answer::query::{self, Rcode};
use crate::ops::top::{Sketch, SketchSnapshot};
use crate::store::rrset::rtype;

/// Values of the label `type`. All other types count as `other`, so that clients cannot create
/// series at will.
pub(super) const TYPES: [(u16, &str); rtype::MNEMONICS.len() + 1] = {
    let mut types = [(0, "other"); rtype::MNEMONICS.len() + 1];
    types.split_at_mut(rtype::MNEMONICS.len()).0.copy_from_slice(&rtype::MNEMONICS);
    types
};

/// Index in [`TYPES`] of each record type below 256.
const KINDS: [u8; 256] = {
    let mut kinds = [TYPES.len() as u8 - 1; 256];
    let mut kind = 0;
    while kind < TYPES.len() - 1 {
        kinds[TYPES[kind].0 as usize] = kind as u8;
        kind += 1;
    }
    kinds
};

/// Returns the index in [`TYPES`] of a query's record type.
#[inline]
fn kind(qtype: Option<u16>) -> usize {
    let kind = qtype.and_then(|qtype| KINDS.get(usize::from(qtype)));
    kind.map_or(TYPES.len() - 1, |&kind| kind.into())
}

pub(super) const FAMILIES: [&str; 2] = ["1", "2"];

/// Values of the metrics' label `cookie`, in the order of [`CookieStatus`].
pub(super) const COOKIES: [&str; 3] = ["proven", "new", "wrong"];

/// Events in the life of a packet, beside its answer. Each has a counter.
#[derive(Debug, Clone, Copy)]
pub enum PacketEvent {
    /// A UDP worker dropped the packet under overload.
    Shed,
    /// The packet is a query over the rate limit.
    Limited,
    /// The packet got no reply because it is no query.
    Ignored,
    /// The packet is a query with the DO bit, which asks for DNSSEC records.
    DnssecOk,
    /// The reply has the TC bit.
    Truncated,
    /// The packet needed the slow path.
    SlowPath,
}

/// Name and help of the metric of each [`PacketEvent`], in their order.
pub(super) const EVENTS: [(&str, &str); 6] = [
    ("shed", "Packets dropped under overload because they had waited too long"),
    ("limited", "Queries over the rate limit"),
    ("ignored", "Packets without a reply: not queries"),
    ("do_requests", "Queries with the DO bit"),
    ("truncated_responses", "Replies with the TC bit"),
    ("slow_path_requests", "Packets that the fast path declined"),
];

/// Number of response codes, from 0 to the highest that the server sends.
const RCODES: usize = Rcode::BadCookie as usize + 1;

/// Counters of one thread. They are aligned to cache lines of their own, so that threads do not
/// slow each other down.
#[repr(align(128))]
pub struct Tally {
    pub(super) proto: Proto,
    is_shared: bool,
    pub(super) requests: [[AtomicU64; TYPES.len()]; FAMILIES.len()],
    pub(super) responses: [AtomicU64; RCODES],
    pub(super) cookies: [AtomicU64; COOKIES.len()],
    pub(super) events: [AtomicU64; EVENTS.len()],
    pub(super) request_size: Histogram<{ BYTES.len() }>,
    pub(super) response_size: Histogram<{ BYTES.len() }>,
    pub(super) duration: Histogram<{ NANOSECONDS.len() }>,
    /// Sketch of the most frequent queries; `None` without `--debug-top`.
    top: Option<Mutex<Sketch>>,
}

/// Adds `by` to a counter whose only writer is this thread.
#[inline]
fn add_own(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed) + by, Ordering::Relaxed);
}

/// Adds `by` to a counter that several threads write to.
#[inline]
fn add_shared(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

impl Tally {
    pub(super) fn new(proto: Proto, is_shared: bool, top: u16) -> Self {
        Self {
            proto,
            is_shared,
            requests: [const { [const { AtomicU64::new(0) }; TYPES.len()] }; FAMILIES.len()],
            responses: [const { AtomicU64::new(0) }; RCODES],
            cookies: [const { AtomicU64::new(0) }; COOKIES.len()],
            events: [const { AtomicU64::new(0) }; EVENTS.len()],
            request_size: Histogram::default(),
            response_size: Histogram::default(),
            duration: Histogram::default(),
            top: (top > 0).then(|| Mutex::new(Sketch::new(top))),
        }
    }

    fn add(&self, counter: &AtomicU64, by: u64) {
        if self.is_shared { add_shared(counter, by) } else { add_own(counter, by) }
    }

    /// Counts a query and its reply in all counters of queries, replies and sizes.
    #[inline]
    pub fn answered(&self, is_ipv6: bool, qtype: Option<u16>, rcode: Rcode, request: usize, reply: &[u8]) {
        let counters = [
            (&self.requests[usize::from(is_ipv6)][kind(qtype)], 1),
            (&self.responses[rcode as usize], 1),
            (&self.request_size.counts[bucket_of_size(request)], 1),
            (&self.request_size.sum, request as u64),
            (&self.response_size.counts[bucket_of_size(reply.len())], 1),
            (&self.response_size.sum, reply.len() as u64),
        ];
        // Tests the flag once, not once per counter.
        if self.is_shared {
            counters.iter().for_each(|&(counter, by)| add_shared(counter, by));
        } else {
            counters.iter().for_each(|&(counter, by)| add_own(counter, by));
        }
        if query::is_truncated(reply) {
            self.count(PacketEvent::Truncated, 1);
        }
    }

    /// Counts a query that is answered by a zone transfer. Its size would distort the histogram of
    /// replies.
    pub fn transferred(&self, is_ipv6: bool, qtype: Option<u16>, request: usize) {
        self.add(&self.requests[usize::from(is_ipv6)][kind(qtype)], 1);
        self.add(&self.responses[Rcode::NoError as usize], 1);
        self.add(&self.request_size.counts[bucket_of_size(request)], 1);
        self.add(&self.request_size.sum, request as u64);
    }

    /// Counts packets to which this has happened.
    pub fn count(&self, event: PacketEvent, packets: u64) {
        self.add(&self.events[event as usize], packets);
    }

    /// Counts a query that has a cookie, by the cookie's validity.
    pub fn cookie(&self, standing: CookieStatus) {
        self.add(&self.cookies[standing as usize], 1);
    }

    pub(super) fn snapshot(&self) -> Option<SketchSnapshot> {
        Some(self.top.as_ref()?.lock().snapshot())
    }

    /// Counts a query in the sketch of the most frequent queries, with `--debug-top`.
    pub fn asked_for(&self, name: &[u8], qtype: u16, rcode: Rcode) {
        if let Some(top) = &self.top {
            top.lock().count(name, qtype, rcode);
        }
    }

    /// Records in the histogram of durations that each of `queries` queries took the time `each`.
    pub fn record_duration(&self, queries: u32, each: Duration) {
        let nanoseconds = u64::try_from(each.as_nanos()).unwrap_or(u64::MAX);
        self.add(&self.duration.counts[bucket_of_time(nanoseconds)], queries.into());
        self.add(&self.duration.sum, nanoseconds.saturating_mul(queries.into()));
    }
}

impl fmt::Debug for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tally").field("proto", &self.proto).finish_non_exhaustive()
    }
}
