//! Connections to the servers on all hosts, and the way of a question and its answer.
//!
//! Each server connects back to this process for its answers, as for a latency test.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use futures::stream;
use multinet_client::{Connector, Endpoint, Frame, Listener, PeerSet, Received};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use super::grid::Cell;
use crate::bench::request::{Answer, Outcome, Question, Task, decode, encode};

/// How long a server may take for an answer beyond the time of the measurement: to connect, and to
/// have its last messages confirmed.
const LATE: Duration = Duration::from_secs(15);

/// How long the servers have to be connected, counted from the last one that was.
const NEXT: Duration = Duration::from_secs(5);

/// Interval between checks of the connections.
const POLL: Duration = Duration::from_millis(50);

/// Answers that are awaited, by the number of the question.
type Awaited = Arc<Mutex<HashMap<u64, (BTreeSet<IpAddr>, oneshot::Sender<Outcome>)>>>;

/// Connections to the servers on the hosts.
pub(super) struct Servers {
    hosts: Vec<PeerSet>,
    addresses: Vec<BTreeSet<IpAddr>>,
    /// Port on which this process listens for answers.
    port: u16,
    awaited: Awaited,
}

/// Size and time of each measurement.
#[derive(Clone, Copy)]
pub(super) struct Load {
    pub(super) size: u32,
    pub(super) seconds: u32,
}

impl Servers {
    /// Connects to the servers, and listens for their answers. A server that is not connected in
    /// time is reported by each of its measurements.
    pub(super) async fn connect(
        connector: &Connector,
        listener: Listener,
        service: &str,
        hosts: &[Endpoint],
    ) -> anyhow::Result<Self> {
        let port = listener.local_addresses().first().map(SocketAddr::port).context("nothing was bound")?;
        let awaited = Awaited::default();
        tokio::spawn(hear(listener, Arc::clone(&awaited)));
        let follow = |host: &Endpoint| connector.follow(service, stream::iter([vec![host.clone()]]));
        let addresses = hosts.iter().map(addresses).collect();
        let this = Self { hosts: hosts.iter().map(follow).collect(), addresses, port, awaited };
        this.all_connected().await;
        Ok(this)
    }

    async fn all_connected(&self) {
        let (mut deadline, mut there) = (Instant::now() + NEXT, 0);
        while there < self.hosts.len() && Instant::now() < deadline {
            sleep(POLL).await;
            let now = self.hosts.iter().filter(|host| is_connected(host)).count();
            if now > there {
                (there, deadline) = (now, Instant::now() + NEXT);
            }
        }
    }

    /// Has a host measure towards an address.
    pub(super) async fn measure(&self, from: usize, target: IpAddr, load: Load) -> Cell {
        let (Some(host), Some(addresses)) = (self.hosts.get(from), self.addresses.get(from)) else {
            return Cell::Empty;
        };
        if !is_connected(host) {
            return Cell::Failed(format!("its server is not connected: {}", why(host)));
        }
        let id = fastrand::u64(..);
        let (tell, told) = oneshot::channel();
        self.awaited.lock().insert(id, (addresses.clone(), tell));
        let Load { size, seconds } = load;
        let question = Question { echo_to_port: self.port, measure: Task { id, target, size, seconds } };
        let frame = Frame::new(Bytes::new()).metadata(encode(&question));
        let limit = Duration::from_secs(seconds.into()) + LATE;
        let before = host.statistics().disconnects;
        let asking = async {
            match host.send(frame).await {
                // The other end is dropped with this function only.
                Ok(_) => told.await.unwrap_or_else(|_| Outcome::Failed("it gave no answer".to_owned())),
                Err(error) => Outcome::Failed(error.to_string()),
            }
        };
        let outcome = tokio::select! {
            outcome = asking => outcome,
            () = broken(host, before) => Outcome::Failed(format!("its server is gone: {}", why(host))),
            () = sleep(limit) => Outcome::Failed(format!("its server has not answered within {} s", limit.as_secs())),
        };
        self.awaited.lock().remove(&id);
        match outcome {
            Outcome::Measured { bytes_per_second, transport } if bytes_per_second.is_finite() => {
                Cell::Figure { gbps: bytes_per_second.max(0.0) * 8.0 / 1e9, transport }
            }
            Outcome::Measured { .. } => Cell::Failed("its server answered nonsense".to_owned()),
            Outcome::Refused(reason) => Cell::Failed(format!("its server refuses: {reason}")),
            Outcome::Failed(reason) => Cell::Failed(reason),
        }
    }
}

/// Takes the answers. Only hosts of the matrix may send any.
async fn hear(listener: Listener, awaited: Awaited) {
    while let Ok(received) = listener.recv().await {
        take(&received, &awaited);
    }
}

fn take(received: &Received, awaited: &Awaited) {
    let mut awaited = awaited.lock();
    if let Some(Answer { id, outcome }) = decode(received.metadata()) {
        // The measurement may have been given up.
        if let Some((_, tell)) = awaited.remove(&id) {
            let _ = tell.send(outcome);
        }
        return;
    }
    // A server of an earlier version sends an empty echo.
    let from = received.sender().address().ip();
    for (_, (_, tell)) in awaited.extract_if(|_, (addresses, _)| addresses.contains(&from)) {
        let _ = tell.send(Outcome::Refused("it is of a version without multinet matrix".to_owned()));
    }
}

/// Completes when a connection to the host has broken since there were so many disconnects.
async fn broken(host: &PeerSet, disconnects: u64) {
    while host.statistics().disconnects == disconnects {
        sleep(POLL).await;
    }
}

fn is_connected(host: &PeerSet) -> bool {
    host.statistics().connected > 0
}

/// Returns why a host is not connected.
fn why(host: &PeerSet) -> String {
    let status = host.status();
    let reason = status.first().and_then(|peer| {
        let failure = peer.last_error.as_ref().map(ToString::to_string);
        failure.or_else(|| peer.last_disconnect.clone())
    });
    reason.unwrap_or_else(|| "still connecting".to_owned())
}

fn addresses(host: &Endpoint) -> BTreeSet<IpAddr> {
    host.addresses.iter().map(|address| address.ip).collect()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::common::address_resolver;

    const LOAD: Load = Load { size: 1, seconds: 1 };

    fn connector() -> Connector {
        Connector::builder().resolver(address_resolver().unwrap()).build().unwrap()
    }

    async fn listener() -> Listener {
        Listener::builder().address(Ipv4Addr::LOCALHOST.into()).port(0).bind().await.unwrap()
    }

    /// Returns the cell of a server that does this with the first question.
    async fn answered<D: Future<Output = ()> + Send>(
        does: impl FnOnce(Listener, u16) -> D + Send + 'static,
    ) -> Cell {
        let server = listener().await;
        let host = Endpoint::at(server.local_addresses()[0]);
        let servers = Servers::connect(&connector(), listener().await, "train", &[host]).await.unwrap();
        let serving = async {
            let question = server.recv().await.unwrap();
            let Question { echo_to_port, .. } = decode(question.metadata()).unwrap();
            drop(question);
            does(server, echo_to_port).await;
        };
        let (cell, ()) = tokio::join!(servers.measure(0, Ipv4Addr::LOCALHOST.into(), LOAD), serving);
        cell
    }

    #[tokio::test]
    async fn a_server_of_an_earlier_version_is_told_by_its_empty_echo() {
        let cell = answered(|server, port| async move {
            let peers = connector().connect("127.0.0.1", &port.to_string()).await.unwrap();
            peers.send("").await.unwrap();
            peers.close(NEXT).await;
            drop(server);
        });
        let expected = "its server refuses: it is of a version without multinet matrix";
        assert_eq!(cell.await, Cell::Failed(expected.to_owned()));
    }

    #[tokio::test]
    async fn a_server_that_dies_during_a_measurement_is_a_failure() {
        let cell = answered(|server, _| async move { server.close().await }).await;
        assert!(
            matches!(&cell, Cell::Failed(reason) if reason.starts_with("its server is gone: ")),
            "{cell:?}"
        );
    }
}
