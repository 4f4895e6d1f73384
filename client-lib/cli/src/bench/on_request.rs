//! Measurements towards other pods, which `multinet matrix` asks for.
//!
//! The server must not become a generator of traffic for strangers: asker and target have to be
//! current addresses of the service of `--matrix`, and stay so until the end. A measurement is
//! bounded in time and bytes. It goes to the port that the server itself listens on. The server
//! measures for one asker, the first one, until it is gone, and makes one measurement at a time.
//! Another asker is refused: measurements at the same time would make each other's figures wrong.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use bytes::Bytes;
use futures::stream;
use multinet_client::{Connector, Endpoint, Frame, PeerSet, Sender, Transport};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::back::{self, Back};
use super::client::transport;
use super::members::Members;
use super::memory::Memory;
use super::request::{Answer, MeasurementOutcome, Question, Task, encode};
use super::{Extent, ServerArgs, bandwidth};

/// Most sessions that may ask at a time. All but one are refused, by an answer of their own.
const MAX_ASKERS: usize = 64;

/// Most questions of an asker that wait. An honest one waits for each answer.
const MAX_WAITING: usize = 4;

/// How long the server tries to connect to a target.
const CONNECT: Duration = Duration::from_secs(5);

/// How long a measurement may take beyond its time until the last message is confirmed, and then,
/// on a slow link, until the next one is. With [`CONNECT`] and [`GOODBYE`], it is less than the
/// asker waits.
const LATE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(6));

/// How long the server waits at the end of a measurement until the target has closed the
/// connection.
const GOODBYE: Duration = Duration::from_secs(1);

/// Interval between checks whether the connection to a target is there.
const POLL: Duration = Duration::from_millis(5);

/// Messages under way at a time, as many as those of `bench client`.
const DEPTH: u64 = 128;

/// Askers of measurements, and what the measurements need.
pub(super) struct OnRequest {
    /// In the order in which they came: only the first one gets measurements.
    askers: Vec<Asker>,
    /// Answers go by TCP, as questions do, so that an asker needs no RDMA.
    back: Back,
    measuring: Arc<Measuring>,
}

/// Asker of measurements. Its task ends with it.
struct Asker {
    session: u128,
    client: SocketAddr,
    /// Questions, or the reasons why they are refused, each with the number of the question.
    questions: mpsc::Sender<Result<Task, (u64, String)>>,
    task: JoinHandle<()>,
}

struct Measuring {
    /// Absent without `--matrix`: then each question is refused.
    members: Option<Members>,
    connector: Connector,
    memory: Memory,
    /// Port of the targets.
    port: u16,
}

impl Drop for Asker {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl OnRequest {
    /// # Errors
    ///
    /// If TLS or the memory cannot be set up.
    pub(super) fn new(args: &ServerArgs, members: Option<Members>, port: u16) -> anyhow::Result<Self> {
        let mut connector = back::builder(args)?;
        if let Some(tls) = args.listen.tls.tls()? {
            connector = connector.tls(tls);
        }
        let memory = Memory::of(args.device.use_cuda)?;
        if let Some(gpu) = memory.gpu() {
            connector = connector.gpu(Arc::clone(gpu));
        }
        let measuring = Arc::new(Measuring { members, connector: connector.build()?, memory, port });
        Ok(Self { askers: Vec::new(), back: Back::new(args, Transport::Tcp)?, measuring })
    }

    /// Takes a question. The answer goes to the address that it came from, at the port that it
    /// names.
    pub(super) fn take(&mut self, session: u128, sender: Sender<'_>, question: Question) {
        let client = SocketAddr::new(sender.address().ip(), question.echo_to_port);
        let place = match self.askers.iter().position(|asker| asker.session == session) {
            Some(place) => place,
            None if self.askers.len() >= MAX_ASKERS => {
                return warn!(%client, "it gets no measurement: {MAX_ASKERS} others ask for some already");
            }
            None => {
                let connector = match self.back.connector(sender.certificate_names()) {
                    Ok(connector) => connector,
                    Err(error) => {
                        return warn!(%client, "it gets no measurement: {error}; give a name of its certificate by --tls-name");
                    }
                };
                let (questions, inbox) = mpsc::channel(MAX_WAITING);
                let task = tokio::spawn(serve(connector, client, inbox, Arc::clone(&self.measuring)));
                self.askers.push(Asker { session, client, questions, task });
                self.askers.len() - 1
            }
        };
        let Task { id, .. } = question.measure;
        let asked = match place {
            0 => Ok(question.measure),
            _ => Err((id, format!("another matrix is being measured, from {}", self.askers[0].client.ip()))),
        };
        if self.askers[place].questions.try_send(asked).is_err() {
            warn!(%client, "it gets no measurement: it asks for one before the last has ended");
        }
    }

    /// Ends what is done for askers whose session has ended.
    pub(super) fn forget_gone(&mut self, is_connected: impl Fn(u128) -> bool) {
        self.askers.retain(|asker| is_connected(asker.session));
    }
}

/// Connects back to an asker, and answers its questions one after the other.
async fn serve(
    connector: Connector,
    client: SocketAddr,
    mut inbox: mpsc::Receiver<Result<Task, (u64, String)>>,
    measuring: Arc<Measuring>,
) {
    let peers = match back::connect(&connector, client).await {
        Ok(peers) => peers,
        Err(error) => return warn!(%client, "it gets no answers: {error}"),
    };
    while let Some(asked) = inbox.recv().await {
        let answer = match asked {
            Ok(task) => {
                let outcome = measuring.answer(client.ip(), &task).await.shortened();
                info!(%client, target = %task.target, ?outcome, "measured on request");
                Answer { id: task.id, outcome }
            }
            Err((id, reason)) => Answer { id, outcome: MeasurementOutcome::Refused(reason) },
        };
        if peers.send(Frame::new(Bytes::new()).metadata(encode(&answer))).await.is_err() {
            return;
        }
    }
}

impl Measuring {
    async fn answer(&self, asker: IpAddr, task: &Task) -> MeasurementOutcome {
        let (members, extent) = match self.checked(asker, task) {
            Ok(checked) => checked,
            Err(reason) => return MeasurementOutcome::Refused(reason),
        };
        let measured = async {
            match self.measure(members.service(), task, extent).await {
                Ok((bytes_per_second, transport)) => {
                    MeasurementOutcome::Measured { bytes_per_second, transport }
                }
                Err(error) => MeasurementOutcome::Failed(format!("{error:#}")),
            }
        };
        tokio::select! {
            outcome = measured => outcome,
            reason = members.left([asker, task.target]) => MeasurementOutcome::Failed(reason),
        }
    }

    /// Returns the members among which a measurement may go on, and its extent.
    ///
    /// # Errors
    ///
    /// The reason why it is refused.
    fn checked(&self, asker: IpAddr, task: &Task) -> Result<(&Members, Extent), String> {
        let members = self
            .members
            .as_ref()
            .ok_or("this server takes part in no matrix: start it with --matrix SERVICE")?;
        members.check(asker)?;
        members.check(task.target)?;
        Ok((members, task.extent()?))
    }

    /// Returns the bandwidth to the target in bytes per second, and the transport.
    async fn measure(&self, service: &str, task: &Task, extent: Extent) -> anyhow::Result<(f64, String)> {
        let endpoint = Endpoint::at(SocketAddr::new(task.target, self.port));
        let peers = self.connector.follow(service, stream::iter([vec![endpoint]]));
        connected(&peers).await?;
        let transport = transport(&peers);
        let message = self.memory.message(task.size as usize)?;
        let figures = bandwidth::measure_or_count(&peers, message, extent, DEPTH, LATE).await?;
        peers.close(GOODBYE).await;
        Ok((figures.average, transport))
    }
}

/// Waits for the connection to a target. The first failure counts: a later connection would not be
/// that of a healthy network.
async fn connected(peers: &PeerSet) -> anyhow::Result<()> {
    let deadline = Instant::now() + CONNECT;
    while peers.statistics().connected == 0 {
        if let Some(error) = peers.status().first().and_then(|peer| peer.last_error.clone()) {
            bail!("{error}");
        }
        if Instant::now() >= deadline {
            bail!("no connection within {} s", CONNECT.as_secs());
        }
        sleep(POLL).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::Ipv4Addr;

    use multinet_client::Listener;
    use tokio::sync::watch;

    use super::super::request::MAX_SECONDS;
    use super::*;
    use crate::common::address_resolver;

    const ASKER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 1));
    const STRANGER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 9));

    /// Returns what measures for members, which the test may change, and a target that counts
    /// nothing.
    async fn measuring(
        is_matrix: bool,
    ) -> (Arc<Measuring>, watch::Sender<Option<BTreeSet<IpAddr>>>, Listener) {
        let target = Listener::builder().address(ASKER).port(0).bind().await.unwrap();
        let (tell, members) = Members::given("train", Some(BTreeSet::from([ASKER])));
        let measuring = Measuring {
            members: is_matrix.then_some(members),
            connector: Connector::builder().resolver(address_resolver().unwrap()).build().unwrap(),
            memory: Memory::of(None).unwrap(),
            port: target.local_addresses()[0].port(),
        };
        (Arc::new(measuring), tell, target)
    }

    fn task(target: IpAddr, size: u32, seconds: u32) -> Task {
        Task { id: 1, target, size, seconds }
    }

    /// Releases all that a target receives.
    fn release(target: &Listener) -> JoinHandle<()> {
        let target = target.clone();
        tokio::spawn(async move { while target.recv().await.is_ok() {} })
    }

    #[tokio::test]
    async fn only_members_ask_and_are_targets_within_bounds() {
        let (measuring, _tell, target) = measuring(true).await;
        let cases = [
            (STRANGER, task(ASKER, 1, 1), "127.0.0.9 is no address of train"),
            (ASKER, task(STRANGER, 1, 1), "127.0.0.9 is no address of train"),
            (ASKER, task(ASKER, u32::MAX, 1), "at most 8388608 bytes and 10 s"),
            (ASKER, task(ASKER, 1, u32::MAX), "at most 8388608 bytes and 10 s"),
        ];
        for (asker, task, expected) in cases {
            let outcome = measuring.answer(asker, &task).await;
            assert!(
                matches!(&outcome, MeasurementOutcome::Refused(reason) if reason.contains(expected)),
                "{outcome:?}"
            );
        }
        let (outside, _tell, _target) = self::measuring(false).await;
        let outcome = outside.answer(ASKER, &task(ASKER, 1, 1)).await;
        assert!(
            matches!(&outcome, MeasurementOutcome::Refused(reason) if reason.contains("--matrix SERVICE")),
            "{outcome:?}"
        );
        // No connection was made for these.
        assert_eq!(target.statistics().connections, 0);
        let released = release(&target);
        let outcome = measuring.answer(ASKER, &task(ASKER, 4096, 1)).await;
        let MeasurementOutcome::Measured { bytes_per_second, transport } = outcome else {
            panic!("{outcome:?}")
        };
        assert!(bytes_per_second > 0.0 && transport == "TCP", "{bytes_per_second} {transport}");
        released.abort();
    }

    /// The time of the measurement is far from over.
    #[tokio::test]
    async fn a_member_that_leaves_ends_the_measurement() {
        let (measuring, tell, target) = measuring(true).await;
        let _released = release(&target);
        let running =
            tokio::spawn(async move { measuring.answer(ASKER, &task(ASKER, 4096, MAX_SECONDS)).await });
        while target.statistics().connections == 0 {
            tokio::task::yield_now().await;
        }
        tell.send_replace(Some(BTreeSet::new()));
        let outcome = running.await.unwrap();
        assert!(
            matches!(&outcome, MeasurementOutcome::Failed(reason) if reason.contains("no address of train")),
            "{outcome:?}"
        );
        while target.statistics().connections > 0 {
            sleep(POLL).await;
        }
    }

    #[tokio::test]
    async fn a_target_without_a_server_is_a_failure_with_the_reason() {
        let (measuring, _tell, target) = measuring(true).await;
        target.close().await;
        let outcome = measuring.answer(ASKER, &task(ASKER, 4096, 1)).await;
        assert!(
            matches!(&outcome, MeasurementOutcome::Failed(reason) if reason.contains("nothing listens")),
            "{outcome:?}"
        );
    }
}
