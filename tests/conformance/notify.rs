//! Notifications (RFC 1996), as a secondary hears them. When one without an answer is repeated, and
//! what the log says then, is in `dns-server/src/secondary/notifier`.

use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use multinet_testing::dns::{PATIENCE, Reply};
use multinet_testing::server::{Flags, Manifests, Server, eventually};

use crate::fixtures::{Service, ZONE};

/// How long nothing is to be said. Longer than a change takes that is to be told of, on a machine
/// that is not busy.
const SILENCE: Duration = Duration::from_millis(700);

/// A secondary that hears, and accepts.
struct Secondary {
    socket: UdpSocket,
    /// Accepted NOTIFYs, and the number of repetitions among them: on a busy machine, an answer may
    /// be late.
    accepted: Mutex<(BTreeSet<(String, u32)>, u32)>,
}

impl Secondary {
    fn new() -> Result<Self> {
        Ok(Self { socket: UdpSocket::bind("127.0.0.1:0")?, accepted: Mutex::default() })
    }

    fn flag(&self) -> Result<String> {
        Ok(format!("--notify {}", self.socket.local_addr()?))
    }

    /// Waits that long for a notification that has not been heard before, and accepts it; the zone
    /// and its serial.
    fn hear(&self, bound: Duration) -> Result<Option<(String, u32)>> {
        let deadline = Instant::now() + bound;
        loop {
            let rest = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            let Some(told) = self.hear_any(rest)? else { return Ok(None) };
            let mut accepted = self.accepted.lock().map_err(|_| anyhow!("another thread has panicked"))?;
            if accepted.0.insert(told.clone()) {
                return Ok(Some(told));
            }
            accepted.1 += 1;
            ensure!(Instant::now() < deadline, "told of {told:?} again and again");
        }
    }

    /// Nothing was told twice but what the server has had no answer to.
    fn was_told_once(&self, server: &Server) -> Result<()> {
        let repeats = self.accepted.lock().map_err(|_| anyhow!("another thread has panicked"))?.1;
        let failed = counted(server, "failed")?;
        ensure!(f64::from(repeats) <= failed, "{repeats} repeats, of which {failed} are due");
        Ok(())
    }

    /// The same of whatever is told, for the first time or not.
    fn hear_any(&self, bound: Duration) -> Result<Option<(String, u32)>> {
        let mut packet = [0; 1024];
        self.socket.set_read_timeout(Some(bound))?;
        let Ok((length, peer)) = self.socket.recv_from(&mut packet) else { return Ok(None) };
        // Opcode NOTIFY, AA.
        ensure!(packet[2..4] == [0x24, 0], "flags {:02x?}", &packet[2..4]);
        packet[2] |= 0x80;
        let reply = Reply::parse(packet[..length].to_vec())?;
        let serial = reply.serial().with_context(|| format!("no SOA in {:?}", reply.answers()))?;
        let question = reply.message.queries.first().context("no question")?;
        self.socket.send_to(&packet[..length], peer)?;
        Ok(Some((question.name().to_ascii().trim_end_matches('.').to_owned(), serial)))
    }

    /// Waits until each of these zones, and no other, has been told of.
    fn hear_of(&self, zones: &[&str]) -> Result<()> {
        let mut missing: BTreeSet<&str> = zones.iter().copied().collect();
        while !missing.is_empty() {
            let told = self.hear(PATIENCE)?;
            let (zone, _) = told.with_context(|| format!("not told of {missing:?}"))?;
            ensure!(missing.remove(&*zone), "told of {zone}");
        }
        Ok(())
    }

    /// Nothing is said for a while.
    fn hear_nothing(&self) -> Result<()> {
        let heard = self.hear(SILENCE)?;
        ensure!(heard.is_none(), "told of {heard:?}");
        Ok(())
    }
}

fn counted(server: &Server, what: &str) -> Result<f64> {
    server.metric(&format!("multinet_dns_notifies_{what}_total"))
}

#[test]
fn the_zones_that_changed_are_told_of() -> Result<()> {
    let manifests = Manifests::new()?;
    let secondary = Secondary::new()?;
    let server = Flags::new().words(&secondary.flag()?).start(manifests.path())?;
    // At the start all of them.
    secondary.hear_of(&[ZONE, "in-addr.arpa", "ip6.arpa"])?;
    secondary.hear_nothing()?;
    manifests.replace("one.yaml", &Service::new("one").endpoint([10, 0, 0, 1]).yaml())?;
    secondary.hear_of(&[ZONE, "in-addr.arpa"])?;
    secondary.hear_nothing()?;
    // The same once more is no change.
    manifests.replace("one.yaml", &Service::new("one").endpoint([10, 0, 0, 1]).yaml())?;
    secondary.hear_nothing()?;
    ensure!(counted(&server, "sent")? >= 5.0, "{} sent", counted(&server, "sent")?);
    eventually("the answers to be counted", || {
        let acknowledged = counted(&server, "acknowledged")?;
        ensure!(acknowledged >= 5.0, "{acknowledged} acknowledged");
        Ok(())
    })?;
    secondary.was_told_once(&server)
}

/// A secondary knows its primary by the address that it asks.
#[test]
fn notifications_come_from_the_address_that_is_listened_on() -> Result<()> {
    let manifests = Manifests::new()?;
    let secondary = Secondary::new()?;
    let flags = Flags::new().words(&secondary.flag()?).listen_instead("dns://127.0.0.2:0");
    let _server = flags.start(manifests.path())?;
    secondary.socket.set_read_timeout(Some(PATIENCE))?;
    let (_, peer) = secondary.socket.recv_from(&mut [0; 1024])?;
    ensure!(peer.ip().to_string() == "127.0.0.2", "from {peer}");
    Ok(())
}
