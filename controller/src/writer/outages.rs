//! Problems are said once, when the first service has one, and their end once, when the last service has none (pure).

use std::collections::HashMap;
use std::time::Duration;

use multinet_runtime::ObjectKey;
use tokio::time::Instant;

/// Which services cannot be written.
#[derive(Debug, Default)]
pub(super) struct Outages {
    failing: HashMap<ObjectKey, &'static str>,
    /// Since when any service fails, and the kinds of failures that have been said since.
    outage: Option<(Instant, Vec<&'static str>)>,
}

impl Outages {
    /// A service could not be written. Returns whether to say so: the first failure of its kind within an outage.
    pub(super) fn failed(&mut self, service: &ObjectKey, kind: &'static str, now: Instant) -> bool {
        self.failing.insert(service.clone(), kind);
        let (_, said) = self.outage.get_or_insert_with(|| (now, Vec::new()));
        let is_new = !said.contains(&kind);
        if is_new {
            said.push(kind);
        }
        is_new
    }

    /// A service has been written. Returns how long the outage was, if it was the last one to fail.
    pub(super) fn succeeded(&mut self, service: &ObjectKey, now: Instant) -> Option<Duration> {
        self.failing.remove(service)?;
        if !self.failing.is_empty() {
            return None;
        }
        let (since, _) = self.outage.take()?;
        Some(now.saturating_duration_since(since))
    }

    /// Somebody else writes from now on.
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
    fn a_kind_once_and_the_end_once() {
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
