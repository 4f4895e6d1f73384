//! Connections to the servers on all hosts, and the way of a question and its answer.
//!
//! Each server connects back to this process for its answers, as for a latency test.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
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
use crate::bench::request::{Answer, MeasurementOutcome, Question, Task, decode, encode};
use crate::output::with_flag_names;

/// How long a server may take for an answer beyond the time of the measurement: to connect, and to
/// have its last messages confirmed.
const LATE: Duration = Duration::from_secs(15);

/// How long the servers have to be connected, counted from the last one that was.
const NEXT: Duration = Duration::from_secs(5);

/// How often in a row a server may not answer before it is asked no more.
const MOST_MISSED: u32 = 2;

/// Interval between checks of the connections.
const POLL: Duration = Duration::from_millis(50);

/// Most bytes per second that are believed: a hundred times those of the fastest NICs.
const MOST: f64 = 1e13;

/// Answers that are awaited, by the number of the question.
type Awaited = Arc<Mutex<HashMap<u64, (BTreeSet<IpAddr>, oneshot::Sender<MeasurementOutcome>)>>>;

/// Connections to the servers on the hosts.
pub(super) struct Servers {
    hosts: Vec<PeerSet>,
    addresses: Vec<BTreeSet<IpAddr>>,
    /// Port on which this process listens for answers.
    port: u16,
    awaited: Awaited,
    missed: Mutex<Missed>,
    /// Addresses that a server could not measure towards while the servers there were not connected
    /// to this process either.
    unreached: Mutex<BTreeSet<IpAddr>>,
}

/// How often in a row the servers on hosts have not answered in time, though they are connected.
#[derive(Default)]
struct Missed(HashMap<usize, u32>);

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
        let this = Self::new(connector, listener, service, hosts)?;
        this.all_connected().await;
        this.claim();
        Ok(this)
    }

    fn new(
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
        let hosts = hosts.iter().map(follow).collect();
        let (missed, unreached) = Default::default();
        Ok(Self { hosts, addresses, port, awaited, missed, unreached })
    }

    /// Has each server take this matrix for its asker, before another one comes between the rounds.
    /// The question is one that every server refuses.
    fn claim(&self) {
        let measure = Task { id: 0, target: Ipv4Addr::UNSPECIFIED.into(), size: 0, seconds: 0 };
        let metadata = encode(&Question { echo_to_port: self.port, measure });
        for host in &self.hosts {
            // Of a server that is not there, the measurements tell.
            let _ = host.try_send(Frame::new(Bytes::new()).metadata(metadata.clone()));
        }
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

    /// Has a host measure towards an address of another one.
    pub(super) async fn measure(&self, (from, to): (usize, usize), target: IpAddr, load: Load) -> Cell {
        let (Some(host), Some(addresses)) = (self.hosts.get(from), self.addresses.get(from)) else {
            return Cell::Empty;
        };
        if !is_connected(host) {
            let why = why(host);
            return Cell::Failed(format!("its server is not connected: {}", with_flag_names(&why)));
        }
        if let Some(reason) = self.missed.lock().reason((from, to)) {
            return Cell::Failed(reason);
        }
        let lacks_receiver = || self.hosts.get(to).is_some_and(|host| !is_connected(host));
        // It would cost each sender the time to connect, in every round.
        if lacks_receiver() && self.unreached.lock().contains(&target) {
            return Cell::Failed("neither this pod nor another one reaches the receiver's server".to_owned());
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
                Ok(_) => {
                    told.await.unwrap_or_else(|_| MeasurementOutcome::Failed("it gave no answer".to_owned()))
                }
                Err(error) => MeasurementOutcome::Failed(error.to_string()),
            }
        };
        let outcome = tokio::select! {
            outcome = asking => {
                self.missed.lock().note(from, true);
                outcome
            }
            () = broken(host, before) => {
                MeasurementOutcome::Failed(format!("its server is gone: {}", why(host)))
            }
            () = sleep(limit) => {
                self.missed.lock().note(from, false);
                MeasurementOutcome::Failed(format!(
                    "its server has not answered within {} s",
                    limit.as_secs()
                ))
            }
        };
        self.awaited.lock().remove(&id);
        match outcome {
            MeasurementOutcome::Measured { bytes_per_second, transport }
                if (0.0..MOST).contains(&bytes_per_second) && is_transport(&transport) =>
            {
                Cell::Figure { gbps: bytes_per_second * 8.0 / 1e9, transport }
            }
            MeasurementOutcome::Measured { .. } => Cell::Failed("its server answered nonsense".to_owned()),
            MeasurementOutcome::Refused(reason) => {
                Cell::Failed(format!("its server refuses: {}", with_flag_names(&reason)))
            }
            MeasurementOutcome::Failed(reason) => {
                if lacks_receiver() {
                    self.unreached.lock().insert(target);
                }
                Cell::Failed(with_flag_names(&reason).into_owned())
            }
        }
    }
}

impl Missed {
    fn note(&mut self, host: usize, has_answered: bool) {
        match has_answered {
            true => drop(self.0.remove(&host)),
            false => *self.0.entry(host).or_default() += 1,
        }
    }

    /// Returns why a pair is not measured, if one of its servers hangs: it would cost its time
    /// limit in every round.
    fn reason(&self, (from, to): (usize, usize)) -> Option<String> {
        let hangs = |host| self.0.get(&host).is_some_and(|missed| *missed >= MOST_MISSED);
        let whose = if hangs(from) { "its" } else { "the receiver's" };
        (hangs(from) || hangs(to))
            .then(|| format!("{whose} server has not answered {MOST_MISSED} times, and is asked no more"))
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
        let _ =
            tell.send(MeasurementOutcome::Refused("it is of a version without multinet matrix".to_owned()));
    }
}

/// Completes when a connection to the host has broken since there were so many disconnects.
async fn broken(host: &PeerSet, disconnects: u64) {
    while host.statistics().disconnects == disconnects {
        sleep(POLL).await;
    }
}

/// Returns whether a text is the name of a transport, as servers of this or a later version write
/// it.
fn is_transport(text: &str) -> bool {
    (1..=16).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b" -".contains(&byte))
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
        does: impl FnOnce(Listener, u16, u64) -> D + Send + 'static,
    ) -> Cell {
        let server = listener().await;
        let host = Endpoint::at(server.local_addresses()[0]);
        let servers = Servers::connect(&connector(), listener().await, "train", &[host]).await.unwrap();
        let serving = async {
            // The first one only claims the server.
            drop(server.recv().await.unwrap());
            let question = server.recv().await.unwrap();
            let Question { echo_to_port, measure } = decode(question.metadata()).unwrap();
            drop(question);
            does(server, echo_to_port, measure.id).await;
        };
        let (cell, ()) = tokio::join!(servers.measure((0, 1), Ipv4Addr::LOCALHOST.into(), LOAD), serving);
        cell
    }

    async fn send(port: u16, frame: Frame) {
        let peers = connector().connect("127.0.0.1", &port.to_string()).await.unwrap();
        peers.send(frame).await.unwrap();
        peers.close(NEXT).await;
    }

    /// Returns the cell of a server that answers this.
    async fn told(bytes_per_second: f64, transport: &'static str) -> Cell {
        let cell = answered(move |server, port, id| async move {
            let outcome = MeasurementOutcome::Measured { bytes_per_second, transport: transport.to_owned() };
            send(port, Frame::new("").metadata(encode(&Answer { id, outcome }))).await;
            drop(server);
        });
        cell.await
    }

    #[tokio::test]
    async fn figures_that_no_nic_reaches_and_odd_transports_are_nonsense() {
        assert_eq!(told(1.25e9, "TCP").await, Cell::Figure { gbps: 10.0, transport: "TCP".to_owned() });
        for (bytes_per_second, transport) in [(1e308, "TCP"), (-1.0, "TCP"), (1.0, ""), (1.0, "a\n\x1b[2J")] {
            let cell = told(bytes_per_second, transport).await;
            assert_eq!(cell, Cell::Failed("its server answered nonsense".to_owned()), "{transport:?}");
        }
    }

    #[test]
    fn a_server_that_does_not_answer_twice_in_a_row_hangs() {
        let mut missed = Missed::default();
        for has_answered in [false, true, false] {
            missed.note(1, has_answered);
            assert_eq!(missed.reason((1, 2)), None);
        }
        missed.note(1, false);
        let reason = |pair| missed.reason(pair).unwrap_or_default();
        assert_eq!(reason((1, 2)), "its server has not answered 2 times, and is asked no more");
        assert_eq!(reason((2, 1)), "the receiver's server has not answered 2 times, and is asked no more");
        assert_eq!(reason((2, 3)), "");
    }

    #[tokio::test]
    async fn a_server_that_hangs_is_asked_no_more() {
        let server = listener().await;
        let host = Endpoint::at(server.local_addresses()[0]);
        let servers = Servers::connect(&connector(), listener().await, "train", &[host]).await.unwrap();
        servers.missed.lock().0.insert(0, MOST_MISSED);
        let cell = servers.measure((0, 1), Ipv4Addr::LOCALHOST.into(), LOAD).await;
        assert!(matches!(&cell, Cell::Failed(reason) if reason.contains("is asked no more")), "{cell:?}");
    }

    #[tokio::test]
    async fn a_receiver_that_no_one_reaches_costs_one_sender_its_time() {
        let server = listener().await;
        let gone = listener().await;
        let there = Endpoint::at(server.local_addresses()[0]);
        let not_there = Endpoint::at(gone.local_addresses()[0]);
        gone.close().await;
        let servers = Servers::new(&connector(), listener().await, "train", &[there, not_there]).unwrap();
        servers.hosts[0].connected(1).await;
        let target = |last| IpAddr::from([127, 0, 0, last]);
        // The server answers two questions: of the same address, only the first one is asked.
        let serving = tokio::spawn(async move {
            for _ in 0..2 {
                let Question { echo_to_port, measure } =
                    decode(server.recv().await.unwrap().metadata()).unwrap();
                let outcome = MeasurementOutcome::Failed("no connection".to_owned());
                let answer = Answer { id: measure.id, outcome };
                send(echo_to_port, Frame::new("").metadata(encode(&answer))).await;
            }
        });
        let mut said = Vec::new();
        for last in [1, 1, 2] {
            said.push(servers.measure((0, 1), target(last), LOAD).await);
        }
        let not_asked = "neither this pod nor another one reaches the receiver's server";
        let expected = ["no connection", not_asked, "no connection"];
        assert_eq!(said, expected.map(|reason| Cell::Failed(reason.to_owned())));
        serving.await.unwrap();
    }

    #[tokio::test]
    async fn a_server_of_an_earlier_version_is_told_by_its_empty_echo() {
        let cell = answered(|server, port, _| async move {
            send(port, Frame::new("")).await;
            drop(server);
        });
        let expected = "its server refuses: it is of a version without multinet matrix";
        assert_eq!(cell.await, Cell::Failed(expected.to_owned()));
    }

    #[tokio::test]
    async fn a_server_that_dies_during_a_measurement_is_a_failure() {
        let cell = answered(|server, _, _| async move { server.close().await }).await;
        assert!(
            matches!(&cell, Cell::Failed(reason) if reason.starts_with("its server is gone: ")),
            "{cell:?}"
        );
    }
}
