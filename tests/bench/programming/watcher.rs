//! Queries a DNS server until its answers are as expected, and measures the time.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use multinet_testing::dns::{PATIENCE, Query};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::stage::Stage;
use crate::side::Side;

/// Minimum pause between queries for single changes: the precision of the figures.
pub(crate) const PAUSE: Duration = Duration::from_micros(500);

/// Queries, with the server's work on them, take at most this fraction of the time, so that they do
/// not slow down the measured changes.
const SHARE: u32 = 4;

/// Bound of each change.
const BOUND: Duration = Duration::from_secs(60);

/// Expected answer: whether the answer for a name has an address.
#[derive(Debug, Clone)]
pub(crate) struct Expected {
    pub(crate) name: String,
    pub(crate) address: Ipv4Addr,
    pub(crate) is_there: bool,
}

/// Queries one server, over UDP, for the names with expectations.
pub(crate) struct Watcher(Sender<Order>);

struct Order {
    expected: Expected,
    begun: Instant,
    seen: oneshot::Sender<Duration>,
}

/// A pending expectation.
#[must_use = "it takes time"]
pub(crate) struct Sight {
    expected: Expected,
    seen: oneshot::Receiver<Duration>,
}

impl Watcher {
    /// Starts a watcher with a minimum pause between queries.
    pub(crate) fn start(server: SocketAddr, pause: Duration) -> Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.connect(server)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let (orders, incoming) = channel();
        // The thread ends with this watcher.
        thread::spawn(move || {
            if let Err(error) = watch(&socket, &incoming, pause) {
                eprintln!("the watcher of {server} ended: {error:#}");
            }
        });
        Ok(Self(orders))
    }

    /// Starts a watcher for each side.
    pub(crate) fn of_both(stage: &Stage) -> Result<[Self; 2]> {
        let start = |side| Self::start(stage.dns(side)?, PAUSE);
        Ok([start(Side::Ours)?, start(Side::Core)?])
    }

    /// Expects an answer; time counts from `begun`.
    pub(crate) fn expect(&self, expected: Expected, begun: Instant) -> Result<Sight> {
        let (seen, sight) = oneshot::channel();
        let order = Order { expected: expected.clone(), begun, seen };
        self.0.send(order).ok().context("the watcher ended")?;
        Ok(Sight { expected, seen: sight })
    }
}

impl Sight {
    /// Waits for the answer, and returns the time.
    pub(crate) async fn time(self) -> Result<Duration> {
        let Self { expected, seen } = self;
        let seen =
            timeout(BOUND, seen).await.with_context(|| format!("{expected:?}: not within {BOUND:?}"))?;
        seen.with_context(|| format!("{expected:?}: the watcher ended"))
    }
}

/// The query for each name, and the pending expectations.
type Names = HashMap<String, (Vec<u8>, Vec<Order>)>;

fn add(names: &mut Names, order: Order) {
    let query = || (Query::new(&order.expected.name, "A").to_wire(), Vec::new());
    names.entry(order.expected.name.clone()).or_insert_with(query).1.push(order);
}

fn watch(socket: &UdpSocket, incoming: &Receiver<Order>, pause: Duration) -> Result<()> {
    let mut names = Names::new();
    let mut buffer = [0; 4096];
    loop {
        if names.is_empty() {
            let Ok(order) = incoming.recv() else { return Ok(()) };
            add(&mut names, order);
        }
        incoming.try_iter().for_each(|order| add(&mut names, order));
        let begun = Instant::now();
        for (query, _) in names.values() {
            socket.send(query)?;
        }
        for _ in 0..names.len() {
            let length = socket.recv(&mut buffer).context("no reply")?;
            let reply = &buffer[..length];
            let asked = names.values_mut().find(|(query, _)| reply.get(..2) == query.get(..2));
            let (_, orders) = asked.context("a reply without a query")?;
            let now = Instant::now();
            while let Some(at) = orders.iter().position(|order| is_answered(reply, &order.expected)) {
                let order = orders.swap_remove(at);
                // Ignored: the receiver may have timed out.
                let _ = order.seen.send(now - order.begun);
            }
        }
        names.retain(|_, (_, orders)| {
            orders.retain(|order| !order.seen.is_closed());
            !orders.is_empty()
        });
        thread::sleep(pause.max(begun.elapsed() * (SHARE - 1)));
    }
}

/// The response code of a name that does not exist (RFC 1035, section 4.1.1).
const NXDOMAIN: u8 = 3;

/// Returns whether a complete answer matches the expectation.
fn is_answered(reply: &[u8], expected: &Expected) -> bool {
    let (Some(flags), Some(rcode)) = (reply.get(2), reply.get(3)) else { return false };
    let is_whole = flags & 0x02 == 0 && matches!(rcode & 0x0f, 0 | NXDOMAIN);
    let is_there = reply.windows(4).any(|octets| octets == expected.address.octets());
    is_whole && is_there == expected.is_there
}
