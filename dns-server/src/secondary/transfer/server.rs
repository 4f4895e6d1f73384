//! Gives out transfers: checks who may have one, limits their number, and counts them.
//!
//! **Limits.** At most [`MAX_TRANSFERS`](crate::limits::transfers::MAX_TRANSFERS) run at a time.
//! They hold at most [`MAX_COPIES`] zone copies together; transfers of the same version share a
//! copy. When all places are taken, a stalled transfer is ended for a new one (`active.rs`). If
//! none is stalled, the new client gets SERVFAIL and may try again. Differences belong to the
//! journal, which has limits of its own. A client that is up to date gets its answer in any case.

use std::net::IpAddr;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::TransferContents;
use super::active::{ActiveTransfers, TransferSlot};
use super::allow::AllowedClient;
use super::metrics::TransferMetrics;
use crate::answer::slow::TransferKind;
use crate::store::journal::ZoneStep;
use crate::store::name::Name;
use crate::store::state::State;
use crate::store::zone_copy::{ZoneCopy, ZoneVersion};

/// Largest number of zone copies that running transfers hold at a time.
const MAX_COPIES: usize = 6;

/// Starts zone transfers: checks who may have one, limits their number, and counts them.
#[derive(Debug)]
pub struct TransferServer {
    allowed: Vec<AllowedClient>,
    active: ActiveTransfers,
    copies: Mutex<Vec<Weak<ZoneCopy>>>,
    metrics: TransferMetrics,
}

impl TransferServer {
    /// Makes a server that gives transfers to the `allowed` clients only.
    pub fn new(allowed: Vec<AllowedClient>, metrics: TransferMetrics) -> Self {
        Self { allowed, active: ActiveTransfers::default(), copies: Mutex::default(), metrics }
    }

    /// Tells whether a client may transfer zones, given its address and the key that it signed
    /// with. A rejected client is counted.
    pub fn allows(&self, peer: IpAddr, key: Option<&Name>) -> bool {
        let is_allowed = self.allowed.iter().any(|allowed| allowed.matches(peer, key));
        if !is_allowed {
            self.metrics.count_transfer("refused");
        }
        is_allowed
    }

    /// Starts a transfer of a zone over a stream. Returns its contents, and its place if it needs
    /// one. Returns `None` if too many transfers run, or if there is no such zone.
    pub fn begin(
        &self,
        state: &State,
        apex: &Name,
        wanted: TransferKind,
    ) -> Option<(TransferContents, Option<TransferSlot>)> {
        let taken = || {
            let known = match wanted {
                TransferKind::Since(known) => Some(known),
                TransferKind::Whole => None,
            };
            if let Some(current) = current(state, apex, known) {
                return Some((current, None));
            }
            let slot = self.active.take(Instant::now())?;
            let whole = || Some(TransferContents::Whole(self.whole(state, apex)?));
            let contents = difference(known, |known| state.zone_since(apex, known)).or_else(whole)?;
            if let TransferContents::Whole(copy) = &contents {
                slot.set_copy(&copy.version);
            }
            Some((contents, Some(slot)))
        };
        let taken = taken();
        self.metrics.count_transfer(taken.as_ref().map_or("busy", |(contents, _)| contents.kind()));
        taken
    }

    /// Answers an incremental query over UDP: calls `write` with the difference to the version
    /// `known`, and returns its result. Returns `None` if only the whole zone would do, if the
    /// difference exceeds `room`, or if `write` returns `None`. It never waits: while the zones are
    /// being changed, it returns `None`, too.
    pub fn write_datagram<T>(
        &self,
        state: &State,
        apex: &Name,
        known: u32,
        room: usize,
        write: impl FnOnce(TransferContents) -> Option<T>,
    ) -> Option<T> {
        let known = Some(known);
        let changed = || difference(known, |known| state.try_zone_since(apex, known, room));
        let contents = current(state, apex, known).or_else(changed)?;
        let kind = contents.kind();
        let written = write(contents)?;
        self.metrics.count_transfer(kind);
        Some(written)
    }

    /// Returns a copy of the newest version of a zone, shared with another transfer if that has the
    /// same version. Returns `None` if there are too many copies.
    fn whole(&self, state: &State, apex: &Name) -> Option<Arc<ZoneCopy>> {
        let version = state.version(apex)?;
        let mut copies = self.copies.lock();
        if let Some(copy) = find(&mut copies, &version) {
            return Some(copy);
        }
        if !self.has_room(&mut copies) {
            return None;
        }
        drop(copies);
        // Making a copy may have to wait for a change. Meanwhile, other transfers can use the list,
        // so check it again afterwards.
        let made = Arc::new(state.zone_copy(apex)?);
        let mut copies = self.copies.lock();
        if let Some(copy) = find(&mut copies, &made.version) {
            return Some(copy);
        }
        if !self.has_room(&mut copies) {
            return None;
        }
        copies.push(Arc::downgrade(&made));
        Some(made)
    }

    /// Tells whether one more copy is allowed. If necessary, ends stalled transfers, whose copies
    /// no longer count.
    fn has_room(&self, copies: &mut Vec<Weak<ZoneCopy>>) -> bool {
        if copies.len() >= MAX_COPIES {
            self.active.evict_stalled(Instant::now());
            let is_held = |copy: &Weak<ZoneCopy>| {
                copy.upgrade().is_some_and(|copy| self.active.has_copy_of(&copy.version))
            };
            copies.retain(is_held);
        }
        copies.len() < MAX_COPIES
    }
}

/// Returns the copy of a version, if a transfer holds one. Removes copies that no transfer holds.
fn find(copies: &mut Vec<Weak<ZoneCopy>>, version: &ZoneVersion) -> Option<Arc<ZoneCopy>> {
    copies.retain(|copy| copy.strong_count() > 0);
    let is_same =
        |copy: &Arc<ZoneCopy>| copy.version.apex == version.apex && copy.version.serial == version.serial;
    copies.iter().filter_map(Weak::upgrade).find(is_same)
}

/// Returns the contents for a client that is up to date, or `None` if it is not.
fn current(state: &State, apex: &Name, known: Option<u32>) -> Option<TransferContents> {
    let version = state.version(apex)?;
    version.is_known_to(known?).then_some(TransferContents::Current(version))
}

/// Returns the difference to the version `known`, which `since` gets from the journal.
fn difference(
    known: Option<u32>,
    since: impl FnOnce(u32) -> Option<(ZoneVersion, Vec<ZoneStep>)>,
) -> Option<TransferContents> {
    let known = known?;
    since(known).map(|(version, steps)| TransferContents::Difference(version, known, steps))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::limits::transfers::MAX_TRANSFERS;
    use crate::store::answers::Answers;
    use crate::store::zone::{ZoneSettings, Zones};

    #[test]
    fn an_up_to_date_client_gets_its_answer_when_all_places_are_taken() {
        let apex: Name = "z".parse().unwrap();
        let settings = ZoneSettings { ttl: 5, ns_addresses: BTreeSet::new() };
        let zones = Zones::new(vec![apex.clone()], &[], &settings).unwrap();
        let state = State::new(Arc::new(Answers::new(zones, 7)), 5, |_| ());
        let server = TransferServer::new(Vec::new(), TransferMetrics::default());
        let ask = |wanted| server.begin(&state, &apex, wanted);
        let under_way: Vec<_> = (0..MAX_TRANSFERS).map(|_| ask(TransferKind::Whole).unwrap()).collect();
        assert!(under_way.iter().all(|(_, slot)| slot.is_some()));
        assert!(ask(TransferKind::Whole).is_none());
        assert!(ask(TransferKind::Since(6)).is_none());
        // A slightly newer serial counts, too: it comes from a server that has been running for
        // longer.
        for known in [7, 1007] {
            let (contents, slot) = ask(TransferKind::Since(known)).unwrap();
            assert!(matches!(contents, TransferContents::Current(_)) && slot.is_none());
        }
        drop(under_way);
        for known in [0, 6, 7 + (1 << 24)] {
            let (contents, slot) = ask(TransferKind::Since(known)).unwrap();
            assert!(matches!(contents, TransferContents::Whole(_)) && slot.is_some(), "{known}");
        }
    }
}
