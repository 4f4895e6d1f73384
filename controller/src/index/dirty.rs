//! The services that something has changed for.

use std::collections::BTreeMap;

use jiff::Timestamp;
use multinet_runtime::ObjectKey;

/// Services with the time of the earliest change that concerns them.
#[derive(Debug)]
pub(super) struct Dirty {
    clock: fn() -> Timestamp,
    services: BTreeMap<ObjectKey, Timestamp>,
}

impl Dirty {
    /// None yet.
    pub(super) fn new(clock: fn() -> Timestamp) -> Self {
        Self { clock, services: BTreeMap::new() }
    }

    /// The time.
    pub(super) fn now(&self) -> Timestamp {
        (self.clock)()
    }

    /// Something that happened at this time concerns a service.
    pub(super) fn mark(&mut self, service: ObjectKey, at: Timestamp) {
        self.services.entry(service).and_modify(|known| *known = at.min(*known)).or_insert(at);
    }

    /// Takes them all, in the order of their names.
    pub(super) fn take(&mut self) -> BTreeMap<ObjectKey, Timestamp> {
        std::mem::take(&mut self.services)
    }
}
