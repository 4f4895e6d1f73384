//! Limit on the handshakes that are under way.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

/// Most handshakes at a time on one listening socket.
const MOST: usize = 256;

/// Most handshakes at a time with senders of one address.
const MOST_EACH: usize = 32;

/// Number of handshakes under way with senders of each address.
#[derive(Default)]
pub(super) struct PendingHandshakes(Mutex<HashMap<IpAddr, usize>>);

/// One handshake under way, which is no longer counted after this is dropped.
pub(super) struct PendingHandshake {
    all: Arc<PendingHandshakes>,
    address: IpAddr,
}

impl PendingHandshakes {
    /// Counts a new handshake with a sender, or returns `None` if too many are under way.
    pub(super) fn begin(self: &Arc<Self>, address: IpAddr) -> Option<PendingHandshake> {
        let mut counts = self.counts();
        let all: usize = counts.values().sum();
        let count = counts.get(&address).copied().unwrap_or_default();
        if all >= MOST || count >= MOST_EACH {
            return None;
        }
        counts.insert(address, count + 1);
        Some(PendingHandshake { all: Arc::clone(self), address })
    }

    /// Locks the counts by address.
    fn counts(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.0.lock()
    }
}

impl Drop for PendingHandshake {
    fn drop(&mut self) {
        let mut counts = self.all.counts();
        if let Some(count) = counts.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handshakes_are_bounded_for_each_address_and_for_all() {
        let pending = Arc::<PendingHandshakes>::default();
        let begin = |host: u8| pending.begin([10, 0, 0, host].into());
        let mut first: Vec<_> = std::iter::from_fn(|| begin(1)).collect();
        assert_eq!(first.len(), MOST_EACH);
        let others: Vec<_> = (2..100).flat_map(|host| std::iter::from_fn(move || begin(host))).collect();
        assert_eq!(first.len() + others.len(), MOST);
        first.pop();
        assert!(begin(1).is_some());
        drop((first, others));
        assert!(pending.counts().is_empty());
    }
}
