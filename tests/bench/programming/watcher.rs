//! Asks a DNS server until its answers are what they should be, and says when they were.

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

/// How long at least the server is left alone after it has been asked, for single changes; how
/// exact the figures are.
pub(crate) const PAUSE: Duration = Duration::from_micros(500);

/// Asking takes at most one part of so many of the time, the server's work on it included, or it
/// would slow down what it measures.
const SHARE: u32 = 4;

/// No change may take longer.
const BOUND: Duration = Duration::from_secs(60);

/// Expected answer: an address is among those of a name, or is not.
#[derive(Debug, Clone)]
pub(crate) struct Expected {
    pub(crate) name: String,
    pub(crate) address: Ipv4Addr,
    pub(crate) is_there: bool,
}

/// Asks one server, over UDP, about the names that something is expected of.
pub(crate) struct Watcher(Sender<Order>);

struct Order {
    expected: Expected,
    begun: Instant,
    seen: oneshot::Sender<Duration>,
}

/// Something that is waited for.
#[must_use = "it takes time"]
pub(crate) struct Sight {
    expected: Expected,
    seen: oneshot::Receiver<Duration>,
}

impl Watcher {
    /// One that leaves the server alone for so long at least, time and again.
    pub(crate) fn start(server: SocketAddr, pause: Duration) -> Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.connect(server)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let (orders, incoming) = channel();
        // It ends with this watcher.
        thread::spawn(move || {
            if let Err(error) = watch(&socket, &incoming, pause) {
                eprintln!("{server} is no longer asked: {error:#}");
            }
        });
        Ok(Self(orders))
    }

    /// One for each side.
    pub(crate) fn of_both(stage: &Stage) -> Result<[Self; 2]> {
        let start = |side| Self::start(stage.dns(side)?, PAUSE);
        Ok([start(Side::Ours)?, start(Side::Core)?])
    }

    /// Waits for an answer, from now on; time counts since `begun`.
    pub(crate) fn expect(&self, expected: Expected, begun: Instant) -> Result<Sight> {
        let (seen, sight) = oneshot::channel();
        let order = Order { expected: expected.clone(), begun, seen };
        self.0.send(order).ok().context("the watcher has ended")?;
        Ok(Sight { expected, seen: sight })
    }
}

impl Sight {
    /// How long it took.
    pub(crate) async fn time(self) -> Result<Duration> {
        let Self { expected, seen } = self;
        let seen =
            timeout(BOUND, seen).await.with_context(|| format!("{expected:?}: not within {BOUND:?}"))?;
        seen.with_context(|| format!("{expected:?}: the watcher has ended"))
    }
}

/// The query for each name, and who waits for an answer.
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
            let (_, orders) = asked.context("a reply to nothing")?;
            let now = Instant::now();
            while let Some(at) = orders.iter().position(|order| is_answered(reply, &order.expected)) {
                let order = orders.swap_remove(at);
                // Who has given up waiting need not know.
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

/// Whether a whole answer has, or lacks, the address.
fn is_answered(reply: &[u8], expected: &Expected) -> bool {
    let (Some(flags), Some(rcode)) = (reply.get(2), reply.get(3)) else { return false };
    let is_whole = flags & 0x02 == 0 && matches!(rcode & 0x0f, 0 | NXDOMAIN);
    let is_there = reply.windows(4).any(|octets| octets == expected.address.octets());
    is_whole && is_there == expected.is_there
}
