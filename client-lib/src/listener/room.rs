//! Makes room for newcomers, and has slots that are free used: [`shares`] decides, connections do it.

use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use super::control::Connection;
use super::shares::{self, Share, Step};
use super::slots::{Holder, Memory};
use crate::handshake::Refusal;

/// Time between two ticks, at which slots that are free go to those that need them.
const TICK: Duration = Duration::from_secs(1);

/// A sender that has not answered for so long may be one that never will: nothing is expected of it any more.
const ANSWERS: Duration = Duration::from_secs(2);

/// Returns the slots that `grant` gives to a newcomer. If less than an even share is free, makes room
/// first and waits for it, for at most `patience`.
pub(super) async fn wait<T>(
    memory: &Memory,
    newcomer: (IpAddr, u32),
    patience: Duration,
    grant: impl Fn() -> Result<T, Refusal>,
) -> Result<T, Refusal> {
    let until = Instant::now() + patience;
    loop {
        let mut released = pin!(memory.released().notified());
        released.as_mut().enable();
        // At a tick, a sender may count as quiet that did not before; one that has not answered in
        // time is not waited for.
        let again = Instant::now() + TICK;
        if memory.has_room_for(newcomer.1) || !make_room(memory, newcomer) || Instant::now() >= until {
            return grant();
        }
        let _ = timeout_at(again.min(until), released).await;
    }
}

/// Has others give back what a newcomer needs. Whether there is something to wait for.
fn make_room(memory: &Memory, newcomer: (IpAddr, u32)) -> bool {
    let holders = memory.holders();
    let shares: Vec<_> = holders.iter().map(share).collect();
    let steps = shares::make_room(memory.total(), &shares, memory.is_crowded(), newcomer);
    let is_due = |share: &Share| share.is_over || share.limit < share.slots;
    let is_something = !steps.is_empty() || shares.iter().any(is_due);
    steps.into_iter().for_each(|step| act(&holders, step));
    is_something
}

/// Gives free slots to the connections that use all of theirs, and notes what each has used, at each
/// tick, for ever.
pub(super) async fn tend(memory: &Memory, wanted: u32) {
    loop {
        sleep(TICK).await;
        let holders = memory.holders();
        let shares: Vec<_> = holders.iter().map(share).collect();
        shares::grow(memory.total(), &shares, wanted).into_iter().for_each(|step| act(&holders, step));
        for connection in holders.iter().filter_map(|(_, holder)| holder.connection.upgrade()) {
            connection.go_on();
        }
    }
}

fn share((id, holder): &(u64, Holder)) -> Share {
    let (id, &Holder { address, slots, .. }) = (*id, holder);
    // In its handshake, there is nothing to be had of it.
    let fixed = Share {
        id,
        address,
        slots,
        limit: slots,
        used: slots,
        is_limitable: false,
        is_asked: false,
        is_over: false,
        is_idle: false,
        is_quiet: false,
    };
    let Some(connection) = holder.connection.upgrade() else { return fixed };
    let (usage, asked) = (connection.usage(), connection.asked());
    let (is_idle, is_quiet) = (connection.is_idle(), connection.is_quiet());
    let is_over = connection.is_over();
    let share = Share { used: usage.peak, is_over, is_idle, is_quiet, ..fixed };
    match asked {
        _ if is_over => share,
        Some((_, since)) if since.elapsed() > ANSWERS => share,
        Some((limit, _)) => Share { limit, is_limitable: true, is_asked: true, ..share },
        None => Share { limit: usage.limit, is_limitable: connection.is_limitable(), ..share },
    }
}

fn act(holders: &[(u64, Holder)], step: Step) {
    let (Step::Limit { id, .. } | Step::Close { id }) = step;
    let found = holders.iter().find(|(holder, _)| *holder == id);
    let Some(connection) = found.and_then(|(_, holder)| holder.connection.upgrade()) else { return };
    match step {
        Step::Limit { to, .. } => set_limit(&connection, to),
        // Once the sender keeps to nothing, nothing that it sends is lost.
        Step::Close { .. } if connection.is_limitable() && connection.asked().is_none() => {
            connection.limit(0);
        }
        Step::Close { .. } => connection.close(),
    }
}

fn set_limit(connection: &Arc<Connection>, to: u32) {
    // Others may have been quicker.
    if connection.asked().is_none() && (to < connection.slots().count() || connection.slots().raise(to)) {
        connection.limit(to);
    }
}
