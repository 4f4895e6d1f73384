//! Limit on connections of some kind, such as those in their handshake, by address and altogether.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

/// Number of connections from each address.
pub(super) struct ConnectionCounts {
    counts: Mutex<HashMap<IpAddr, usize>>,
    most: usize,
    most_each: usize,
}

/// One connection, which is no longer counted after this is dropped.
pub(crate) struct Counted {
    all: Arc<ConnectionCounts>,
    address: IpAddr,
}

impl ConnectionCounts {
    /// Counts at most `most` connections, and at most `most_each` of one address.
    pub(super) fn new(most: usize, most_each: usize) -> Arc<Self> {
        Arc::new(Self { counts: Mutex::default(), most, most_each })
    }

    /// Counts a new connection, or returns `None` if there are too many.
    pub(super) fn begin(self: &Arc<Self>, address: IpAddr) -> Option<Counted> {
        let mut counts = self.counts.lock();
        let all: usize = counts.values().sum();
        let count = counts.get(&address).copied().unwrap_or_default();
        if all >= self.most || count >= self.most_each {
            return None;
        }
        counts.insert(address, count + 1);
        Some(Counted { all: Arc::clone(self), address })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut counts = self.all.counts.lock();
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
    fn connections_are_bounded_for_each_address_and_for_all() {
        let pending = ConnectionCounts::new(256, 32);
        let begin = |host: u8| pending.begin([10, 0, 0, host].into());
        let mut first: Vec<_> = std::iter::from_fn(|| begin(1)).collect();
        assert_eq!(first.len(), 32);
        let others: Vec<_> = (2..100).flat_map(|host| std::iter::from_fn(move || begin(host))).collect();
        assert_eq!(first.len() + others.len(), 256);
        first.pop();
        assert!(begin(1).is_some());
        drop((first, others));
        assert!(pending.counts.lock().is_empty());
    }
}
