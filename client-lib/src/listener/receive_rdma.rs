//! Receives frames by RDMA. The sender's device writes a frame to a slot, and then completes a
//! receive request, whose immediate names the slot.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use parking_lot::Mutex;

use super::ListenerState;
use super::control::Connection;
use super::ended::Ended;
use super::receive::take_in;
use super::slot::Slot;
use crate::channel::DataChannel;
use crate::rdma::{CompletionHandler, Immediate, QueuePair, StripeAssembly, Violation};
use crate::wire::Header;

/// Handler of the RDMA completions of one sender's connection.
pub(super) struct RdmaReceiver {
    shared: Arc<ListenerState>,
    connection: Arc<Connection>,
    /// Queue pairs by which the sender has sent a ping, a bit for each.
    tried: AtomicU8,
    /// Frames of which stripes are missing, and the frames behind them; `None` without extra queue
    /// pairs.
    assembly: Option<Mutex<StripeAssembly>>,
}

impl RdmaReceiver {
    /// Starts to receive, if the connection is by RDMA, until this is dropped.
    pub(super) fn start(shared: &Arc<ListenerState>, connection: &Arc<Connection>) -> Option<Arc<Self>> {
        let pair = pair_of(connection)?;
        let gather = |extra_pairs| Mutex::new(StripeAssembly::new(pair.slot_count(), extra_pairs));
        let receiver = Arc::new(Self {
            shared: Arc::clone(shared),
            connection: Arc::clone(connection),
            tried: AtomicU8::new(0),
            assembly: Some(pair.extra_pairs).filter(|extra| *extra > 0).map(gather),
        });
        let by: Arc<dyn CompletionHandler> = Arc::<Self>::clone(&receiver);
        pair.watch(Arc::downgrade(&by));
        Some(receiver)
    }

    /// Handles the completions that are left when the sender has said goodbye.
    pub(super) fn receive_rest(&self) {
        if let Some(pair) = pair_of(&self.connection) {
            pair.poll_all(|| self.poll());
        }
    }

    /// Handles an immediate of one of the queue pairs, the first of which is 0.
    fn on_immediate(&self, pair: &QueuePair<Ended>, by: u8, immediate: u32) -> Result<(), Ended> {
        match (by, Immediate::decode(immediate)?, &self.assembly) {
            (0, Immediate::Frame(slot), None) => {
                self.connection.landed(slot)?;
                self.take(pair, slot)
            }
            (0, frame @ (Immediate::Frame(slot) | Immediate::Striped(slot)), Some(assembly)) => {
                self.connection.landed(slot)?;
                let is_striped = matches!(frame, Immediate::Striped(_));
                self.gather(pair, assembly, |assembly| {
                    assembly.announce(slot, is_striped);
                    Ok(())
                })
            }
            (1.., Immediate::Stripe(slot), Some(assembly)) => {
                self.gather(pair, assembly, |assembly| assembly.add_stripe(slot, by - 1))
            }
            (0, Immediate::RingCredit, _) => Ok(pair.add_ring_credit()?),
            (_, Immediate::Ping, _) => {
                let bit = 1 << by.min(7);
                let is_first = self.tried.fetch_or(bit, Ordering::Relaxed) & bit == 0;
                if is_first { Ok(()) } else { Err(Violation::Ping.into()) }
            }
            _ => Err(Violation::Immediate(immediate).into()),
        }
    }

    /// Notes a frame or a part of one, and takes in the frames that are complete now.
    fn gather(
        &self,
        pair: &QueuePair<Ended>,
        assembly: &Mutex<StripeAssembly>,
        note: impl FnOnce(&mut StripeAssembly) -> Result<(), Violation>,
    ) -> Result<(), Ended> {
        // Never contended: one thread polls at a time, and only polling leads here.
        let mut assembly = assembly.lock();
        note(&mut assembly)?;
        while let Some(slot) = assembly.next_complete() {
            self.take(pair, slot)?;
        }
        Ok(())
    }

    /// Checks the frame that the sender has written to a slot, and queues it for the program.
    fn take(&self, pair: &QueuePair<Ended>, slot: u16) -> Result<(), Ended> {
        let Header::Data(data) = Header::decode(&pair.read_header(slot))? else { return Err(Ended::Control) };
        let most = self.shared.config.limits.frame_size;
        let landed = pair.received_frame(slot, &data).filter(|_| data.payload <= most);
        let landed = landed.ok_or(Ended::TooLarge { length: data.payload, most })?;
        take_in(&self.shared, &self.connection, data, Slot::Landed(landed))
    }
}

impl CompletionHandler for RdmaReceiver {
    fn poll(&self) -> bool {
        let poll = |pair: &QueuePair<Ended>| {
            pair.poll(&*self.connection, |by, immediate| self.on_immediate(pair, by, immediate))
        };
        pair_of(&self.connection).is_some_and(poll)
    }

    fn arm(&self) {
        if let Some(pair) = pair_of(&self.connection) {
            pair.arm();
        }
    }

    fn fail(&self, reason: &str) {
        if let Some(pair) = pair_of(&self.connection) {
            pair.fail_with_reason(reason);
        }
    }
}

fn pair_of(connection: &Connection) -> Option<&QueuePair<Ended>> {
    match &connection.channel {
        DataChannel::Rdma(pair, _) => Some(pair),
        DataChannel::Tcp(_) => None,
    }
}
