//! Schedules the merging of half-empty slices (pure). Slices become half empty when many pods come
//! or go, or when the maximum slice size has changed.
//!
//! Merging is not urgent. A service's slices are merged when it needs no other writes. Over all
//! services there is one merge per [`MERGE_PAUSE`], and namespaces get equal shares.

use std::collections::HashMap;

use multinet_runtime::ObjectKey;
use tokio::time::Instant;

use crate::limits::writes::{MERGE_PAUSE, MERGE_PAUSE_OF_SERVICE};

/// Services with slices to merge, and the time of each one's next merge, by namespace.
#[derive(Debug, Default)]
pub(super) struct Repack {
    due: HashMap<String, HashMap<String, Instant>>,
}

impl Repack {
    /// Returns whether the next merge of a service's slices is due.
    pub(super) fn is_due(&self, service: &ObjectKey, now: Instant) -> bool {
        self.get(service).is_some_and(|due| due <= now)
    }

    /// Updates the schedule after a turn of a service. Returns the time of its next merge, if it
    /// has slices to merge.
    pub(super) fn next(&mut self, service: &ObjectKey, could_merge: bool, now: Instant) -> Option<Instant> {
        if !could_merge {
            if let Some(services) = self.due.get_mut(&service.namespace) {
                services.remove(&service.name);
                if services.is_empty() {
                    self.due.remove(&service.namespace);
                }
            }
            return None;
        }
        if let Some(due) = self.get(service).filter(|due| *due > now) {
            return Some(due);
        }
        let services = self.due.entry(service.namespace.clone()).or_default();
        services.insert(service.name.clone(), now);
        let services = services.len();
        let turns = u32::try_from(services * self.due.len()).unwrap_or(u32::MAX);
        let due = now + MERGE_PAUSE_OF_SERVICE.max(MERGE_PAUSE.saturating_mul(turns));
        self.due.entry(service.namespace.clone()).or_default().insert(service.name.clone(), due);
        Some(due)
    }

    fn get(&self, service: &ObjectKey) -> Option<Instant> {
        self.due.get(&service.namespace)?.get(&service.name).copied()
    }

    /// Forgets all scheduled merges, since leadership has ended.
    pub(super) fn clear(&mut self) {
        self.due.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn key(number: usize) -> ObjectKey {
        ObjectKey { namespace: "vision".into(), name: number.to_string() }
    }

    #[test]
    fn a_service_is_merged_each_second_until_no_slices_fit_together() {
        let service = key(1);
        let start = Instant::now();
        let after = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut repack = Repack::default();
        assert_eq!(repack.next(&service, false, start), None);
        assert_eq!(repack.next(&service, true, start), Some(after(1000)));
        assert_eq!(
            repack.next(&service, true, after(500)),
            Some(after(1000)),
            "another turn brings none forward"
        );
        assert_eq!(
            (repack.is_due(&service, after(999)), repack.is_due(&service, after(1000))),
            (false, true)
        );
        assert_eq!(repack.next(&service, true, after(1000)), Some(after(2000)));
        assert_eq!(repack.next(&service, false, after(1500)), None);
        assert!(!repack.is_due(&service, after(3000)), "nothing is left");
        repack.next(&service, true, start);
        repack.clear();
        assert!(repack.due.is_empty());
    }

    #[test]
    fn many_services_are_merged_no_faster_than_few() {
        let start = Instant::now();
        let mut repack = Repack::default();
        for number in 1..=100 {
            let due = repack.next(&key(number), true, start);
            assert_eq!(due, Some(start + MERGE_PAUSE_OF_SERVICE.max(MERGE_PAUSE * number as u32)));
        }
    }

    #[test]
    fn a_namespace_with_many_services_leaves_another_its_share() {
        let start = Instant::now();
        let mut repack = Repack::default();
        for number in 0..100 {
            repack.next(&key(number), true, start);
        }
        let other = ObjectKey { namespace: "audio".into(), name: "a".into() };
        assert_eq!(repack.next(&other, true, start), Some(start + MERGE_PAUSE_OF_SERVICE));
        let due = repack.next(&key(100), true, start);
        assert_eq!(due, Some(start + 2 * 101 * MERGE_PAUSE), "no faster over all");
    }
}
