//! Which addresses may connect. Whoever may not is refused before anything is read from it, or kept
//! for it.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use crate::handshake::{Answer, Refusal, RefusalCode, encode};
use crate::tls::{NOT_ADMITTED, drain_and_close};

/// Connections that have been refused and are kept open for a moment, so that the refusal arrives;
/// others are closed at once.
const LINGERING: usize = 16;

type Admits = dyn Fn(IpAddr) -> Result<(), String> + Send + Sync;

/// The caller's rule, if there is one.
#[derive(Clone, Default)]
pub(super) struct Admission(Option<Arc<Admits>>);

/// Tells senders that they are refused.
pub(super) struct Door {
    is_tls: bool,
    lingering: Arc<Semaphore>,
}

impl Admission {
    pub(super) fn new(admits: impl Fn(IpAddr) -> Result<(), String> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(admits)))
    }

    pub(super) fn admits(&self, address: IpAddr) -> Result<(), String> {
        self.0.as_ref().map_or(Ok(()), |admits| admits(address))
    }
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "some addresses" } else { "all addresses" })
    }
}

impl Door {
    pub(super) fn new(is_tls: bool) -> Self {
        Self { is_tls, lingering: Arc::new(Semaphore::new(LINGERING)) }
    }

    /// Says why, without a handshake, and closes the connection.
    pub(super) fn refuse(&self, stream: TcpStream, reason: &str, tasks: &TaskTracker) {
        let said = if self.is_tls {
            NOT_ADMITTED.to_vec()
        } else {
            encode(&Answer::Refuse(Refusal::new(RefusalCode::Sender, reason))).unwrap_or_default()
        };
        // A socket that has just been accepted has room for so little.
        let _ = SockRef::from(&stream).send(&said);
        if let Ok(place) = Arc::clone(&self.lingering).try_acquire_owned() {
            tasks.spawn(async move {
                drain_and_close(stream).await;
                drop(place);
            });
        }
    }
}
