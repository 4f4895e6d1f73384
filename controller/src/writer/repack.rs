//! When slices are merged that an earlier controller has left half empty, such as one with a lower limit (pure).
//!
//! A new leader looks at every service once, and merges at the pace of [`PAUSE`], whatever there is to merge: the API server and the
//! readers of slices have better things to do.

use std::collections::HashMap;
use std::time::Duration;

use multinet_runtime::ObjectKey;
use tokio::time::Instant;

/// How much time passes between two services' merges.
const PAUSE: Duration = Duration::from_millis(100);

/// How much time passes between two merges of one service, at least.
const PAUSE_OF_SERVICE: Duration = Duration::from_secs(1);

/// The services whose slices may have to be merged, and when.
#[derive(Debug, Default)]
pub(super) struct Repack {
    due: HashMap<ObjectKey, Instant>,
}

impl Repack {
    /// All services may have slices to merge.
    pub(super) fn all(&mut self, services: &[ObjectKey], now: Instant) {
        let mut due = now;
        for service in services {
            due += PAUSE;
            self.due.insert(service.clone(), due);
        }
    }

    /// Returns whether it is a service's turn to have slices merged.
    pub(super) fn is_due(&self, service: &ObjectKey, now: Instant) -> bool {
        self.due.get(service).is_some_and(|due| *due <= now)
    }

    /// A service has had a turn. Returns when it is to have the next one to have slices merged, if any `could_merge`.
    pub(super) fn next(
        &mut self,
        service: &ObjectKey,
        could_merge: impl FnOnce() -> bool,
        now: Instant,
    ) -> Option<Instant> {
        let others = u32::try_from(self.due.len()).unwrap_or(u32::MAX);
        let due = self.due.get_mut(service)?;
        if !could_merge() {
            self.due.remove(service);
            return None;
        }
        if *due <= now {
            *due = now + PAUSE_OF_SERVICE.max(PAUSE.saturating_mul(others));
        }
        Some(*due)
    }

    /// Somebody else writes from now on.
    pub(super) fn clear(&mut self) {
        self.due.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> ObjectKey {
        ObjectKey { namespace: "vision".into(), name: number.to_string() }
    }

    #[test]
    fn services_take_turns_and_leave_when_nothing_is_left_to_merge() {
        let (a, b) = (key(1), key(2));
        let start = Instant::now();
        let after = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut repack = Repack::default();
        repack.all(&[a.clone(), b.clone()], start);
        assert_eq!(repack.next(&a, || true, start), Some(after(100)), "not yet");
        assert_eq!((repack.is_due(&a, after(100)), repack.is_due(&b, after(100))), (true, false));
        assert_eq!(repack.next(&a, || true, after(100)), Some(after(1100)));
        assert!(!repack.is_due(&a, after(1000)));
        assert_eq!(repack.next(&a, || false, after(1000)), None);
        assert!(!repack.is_due(&a, after(2000)), "nothing is left");
        repack.clear();
        assert_eq!(repack.next(&b, || true, after(200)), None);
    }

    #[test]
    fn many_services_are_merged_no_faster_than_few() {
        let services: Vec<ObjectKey> = (0..100).map(key).collect();
        let start = Instant::now();
        let mut repack = Repack::default();
        repack.all(&services, start);
        assert_eq!(repack.next(&services[0], || true, start + PAUSE), Some(start + PAUSE * 101));
    }
}
