//! Notifies secondaries of changes (NOTIFY, RFC 1996) over UDP, with one task for each secondary.
//!
//! `notifier/schedule.rs` decides when to send a notification; this file has the socket and the
//! clock. A zone is notified when its records change. If only its serial changes, because another
//! zone's records did, secondaries find out at their next refresh.

mod message;
mod metrics;
mod schedule;
mod secondary;

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::UdpSocket;
use tokio::select;
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

pub(crate) use metrics::NotifierMetrics;
pub(crate) use secondary::Secondary;

use crate::limits::transfers::WARN_AFTER;
use crate::secondary::tsig::{self, Keyring};
use crate::store::name::Name;
use crate::store::state::State;
use message::Notify;
use metrics::Counters;
use schedule::{DueNotify, NotifyReply, Schedule};

/// Pause after an error of receiving from the secondary.
const FAILURE_PAUSE: Duration = Duration::from_secs(1);

/// Notifies one secondary of changes in the zones, by NOTIFY over UDP.
pub(crate) struct Notifier {
    secondary: Secondary,
    /// Local address that notifications are sent from. Port 0 lets the kernel choose.
    source: SocketAddr,
    keys: Keyring,
    metrics: Counters,
}

impl Notifier {
    /// Makes a notifier for a secondary. It signs with the secondary's key, if that is in `keys`.
    /// `listening` are the addresses on which this server serves plain DNS.
    pub(crate) fn new(
        secondary: Secondary,
        listening: &[SocketAddr],
        keys: Keyring,
        metrics: &NotifierMetrics,
    ) -> Self {
        let metrics = metrics.of(&secondary.address.to_string());
        Self { source: secondary.source_address(listening), secondary, keys, metrics }
    }

    /// Notifies the secondary of all zones in `state`, and of their changes, until `shutdown`.
    pub(crate) async fn run(self, state: Arc<State>, shutdown: CancellationToken) {
        let mut changes = state.changes();
        let mut socket = NotifySocket::new(self.source, self.secondary.address);
        let mut schedule = Schedule::default();
        let mut is_silent = false;
        let mut reply = [0; 1024];
        loop {
            schedule.changed(&changes.borrow_and_update(), Instant::now());
            while let Some(due) = schedule.due(Instant::now()) {
                self.log_if_unanswered(&due, socket.failure.as_ref(), &mut is_silent);
                self.send(&state, &due.apex, &mut schedule, &mut socket).await;
            }
            let next = schedule.next();
            let wait = async {
                match next {
                    Some(next) => sleep_until(next.into()).await,
                    None => pending().await,
                }
            };
            select! {
                biased;
                () = shutdown.cancelled() => return,
                length = socket.receive(&mut reply) => match schedule.received(&reply[..length], tsig::now()) {
                    Some(NotifyReply::Accepted) => {
                        self.metrics.acknowledged.inc();
                        if std::mem::take(&mut is_silent) {
                            info!(secondary = %self.secondary, "the secondary answers again");
                        }
                    }
                    Some(NotifyReply::Refused(zone, code)) => {
                        self.metrics.failed.inc();
                        debug!(secondary = %self.secondary, %zone, code, "the secondary rejected a NOTIFY");
                    }
                    None => debug!(secondary = %self.secondary, "ignored a message that is not the answer to a NOTIFY"),
                },
                // An error cannot occur: this task keeps the sender alive.
                _ = changes.changed() => {}
                () = wait => {}
            }
        }
    }

    /// Counts a lost notification, and logs a warning once if the secondary stays silent.
    fn log_if_unanswered(&self, due: &DueNotify, failure: Option<&io::Error>, is_silent: &mut bool) {
        if due.is_lost {
            self.metrics.failed.inc();
        }
        if due.unanswered >= WARN_AFTER && !std::mem::replace(is_silent, true) {
            let reason = reason(due.is_lost, self.secondary.key.is_some(), failure);
            warn!(secondary = %self.secondary, zone = %due.apex, "cannot notify the secondary: {reason}; retrying");
        }
    }

    /// Sends a notification of the zone's newest version to the secondary.
    async fn send(&self, state: &State, apex: &Name, schedule: &mut Schedule, socket: &mut NotifySocket) {
        let Some(version) = state.version(apex) else { return };
        let key = self.secondary.key.as_ref().and_then(|name| self.keys.find(name.as_wire()));
        let notify = Notify::new(random_id(), &version, key.as_ref(), tsig::now());
        socket.send(&notify.packet).await;
        if let Some(error) = &socket.failure {
            debug!(secondary = %self.secondary, %error, "cannot send a NOTIFY to the secondary; retrying");
        }
        self.metrics.sent.inc();
        schedule.sent(apex, notify, Instant::now());
    }
}

/// Returns the reason why notifications of a secondary fail, for the log.
fn reason(is_lost: bool, is_signed: bool, failure: Option<&io::Error>) -> String {
    match (is_lost, failure) {
        (false, _) => "the secondary rejects the NOTIFY".to_owned(),
        (true, Some(error)) => format!("sending failed: {error}"),
        (true, None) if is_signed => {
            "the secondary does not answer, or does not sign its answers with the key".to_owned()
        }
        (true, None) => "the secondary does not answer".to_owned(),
    }
}

/// A UDP socket, opened when it is first needed. It is connected, so it receives only from the
/// secondary.
struct NotifySocket {
    source: SocketAddr,
    address: SocketAddr,
    socket: Option<UdpSocket>,
    /// Error of the last attempt to send; `None` if it succeeded.
    failure: Option<io::Error>,
}

impl NotifySocket {
    fn new(source: SocketAddr, address: SocketAddr) -> Self {
        Self { source, address, socket: None, failure: None }
    }

    async fn send(&mut self, packet: &[u8]) {
        self.failure = self.try_send(packet).await.err();
    }

    async fn try_send(&mut self, packet: &[u8]) -> io::Result<()> {
        let socket = match self.socket.take() {
            Some(socket) => socket,
            None => {
                let socket = UdpSocket::bind(self.source).await?;
                socket.connect(self.address).await?;
                socket
            }
        };
        // If nothing listened to the message before, the kernel reports that now. The socket
        // remains usable, so send again.
        let sent = match socket.send(packet).await {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => socket.send(packet).await,
            sent => sent,
        };
        sent?;
        self.socket = Some(socket);
        Ok(())
    }

    async fn receive(&self, buffer: &mut [u8]) -> usize {
        let Some(socket) = &self.socket else { return pending().await };
        loop {
            match socket.recv(buffer).await {
                Ok(length) => return length,
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(_) => tokio::time::sleep(FAILURE_PAUSE).await,
            }
        }
    }
}

/// Returns an unpredictable id for a DNS message.
fn random_id() -> u16 {
    // Without random numbers, TLS would have failed at the start. A known id is better than no
    // notification.
    getrandom::u32().unwrap_or_default() as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_warning_names_the_reason_why_notifications_fail() {
        let error = io::Error::other("no route");
        for (is_lost, is_signed, failure, expected) in [
            (false, false, None, "the secondary rejects the NOTIFY"),
            (false, true, Some(&error), "the secondary rejects the NOTIFY"),
            (true, false, None, "the secondary does not answer"),
            (true, true, None, "the secondary does not answer, or does not sign its answers with the key"),
            (true, true, Some(&error), "sending failed: no route"),
        ] {
            assert_eq!(reason(is_lost, is_signed, failure), expected);
        }
    }

    #[tokio::test]
    async fn a_send_error_is_kept_until_a_message_is_sent() {
        let secondary = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        // Not an address of this host.
        let mut socket = NotifySocket::new("192.0.2.1:0".parse().unwrap(), secondary.local_addr().unwrap());
        socket.send(b"one").await;
        assert!(socket.failure.is_some());
        socket.source = "127.0.0.1:0".parse().unwrap();
        socket.send(b"two").await;
        assert!(socket.failure.is_none());
        let mut heard = [0; 3];
        secondary.recv(&mut heard).await.unwrap();
        assert_eq!(&heard, b"two");
    }
}
