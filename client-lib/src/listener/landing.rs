//! Frames that come by RDMA: they are in their slots already when this hears of them.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::Shared;
use super::control::Connection;
use super::receive::{Ended, take_in};
use super::slots::Slot;
use crate::rdma::{Completes, Gathering, Immediate, QueuePair, Violation};
use crate::way::Way;
use crate::wire::Header;

/// Hears what comes on a connection.
pub(super) struct Landing {
    shared: Arc<Shared>,
    connection: Arc<Connection>,
    /// The pairs by which the sender has tried the way, a bit for each.
    tried: AtomicU8,
    /// If there are further pairs: frames of which parts are still to come, and those behind them.
    gathering: Option<Mutex<Gathering>>,
}

impl Landing {
    /// Hears from now on, if this is a connection by RDMA, until it is let go of.
    pub(super) fn watch(shared: &Arc<Shared>, connection: &Arc<Connection>) -> Option<Arc<Self>> {
        let pair = pair_of(connection)?;
        let gather = |further| Mutex::new(Gathering::new(pair.slots(), further));
        let landing = Arc::new(Self {
            shared: Arc::clone(shared),
            connection: Arc::clone(connection),
            tried: AtomicU8::new(0),
            gathering: Some(pair.further()).filter(|further| *further > 0).map(gather),
        });
        let by: Arc<dyn Completes> = Arc::<Self>::clone(&landing);
        pair.watch(Arc::downgrade(&by));
        Some(landing)
    }

    /// Hears what is here already.
    pub(super) fn hear_out(&self) {
        if let Some(pair) = pair_of(&self.connection) {
            pair.look_all(|| self.look());
        }
    }

    /// What one of the pairs brings, from 0.
    fn hear(&self, pair: &QueuePair<Ended>, by: u8, immediate: u32) -> Result<(), Ended> {
        match (by, Immediate::decode(immediate)?, &self.gathering) {
            (0, Immediate::Frame(slot), None) => {
                self.connection.landed(slot)?;
                self.take(pair, slot)
            }
            (0, told @ (Immediate::Frame(slot) | Immediate::Divided(slot)), Some(gathering)) => {
                self.connection.landed(slot)?;
                let is_divided = matches!(told, Immediate::Divided(_));
                self.gather(pair, gathering, |gathering| {
                    gathering.told(slot, is_divided);
                    Ok(())
                })
            }
            (1.., Immediate::Part(slot), Some(gathering)) => {
                self.gather(pair, gathering, |gathering| gathering.part(slot, by - 1))
            }
            (0, Immediate::Heard, _) => Ok(pair.heard()?),
            (_, Immediate::Ping, _) => {
                let bit = 1 << by.min(7);
                let is_first = self.tried.fetch_or(bit, Ordering::Relaxed) & bit == 0;
                if is_first { Ok(()) } else { Err(Violation::Ping.into()) }
            }
            _ => Err(Violation::Immediate(immediate).into()),
        }
    }

    /// Takes note of something, and takes in what is complete now.
    fn gather(
        &self,
        pair: &QueuePair<Ended>,
        gathering: &Mutex<Gathering>,
        note: impl FnOnce(&mut Gathering) -> Result<(), Violation>,
    ) -> Result<(), Ended> {
        // Only whoever looks comes here, and one looks at a time.
        let mut gathering = gathering.lock().unwrap_or_else(PoisonError::into_inner);
        note(&mut gathering)?;
        while let Some(slot) = gathering.next() {
            self.take(pair, slot)?;
        }
        Ok(())
    }

    /// Takes in the frame in a slot.
    fn take(&self, pair: &QueuePair<Ended>, slot: u16) -> Result<(), Ended> {
        let Header::Data(data) = Header::decode(&pair.header(slot))? else { return Err(Ended::Control) };
        let most = self.shared.config.limits.frame_size;
        let landed = pair.landed(slot, &data).filter(|_| data.payload <= most);
        let landed = landed.ok_or(Ended::TooLarge { length: data.payload, most })?;
        take_in(&self.shared, &self.connection, data, Slot::Landed(landed))
    }
}

impl Completes for Landing {
    fn look(&self) -> bool {
        let hear = |pair: &QueuePair<Ended>| {
            pair.look(&*self.connection, |by, immediate| self.hear(pair, by, immediate))
        };
        pair_of(&self.connection).is_some_and(hear)
    }

    fn arm(&self) {
        if let Some(pair) = pair_of(&self.connection) {
            pair.arm();
        }
    }

    fn fail(&self, reason: &str) {
        if let Some(pair) = pair_of(&self.connection) {
            pair.fail_for(reason);
        }
    }
}

fn pair_of(connection: &Connection) -> Option<&QueuePair<Ended>> {
    match connection.way() {
        Way::Rdma(pair, _) => Some(pair),
        Way::Tcp(_) => None,
    }
}
