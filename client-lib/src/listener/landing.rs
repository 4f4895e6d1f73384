//! Frames that come by RDMA: they are in their slots already when this hears of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Shared;
use super::control::Connection;
use super::receive::{Ended, take_in};
use super::slots::Slot;
use crate::rdma::{Completes, Immediate, QueuePair, Violation};
use crate::way::Way;
use crate::wire::Header;

/// Hears what comes on a connection.
pub(super) struct Landing {
    shared: Arc<Shared>,
    connection: Arc<Connection>,
    /// The sender has tried the way.
    is_tried: AtomicBool,
}

impl Landing {
    /// Hears from now on, if this is a connection by RDMA, until it is let go of.
    pub(super) fn watch(shared: &Arc<Shared>, connection: &Arc<Connection>) -> Option<Arc<Self>> {
        pair_of(connection)?;
        let landing = Arc::new(Self {
            shared: Arc::clone(shared),
            connection: Arc::clone(connection),
            is_tried: AtomicBool::new(false),
        });
        let by: Arc<dyn Completes> = Arc::<Self>::clone(&landing);
        pair_of(connection)?.watch(Arc::downgrade(&by));
        Some(landing)
    }

    /// Hears what is here already.
    pub(super) fn hear_out(&self) {
        if let Some(pair) = pair_of(&self.connection) {
            pair.look_all(|| self.look());
        }
    }

    fn hear(&self, pair: &QueuePair<Ended>, immediate: u32) -> Result<(), Ended> {
        match Immediate::decode(immediate)? {
            Immediate::Frame(slot) => self.land(pair, slot),
            Immediate::Heard => Ok(pair.heard()?),
            Immediate::Ping if self.is_tried.swap(true, Ordering::Relaxed) => Err(Violation::Ping.into()),
            Immediate::Ping => Ok(()),
        }
    }

    fn land(&self, pair: &QueuePair<Ended>, slot: u16) -> Result<(), Ended> {
        self.connection.landed(slot)?;
        let Header::Data(data) = Header::decode(&pair.header(slot))? else { return Err(Ended::Control) };
        let most = self.shared.config.limits.frame_size;
        let landed = pair.landed(slot, &data).filter(|_| data.payload <= most);
        let landed = landed.ok_or(Ended::TooLarge { length: data.payload, most })?;
        take_in(&self.shared, &self.connection, data, Slot::Landed(landed))
    }
}

impl Completes for Landing {
    fn look(&self) -> bool {
        let hear =
            |pair: &QueuePair<Ended>| pair.look(&*self.connection, |immediate| self.hear(pair, immediate));
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
