//! What a listener is to do, and how it begins.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use multinet_memory::Gpu;
use tokio::net::TcpListener;
use tokio_util::task::TaskTracker;
use tracing::info;

#[cfg(doc)]
use super::Received;
use super::admission::Admission;
use super::budget::Budget;
use super::sockets::sockets;
use super::{Acknowledge, Handle, Listener, Shared, accept, room};
use crate::error::BindError;
use crate::identity::Identity;
use crate::nic::Keeper;
use crate::tls::Tls;
use crate::transport::{Rdma, Transport};

/// What a [`Listener`] is to do. Every setting has a default that suits most.
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_client::Listener;
///
/// // Small frames, many at a time.
/// let listener = Listener::builder().frame_size(64 << 10).slots(256).bind().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing listens before bind()"]
pub struct ListenerBuilder {
    pub(super) addresses: Vec<IpAddr>,
    pub(super) allow_default_network: bool,
    pub(super) port: u16,
    pub(super) limits: Limits,
    pub(super) acknowledge: Acknowledge,
    pub(super) identity: Identity,
    pub(super) services: Vec<String>,
    pub(super) admission: Admission,
    pub(super) transport: Transport,
    pub(super) rdma: Rdma,
    pub(super) gpu: Option<Arc<dyn Gpu>>,
    pub(super) tls: Option<Tls>,
}

/// What strangers can make grow, and how far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) frame_size: u32,
    pub(super) slots: u32,
    /// `None`: by what this process may take.
    pub(super) memory: Option<usize>,
    pub(super) connections: usize,
    pub(super) patience: Duration,
    pub(super) silence: Duration,
}

impl ListenerBuilder {
    /// Listens on this address; may be called several times. Default: the addresses of all second NICs ([`second_nics`](crate::nic::second_nics)). Those that
    /// cannot be listened on are left out with a warning then: another host has them, or they have just gone.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::Listener;
    ///
    /// // By one of several second NICs only.
    /// let listener = Listener::builder().address("192.168.112.5".parse()?).bind().await?;
    /// # Ok(()) }
    /// ```
    pub fn address(mut self, address: IpAddr) -> Self {
        self.addresses.push(address);
        self
    }

    /// Where there is no second NIC: listens on all addresses, of IPv4 and IPv6, the default network's included. Default: no.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::Listener;
    ///
    /// // In a cluster for tests, whose pods have one network.
    /// let listener = Listener::builder().allow_default_network(true).bind().await?;
    /// # Ok(()) }
    /// ```
    pub fn allow_default_network(mut self, is_allowed: bool) -> Self {
        self.allow_default_network = is_allowed;
        self
    }

    /// The port; 0 lets the kernel choose. Default: 18515.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::Listener;
    ///
    /// // For a test, whichever port is free.
    /// let listener = Listener::builder().address("127.0.0.1".parse()?).port(0).bind().await?;
    /// assert_ne!(listener.local_addresses()[0].port(), 0);
    /// # Ok(()) }
    /// ```
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// The largest payload of a frame, in bytes. Default: 8 MiB.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::Listener;
    ///
    /// let listener = Listener::builder().frame_size(3840 * 2160 * 3).bind().await?; // pictures in 4K, not compressed
    /// # Ok(()) }
    /// ```
    pub fn frame_size(mut self, bytes: u32) -> Self {
        self.limits.frame_size = bytes;
        self
    }

    /// How many frames of each connection are kept until they are dropped: the credit that a sender gets, as long as [`memory`](Self::memory) is enough for
    /// that. Default: 16. Under RDMA there are no more of them than 4096, and than 256 MiB hold.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::Listener;
    ///
    /// // This program takes 64 frames at a time, and meanwhile 64 more may come.
    /// let listener = Listener::builder().slots(128).bind().await?;
    /// # Ok(()) }
    /// ```
    pub fn slots(mut self, count: u32) -> Self {
        self.limits.slots = count;
        self
    }

    /// The most memory for frames of all connections together, in bytes; with a [`gpu`](Self::gpu), as much again of the GPU's, for payloads that come there.
    /// Default: a quarter of what this process may take, which is the least limit of its control group and those above it, or what the machine has;
    /// 4 GiB at most, and 4 GiB of a GPU's.
    ///
    /// A slot takes [`frame_size`](Self::frame_size) and 4.3 KiB, and each connection has [`slots`](Self::slots) of them: with the defaults, 4 GiB are
    /// enough for 31 senders with 16 slots of 8 MiB, and the 128 MiB of a container of 512 MiB are 15 slots in all. Where they are not enough, a
    /// newcomer gets an even share. Senders give back slots for it that they have not used lately, then those beyond an even share; when
    /// others go, those that use all that they have get more. A sender by RDMA, whose slots are its own, or of a version before, cannot give back a part:
    /// it gets half of what is free at most, and is closed for newcomers when nothing of it is unacknowledged, and comes back. If nobody has more than one
    /// slot, or there are [`max_connections`](Self::max_connections), a newcomer takes the place of a sender whose address has the most
    /// connections, if nothing of that is unacknowledged, and its own address would still have fewer; else it is refused with [`RefusalCode::Full`](crate::RefusalCode::Full), and tries again.
    ///
    /// By TCP, memory is not used before a frame needs it, and as much again may lie in the kernel, until it is read. By RDMA it is used, and locked, from the
    /// beginning of a connection until its last frame is dropped; what a slow device has ready too late stays for the next
    /// connections, for two of them at most, and for half a minute.
    ///
    /// Beside it, at least once, a listener remembers which frames it has had: of each sender that is connected, some hundred bytes as a rule, 128 KiB at most;
    /// of all that have gone, 64 MiB together at most. Who was connected for the shortest time is forgotten first.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::Listener;
    ///
    /// // The container may have 2 GiB. The program itself takes little, so that half of it is for frames, and not 512 MiB.
    /// let listener = Listener::builder().memory(1 << 30).bind().await?;
    /// # Ok(()) }
    /// ```
    pub fn memory(mut self, bytes: usize) -> Self {
        self.limits.memory = Some(bytes);
        self
    }

    /// The most connections. Default: 1024. Who is closed for a newcomer if there are so many, [`memory`](Self::memory) says.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::Listener;
    ///
    /// // There are 16 senders. Each may be connected twice for a while, when it is replaced.
    /// let listener = Listener::builder().max_connections(32).bind().await?;
    /// # Ok(()) }
    /// ```
    pub fn max_connections(mut self, count: usize) -> Self {
        self.limits.connections = count;
        self
    }

    /// How long a sender may take for its handshake, and again to try RDMA. Default: 5 s.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// use multinet_client::Listener;
    ///
    /// // Whoever connects and says nothing takes a place from others for a second only.
    /// let listener = Listener::builder().patience(Duration::from_secs(1)).bind().await?;
    /// # Ok(()) }
    /// ```
    pub fn patience(mut self, patience: Duration) -> Self {
        self.limits.patience = patience;
        self
    }

    /// Wants payloads in this GPU: [`Received::gpu`] has them there. A device that can writes them there by itself; the memory of a connection is the GPU's then.
    ///
    /// ```no_run
    /// # async fn example(gpu: std::sync::Arc<dyn multinet_client::Gpu>) -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::Listener;
    ///
    /// // With the feature cuda, `gpu` is what Cuda::device(0)? gives.
    /// let listener = Listener::builder().gpu(gpu).bind().await?;
    /// let frame = listener.recv().await?;
    /// println!("{} bytes at {:#x}", frame.len(), frame.gpu()?.address());
    /// # Ok(()) }
    /// ```
    pub fn gpu(mut self, gpu: Arc<dyn Gpu>) -> Self {
        self.gpu = Some(gpu);
        self
    }

    /// After how long without a sign of life from its host a sender counts as gone. Default: 10 s; at least 4 s.
    ///
    /// This end keeps its senders waiting if its runtime has one thread, and its code computes for long: the senders'
    /// [`silence`](crate::ConnectorBuilder::silence) says what to do then.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// use multinet_client::Listener;
    ///
    /// // The memory of senders whose nodes have lost their power is free after 4 s.
    /// let listener = Listener::builder().silence(Duration::from_secs(4)).bind().await?;
    /// # Ok(()) }
    /// ```
    pub fn silence(mut self, silence: Duration) -> Self {
        self.limits.silence = silence.max(Duration::from_secs(4));
        self
    }

    /// When a frame is acknowledged. Default: [`Acknowledge::Explicitly`].
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::{Acknowledge, Listener};
    ///
    /// let listener = Listener::builder().acknowledge(Acknowledge::OnDrop).bind().await?;
    /// let frame = listener.recv().await?;
    /// println!("{} bytes", frame.len());
    /// drop(frame); // its sender need not keep it any longer
    /// # Ok(()) }
    /// ```
    pub fn acknowledge(mut self, acknowledge: Acknowledge) -> Self {
        self.acknowledge = acknowledge;
        self
    }

    /// Who this process is. Default: [`Identity::from_env`].
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::{Identity, Listener};
    ///
    /// // The uid from somewhere else than the environment: senders that mean another pod are told so.
    /// let uid = std::fs::read_to_string("/etc/podinfo/uid")?;
    /// let identity = Identity::from_env().uid(uid.trim_end());
    /// let listener = Listener::builder().identity(identity).bind().await?;
    /// # Ok(()) }
    /// ```
    pub fn identity(mut self, identity: Identity) -> Self {
        self.identity = identity;
        self
    }

    /// Lets in only senders that asked for this service, as its name begins: `infer.vision` fits `infer.vision.svc.multinet`, and
    /// `rail0._net.infer.vision.svc.multinet`. May be called several times. Default: whatever they asked for.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::Listener;
    ///
    /// // A sender with the wrong name in its configuration hears so, instead of sending its frames here.
    /// let listener = Listener::builder().service("infer.vision").service("infer-canary.vision").bind().await?;
    /// # Ok(()) }
    /// ```
    pub fn service(mut self, name: impl Into<String>) -> Self {
        self.services.push(name.into());
        self
    }

    /// Asks this of the address of everybody that connects, before anything is read or TLS is spoken; an error is what the sender is told. It is called
    /// by the task that accepts, and must not wait. Default: any address may connect.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::Listener;
    ///
    /// // The port is open to the whole network, but frames come from one rack only.
    /// let rack: ipnet::IpNet = "192.168.111.0/26".parse()?;
    /// let builder = Listener::builder().admit(move |address| match rack.contains(&address) {
    ///     true => Ok(()),
    ///     false => Err(format!("{address} is not in {rack}")),
    /// });
    /// let listener = builder.bind().await?;
    /// # Ok(()) }
    /// ```
    pub fn admit(mut self, admits: impl Fn(IpAddr) -> Result<(), String> + Send + Sync + 'static) -> Self {
        self.admission = Admission::new(admits);
        self
    }

    /// Which ways of moving frames senders may use. Default: [`Transport::Auto`].
    ///
    /// What comes by RDMA is written to the slots directly, so that each connection has all memory of its slots from the beginning, and locked.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::{Listener, Transport};
    ///
    /// // For hundreds of senders that seldom send: their slots take no memory before a frame needs it, and go to those that need them.
    /// let listener = Listener::builder().transport(Transport::Tcp).bind().await?;
    /// # Ok(()) }
    /// ```
    pub fn transport(mut self, transport: Transport) -> Self {
        self.transport = transport;
        self
    }

    /// How RDMA is used, where it is.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::{Listener, Rdma};
    ///
    /// let listener = Listener::builder().rdma(Rdma::default().device("mlx5_2")).bind().await?;
    /// # Ok(()) }
    /// ```
    pub fn rdma(mut self, rdma: Rdma) -> Self {
        self.rdma = rdma;
        self
    }

    /// Speaks mutual TLS with all senders.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::{Listener, Tls};
    ///
    /// // Only the pods of this namespace may send.
    /// let tls = Tls::from_files("/var/run/tls/tls.crt", "/var/run/tls/tls.key", "/var/run/tls/ca.crt")?
    ///     .expect("spiffe://cluster.local/ns/vision/*")?;
    /// let listener = Listener::builder().tls(tls).bind().await?;
    /// # Ok(()) }
    /// ```
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Listens. What connects is served from now on.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::{BindError, Listener};
    ///
    /// let listener = match Listener::builder().bind().await {
    ///     Err(BindError::NoSecondNic { .. }) => return Err("this pod needs the annotation k8s.v1.cni.cncf.io/networks".into()),
    ///     bound => bound?,
    /// };
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`BindError`], if there is no address to listen on, or one that cannot be listened on.
    pub async fn bind(self) -> Result<Listener, BindError> {
        let budget = self.limits.memory.map_or_else(Budget::read, Budget::given);
        self.check(&budget)?;
        let mut sockets = Vec::new();
        let mut addresses = Vec::new();
        for socket in self.sockets()? {
            let address = socket.local_addr().map_err(BindError::Interfaces)?;
            let keeper = match self.allow_default_network {
                true => None,
                false => Some(Keeper::new().map_err(BindError::Interfaces)?),
            };
            sockets.push((Arc::new(socket), keeper));
            addresses.push(address);
        }
        let tasks = TaskTracker::new();
        let shared = Arc::new(Shared::new(self, budget));
        let (memory, each) = (&shared.memory, shared.config.limits.slots);
        info!(?addresses, "listening, with {memory}, {each} for each sender where they are enough");
        let listening = sockets.iter().map(|(socket, _)| Arc::downgrade(socket)).collect();
        for (socket, keeper) in sockets {
            tasks.spawn(accept::accept(socket, keeper, Arc::clone(&shared), tasks.clone()));
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
        for memory in [&shared.memory].into_iter().chain(&shared.gpu_memory).map(Arc::clone) {
            let (shutdown, slots) = (shared.shutdown.clone(), shared.config.limits.slots);
            tasks.spawn(async move {
                shutdown.run_until_cancelled(room::tend(&memory, slots)).await;
            });
        }
        Ok(Listener {
            handle: Arc::new(Handle {
                shared,
                addresses,
                sockets: listening,
                process: std::process::id(),
                tasks,
            }),
        })
    }

    /// Sockets that listen where [`bind`](Self::bind) would, for another protocol on second NICs.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::Listener;
    ///
    /// // A protocol of our own, where connections by the default network would not be wanted either.
    /// let builder = Listener::builder().port(0);
    /// # let builder = builder.address("127.0.0.1".parse()?);
    /// for socket in builder.sockets()? {
    ///     println!("listening on {}", socket.local_addr()?);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`BindError`], if there is no address to listen on, or one that cannot be listened on.
    pub fn sockets(&self) -> Result<Vec<TcpListener>, BindError> {
        sockets(&self.addresses, self.allow_default_network, self.port)
    }

    fn check(&self, budget: &Budget) -> Result<(), BindError> {
        let Limits { frame_size, slots, connections, .. } = self.limits;
        match () {
            () if frame_size == 0 => Err(BindError::Limit("frame_size must be at least 1 byte")),
            () if slots == 0 => Err(BindError::Limit("slots must be at least 1")),
            () if connections == 0 => Err(BindError::Limit("max_connections must be at least 1")),
            () if budget.bytes < frame_size as usize => {
                Err(BindError::Memory { frame_size, memory: budget.to_string() })
            }
            () => Ok(()),
        }
    }
}
