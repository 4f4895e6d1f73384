//! The task that writes to the collector, and comes again when it has gone.

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

use super::frames::{self, Control};
use super::message::Encoder;
use super::{Collector, Exchange, TapMetrics};

/// How often the queue is looked into.
const INTERVAL: Duration = Duration::from_millis(10);

/// Octets that are gathered before they are written.
const MAX_WRITE: usize = 256 << 10;

/// How long the collector may take to be reached, to greet, and to take what is written.
const COLLECTOR_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the collector may take to say that it has everything, at the end.
const FINISH_TIME: Duration = Duration::from_secs(1);

/// The first pause after a failure, which doubles up to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LAST_PAUSE: Duration = Duration::from_secs(15);

/// Writes what the workers pass on.
#[derive(Debug)]
pub struct Writer {
    collector: Collector,
    queue: mpsc::Receiver<Exchange>,
    waiting: Arc<AtomicUsize>,
    metrics: TapMetrics,
    encoder: Encoder,
}

/// Nothing more will come.
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

    /// Writes until the last worker has gone, or no collector is there and `shutdown` is cancelled.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let mut pause = FIRST_PAUSE;
        let mut is_failing = false;
        loop {
            let session = match self.connect().await {
                Ok(stream) => {
                    info!("dnstap goes to {}", self.collector);
                    (pause, is_failing) = (FIRST_PAUSE, false);
                    self.write_all_to(stream).await
                }
                Err(error) => Err(error),
            };
            let error = match session {
                Ok(Finished) => return,
                Err(error) => error,
            };
            // A lasting failure is said once.
            if !std::mem::replace(&mut is_failing, true) {
                warn!(
                    "--dnstap {}: {error}; trying again, what does not fit meanwhile is lost",
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
            pause = (2 * pause).min(LAST_PAUSE);
        }
    }

    /// A stream to a collector that takes what we have.
    async fn connect(&self) -> io::Result<Box<dyn Stream>> {
        let connect = async {
            let mut stream: Box<dyn Stream> = match &self.collector {
                Collector::Unix(path) => Box::new(UnixStream::connect(path).await?),
                Collector::Tcp(address) => Box::new(TcpStream::connect(address).await?),
            };
            stream.write_all(&Control::Ready.frame()).await?;
            expect_control(&mut stream, Control::Accept).await?;
            stream.write_all(&Control::Start.frame()).await?;
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
                        stream.write_all(&Control::Stop.frame()).await?;
                        expect_control(&mut stream, Control::Finish).await
                    };
                    if !matches!(timeout(FINISH_TIME, finish).await, Ok(Ok(()))) {
                        warn!("--dnstap {}: the collector may not have everything", self.collector);
                    }
                    return Ok(Finished);
                }
            }
        }
    }

    /// Appends what waits, as much as is written at once. Says how many messages that are, and why there are no
    /// more.
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

/// Either kind of socket.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// Waits a moment. The collector has nothing to say before the end: what comes is the end.
async fn wait_interval(stream: &mut Box<dyn Stream>) -> io::Result<()> {
    match timeout(INTERVAL, stream.read_u8()).await {
        Ok(_) => Err(io::Error::other("the collector has closed")),
        Err(_) => Ok(()),
    }
}

/// Reads a control frame, which is to be this one.
async fn expect_control(stream: &mut Box<dyn Stream>, wanted: Control) -> io::Result<()> {
    let invalid = |what| io::Error::new(io::ErrorKind::InvalidData, what);
    let mut header = [0; 8];
    stream.read_exact(&mut header).await?;
    let mut payload = vec![0; frames::control_len(header).map_err(invalid)?];
    stream.read_exact(&mut payload).await?;
    match Control::read(&payload).map_err(invalid)? {
        control if control == wanted => Ok(()),
        _ => Err(invalid("the collector says something else than expected")),
    }
}

/// What this machine calls itself; a pod has the pod's name.
fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}
