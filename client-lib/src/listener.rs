//! Receives frames from whoever connects.

mod accept;
mod agree;
mod control;
mod gpu;
#[cfg(feature = "rdma")]
mod landing;
mod late;
mod notices;
mod queue;
mod receive;
mod received;
mod slots;
mod statistics;

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::Stream;
use multinet_memory::Gpu;
use tokio::net::TcpSocket;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::error::{BindError, ListenerClosed};
use crate::identity::Identity;
use crate::inbound::Sessions;
use crate::nic;
use crate::rdma::Rails;
use crate::tls::Tls;
use crate::transport::{Rdma, Transport};
use control::{Flusher, SessionState};
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Acknowledge {
    /// By [`Received::acknowledge`]. A frame that is dropped without it goes back to its sender, who gives it to another peer if there is one.
    #[default]
    Explicitly,
    /// When the frame is dropped, even by a panic.
    OnDrop,
}

/// Receives frames. Dropping it closes all connections.
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
pub struct Listener {
    shared: Arc<Shared>,
    addresses: Vec<SocketAddr>,
    tasks: TaskTracker,
}

/// What a [`Listener`] is to do. Every setting has a default that suits most.
#[derive(Clone, Debug)]
pub struct ListenerBuilder {
    addresses: Vec<IpAddr>,
    allow_default_network: bool,
    port: u16,
    limits: Limits,
    acknowledge: Acknowledge,
    identity: Identity,
    services: Vec<String>,
    transport: Transport,
    rdma: Rdma,
    gpu: Option<Arc<dyn Gpu>>,
    tls: Option<Tls>,
}

/// What strangers can make grow, and how far.
#[derive(Clone, Copy, Debug)]
struct Limits {
    frame_size: u32,
    slots: u32,
    memory: usize,
    connections: usize,
    patience: Duration,
    silence: Duration,
}

/// So many senders have a device get memory ready at a time. What those take who have given up waiting is memory, too.
const TURNS: usize = 2;

/// What the tasks of a listener share.
struct Shared {
    config: ListenerBuilder,
    queue: Queue,
    sessions: Mutex<Sessions<Arc<SessionState>>>,
    memory: Arc<Memory>,
    flusher: Arc<Flusher>,
    rails: Arc<Rails>,
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
    pub fn builder() -> ListenerBuilder {
        ListenerBuilder {
            addresses: Vec::new(),
            allow_default_network: false,
            port: 18515,
            limits: Limits {
                frame_size: 8 << 20,
                slots: 16,
                memory: 4 << 30,
                connections: 1024,
                patience: Duration::from_secs(5),
                silence: Duration::from_secs(10),
            },
            acknowledge: Acknowledge::default(),
            identity: Identity::from_env(),
            services: Vec::new(),
            transport: Transport::default(),
            rdma: Rdma::default(),
            gpu: None,
            tls: None,
        }
    }

    /// The addresses that it listens on.
    pub fn local_addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The next frame, of whatever sender. Several tasks may wait; each frame goes to one of them. A cancelled wait loses nothing.
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
        self.shared.flusher.flush_urgent();
        let received = self.shared.queue.pop().await.ok_or(ListenerClosed)?;
        received.taken();
        Ok(received)
    }

    /// The next frame, if one is there.
    pub fn try_recv(&self) -> Option<Received> {
        let received = self.shared.queue.try_pop()?;
        received.taken();
        Some(received)
    }

    /// All frames from now on, as a stream that ends when the listener is closed.
    pub fn frames(&self) -> impl Stream<Item = Received> + '_ {
        futures::stream::unfold(self, |listener| async move {
            let received = listener.recv().await.ok()?;
            Some((received, listener))
        })
    }

    /// What has happened so far.
    pub fn statistics(&self) -> ListenerStatistics {
        let connections = self.shared.memory.connections().saturating_sub(self.shared.late.count());
        self.shared.counts.statistics(connections)
    }

    /// Says goodbye to all senders, and ends. Frames that nobody has received are lost to at-most-once senders.
    ///
    /// Whoever waits for a frame hears that there is none any more.
    pub async fn close(&self) {
        self.shared.end();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.shared.end();
    }
}

impl ListenerBuilder {
    /// Listens on this address; may be called several times. Default: the addresses of all second NICs, which are those that
    /// are neither on the interface with the default route, nor loopback, nor link-local.
    #[must_use]
    pub fn address(mut self, address: IpAddr) -> Self {
        self.addresses.push(address);
        self
    }

    /// Where there is no second NIC: listens on all addresses, the default network's included. Default: no.
    #[must_use]
    pub fn allow_default_network(mut self, is_allowed: bool) -> Self {
        self.allow_default_network = is_allowed;
        self
    }

    /// The port; 0 lets the kernel choose. Default: 18515.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// The largest payload of a frame, in bytes. Default: 8 MiB.
    #[must_use]
    pub fn frame_size(mut self, bytes: u32) -> Self {
        self.limits.frame_size = bytes;
        self
    }

    /// How many frames of each connection are kept until they are dropped: the credit that a sender gets. Default: 16. Under RDMA there are no more of them
    /// than 4096, and than 256 MiB hold.
    #[must_use]
    pub fn slots(mut self, count: u32) -> Self {
        self.limits.slots = count;
        self
    }

    /// The most memory for frames of all connections together, in bytes: further connections get fewer slots, or none. Memory
    /// is not used before a frame needs it; under RDMA it is, from the beginning of a connection until its last frame is
    /// dropped; what a slow device has ready too late stays for the next connections, for two of them at most. Default: 4 GiB.
    #[must_use]
    pub fn memory(mut self, bytes: usize) -> Self {
        self.limits.memory = bytes;
        self
    }

    /// The most connections. Default: 1024.
    #[must_use]
    pub fn max_connections(mut self, count: usize) -> Self {
        self.limits.connections = count;
        self
    }

    /// How long a sender may take for its handshake, and again to try RDMA. Default: 5 s.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.limits.patience = patience;
        self
    }

    /// Wants payloads in this GPU: [`Received::gpu`] has them there. A device that can writes them there by itself; the memory of a connection is the GPU's then.
    #[must_use]
    pub fn gpu(mut self, gpu: Arc<dyn Gpu>) -> Self {
        self.gpu = Some(gpu);
        self
    }

    /// After how long without a sign of life from its host a sender counts as gone. Default: 10 s; at least 4 s.
    #[must_use]
    pub fn silence(mut self, silence: Duration) -> Self {
        self.limits.silence = silence.max(Duration::from_secs(4));
        self
    }

    /// When a frame is acknowledged. Default: [`Acknowledge::Explicitly`].
    #[must_use]
    pub fn acknowledge(mut self, acknowledge: Acknowledge) -> Self {
        self.acknowledge = acknowledge;
        self
    }

    /// Who this process is. Default: [`Identity::from_env`].
    #[must_use]
    pub fn identity(mut self, identity: Identity) -> Self {
        self.identity = identity;
        self
    }

    /// Lets in only senders that asked for this service, as its name begins: `infer.vision` fits `infer.vision.svc.multinet`. May be called several
    /// times. Default: whatever they asked for.
    #[must_use]
    pub fn service(mut self, name: impl Into<String>) -> Self {
        self.services.push(name.into());
        self
    }

    /// Which ways of moving frames senders may use. Default: [`Transport::Auto`].
    ///
    /// What comes by RDMA is written to the slots directly, so that each connection has all memory of its slots from the beginning, and locked.
    #[must_use]
    pub fn transport(mut self, transport: Transport) -> Self {
        self.transport = transport;
        self
    }

    /// How RDMA is used, where it is.
    #[must_use]
    pub fn rdma(mut self, rdma: Rdma) -> Self {
        self.rdma = rdma;
        self
    }

    /// Speaks mutual TLS with all senders.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Listens. What connects is served from now on.
    ///
    /// # Errors
    ///
    /// [`BindError`], if there is no address to listen on, or one that cannot be listened on.
    pub async fn bind(self) -> Result<Listener, BindError> {
        self.check()?;
        let mut sockets = Vec::new();
        let mut port = self.port;
        for address in self.wanted()? {
            let (socket, address) = listen(SocketAddr::new(address, port))?;
            // The kernel chooses once, for all addresses.
            port = address.port();
            let interface = if self.allow_default_network {
                None
            } else {
                nic::interface_of(address.ip()).map_err(BindError::Interfaces)?
            };
            sockets.push((socket, address, interface));
        }
        let addresses = sockets.iter().map(|(_, address, _)| *address).collect();
        let tasks = TaskTracker::new();
        let shared = Arc::new(Shared::new(self));
        for (socket, _, interface) in sockets {
            tasks.spawn(accept::accept(socket, interface, Arc::clone(&shared), tasks.clone()));
        }
        tasks.spawn({
            let (flusher, shutdown) = (Arc::clone(&shared.flusher), shared.shutdown.clone());
            async move {
                shutdown.run_until_cancelled(flusher.run()).await;
            }
        });
        tasks.spawn({
            let shared = Arc::clone(&shared);
            async move {
                shared.shutdown.run_until_cancelled(shared.notices.run()).await;
            }
        });
        Ok(Listener { shared, addresses, tasks })
    }

    fn check(&self) -> Result<(), BindError> {
        let Limits { frame_size, slots, memory, connections, .. } = self.limits;
        match () {
            () if frame_size == 0 => Err(BindError::Limit("frame_size must be at least 1 byte")),
            () if slots == 0 => Err(BindError::Limit("slots must be at least 1")),
            () if connections == 0 => Err(BindError::Limit("max_connections must be at least 1")),
            () if memory < frame_size as usize => {
                Err(BindError::Limit("memory must be enough for one frame of frame_size"))
            }
            () => Ok(()),
        }
    }

    fn wanted(&self) -> Result<Vec<IpAddr>, BindError> {
        if !self.addresses.is_empty() {
            return Ok(self.addresses.clone());
        }
        let second = nic::second_nics().map_err(BindError::Interfaces)?;
        match second.is_empty() {
            false => Ok(second.into_iter().map(|address| address.ip).collect()),
            // IPv6's any address takes IPv4, too.
            true if self.allow_default_network => Ok(vec![std::net::Ipv6Addr::UNSPECIFIED.into()]),
            true => Err(BindError::NoSecondNic),
        }
    }
}

impl Shared {
    fn new(config: ListenerBuilder) -> Self {
        let Limits { frame_size, memory, connections, .. } = config.limits;
        // Whoever has been here is remembered a while.
        let sessions = Sessions::new(connections.saturating_mul(4));
        let memory = Arc::new(Memory::new(memory, slot_size(frame_size), connections));
        let rails = Arc::new(Rails::new(config.rdma.clone()));
        let gpu = config.gpu.clone().map(|gpu| Arc::new(GpuSlots::new(gpu)));
        Self {
            config,
            rails,
            gpu,
            late: Arc::new(Late::new()),
            turns: Arc::new(Semaphore::new(TURNS)),
            queue: Queue::new(),
            sessions: Mutex::new(sessions),
            memory,
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
    fn sessions(&self) -> MutexGuard<'_, Sessions<Arc<SessionState>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A slot has room for a key and metadata, too, and for what lies between under RDMA.
fn slot_size(frame_size: u32) -> usize {
    let before =
        (crate::wire::HEADER + crate::wire::MAX_KEY + crate::wire::MAX_METADATA).next_multiple_of(64);
    before + (frame_size as usize).next_multiple_of(64)
}

fn listen(address: SocketAddr) -> Result<(tokio::net::TcpListener, SocketAddr), BindError> {
    let error = |source| BindError::Bind { address, source };
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }.map_err(error)?;
    // A restarted pod gets its port back at once.
    socket.set_reuseaddr(true).map_err(error)?;
    socket.bind(address).map_err(error)?;
    let listener = socket.listen(1024).map_err(error)?;
    let address = listener.local_addr().map_err(error)?;
    Ok((listener, address))
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listener").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}
