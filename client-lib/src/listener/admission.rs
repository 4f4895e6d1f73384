//! Admission of senders by their address. Nothing is read from a sender that is refused, or kept
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

/// Most refused connections that are kept open for a moment, so that the refusal arrives. Others
/// are closed at once.
const LINGERING: usize = 16;

type Admits = dyn Fn(IpAddr) -> Result<(), String> + Send + Sync;

/// The program's rule for the addresses that may connect; `None` lets all in.
#[derive(Clone, Default)]
pub(super) struct Admission(Option<Arc<Admits>>);

/// Tells senders whose address is not admitted that they are refused.
pub(super) struct Refuser {
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

impl Refuser {
    pub(super) fn new(is_tls: bool) -> Self {
        Self { is_tls, lingering: Arc::new(Semaphore::new(LINGERING)) }
    }

    /// Sends a refusal with the reason, without reading a hello, and closes the connection.
    pub(super) fn refuse(&self, stream: TcpStream, reason: &str, tasks: &TaskTracker) {
        let refusal = if self.is_tls {
            NOT_ADMITTED.to_vec()
        } else {
            encode(&Answer::Refuse(Refusal::new(RefusalCode::Sender, reason))).unwrap_or_default()
        };
        // A socket that has just been accepted has room for so little.
        let _ = SockRef::from(&stream).send(&refusal);
        if let Ok(permit) = Arc::clone(&self.lingering).try_acquire_owned() {
            tasks.spawn(async move {
                drain_and_close(stream).await;
                drop(permit);
            });
        }
    }
}
