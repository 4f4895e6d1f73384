//! The task that writes queued messages to the collector, and reconnects when the connection is
//! lost.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::mpsc::{self, error::TryRecvError};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::frames::{self, ControlFrame};
use super::message::Encoder;
use super::{Collector, Exchange, TapMetrics};
use crate::limits::dnstap::{COLLECTOR_TIMEOUT, FINISH_TIME, FIRST_PAUSE, LONGEST_PAUSE};

/// Time between two polls of the queue of queries and replies.
const INTERVAL: Duration = Duration::from_millis(10);

/// Size in bytes at which encoded messages are written to the collector.
const MAX_WRITE: usize = 256 << 10;

/// Task that writes queued queries and replies to the dnstap collector.
#[derive(Debug)]
pub struct Writer {
    collector: Collector,
    queue: mpsc::Receiver<Exchange>,
    waiting: Arc<AtomicUsize>,
    metrics: TapMetrics,
    encoder: Encoder,
}

/// Outcome of a session with the collector: all workers have ended, so nothing is left to write.
struct Finished;

impl Writer {
    pub(super) fn new(
        collector: Collector,
        queue: mpsc::Receiver<Exchange>,
        waiting: Arc<AtomicUsize>,
        metrics: TapMetrics,
    ) -> Self {
        let version = concat!("multinet-dns ", env!("CARGO_PKG_VERSION"));
        let encoder = Encoder { identity: host().into(), version: Bytes::from_static(version.as_bytes()) };
        Self { collector, queue, waiting, metrics, encoder }
    }

    /// Writes until the last worker has ended, or until `shutdown` if no collector is connected.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let mut pause = FIRST_PAUSE;
        let mut is_failing = false;
        loop {
            let session = match self.connect().await {
                Ok(stream) => {
                    info!("writing dnstap messages to {}", self.collector);
                    (pause, is_failing) = (FIRST_PAUSE, false);
                    self.write_all_to(stream).await
                }
                Err(error) => Err(error),
            };
            let error = match session {
                Ok(Finished) => return,
                Err(error) => error,
            };
            // A lasting failure is logged once.
            if !std::mem::replace(&mut is_failing, true) {
                warn!(
                    "--dnstap {}: {error}; retrying, messages that do not fit into the queue are dropped",
                    self.collector
                );
            }
            if shutdown.run_until_cancelled(sleep(pause)).await.is_none() {
                let mut rest = Vec::new();
                while let (messages @ 1.., _) = self.encode_waiting(&mut rest) {
                    self.metrics.dropped.inc_by(messages);
                    rest.clear();
                }
                return;
            }
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    }

    /// Connects to the collector, and completes the handshake for dnstap.
    async fn connect(&self) -> io::Result<Box<dyn Stream>> {
        let connect = async {
            let mut stream: Box<dyn Stream> = match &self.collector {
                Collector::Unix(path) => Box::new(UnixStream::connect(path).await?),
                Collector::Tcp(address) => Box::new(TcpStream::connect(address).await?),
            };
            stream.write_all(&ControlFrame::Ready.frame()).await?;
            expect_control(&mut stream, ControlFrame::Accept).await?;
            stream.write_all(&ControlFrame::Start.frame()).await?;
            Ok(stream)
        };
        timeout(COLLECTOR_TIMEOUT, connect).await?
    }

    async fn write_all_to(&mut self, mut stream: Box<dyn Stream>) -> io::Result<Finished> {
        let mut frames = Vec::new();
        loop {
            frames.clear();
            let (messages, end) = self.encode_waiting(&mut frames);
            if messages > 0 {
                let written = timeout(COLLECTOR_TIMEOUT, stream.write_all(&frames)).await;
                if let Err(error) = written.map_err(io::Error::from).flatten() {
                    self.metrics.dropped.inc_by(messages);
                    return Err(error);
                }
                self.metrics.written.inc_by(messages);
            }
            match end {
                None => {}
                Some(TryRecvError::Empty) => wait_interval(&mut stream).await?,
                Some(TryRecvError::Disconnected) => {
                    let finish = async {
                        stream.write_all(&ControlFrame::Stop.frame()).await?;
                        expect_control(&mut stream, ControlFrame::Finish).await
                    };
                    if !matches!(timeout(FINISH_TIME, finish).await, Ok(Ok(()))) {
                        warn!(
                            "--dnstap {}: the collector did not confirm that it has received everything",
                            self.collector
                        );
                    }
                    return Ok(Finished);
                }
            }
        }
    }

    /// Encodes queued exchanges, up to the size of one write. Returns the number of messages, and
    /// the reason if the queue has no more.
    fn encode_waiting(&mut self, frames: &mut Vec<u8>) -> (u64, Option<TryRecvError>) {
        let mut messages = 0;
        while frames.len() < MAX_WRITE {
            match self.queue.try_recv() {
                Ok(exchange) => {
                    self.waiting.fetch_sub(exchange.bytes.len(), Ordering::Relaxed);
                    self.encoder.write(&exchange, frames);
                    messages += exchange.messages();
                }
                Err(end) => return (messages, Some(end)),
            }
        }
        (messages, None)
    }
}

/// A connection to a collector, over TCP or a Unix socket.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// Waits until the next poll. The collector sends nothing before the end, so any byte means that it
/// has closed.
async fn wait_interval(stream: &mut Box<dyn Stream>) -> io::Result<()> {
    match timeout(INTERVAL, stream.read_u8()).await {
        Ok(_) => Err(io::Error::other("the collector has closed the connection")),
        Err(_) => Ok(()),
    }
}

/// Reads a control frame from the collector, which must be of the type `wanted`.
async fn expect_control(stream: &mut Box<dyn Stream>, wanted: ControlFrame) -> io::Result<()> {
    let invalid = |what| io::Error::new(io::ErrorKind::InvalidData, what);
    let mut header = [0; 8];
    stream.read_exact(&mut header).await?;
    let mut payload = vec![0; frames::control_len(header).map_err(invalid)?];
    stream.read_exact(&mut payload).await?;
    match ControlFrame::read(&payload).map_err(invalid)? {
        control if control == wanted => Ok(()),
        _ => Err(invalid("the collector sent an unexpected control frame")),
    }
}

/// Returns the host name; in a pod, that is the pod's name.
fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}
