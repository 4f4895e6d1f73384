//! Where transfers are given out: who may have one, how many there are at a time, and the counting.
//!
//! **Bounds.** There are at most [`MAX_TRANSFERS`](super::active::MAX_TRANSFERS) at a time, and they hold at most
//! [`MAX_COPIES`] copies of zones together: who asks for the same version shares its copy. When all is taken, a
//! transfer whose client takes nothing ends for a newcomer (`turns.rs`). If all go on, the newcomer is told so
//! (SERVFAIL), and may come again. Differences belong to the journal, which has its own bounds. Who has the
//! newest version is told so however many transfers there are.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::time::Instant;

use super::Contents;
#[cfg(test)]
use super::active::MAX_TRANSFERS;
use super::active::{ActiveTransfers, TransferSlot};
use super::allow::AllowedClient;
use super::metrics::TransferMetrics;
use crate::answer::slow::TransferKind;
use crate::store::journal::Step;
use crate::store::name::Name;
use crate::store::state::State;
use crate::store::zone_copy::{ZoneCopy, ZoneVersion};

/// Copies of whole zones at one time.
const MAX_COPIES: usize = 6;

/// Gives out transfers.
#[derive(Debug)]
pub struct TransferServer {
    allowed: Vec<AllowedClient>,
    active: ActiveTransfers,
    copies: Mutex<Vec<Weak<ZoneCopy>>>,
    metrics: TransferMetrics,
}

/// Why there is no transfer for now.
#[derive(Debug)]
pub struct Busy;

impl TransferServer {
    /// A desk for those who are allowed.
    pub fn new(allowed: Vec<AllowedClient>, metrics: TransferMetrics) -> Self {
        Self { allowed, active: ActiveTransfers::default(), copies: Mutex::default(), metrics }
    }

    /// Whether `peer`, who signed with this key, may have zones; counted if not.
    pub fn allows(&self, peer: IpAddr, key: Option<&Name>) -> bool {
        let is_allowed = self.allowed.iter().any(|allowed| allowed.matches(peer, key));
        if !is_allowed {
            self.metrics.count_transfer("refused");
        }
        is_allowed
    }

    /// What is sent over a stream to who wants that of a zone; a zone that is not there is busy.
    pub fn begin(
        &self,
        state: &State,
        apex: &Name,
        wanted: TransferKind,
    ) -> Result<(Contents, Option<TransferSlot>), Busy> {
        let taken = || {
            let known = match wanted {
                TransferKind::Since(known) => Some(known),
                TransferKind::Whole => None,
            };
            if let Some(current) = current(state, apex, known) {
                return Some((current, None));
            }
            let slot = self.active.take(Instant::now())?;
            let whole = || Some(Contents::Whole(self.whole(state, apex)?));
            let contents = difference(known, |known| state.zone_since(apex, known)).or_else(whole)?;
            if let Contents::Whole(copy) = &contents {
                slot.set_copy(&copy.version);
            }
            Some((contents, Some(slot)))
        };
        let (contents, slot) = taken().ok_or_else(|| {
            self.metrics.count_transfer("busy");
            Busy
        })?;
        self.metrics.count_transfer(contents.kind());
        Ok((contents, slot))
    }

    /// What `write` makes of what is sent to who has the version `known`, if that is not the whole zone, surely is
    /// not more than `room`, and `write` finds room for it. Nothing either while the zones are being changed: a
    /// thread that answers queries does not wait.
    pub fn write_datagram<T>(
        &self,
        state: &State,
        apex: &Name,
        known: u32,
        room: usize,
        write: impl FnOnce(Contents) -> Option<T>,
    ) -> Option<T> {
        let known = Some(known);
        let changed = || difference(known, |known| state.try_zone_since(apex, known, room));
        let contents = current(state, apex, known).or_else(changed)?;
        let kind = contents.kind();
        let written = write(contents)?;
        self.metrics.count_transfer(kind);
        Some(written)
    }

    /// The zone as it is; that of another transfer, if that has the same version.
    fn whole(&self, state: &State, apex: &Name) -> Option<Arc<ZoneCopy>> {
        let version = state.version(apex)?;
        let mut copies = self.copies();
        if let Some(copy) = find(&mut copies, &version) {
            return Some(copy);
        }
        if !self.has_room(&mut copies) {
            return None;
        }
        drop(copies);
        // Others find theirs meanwhile, for this may have to wait for a change.
        let made = Arc::new(state.zone_copy(apex)?);
        let mut copies = self.copies();
        if let Some(copy) = find(&mut copies, &made.version) {
            return Some(copy);
        }
        if !self.has_room(&mut copies) {
            return None;
        }
        copies.push(Arc::downgrade(&made));
        Some(made)
    }

    /// Whether there may be one more copy, if need be for those whose transfers stand still, and which go with them.
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

    fn copies(&self) -> MutexGuard<'_, Vec<Weak<ZoneCopy>>> {
        self.copies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The copy of a version, if somebody has it; forgets those that nobody has.
fn find(copies: &mut Vec<Weak<ZoneCopy>>, version: &ZoneVersion) -> Option<Arc<ZoneCopy>> {
    copies.retain(|copy| copy.strong_count() > 0);
    let is_same =
        |copy: &Arc<ZoneCopy>| copy.version.apex == version.apex && copy.version.serial == version.serial;
    copies.iter().filter_map(Weak::upgrade).find(is_same)
}

/// What is said to who has the version `known`, if that is all.
fn current(state: &State, apex: &Name, known: Option<u32>) -> Option<Contents> {
    let version = state.version(apex)?;
    version.is_known_to(known?).then_some(Contents::Current(version))
}

/// What is sent to who has the version `known`, by what `since` says has changed since then.
fn difference(
    known: Option<u32>,
    since: impl FnOnce(u32) -> Option<(ZoneVersion, Vec<Step>)>,
) -> Option<Contents> {
    let known = known?;
    since(known).map(|(version, steps)| Contents::Difference(version, known, steps))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::store::answers::Answers;
    use crate::store::zone::{ZoneSettings, Zones};

    #[test]
    fn who_is_up_to_date_is_told_so_however_many_transfers_there_are() {
        let apex: Name = "z".parse().unwrap();
        let settings = ZoneSettings { ttl: 5, ns_addresses: BTreeSet::new() };
        let zones = Zones::new(vec![apex.clone()], &[], &settings).unwrap();
        let state = State::new(Arc::new(Answers::new(zones, 7)), 5, |_| ());
        let server = TransferServer::new(Vec::new(), TransferMetrics::default());
        let ask = |wanted| server.begin(&state, &apex, wanted);
        let under_way: Vec<_> = (0..MAX_TRANSFERS).map(|_| ask(TransferKind::Whole).unwrap()).collect();
        assert!(under_way.iter().all(|(_, slot)| slot.is_some()));
        assert!(ask(TransferKind::Whole).is_err());
        assert!(ask(TransferKind::Since(6)).is_err());
        // Also with a serial somewhat ahead, as of a server that has been running for longer.
        for known in [7, 1007] {
            let (contents, slot) = ask(TransferKind::Since(known)).unwrap();
            assert!(matches!(contents, Contents::Current(_)) && slot.is_none());
        }
        drop(under_way);
        for known in [0, 6, 7 + (1 << 24)] {
            let (contents, slot) = ask(TransferKind::Since(known)).unwrap();
            assert!(matches!(contents, Contents::Whole(_)) && slot.is_some(), "{known}");
        }
    }
}
