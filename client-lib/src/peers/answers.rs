//! What a receiver answers by RDMA.

use std::sync::Arc;

use super::serve::{Ended, settle};
use super::shared::Link;
use crate::rdma::{Completes, QueuePair, Violation};
use crate::way::Way;
use crate::wire::{Header, Said, WireError};

/// From now on the state machine is told.
pub(super) fn watch(link: &Arc<Link>) {
    if let Some(pair) = link.pair() {
        let by: Arc<dyn Completes> = Arc::<Link>::clone(link);
        pair.watch(Arc::downgrade(&by));
    }
}

/// Tells it what is here already, and then nothing more.
pub(super) fn hear_out(link: &Link) {
    if let Some(pair) = link.pair() {
        pair.look_all(|| link.look());
        pair.stop();
    }
}

impl Completes for Link {
    fn look(&self) -> bool {
        self.pair().is_some_and(|pair| pair.look(self, |by, place| hear(self, pair, (by, place))))
    }

    fn arm(&self) {
        if let Some(pair) = self.pair() {
            pair.arm();
        }
    }

    fn fail(&self, reason: &str) {
        if let Some(pair) = self.pair() {
            pair.fail_for(reason);
        }
    }
}

impl Link {
    fn pair(&self) -> Option<&QueuePair<Ended>> {
        match self.way.get() {
            Some(Way::Rdma(pair, _)) => Some(pair),
            _ => None,
        }
    }
}

fn hear(link: &Link, pair: &QueuePair<Ended>, (by, place): (u8, u32)) -> Result<(), Ended> {
    if by != 0 {
        return Err(Violation::Pair(by).into());
    }
    let entry = pair.entry(place)?;
    // There is always a header's length.
    let Some((header, body)) = entry.split_first_chunk() else { return Ok(()) };
    let Header::Control(control) = Header::decode(header)? else { return Err(Ended::Data) };
    let (what, length, most) = ("control message", control.body(), body.len());
    if length > most {
        return Err(WireError::TooLong { what, length, most }.into());
    }
    let said = Said::new(&control, body);
    // The state machine gives out as many frames as slots have become free.
    pair.freed(said.slots())?;
    settle(link, &control, said)?;
    Ok(())
}
