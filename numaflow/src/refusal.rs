//! Services that the API server refuses (pure), for example by a quota or a policy.

use std::time::Duration;

use multinet_crds::{MultiNetworkService, MultiNetworkServiceSpec};
use multinet_runtime::TerminalSafe;
use tokio::time::Instant;

use crate::limits::annotations::{MAX_TEXT, NAMED_EDGES};
use crate::limits::writes::{LONGEST_PAUSE, PAUSE};

/// Answer of the API server to the last attempt to write a service.
#[derive(Clone, Debug)]
pub struct Refusal {
    spec: MultiNetworkServiceSpec,
    message: String,
    /// Pause before the next attempt.
    pause: Duration,
    /// Time of the next attempt.
    retry: Instant,
}

impl Refusal {
    /// Records that a service was refused. The pause doubles, unless the one before was for another
    /// spec.
    pub fn new(before: Option<&Self>, service: &MultiNetworkService, message: &str, now: Instant) -> Self {
        let before = before.filter(|before| before.is_of(service));
        let pause = before.map_or(PAUSE, |before| LONGEST_PAUSE.min(2 * before.pause));
        let message = TerminalSafe(message).to_string();
        Self { spec: service.spec.clone(), message, pause, retry: now + pause }
    }

    /// Returns whether the API server refused this spec. Another one is worth an attempt at once.
    pub fn is_of(&self, service: &MultiNetworkService) -> bool {
        self.spec == service.spec
    }

    /// Returns the time of the next attempt.
    pub fn retry(&self) -> Instant {
        self.retry
    }

    /// Returns the text of an event about the service, which these edges need.
    pub fn note(&self, service: &str, edges: &[&str]) -> String {
        let named = edges.len().min(NAMED_EDGES);
        let more = edges.len() - named;
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let mut note = format!(
            "{}{more}: the API server refuses the MultiNetworkService {service}; correct the edge, or the quota, \
             policy or role that is at fault; trying again: {}",
            edges[..named].join(", "),
            self.message
        );
        note.truncate(note.floor_char_boundary(MAX_TEXT));
        note
    }
}
