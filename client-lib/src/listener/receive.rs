//! Reads a sender's frames into slots.

use std::sync::Arc;

use tokio::task::{consume_budget, yield_now};

use super::control::Connection;
use super::ended::Ended;
use super::queue::Arrived;
use super::slot::Slot;
use super::{Answers, ListenerState, Received};
use crate::inbound::Arrival;
use crate::stream::MessageReader;
use crate::wire::{Data, Header};

/// Length of a payload after which the program runs first: it may free the slot while that is still
/// in the caches.
const LARGE: u32 = 128 << 10;

/// Frames that have come, and that may have come so far. A free slot is not enough: the sender must
/// have been told of it, so that one that reads nothing cannot go on sending.
#[derive(Default)]
struct Allowance {
    came: u64,
    credit: u64,
}

impl Allowance {
    fn use_one(&mut self, connection: &Connection) -> Result<(), Ended> {
        if self.came >= self.credit {
            self.credit = connection.credit();
        }
        if self.came >= self.credit {
            return Err(Ended::Credit);
        }
        self.came += 1;
        Ok(())
    }
}

/// Receives frames by TCP until the sender ends the connection or breaks the protocol.
pub(super) async fn receive(
    shared: Arc<ListenerState>,
    connection: Arc<Connection>,
    mut reader: MessageReader,
) -> Ended {
    let mut allowance = Allowance::default();
    loop {
        if let Err(ended) = receive_one(&shared, &connection, &mut reader, &mut allowance).await {
            return ended;
        }
    }
}

async fn receive_one(
    shared: &ListenerState,
    connection: &Arc<Connection>,
    reader: &mut MessageReader,
    allowance: &mut Allowance,
) -> Result<(), Ended> {
    // A sender that is faster than this task must not keep the thread from other tasks.
    consume_budget().await;
    let header = reader.header().await?.ok_or(Ended::Closed)?;
    match Header::decode(&header)? {
        Header::Control(_) | Header::Ask { .. } => Err(Ended::Control),
        Header::Data(_) | Header::Limited { .. } if connection.channel.is_rdma() => Err(Ended::Beside),
        Header::Limited { limit } => connection.limited(limit),
        Header::Close { text, .. } => {
            let mut reason = vec![0; text];
            reader.fill(&mut reason).await?;
            let reason = String::from_utf8_lossy(&reason).escape_debug().to_string();
            Err(if reason.is_empty() { Ended::Closed } else { Ended::Said(reason) })
        }
        Header::Data(data) => {
            allowance.use_one(connection)?;
            let slot = read(shared, connection, reader, &data).await?;
            take_in(shared, connection, data, Slot::Own(slot))?;
            if data.payload >= LARGE {
                yield_now().await;
            }
            Ok(())
        }
    }
}

/// Queues a frame for the program, or drops it if the program has had it.
pub(super) fn take_in(
    shared: &ListenerState,
    connection: &Arc<Connection>,
    data: Data,
    slot: Slot,
) -> Result<(), Ended> {
    let handling = connection.while_latest(|| deliver(shared, connection, data, slot));
    match handling.ok_or(Ended::Superseded)? {
        Handling::Queued => {}
        // Not under the session's lock, which dropping the frame takes.
        Handling::Answer(answers, arrived) => answers(Received::take(arrived, shared.upload_pool.as_ref())),
        Handling::Repeat(arrival, slot) => {
            shared.counts.dropped();
            connection.drop_repeat(data.sequence, arrival, slot);
        }
    }
    Ok(())
}

/// How a received frame is handled.
enum Handling<'s> {
    Queued,
    /// It answers a question of this process.
    Answer(&'s Answers, Arrived),
    /// The program has had it.
    Repeat(Arrival, Slot),
}

/// Queues a frame for the program, if the program has not had it, and has not asked for it.
fn deliver<'s>(
    shared: &'s ListenerState,
    connection: &Arc<Connection>,
    data: Data,
    slot: Slot,
) -> Handling<'s> {
    match connection.arrived(&data) {
        Arrival::Deliver => {
            shared.counts.arrived(&data);
            let arrived = Arrived { header: data, slot, connection: Arc::clone(connection) };
            if let Some(answers) = &shared.answers {
                return Handling::Answer(answers, arrived);
            }
            shared.queue.push(arrived);
            Handling::Queued
        }
        arrival => Handling::Repeat(arrival, slot),
    }
}

/// Reads a frame's key, metadata and payload from TCP into a free slot.
async fn read(
    shared: &ListenerState,
    connection: &Connection,
    reader: &mut MessageReader,
    data: &Data,
) -> Result<Vec<u8>, Ended> {
    let most = shared.config.limits.frame_size;
    if data.payload > most {
        return Err(Ended::TooLarge { length: data.payload, most });
    }
    let mut slot = connection.slots.take(data.body()).ok_or(Ended::Credit)?;
    match slot.get_mut(..data.body()) {
        Some(place) => reader.fill(place).await?,
        None => return Err(Ended::Credit),
    }
    connection.slots.has_read();
    Ok(slot)
}
