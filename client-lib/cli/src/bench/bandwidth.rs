//! Measures bandwidth: from the first send until the receivers' code has released the last message.
//! Bytes that only lie in a socket's buffer do not count.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use multinet_client::{Buffer, Frame, PeerSet, PeerStatus, Statistics};
use tokio::time::timeout;

use super::Extent;
use super::figures::{Bandwidth, MAX_FOR_PEAK, Times};
use crate::common::LOST_PACKETS;

/// How long the servers may release no message before they count as hung, and the measurement
/// fails.
const HUNG: Duration = Duration::from_secs(30);

/// Measures the bandwidth of messages of one size, at most `depth` of which are under way at a
/// time.
pub(super) async fn measure(
    peers: &PeerSet,
    message: Buffer,
    extent: Extent,
    connections: u64,
    depth: u64,
) -> anyhow::Result<Bandwidth> {
    let bytes = u32::try_from(message.len()).context("the message is too long")?;
    let count = extent.count.saturating_mul(connections);
    let frame = Frame::new(message);
    warm_up(peers, &frame, connections).await?;
    let mut run = Measurement::new(peers, count <= MAX_FOR_PEAK);
    let mut posted = 0;
    while posted < count && run.start.elapsed() < extent.time {
        run.post();
        send(peers, frame.clone()).await?;
        posted += 1;
        if run.check()?.outstanding >= depth {
            unless_hung(peers.outstanding_at_most(depth.saturating_sub(1))).await?;
        }
    }
    run.end().await?;
    let took = run.start.elapsed();
    Ok(Bandwidth::of(bytes, posted, took, &run.times))
}

/// Measures as [`measure`] by one connection. If not all is confirmed when the time and `late` are
/// over, it waits for the next message only, at most for `next`, and counts the messages so far:
/// those under way would take a slow link very long.
pub(super) async fn measure_or_count(
    peers: &PeerSet,
    message: Buffer,
    extent: Extent,
    depth: u64,
    (late, next): (Duration, Duration),
) -> anyhow::Result<Bandwidth> {
    let bytes = u32::try_from(message.len()).context("the message is too long")?;
    let mut run = Measurement::new(peers, false);
    if let Ok(all) = timeout(extent.time + late, measure(peers, message, extent, 1, depth)).await {
        return all;
    }
    let slow = || {
        let seconds = next.as_secs_f64();
        format!(
            "no message of {bytes} bytes has got through for {seconds} s: the link is very slow, or the server hangs"
        )
    };
    let outstanding = run.check()?.outstanding;
    timeout(next, peers.outstanding_at_most(outstanding.saturating_sub(1))).await.with_context(slow)?;
    let took = run.start.elapsed();
    let now = run.check()?;
    let confirmed = run.confirmed(&now);
    ensure!(confirmed > 0, slow());
    Ok(Bandwidth::of(bytes, confirmed, took, &Times::default()))
}

/// Sends one message by each connection before the measurement: with the first message, memory is
/// registered for the connection's device, which other tools do before they begin.
async fn warm_up(peers: &PeerSet, frame: &Frame, connections: u64) -> anyhow::Result<()> {
    let mut run = Measurement::new(peers, false);
    // Each message goes by the connection with the most credits.
    for _ in 0..connections {
        send(peers, frame.clone()).await?;
    }
    run.end().await
}

/// State of the bandwidth measurement of one message size.
struct Measurement<'p> {
    peers: &'p PeerSet,
    before: Statistics,
    start: Instant,
    notes_times: bool,
    times: Times,
}

impl<'p> Measurement<'p> {
    fn new(peers: &'p PeerSet, notes_times: bool) -> Self {
        Self {
            peers,
            before: peers.statistics(),
            start: Instant::now(),
            notes_times,
            times: Times::default(),
        }
    }

    fn post(&mut self) {
        if self.notes_times {
            self.times.posted.push(self.start.elapsed());
        }
    }

    /// Waits until the servers have confirmed all messages.
    async fn end(&mut self) -> anyhow::Result<()> {
        loop {
            let outstanding = self.check()?.outstanding;
            if outstanding == 0 {
                return Ok(());
            }
            unless_hung(self.peers.outstanding_at_most(outstanding - 1)).await?;
        }
    }

    /// Notes how many messages the servers have confirmed by now. Fails if a connection has broken.
    fn check(&mut self) -> anyhow::Result<Statistics> {
        let now = self.peers.statistics();
        if now.disconnects != self.before.disconnects {
            // Nearly always, one connection has broken.
            let reason =
                |peer: PeerStatus| Some(format!("{}: {}", peer.endpoint.target, peer.last_disconnect?));
            let reasons: Vec<String> = self.peers.status().into_iter().filter_map(reason).collect();
            let reasons = reasons.join("; ");
            // The status has no peers that DNS no longer names.
            let reasons = if reasons.is_empty() { "its peer is gone" } else { &reasons };
            let sent = now.frames - self.before.frames;
            let likely = if sent > 0 && sent == now.lost - self.before.lost + now.held as u64 {
                format!(". No message got through. {LOST_PACKETS}; multinet doctor says so")
            } else {
                String::new()
            };
            bail!("a connection broke during the measurement: {reasons}{likely}");
        }
        if self.notes_times {
            let confirmed = usize::try_from(self.confirmed(&now)).unwrap_or(usize::MAX);
            if confirmed > self.times.completed.len() {
                self.times.completed.resize(confirmed, self.start.elapsed());
            }
        }
        Ok(now)
    }

    /// Returns how many messages the servers have confirmed.
    fn confirmed(&self, now: &Statistics) -> u64 {
        (now.frames - self.before.frames).saturating_sub(now.outstanding)
    }
}

async fn send(peers: &PeerSet, frame: Frame) -> anyhow::Result<()> {
    // A timer for each message would be measured, too, so one is set only when it has to wait.
    match peers.try_send(frame) {
        Ok(_) => Ok(()),
        Err((_, multinet_client::TrySendError::Never(error))) => Err(error.into()),
        Err((frame, _)) => unless_hung(peers.send(frame)).await?.map(drop).map_err(Into::into),
    }
}

/// Waits until the servers make progress. Fails after [`HUNG`] without any.
async fn unless_hung<T>(progress: impl Future<Output = T>) -> anyhow::Result<T> {
    let late = || format!("the server has taken nothing for {} s", HUNG.as_secs());
    timeout(HUNG, progress).await.with_context(late)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use multinet_client::{Connector, Endpoint, Listener, Resolver};

    use super::*;

    /// Returns a server, and a connection to it.
    async fn connected() -> (Listener, PeerSet) {
        let listener = Listener::builder().address(Ipv4Addr::LOCALHOST.into()).port(0).bind().await.unwrap();
        let resolver =
            Resolver::builder().servers([SocketAddr::from((Ipv4Addr::LOCALHOST, 9))]).build().unwrap();
        let endpoints = vec![Endpoint::at(listener.local_addresses()[0])];
        let connector = Connector::builder().resolver(resolver).build().unwrap();
        let peers = connector.follow("infer", futures::stream::iter([endpoints]));
        peers.connected(1).await;
        (listener, peers)
    }

    #[tokio::test]
    async fn what_a_slow_server_has_confirmed_is_counted() {
        let (listener, peers) = connected().await;
        let [pace, time] = [50, 200].map(Duration::from_millis);
        let extent = Extent { count: u64::MAX, time };
        let measure = |next| measure_or_count(&peers, Buffer::host(1000), extent, 16, (pace, next));
        // Those under way take four times as long as the measurement.
        let serving = tokio::spawn({
            let listener = listener.clone();
            async move {
                while let Ok(_received) = listener.recv().await {
                    tokio::time::sleep(pace).await;
                }
            }
        });
        let figures = measure(HUNG).await.unwrap();
        let now = peers.statistics();
        assert!((1..=now.frames - now.outstanding).contains(&figures.iterations), "{figures:?} {now:?}");
        assert!(figures.average > 0.0, "{figures:?}");
        // What the server has taken, it keeps.
        serving.abort();
        let error = measure(pace).await.unwrap_err().to_string();
        assert!(error.starts_with("no message of 1000 bytes has got through for 0.05 s"), "{error}");
    }

    #[tokio::test]
    async fn a_connection_that_breaks_says_why() {
        let (listener, peers) = connected().await;
        let mut run = Measurement::new(&peers, false);
        run.check().unwrap();
        listener.close().await;
        while peers.statistics().disconnects == 0 {
            tokio::task::yield_now().await;
        }
        let error = run.check().err().unwrap().to_string();
        let begin = "a connection broke during the measurement: 127-0-0-1: the peer closed the connection: ";
        assert!(error.starts_with(begin), "{error}");
    }
}
