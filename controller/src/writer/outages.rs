//! Limits log messages about failures to the first of each kind, and the end of the outage (pure).

use std::collections::HashMap;
use std::time::Duration;

use multinet_runtime::ObjectKey;
use tokio::time::Instant;

/// Services whose last write failed, and the kinds of failures that have been logged.
#[derive(Debug, Default)]
pub(super) struct Outages {
    failing: HashMap<ObjectKey, &'static str>,
    /// Start of the outage, and the kinds of failures that have been logged since.
    outage: Option<(Instant, Vec<&'static str>)>,
}

impl Outages {
    /// Records a failure. Returns whether to log it: it is the first of its kind in this outage.
    pub(super) fn failed(&mut self, service: &ObjectKey, kind: &'static str, now: Instant) -> bool {
        self.failing.insert(service.clone(), kind);
        let (_, said) = self.outage.get_or_insert_with(|| (now, Vec::new()));
        let is_new = !said.contains(&kind);
        if is_new {
            said.push(kind);
        }
        is_new
    }

    /// Records that a service was written. Returns the outage's duration if no other service fails
    /// any more.
    pub(super) fn succeeded(&mut self, service: &ObjectKey, now: Instant) -> Option<Duration> {
        self.failing.remove(service)?;
        if !self.failing.is_empty() {
            return None;
        }
        let (since, _) = self.outage.take()?;
        Some(now.saturating_duration_since(since))
    }

    /// Forgets all failures, since leadership has ended.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey { namespace: "vision".into(), name: name.into() }
    }

    #[test]
    fn each_kind_of_failure_is_logged_once_and_so_is_the_end() {
        let mut outages = Outages::default();
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(outages.succeeded(&key("a"), start), None, "there was no outage");
        assert!(outages.failed(&key("a"), "forbidden", start));
        assert!(!outages.failed(&key("a"), "forbidden", after(1)));
        assert!(!outages.failed(&key("b"), "forbidden", after(2)));
        assert!(outages.failed(&key("b"), "silent", after(3)), "another kind");
        assert_eq!(outages.succeeded(&key("c"), after(4)), None, "others still fail");
        assert_eq!(outages.succeeded(&key("a"), after(5)), None);
        assert!(!outages.failed(&key("a"), "forbidden", after(6)), "the outage goes on");
        assert_eq!(outages.succeeded(&key("b"), after(7)), None);
        assert_eq!(outages.succeeded(&key("a"), after(8)), Some(Duration::from_secs(8)));
        assert!(outages.failed(&key("a"), "forbidden", after(9)), "the next outage");
        outages.clear();
        assert_eq!(outages.succeeded(&key("a"), after(10)), None);
    }
}
