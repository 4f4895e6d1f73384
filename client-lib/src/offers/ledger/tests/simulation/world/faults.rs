//! Faults of pods, connections and tasks.

use super::super::super::{FetchEnd, OfferLedger, OfferState};
use super::super::fetcher::Stage;
use super::super::model::Model;
use super::{Checked, Handler, Offering, World};

impl World {
    pub(super) fn fault(&mut self) -> Checked {
        match self.rng.u8(..12) {
            0 => self.crash(),
            1..4 => self.die(),
            4..6 => self.reject(),
            6..8 => self.break_connection(),
            8..10 => self.cancel(),
            _ => self.withdraw(),
        }
    }

    /// Restarts the offering pod: its memory is lost, and its connections break.
    fn crash(&mut self) -> Checked {
        self.tally.count("crashes");
        self.log("the offering pod restarts".to_owned());
        self.ledger = OfferLedger::new(self.plan.settings);
        self.model = Model::new(self.plan.settings);
        self.handlers.clear();
        for fetcher in &mut self.fetchers {
            if let Some(work) = fetcher {
                work.held = None;
                if work.stage == Stage::Reading {
                    *fetcher = None;
                }
            }
        }
        self.settle()
    }

    /// Restarts a fetcher. The queue delivers its reference again.
    fn die(&mut self) -> Checked {
        let at = self.rng.usize(..self.fetchers.len());
        let Some(work) = self.fetchers[at].take() else { return Ok(()) };
        self.tally.count("deaths");
        self.log(format!("fetcher {at} restarts"));
        self.finish_fetch(work.held, FetchEnd::Returned)
    }

    /// Lets a fetcher's application drop a payload without acknowledging it.
    fn reject(&mut self) -> Checked {
        let at = self.rng.usize(..self.fetchers.len());
        let Some(work) = self.fetchers[at].take_if(|work| work.stage == Stage::Ready) else { return Ok(()) };
        self.log(format!("fetcher {at} rejects {}", work.delivery.id));
        self.references.give_back(self.now, &work.delivery);
        self.finish_fetch(work.held, FetchEnd::Returned)
    }

    /// Breaks the connection of a fetcher, which keeps a payload that has come.
    fn break_connection(&mut self) -> Checked {
        let at = self.rng.usize(..self.fetchers.len());
        let Some(work) = &mut self.fetchers[at] else { return Ok(()) };
        if work.stage == Stage::Reading {
            work.stage = Stage::Asking;
        }
        let held = work.held.take();
        self.tally.count("breaks");
        self.log(format!("the connection of fetcher {at} breaks: {held:?}"));
        self.finish_fetch(held, FetchEnd::Returned)
    }

    /// Drops a task of the offering pod.
    fn cancel(&mut self) -> Checked {
        if self.handlers.is_empty() {
            return Ok(());
        }
        let at = self.rng.usize(..self.handlers.len());
        let handler = self.handlers.swap_remove(at);
        self.log(format!("{handler:?} is dropped"));
        match handler.stage {
            Offering::InLine(place, _) => {
                self.model.leave(place);
                self.ledger.leave(place);
            }
            Offering::OnOffer(key) => {
                self.ledger.forget(key);
            }
        }
        self.settle()
    }

    fn withdraw(&mut self) -> Checked {
        let on_offer = |handler: &Handler| match handler.stage {
            Offering::OnOffer(key) => Some((handler.delivery.id.clone(), key)),
            Offering::InLine(..) => None,
        };
        let offers: Vec<_> = self.handlers.iter().filter_map(on_offer).collect();
        let Some((id, key)) = self.rng.choice(offers) else { return Ok(()) };
        self.model.advance(self.now);
        if self.model.end(&id, key, OfferState::Withdrawn) {
            self.tally.count("withdrawn");
        }
        self.log(format!("{id} as {key:?} is withdrawn"));
        self.ledger.withdraw(self.now, key);
        self.settle()
    }
}
