//! Updates address counts when slices change, and queues services that have room now.

use multinet_runtime::ObjectKey;

use super::{ClusterIndex, State};

impl ClusterIndex {
    /// Queues the services that waited for room in their namespace and have room now.
    pub(super) fn wake(&self, state: &mut State) {
        state.recount();
        let at = state.dirty.now();
        for key in std::mem::take(&mut state.woken) {
            if let Some(service) = state.services.get_mut(&key) {
                service.trigger.get_or_insert(at);
            }
            self.queue.add(&key);
        }
    }
}

impl State {
    /// Updates the address counts of the services whose own slices have changed.
    pub(super) fn recount(&mut self) {
        for (service, written) in self.slices.resized() {
            self.woken.extend(self.counts.set_written(&service, written));
        }
        self.mirrors.resized();
    }

    /// Updates the address counts of `services`, whose foreign slices have changed.
    pub(super) fn recount_foreign(&mut self, services: &[ObjectKey]) {
        for service in services {
            self.woken.extend(self.counts.set_foreign(service, self.foreign_slices.size(service)));
        }
    }
}
