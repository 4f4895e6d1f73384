//! Makes room for newcomers, and gives free slots to connections that need more. [`shares`]
//! decides, and the connections do it.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use super::control::Connection;
use super::shares::{self, Share, Step};
use super::slots::{Holder, Memory, Newcomer, Slots};
use super::spares::Spares;
use crate::handshake::Refusal;

/// Time between two ticks, at which connections get more slots and their use is noted.
const TICK: Duration = Duration::from_secs(1);

/// Time limit for a sender's answer to a limit. One that has not answered by then may never answer,
/// and no slots are expected of it any more.
const ANSWERS: Duration = Duration::from_secs(2);

/// Grants slots to a newcomer. One that may use RDMA gets spare memory first, which is registered
/// already. Otherwise, if less than an even share is free, makes room and waits for it, for at most
/// `patience`.
pub(super) async fn grant<S>(
    memory: &Arc<Memory<Connection>>,
    spares: &Spares<S>,
    newcomer: Newcomer,
    patience: Duration,
) -> Result<(Slots<Connection>, Option<S>), Refusal> {
    let until = Instant::now() + patience;
    loop {
        // Enabled before the checks, so that no release in between is missed.
        let mut released = pin!(memory.released().notified());
        released.as_mut().enable();
        if newcomer.is_lasting
            && let Some(spare) = spares.take(memory)
        {
            return Ok(spare);
        }
        // After a tick, more connections may count as quiet; after a while, one that has not
        // answered is no longer waited for.
        let again = Instant::now() + TICK;
        if memory.has_room_for(newcomer.wanted) || !make_room(memory, newcomer) || Instant::now() >= until {
            return spares.grant(memory, newcomer);
        }
        let _ = timeout_at(again.min(until), released).await;
    }
}

/// Makes other connections give back what a newcomer needs. Returns whether slots, or a place, are
/// about to become free.
fn make_room(memory: &Memory<Connection>, Newcomer { address, wanted, .. }: Newcomer) -> bool {
    let holders = memory.holders();
    let shares: Vec<_> = holders.iter().map(share).collect();
    let steps = shares::make_room(memory.total(), &shares, memory.is_crowded(), (address, wanted));
    let is_due = |share: &Share| (share.is_over && share.is_idle) || share.limit < share.slots;
    let is_something = !steps.is_empty() || shares.iter().any(is_due);
    steps.into_iter().for_each(|step| act(&holders, step));
    is_something
}

/// Gives free slots to connections that use all of theirs and want more, at each tick, for ever.
pub(super) async fn tend(memory: &Memory<Connection>, wanted: u32) {
    loop {
        sleep(TICK).await;
        let holders = memory.holders();
        let shares: Vec<_> = holders.iter().map(share).collect();
        shares::grow(memory.total(), &shares, wanted).into_iter().for_each(|step| act(&holders, step));
        for connection in holders.iter().filter_map(|(_, holder)| holder.connection.upgrade()) {
            connection.tick();
        }
    }
}

fn share((id, holder): &(u64, Holder<Connection>)) -> Share {
    let (id, &Holder { address, slots, .. }) = (*id, holder);
    // Nothing can be taken back during a handshake.
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
        _ if is_over => Share { limit: connection.kept_slots(), ..share },
        Some((_, since)) if since.elapsed() > ANSWERS => share,
        Some((limit, _)) => Share { limit, is_limitable: true, is_asked: true, ..share },
        None => Share { limit: usage.limit, is_limitable: connection.is_limitable(), ..share },
    }
}

fn act(holders: &[(u64, Holder<Connection>)], step: Step) {
    let (Step::Limit { id, .. } | Step::Close { id }) = step;
    let found = holders.iter().find(|(holder, _)| *holder == id);
    let Some(connection) = found.and_then(|(_, holder)| holder.connection.upgrade()) else { return };
    match step {
        Step::Limit { to, .. } => connection.set_limit(to),
        // It ends when the sender has answered, so that no frame on its way is lost.
        Step::Close { .. } if connection.is_limitable() && connection.asked().is_none() => {
            connection.limit(0);
        }
        Step::Close { .. } => connection.close(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::task::Poll;

    use futures::poll;
    use tokio::net::{TcpListener, TcpStream};

    use super::super::Acknowledge;
    use super::super::budget::Budget;
    use super::*;
    use crate::channel::DataChannel;
    use crate::handshake::{Delivery, Hello, SessionId, TransportKind};
    use crate::stream::{MessageWriter, Stream};

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const NEWCOMER: Newcomer = Newcomer { address: HERE, wanted: 8, is_lasting: true };
    const PATIENCE: Duration = Duration::from_secs(60);

    /// A connection that can give back slots, and the sender's end of it.
    async fn connection(slots: Slots<Connection>) -> (Arc<Connection>, TcpStream) {
        let listening = TcpListener::bind((HERE, 0)).await.unwrap();
        let address = listening.local_addr().unwrap();
        let (sender, accepted) = tokio::join!(TcpStream::connect(address), listening.accept());
        let (_, writer) = Stream::Plain(accepted.unwrap().0).split();
        let hello = Hello {
            service: "infer.vision".into(),
            uid: None,
            from: "sender".into(),
            from_uid: None,
            session: SessionId(1),
            epoch: 1,
            peer: 0,
            lane: 0,
            delivery: Delivery::AtMostOnce,
            window: None,
            is_limitable: true,
            transports: vec![TransportKind::Tcp],
            rdma: None,
        };
        let (hello, channel) =
            ((hello, address, Arc::default()), DataChannel::new(None, MessageWriter::new(writer)));
        let connection =
            Connection::new(hello, Acknowledge::OnDrop, (slots, channel), Arc::default(), Arc::default());
        (connection, sender.unwrap())
    }

    /// Memory of which one connection has all but a slot, which is being made ready for another.
    async fn full() -> (Arc<Memory<Connection>>, Slots<Connection>, Arc<Connection>, TcpStream) {
        let memory = Arc::new(Memory::new(Budget::given(90), 10, 10));
        let being_made = memory.grant(Newcomer { wanted: 1, ..NEWCOMER }).unwrap();
        let all = memory.grant(Newcomer { is_lasting: false, ..NEWCOMER }).unwrap();
        let (connection, sender) = connection(all).await;
        (memory, being_made, connection, sender)
    }

    #[tokio::test]
    async fn memory_that_is_ready_is_used_before_others_are_asked_for_slots() {
        let (memory, being_made, connection, _sender) = full().await;
        let spares = Spares::new();
        spares.keep(std::time::Instant::now(), being_made, "ready");
        let (_, spare) = grant(&memory, &spares, NEWCOMER, PATIENCE).await.unwrap();
        assert_eq!((spare, connection.asked()), (Some("ready"), None));
    }

    #[tokio::test]
    async fn a_newcomer_that_waits_gets_memory_as_soon_as_it_is_ready() {
        let (memory, being_made, connection, _sender) = full().await;
        let spares = Spares::new();
        connection.close();
        let mut waiting = pin!(grant(&memory, &spares, NEWCOMER, PATIENCE));
        assert!(poll!(waiting.as_mut()).is_pending(), "slots are about to become free");
        spares.keep(std::time::Instant::now(), being_made, "ready");
        let Poll::Ready(Ok((_, spare))) = poll!(waiting) else { panic!("it waits for a tick") };
        assert_eq!(spare, Some("ready"));
    }
}
