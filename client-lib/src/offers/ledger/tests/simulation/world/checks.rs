//! Checks after each call of the ledger.

use std::rc::Weak;

use super::super::super::{OfferState, Wake};
use super::{Checked, Held, Offering, World, ensure, length_of};

impl World {
    /// Drops and wakes what the ledger names, and checks what must hold.
    pub(super) fn settle(&mut self) -> Checked {
        self.ledger.released().clear();
        while let Some(wake) = self.ledger.next_wake() {
            let is_meant = |stage: &Offering| match (stage, wake) {
                (Offering::InLine(place, _), Wake::Turn(turn)) => *place == turn,
                (Offering::OnOffer(key), Wake::Ended(ended)) => *key == ended,
                _ => false,
            };
            let meant: Vec<_> = self.handlers.iter_mut().filter(|handler| is_meant(&handler.stage)).collect();
            ensure!(
                !meant.is_empty() && meant.iter().all(|handler| !handler.is_woken),
                "{wake:?} of {meant:?}"
            );
            meant.into_iter().for_each(|handler| handler.is_woken = true);
            if let Wake::Ended(key) = wake {
                ensure!(self.model.state(key) != OfferState::Open, "{key:?} is open");
            } else {
                self.tally.count("turns");
            }
        }
        self.check_payloads()?;
        self.check_line()?;
        self.check_memory()
    }

    /// Payloads of open offers and live fetches exist, and no others.
    fn check_payloads(&mut self) -> Checked {
        self.payloads.retain(|payload| payload.strong_count() > 0);
        ensure!(self.held().all(|held| held.payload.strong_count() > 0), "freed while it was fetched");
        let kept: usize = self.payloads.iter().filter_map(Weak::upgrade).map(|it| it.length).sum();
        let open = self.model.open.iter().map(|(id, &(key, _))| (key, length_of(id)));
        let fetched = self.held().filter_map(|held| Some((held.key, held.payload.upgrade()?.length)));
        let mut needed: Vec<_> = open.chain(fetched).collect();
        needed.sort_unstable();
        needed.dedup();
        let needed: usize = needed.iter().map(|(_, length)| length).sum();
        let counted = self.ledger.counts().bytes;
        ensure!(
            kept == needed && kept == counted,
            "{kept} bytes are kept, {needed} needed, {counted} counted"
        );
        ensure!(kept <= self.plan.settings.budget, "{kept} bytes are more than the budget");
        Ok(())
    }

    /// The first caller in line has been woken if it has room.
    fn check_line(&self) -> Checked {
        let Some(&(first, length)) = self.model.line.front() else { return Ok(()) };
        let is_it = |stage: &Offering| matches!(stage, Offering::InLine(place, _) if *place == first);
        let is_woken = self.handlers.iter().any(|handler| is_it(&handler.stage) && handler.is_woken);
        ensure!(is_woken || length > self.room(), "{first:?} waits for {length} bytes in vain");
        Ok(())
    }

    fn check_memory(&self) -> Checked {
        let (settings, ledger, counts) = (self.plan.settings, &self.ledger, self.ledger.counts());
        let (offers, waiting) = (ledger.offers.len(), counts.waiting);
        ensure!(offers + waiting <= settings.max_offers, "{offers} offers, {waiting} in line");
        ensure!(ledger.remembered.len() <= settings.max_remembered, "{:?}", ledger.remembered);
        ensure!(ledger.open.len() == counts.offers && ledger.deadlines.len() == counts.offers, "{ledger:?}");
        let expected = (self.model.open.len(), self.model.line.len(), self.held().count());
        ensure!((counts.offers, waiting, counts.fetches) == expected, "{counts:?}, not {expected:?}");
        Ok(())
    }

    /// Nothing is left once all messages have been processed and all tasks are done.
    pub(super) fn check_is_empty(&self) -> Checked {
        let counts = self.ledger.counts();
        let left = (self.ledger.offers.len(), counts.bytes, counts.waiting, counts.fetches);
        ensure!(left == (0, 0, 0, 0) && self.payloads.is_empty(), "left: {:?}", self.ledger);
        Ok(())
    }

    /// Returns how many bytes the budget has left.
    pub(super) fn room(&self) -> usize {
        self.plan.settings.budget - self.ledger.counts().bytes
    }

    pub(super) fn held(&self) -> impl Iterator<Item = &Held> {
        self.fetchers.iter().flatten().filter_map(|work| work.held.as_ref())
    }
}
