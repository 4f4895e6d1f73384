//! Listens for senders and receives their frames.

mod accept;
mod ack;
mod admission;
mod agree;
mod asks;
mod budget;
mod builder;
mod control;
mod decision;
mod ended;
mod fetchers;
mod fetching;
mod flusher;
mod gpu;
mod handshake;
mod limits;
mod log_limit;
mod pending;
mod queue;
mod receive;
#[cfg(feature = "rdma")]
mod receive_rdma;
mod received;
mod room;
mod session;
mod shares;
mod slot;
mod slots;
mod sockets;
mod spares;
mod start;
mod statistics;

use futures::Stream;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::error::ListenerClosed;
use crate::identity::Identity;
use crate::inbound::Sessions;
use crate::rdma::RdmaDevices;
use crate::transport::{Rdma, Transport};
use budget::Budget;
pub use builder::ListenerBuilder;
use control::Connection;
pub(crate) use fetchers::ArrivedFetcher;
use fetchers::Fetchers;
pub(crate) use fetching::Asker;
use flusher::Flusher;
use gpu::UploadPool;
use limits::Limits;
use log_limit::{LineKind, LogLimit};
use parking_lot::Mutex;
use queue::Queue;
pub use received::{Received, Sender};
use session::{SessionKey, SessionState};
use slots::Memory;
use spares::Spares;
use statistics::Counters;
pub use statistics::ListenerStatistics;

/// Time at which a received frame is acknowledged to its sender. It matters only to senders that
/// deliver [at least once](crate::Delivery::AtLeastOnce).
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_client::{Acknowledge, Listener};
///
/// // A frame has been dealt with when it is dropped, and is not wanted again after a panic.
/// let listener = Listener::builder().acknowledge(Acknowledge::OnDrop).bind().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Acknowledge {
    /// By [`Received::acknowledge`]. A frame that is dropped without that goes back to its sender,
    /// which sends it to another peer, if it has one.
    #[default]
    Explicitly,
    /// When the frame is dropped, even by a panic.
    OnDrop,
}

/// Receiver of frames. A clone is another handle for the same. When the last handle is dropped, all
/// connections are closed, and the port is free again.
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let listener = multinet_client::Listener::builder().port(18515).bind().await?;
/// loop {
///     let frame = listener.recv().await?;
///     println!("{} bytes from {}", frame.bytes().len(), frame.sender().name());
///     frame.acknowledge();
/// }
/// # }
/// ```
#[derive(Clone)]
pub struct Listener {
    handle: Arc<ListenerHandle>,
}

/// State of all handles, which ends the listener when the last one is dropped.
struct ListenerHandle {
    shared: Arc<ListenerState>,
    addresses: Vec<SocketAddr>,
    /// Listening sockets, which the tasks that accept connections own.
    sockets: Vec<Weak<TcpListener>>,
    /// Process that listens. A child made by fork has the same sockets, and must not end them.
    process: u32,
    tasks: TaskTracker,
}

/// Most senders for which a device prepares memory at a time. Those that no longer wait count, too,
/// as the memory exists meanwhile.
const PREPARING: usize = 2;

/// Function that takes the answers to questions.
type Answers = Box<dyn Fn(Received) + Send + Sync>;

/// State that all tasks and handles of a listener share.
struct ListenerState {
    config: ListenerBuilder,
    queue: Queue,
    sessions: Mutex<Sessions<SessionKey, Arc<SessionState<Connection>>>>,
    memory: Arc<Memory<Connection>>,
    /// Memory for payloads that senders write to the GPU by RDMA; `None` without a GPU.
    gpu_memory: Option<Arc<Memory<Connection>>>,
    flusher: Arc<Flusher<Connection>>,
    rdma_devices: Arc<RdmaDevices>,
    upload_pool: Option<Arc<UploadPool>>,
    spares: Arc<Spares>,
    /// Bounds how many senders RDMA memory is prepared for at a time: has [`PREPARING`] permits.
    preparing: Arc<Semaphore>,
    counts: Counters,
    log_limit: LogLimit,
    shutdown: CancellationToken,
    /// Takes the frames that answer questions of this process, in place of the queue, on the thread
    /// that receives them.
    answers: Option<Answers>,
    /// Queue of peers that have come to fetch, if payloads are offered here. Frames are not
    /// received then.
    fetchers: Option<Fetchers>,
}

/// Returns how many bytes payloads may take by default: a quarter of the tightest memory limit of
/// this process, but no more than 4 GiB.
pub(crate) fn default_memory() -> usize {
    Budget::read().bytes
}

impl Listener {
    /// Returns a builder with all settings at their defaults.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::Listener;
    ///
    /// let listener = Listener::builder().port(18515).service("infer.vision").bind().await?;
    /// # Ok(()) }
    /// ```
    pub fn builder() -> ListenerBuilder {
        ListenerBuilder {
            addresses: Vec::new(),
            allow_default_network: false,
            port: 18515,
            limits: Limits::default(),
            acknowledge: Acknowledge::default(),
            identity: Identity::from_env(),
            services: Vec::new(),
            admission: Default::default(),
            transport: Transport::default(),
            rdma: Rdma::default(),
            gpu: None,
            tls: None,
        }
    }

    /// Returns the addresses that it listens on.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let listener = multinet_client::Listener::builder().bind().await?;
    /// // By default, the addresses of all second NICs.
    /// for address in listener.local_addresses() {
    ///     println!("listening on {address}");
    /// }
    /// # Ok(()) }
    /// ```
    pub fn local_addresses(&self) -> &[SocketAddr] {
        &self.handle.addresses
    }

    /// Waits for the next frame, from any sender. Several tasks may wait; each frame goes to one of
    /// them. A cancelled wait loses nothing.
    ///
    /// ```no_run
    /// # async fn example(
    /// #     listener: multinet_client::Listener,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// // Eight tasks share the frames.
    /// for _ in 0..8 {
    ///     let listener = listener.clone();
    ///     tokio::spawn(async move {
    ///         while let Ok(frame) = listener.recv().await {
    ///             println!("{} bytes", frame.len());
    ///             frame.acknowledge();
    ///         }
    ///     });
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ListenerClosed`] after [`close`](Self::close).
    pub async fn recv(&self) -> Result<Received, ListenerClosed> {
        // Other threads receive frames, too, so that this may never have to wait. It must still let
        // other tasks run.
        tokio::task::consume_budget().await;
        if let Some(received) = self.try_recv() {
            return Ok(received);
        }
        // The program has nothing else to do, and senders may wait for its acknowledgements.
        self.handle.shared.flusher.flush_idle();
        let arrived = self.handle.shared.queue.pop().await.ok_or(ListenerClosed)?;
        Ok(Received::take(arrived, self.handle.shared.upload_pool.as_ref()))
    }

    /// Returns the next frame, if one has come.
    ///
    /// ```no_run
    /// # async fn example(
    /// #     listener: &multinet_client::Listener,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// // As many as have come, up to the size of a batch.
    /// let mut batch = vec![listener.recv().await?];
    /// while batch.len() < 32 && let Some(frame) = listener.try_recv() {
    ///     batch.push(frame);
    /// }
    /// # Ok(()) }
    /// ```
    pub fn try_recv(&self) -> Option<Received> {
        let arrived = self.handle.shared.queue.try_pop()?;
        Some(Received::take(arrived, self.handle.shared.upload_pool.as_ref()))
    }

    /// Returns a stream of all frames from now on, which ends when the listener is closed.
    ///
    /// ```no_run
    /// # async fn example(
    /// #     listener: &multinet_client::Listener,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// use futures::StreamExt as _;
    ///
    /// // At most 16 of them at a time.
    /// let each = listener.frames().for_each_concurrent(16, |frame| async move {
    ///     println!("{} bytes", frame.len());
    ///     frame.acknowledge();
    /// });
    /// each.await;
    /// # Ok(()) }
    /// ```
    pub fn frames(&self) -> impl Stream<Item = Received> + '_ {
        futures::stream::unfold(self, |listener| async move {
            let received = listener.recv().await.ok()?;
            Some((received, listener))
        })
    }

    /// Returns the counts of what the listener has received.
    ///
    /// ```no_run
    /// # fn example(
    /// #     listener: &multinet_client::Listener,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// let now = listener.statistics();
    /// println!("{} frames from {} senders", now.frames, now.connections);
    /// println!("{} connections were refused", now.refused);
    /// # Ok(()) }
    /// ```
    pub fn statistics(&self) -> ListenerStatistics {
        let shared = &self.handle.shared;
        let memories = || [&shared.memory].into_iter().chain(&shared.gpu_memory);
        let connections: usize = memories().map(|memory| memory.connections()).sum();
        let promised = memories().map(|memory| memory.promised()).sum();
        let connections = connections.saturating_sub(shared.spares.count());
        shared.counts.statistics(shared.queue.len(), connections, promised)
    }

    /// Returns whether a sender is connected, given the [session](crate::FrameId::session) of its
    /// frames. One that is not may come back.
    ///
    /// ```no_run
    /// # async fn example(
    /// #     listener: &multinet_client::Listener,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// let session = listener.recv().await?.id().session;
    /// tokio::time::sleep(Duration::from_secs(1)).await;
    /// if listener.try_recv().is_none() && !listener.is_connected(session) {
    ///     println!("nothing more, and the sender has gone");
    /// }
    /// # Ok(()) }
    /// ```
    pub fn is_connected(&self, session: u128) -> bool {
        self.handle.shared.sessions.lock().is_connected(|key| key.id.0 == session)
    }

    /// Closes all connections and the listener. Tasks that wait for a frame get [`ListenerClosed`].
    /// Frames that the program has not taken are lost, if their sender delivers at most once.
    ///
    /// ```no_run
    /// # async fn example(
    /// #     listener: multinet_client::Listener,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// tokio::signal::ctrl_c().await?;
    /// // Senders that deliver at least once send to another pod what has not been acknowledged.
    /// listener.close().await;
    /// # Ok(()) }
    /// ```
    pub async fn close(&self) {
        self.handle.shared.end();
        self.handle.tasks.close();
        self.handle.tasks.wait().await;
    }

    /// Waits until the listener has been closed, by any of its handles. Returns the error that
    /// [`recv`](Self::recv) returns then, for tasks that receive nothing.
    ///
    /// ```no_run
    /// # async fn example(
    /// #     listener: &multinet_client::Listener,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// let watched = listener.clone();
    /// tokio::spawn(async move {
    ///     let mut minutes = tokio::time::interval(Duration::from_secs(60));
    ///     loop {
    ///         tokio::select! {
    ///             _ = minutes.tick() => println!("{:?}", watched.statistics()),
    ///             closed = watched.closed() => return closed,
    ///         }
    ///     }
    /// });
    /// # Ok(()) }
    /// ```
    pub async fn closed(&self) -> ListenerClosed {
        self.handle.shared.shutdown.cancelled().await;
        ListenerClosed
    }
}

impl Drop for ListenerHandle {
    fn drop(&mut self) {
        self.shared.end();
        if self.process != std::process::id() {
            return;
        }
        // The tasks close the sockets only when they run next. Until then, the ports would be
        // taken.
        for socket in self.sockets.iter().filter_map(Weak::upgrade) {
            sockets::end(&socket);
        }
    }
}

impl ListenerState {
    fn new(
        config: ListenerBuilder,
        budget: Budget,
        fetchers: Option<Fetchers>,
        answers: Option<Answers>,
    ) -> Self {
        let Limits { memory, connections, .. } = config.limits;
        // Senders that have gone are remembered for a while.
        let sessions = Sessions::new(connections.saturating_mul(4));
        let of = |budget| Arc::new(Memory::new(budget, config.limits.slot_size(), connections));
        let gpus = || memory.map_or_else(Budget::most, Budget::given);
        let gpu_memory = config.gpu.is_some().then(|| of(gpus()));
        let memory = of(budget);
        let rdma_devices = Arc::new(RdmaDevices::new(config.rdma.clone()));
        let upload_pool = config.gpu.clone().map(|gpu| Arc::new(UploadPool::new(gpu)));
        Self {
            config,
            rdma_devices,
            upload_pool,
            spares: Arc::new(Spares::new()),
            preparing: Arc::new(Semaphore::new(PREPARING)),
            queue: Queue::new(),
            sessions: Mutex::new(sessions),
            memory,
            gpu_memory,
            flusher: Arc::default(),
            log_limit: LogLimit::default(),
            counts: Counters::default(),
            shutdown: CancellationToken::new(),
            fetchers,
            answers,
        }
    }

    /// Ends all tasks of the listener. The program gets no more frames.
    fn end(&self) {
        self.queue.close();
        self.shutdown.cancel();
    }

    /// Returns whether the limit on log lines still allows a line of this kind, which senders
    /// cause.
    fn may_log(&self, kind: LineKind) -> bool {
        self.log_limit.allows(kind)
    }
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listener").field("addresses", &self.handle.addresses).finish_non_exhaustive()
    }
}
