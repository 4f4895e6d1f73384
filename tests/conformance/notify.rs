//! Notifications (RFC 1996), as a secondary receives them. Their repetition without an answer, and
//! its log lines, are tested in `dns-server/src/secondary/notifier`.

use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use multinet_testing::dns::{PATIENCE, Reply};
use multinet_testing::server::{Flags, Manifests, Server, eventually};

use crate::fixtures::{Service, ZONE};

/// Time without notifications after which a test expects no more. It is longer than a notification
/// takes on a machine that is not busy.
const SILENCE: Duration = Duration::from_millis(700);

/// Secondary that receives notifications and acknowledges them.
struct Secondary {
    socket: UdpSocket,
    /// Accepted notifications, and the number of repetitions: on a busy machine, an acknowledgement
    /// may be late.
    accepted: Mutex<(BTreeSet<(String, u32)>, u32)>,
}

impl Secondary {
    fn new() -> Result<Self> {
        Ok(Self { socket: UdpSocket::bind("127.0.0.1:0")?, accepted: Mutex::default() })
    }

    fn flag(&self) -> Result<String> {
        Ok(format!("--notify {}", self.socket.local_addr()?))
    }

    /// Waits for the first notification of a version, and acknowledges it. Returns the zone and its
    /// serial.
    fn receive(&self, bound: Duration) -> Result<Option<(String, u32)>> {
        let deadline = Instant::now() + bound;
        loop {
            let rest = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            let Some(told) = self.receive_any(rest)? else { return Ok(None) };
            let mut accepted = self.accepted.lock().map_err(|_| anyhow!("another thread has panicked"))?;
            if accepted.0.insert(told.clone()) {
                return Ok(Some(told));
            }
            accepted.1 += 1;
            ensure!(Instant::now() < deadline, "the notification {told:?} is repeated all the time");
        }
    }

    /// Fails if the server has repeated more notifications than it counts as unanswered.
    fn check_repetitions(&self, server: &Server) -> Result<()> {
        let repeats = self.accepted.lock().map_err(|_| anyhow!("another thread has panicked"))?.1;
        let failed = counted(server, "failed")?;
        ensure!(f64::from(repeats) <= failed, "{repeats} repetitions of {failed} unanswered notifications");
        Ok(())
    }

    /// Waits for any notification, repeated or not, and acknowledges it. Returns the zone and its
    /// serial.
    fn receive_any(&self, bound: Duration) -> Result<Option<(String, u32)>> {
        let mut packet = [0; 1024];
        self.socket.set_read_timeout(Some(bound))?;
        let Ok((length, peer)) = self.socket.recv_from(&mut packet) else { return Ok(None) };
        // Opcode NOTIFY with the flag AA.
        ensure!(packet[2..4] == [0x24, 0], "flags {:02x?}", &packet[2..4]);
        packet[2] |= 0x80;
        let reply = Reply::parse(packet[..length].to_vec())?;
        let serial = reply.serial().with_context(|| format!("no SOA in {:?}", reply.answers()))?;
        let question = reply.message.queries.first().context("no question")?;
        self.socket.send_to(&packet[..length], peer)?;
        Ok(Some((question.name().to_ascii().trim_end_matches('.').to_owned(), serial)))
    }

    /// Waits for notifications of exactly these zones.
    fn receive_all(&self, zones: &[&str]) -> Result<()> {
        let mut missing: BTreeSet<&str> = zones.iter().copied().collect();
        while !missing.is_empty() {
            let told = self.receive(PATIENCE)?;
            let (zone, _) = told.with_context(|| format!("no notification of {missing:?}"))?;
            ensure!(missing.remove(&*zone), "an unexpected notification of {zone}");
        }
        Ok(())
    }

    /// Fails if a notification arrives within [`SILENCE`].
    fn expect_none(&self) -> Result<()> {
        let heard = self.receive(SILENCE)?;
        ensure!(heard.is_none(), "an unexpected notification: {heard:?}");
        Ok(())
    }
}

fn counted(server: &Server, what: &str) -> Result<f64> {
    server.metric(&format!("multinet_dns_notifies_{what}_total"))
}

#[test]
fn secondaries_are_notified_of_the_zones_that_changed() -> Result<()> {
    let manifests = Manifests::new()?;
    let secondary = Secondary::new()?;
    let server = Flags::new().words(&secondary.flag()?).start(manifests.path())?;
    // At the start, all zones are notified.
    secondary.receive_all(&[ZONE, "in-addr.arpa", "ip6.arpa"])?;
    secondary.expect_none()?;
    manifests.replace("one.yaml", &Service::new("one").endpoint([10, 0, 0, 1]).yaml())?;
    secondary.receive_all(&[ZONE, "in-addr.arpa"])?;
    secondary.expect_none()?;
    // Writing the same manifest again changes nothing.
    manifests.replace("one.yaml", &Service::new("one").endpoint([10, 0, 0, 1]).yaml())?;
    secondary.expect_none()?;
    ensure!(counted(&server, "sent")? >= 5.0, "{} sent", counted(&server, "sent")?);
    eventually("the answers to be counted", || {
        let acknowledged = counted(&server, "acknowledged")?;
        ensure!(acknowledged >= 5.0, "{acknowledged} acknowledged");
        Ok(())
    })?;
    secondary.check_repetitions(&server)
}

/// A secondary identifies its primary by the address that it queries.
#[test]
fn notifications_are_sent_from_the_listening_address() -> Result<()> {
    let manifests = Manifests::new()?;
    let secondary = Secondary::new()?;
    let flags = Flags::new().words(&secondary.flag()?).listen_instead("dns://127.0.0.2:0");
    let _server = flags.start(manifests.path())?;
    secondary.socket.set_read_timeout(Some(PATIENCE))?;
    let (_, peer) = secondary.socket.recv_from(&mut [0; 1024])?;
    ensure!(peer.ip().to_string() == "127.0.0.2", "from {peer}");
    Ok(())
}
