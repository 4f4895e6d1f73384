//! Reads a sender's frames into slots.

use std::io;
use std::sync::Arc;

use thiserror::Error;
use tokio::task::{consume_budget, yield_now};

use super::Shared;
use super::control::Connection;
use super::queue::Arrived;
use super::slots::Slot;
use crate::inbound::Arrival;
use crate::rdma::{QueuePairError, Violation};
use crate::stream::MessageReader;
use crate::wire::{Data, Header, WireError};

/// After a payload of so many bytes our code comes first: it may give the slot back, which is in the caches still.
const LARGE: u32 = 128 << 10;

/// Why a connection ended.
#[derive(Debug, Error)]
pub(super) enum Ended {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the sender closed the connection")]
    Closed,
    #[error("the sender closed the connection: {0}")]
    Said(String),
    #[error("the sender broke the protocol: {0}")]
    Wire(#[from] WireError),
    #[error("the sender broke the protocol: a receiver's message, where only frames are allowed")]
    Control,
    #[error("the sender broke the protocol: a frame of {length} bytes, where {most} are allowed")]
    TooLarge { length: u32, most: u32 },
    #[error("the sender broke the protocol: more frames than it has credit for")]
    Credit,
    #[error("the sender broke the protocol: a frame by TCP, where RDMA was agreed")]
    Beside,
    #[error("the sender broke the protocol: {0}")]
    Rdma(#[from] Violation),
    #[error("RDMA has failed: {0}")]
    Failed(#[from] QueuePairError),
    #[error("the sender broke the protocol: it keeps to a limit that it was not told")]
    Unlimited,
    #[error("another connection of the same sender has taken its place")]
    Superseded,
    /// With who has how much.
    #[error(
        "this sender, of which nothing was unacknowledged, has made room for another, and may come back: {0}"
    )]
    MadeRoom(String),
    #[error("the listener closes")]
    Shutdown,
}

impl Ended {
    /// Whether the sender has ended it as it should.
    pub(super) fn is_goodbye(&self) -> bool {
        matches!(self, Self::Closed | Self::Said(_))
    }

    /// Whether the sender is at fault.
    pub(super) fn is_violation(&self) -> bool {
        match self {
            Self::Wire(_) | Self::Control | Self::TooLarge { .. } | Self::Credit => true,
            Self::Beside | Self::Rdma(_) | Self::Unlimited => true,
            Self::Io(_) | Self::Failed(_) | Self::Closed | Self::Said(_) => false,
            Self::Superseded | Self::MadeRoom(_) | Self::Shutdown => false,
        }
    }
}

/// The frames that have come, and how many may have come so far. That slots are free is not enough: the sender must have heard of it,
/// so that one that hears nothing cannot go on for ever.
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

/// Until the sender ends, or breaks the rules.
pub(super) async fn receive(
    shared: Arc<Shared>,
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
    shared: &Shared,
    connection: &Arc<Connection>,
    reader: &mut MessageReader,
    allowance: &mut Allowance,
) -> Result<(), Ended> {
    // A sender that is faster than we are must not keep the thread from everything else.
    consume_budget().await;
    let header = reader.header().await?.ok_or(Ended::Closed)?;
    match Header::decode(&header)? {
        Header::Control(_) => Err(Ended::Control),
        Header::Data(_) | Header::Limited { .. } if connection.channel().is_rdma() => Err(Ended::Beside),
        Header::Limited { limit } => connection.limited(limit),
        Header::Close { text, .. } => {
            let mut said = vec![0; text];
            reader.fill(&mut said).await?;
            let said = String::from_utf8_lossy(&said).escape_debug().to_string();
            Err(if said.is_empty() { Ended::Closed } else { Ended::Said(said) })
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

/// Hands a frame to our code, or passes it over if that has had it.
pub(super) fn take_in(
    shared: &Shared,
    connection: &Arc<Connection>,
    data: Data,
    slot: Slot,
) -> Result<(), Ended> {
    let passed_over = connection.while_latest(|| deliver(shared, connection, data, slot));
    if let Some((arrival, slot)) = passed_over.ok_or(Ended::Superseded)? {
        shared.counts.passed_over();
        connection.pass_over(data.sequence, arrival, slot);
    }
    Ok(())
}

/// Hands a frame to our code, or gives it back if that has had it.
fn deliver(shared: &Shared, connection: &Arc<Connection>, data: Data, slot: Slot) -> Option<(Arrival, Slot)> {
    match connection.arrived(&data) {
        Arrival::Deliver => {
            shared.counts.arrived(&data);
            shared.queue.push(Arrived { header: data, slot, connection: Arc::clone(connection) });
            None
        }
        arrival => Some((arrival, slot)),
    }
}

async fn read(
    shared: &Shared,
    connection: &Connection,
    reader: &mut MessageReader,
    data: &Data,
) -> Result<Vec<u8>, Ended> {
    let most = shared.config.limits.frame_size;
    if data.payload > most {
        return Err(Ended::TooLarge { length: data.payload, most });
    }
    let mut slot = connection.slots().take(data.body()).ok_or(Ended::Credit)?;
    match slot.get_mut(..data.body()) {
        Some(place) => reader.fill(place).await?,
        None => return Err(Ended::Credit),
    }
    connection.slots().has_read();
    Ok(slot)
}
