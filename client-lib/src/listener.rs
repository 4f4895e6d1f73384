//! Receives frames from whoever connects.

mod accept;
mod admission;
mod agree;
mod budget;
mod builder;
mod control;
mod gpu;
#[cfg(feature = "rdma")]
mod landing;
mod late;
mod notices;
mod queue;
mod receive;
mod received;
mod room;
mod shares;
mod slots;
mod sockets;
mod statistics;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures::Stream;
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
use builder::Limits;
pub use builder::ListenerBuilder;
use control::{Flusher, SessionKey, SessionState};
use gpu::GpuSlots;
use late::Late;
use notices::{Kind, Notices};
use queue::Queue;
pub use received::{Received, Sender};
use slots::Memory;
use statistics::Counts;
pub use statistics::ListenerStatistics;

/// When a received frame is acknowledged to its sender, which only matters to senders that promise
/// [at least once](crate::Delivery::AtLeastOnce).
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_client::{Acknowledge, Listener};
///
/// // What is done with a frame is done when it is dropped, and a panic is no reason to have it again.
/// let listener = Listener::builder().acknowledge(Acknowledge::OnDrop).bind().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Acknowledge {
    /// By [`Received::acknowledge`]. A frame that is dropped without it goes back to its sender, who gives it to another peer if there is one.
    #[default]
    Explicitly,
    /// When the frame is dropped, even by a panic.
    OnDrop,
}

/// Receives frames. A clone is another handle; when the last one is dropped, all connections are closed, and the port is free again.
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
    handle: Arc<Handle>,
}

/// Ends everything when the last Listener is dropped.
struct Handle {
    shared: Arc<Shared>,
    addresses: Vec<SocketAddr>,
    /// The tasks that accept have them.
    sockets: Vec<Weak<TcpListener>>,
    /// The process that listens: a child of fork has the same sockets.
    process: u32,
    tasks: TaskTracker,
}

/// So many senders have a device get memory ready at a time. What those take who have given up waiting is memory, too.
const TURNS: usize = 2;

/// What the tasks of a listener share.
struct Shared {
    config: ListenerBuilder,
    queue: Queue,
    sessions: Mutex<Sessions<SessionKey, Arc<SessionState>>>,
    memory: Arc<Memory>,
    /// For payloads that come to the GPU, if there is one.
    gpu_memory: Option<Arc<Memory>>,
    flusher: Arc<Flusher>,
    rdma_devices: Arc<RdmaDevices>,
    gpu: Option<Arc<GpuSlots>>,
    late: Arc<Late>,
    /// Of those who have a device get memory ready.
    turns: Arc<Semaphore>,
    counts: Counts,
    notices: Notices,
    shutdown: CancellationToken,
}

impl Listener {
    /// All settings at their defaults.
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
            limits: Limits {
                frame_size: 8 << 20,
                slots: 16,
                memory: None,
                connections: 1024,
                patience: Duration::from_secs(5),
                silence: Duration::from_secs(10),
            },
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

    /// The addresses that it listens on.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let listener = multinet_client::Listener::builder().bind().await?;
    /// // Those of all second NICs.
    /// for address in listener.local_addresses() {
    ///     println!("listening on {address}");
    /// }
    /// # Ok(()) }
    /// ```
    pub fn local_addresses(&self) -> &[SocketAddr] {
        &self.handle.addresses
    }

    /// The next frame, of whatever sender. Several tasks may wait; each frame goes to one of them. A cancelled wait loses nothing.
    ///
    /// ```no_run
    /// # async fn example(listener: multinet_client::Listener) -> Result<(), Box<dyn std::error::Error>> {
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
        // Frames come by another thread, too: who never waits for them must not keep this one from everything else.
        tokio::task::consume_budget().await;
        if let Some(received) = self.try_recv() {
            return Ok(received);
        }
        // Nothing is left to do but to tell the senders what has been done.
        self.handle.shared.flusher.flush_urgent();
        let arrived = self.handle.shared.queue.pop().await.ok_or(ListenerClosed)?;
        Ok(Received::take(arrived, self.handle.shared.gpu.as_ref()))
    }

    /// The next frame, if one is there.
    ///
    /// ```no_run
    /// # async fn example(listener: &multinet_client::Listener) -> Result<(), Box<dyn std::error::Error>> {
    /// // As many as there are, up to the size of a batch.
    /// let mut batch = vec![listener.recv().await?];
    /// while batch.len() < 32 && let Some(frame) = listener.try_recv() {
    ///     batch.push(frame);
    /// }
    /// # Ok(()) }
    /// ```
    pub fn try_recv(&self) -> Option<Received> {
        let arrived = self.handle.shared.queue.try_pop()?;
        Some(Received::take(arrived, self.handle.shared.gpu.as_ref()))
    }

    /// All frames from now on, as a stream that ends when the listener is closed.
    ///
    /// ```no_run
    /// # async fn example(listener: &multinet_client::Listener) -> Result<(), Box<dyn std::error::Error>> {
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

    /// What has happened so far.
    ///
    /// ```no_run
    /// # fn example(listener: &multinet_client::Listener) -> Result<(), Box<dyn std::error::Error>> {
    /// let now = listener.statistics();
    /// println!("{} frames from {} senders; {} were not let in", now.frames, now.connections, now.refused);
    /// # Ok(()) }
    /// ```
    pub fn statistics(&self) -> ListenerStatistics {
        let shared = &self.handle.shared;
        let memories = || [&shared.memory].into_iter().chain(&shared.gpu_memory);
        let connections: usize = memories().map(|memory| memory.connections()).sum();
        let promised = memories().map(|memory| memory.promised()).sum();
        shared.counts.statistics(connections.saturating_sub(shared.late.count()), promised)
    }

    /// Whether a sender is connected, which is known by the [session](crate::FrameId::session) of its frames. One that is not may come back.
    ///
    /// ```no_run
    /// # async fn example(listener: &multinet_client::Listener) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// let session = listener.recv().await?.id().session;
    /// tokio::time::sleep(Duration::from_secs(1)).await;
    /// if listener.try_recv().is_none() && !listener.is_connected(session) {
    ///     println!("nothing more, and nobody is there");
    /// }
    /// # Ok(()) }
    /// ```
    pub fn is_connected(&self, session: u128) -> bool {
        self.handle.shared.sessions().is_connected(|key| key.id.0 == session)
    }

    /// Says goodbye to all senders, and ends. Frames that nobody has received are lost to at-most-once senders.
    ///
    /// Whoever waits for a frame hears that there is none any more.
    ///
    /// ```no_run
    /// # async fn example(listener: multinet_client::Listener) -> Result<(), Box<dyn std::error::Error>> {
    /// tokio::signal::ctrl_c().await?;
    /// // What has not been acknowledged goes to another pod, if it was sent at least once.
    /// listener.close().await;
    /// # Ok(()) }
    /// ```
    pub async fn close(&self) {
        self.handle.shared.end();
        self.handle.tasks.close();
        self.handle.tasks.wait().await;
    }

    /// Completes when the listener has been closed, by whichever of its handles: what [`recv`](Self::recv) says then, for those who receive nothing.
    ///
    /// ```no_run
    /// # async fn example(listener: &multinet_client::Listener) -> Result<(), Box<dyn std::error::Error>> {
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

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.end();
        if self.process != std::process::id() {
            return;
        }
        // The tasks end when they have their turn; until then nobody else could listen there.
        for socket in self.sockets.iter().filter_map(Weak::upgrade) {
            sockets::end(&socket);
        }
    }
}

impl Shared {
    fn new(config: ListenerBuilder, budget: Budget) -> Self {
        let Limits { frame_size, memory, connections, .. } = config.limits;
        // Whoever has been here is remembered a while.
        let sessions = Sessions::new(connections.saturating_mul(4));
        let of = |budget| Arc::new(Memory::new(budget, slot_size(frame_size), connections));
        let gpus = || memory.map_or_else(Budget::most, Budget::given);
        let gpu_memory = config.gpu.is_some().then(|| of(gpus()));
        let memory = of(budget);
        let rdma_devices = Arc::new(RdmaDevices::new(config.rdma.clone()));
        let gpu = config.gpu.clone().map(|gpu| Arc::new(GpuSlots::new(gpu)));
        Self {
            config,
            rdma_devices,
            gpu,
            late: Arc::new(Late::new()),
            turns: Arc::new(Semaphore::new(TURNS)),
            queue: Queue::new(),
            sessions: Mutex::new(sessions),
            memory,
            gpu_memory,
            flusher: Arc::default(),
            notices: Notices::default(),
            counts: Counts::default(),
            shutdown: CancellationToken::new(),
        }
    }

    /// All tasks end, and nobody gets a frame any more.
    fn end(&self) {
        self.queue.close();
        self.shutdown.cancel();
    }

    /// Whether a line that a stranger has caused goes to the log.
    fn may_say(&self, kind: Kind) -> bool {
        self.notices.may(kind)
    }

    /// No code panics while it holds the lock.
    fn sessions(&self) -> MutexGuard<'_, Sessions<SessionKey, Arc<SessionState>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A slot has room for a key and metadata, too, and for what lies between under RDMA.
fn slot_size(frame_size: u32) -> usize {
    let before =
        (crate::wire::HEADER + crate::wire::MAX_KEY + crate::wire::MAX_METADATA).next_multiple_of(64);
    before + (frame_size as usize).next_multiple_of(64)
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listener").field("addresses", &self.handle.addresses).finish_non_exhaustive()
    }
}
