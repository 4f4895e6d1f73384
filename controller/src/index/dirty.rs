//! The services that need work because of changes.

use std::collections::BTreeMap;

use jiff::Timestamp;
use multinet_runtime::ObjectKey;

/// Services to plan again, each with the time of the earliest change that affects it.
#[derive(Debug)]
pub(super) struct Dirty {
    clock: fn() -> Timestamp,
    services: BTreeMap<ObjectKey, Timestamp>,
}

impl Dirty {
    /// Creates an empty set. `clock` returns the current time.
    pub(super) fn new(clock: fn() -> Timestamp) -> Self {
        Self { clock, services: BTreeMap::new() }
    }

    /// Returns the current time.
    pub(super) fn now(&self) -> Timestamp {
        (self.clock)()
    }

    /// Records that a change at the time `at` affects these services.
    pub(super) fn mark(&mut self, services: impl IntoIterator<Item = ObjectKey>, at: Timestamp) {
        for service in services {
            self.services.entry(service).and_modify(|known| *known = at.min(*known)).or_insert(at);
        }
    }

    /// Records that a change that happens now affects these services.
    pub(super) fn mark_now(&mut self, services: impl IntoIterator<Item = ObjectKey>) {
        self.mark(services, self.now());
    }

    /// Empties the set. Returns its services with their times, in the order of the names.
    pub(super) fn take(&mut self) -> BTreeMap<ObjectKey, Timestamp> {
        std::mem::take(&mut self.services)
    }
}
