//! Settings of a listener, and its start.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use multinet_memory::Gpu;
use tokio::net::TcpListener;
use tracing::info;

#[cfg(doc)]
use super::Received;
use super::admission::Admission;
use super::limits::Limits;
use super::sockets::sockets;
use super::{Acknowledge, Listener, ListenerState};
use crate::error::BindError;
use crate::identity::Identity;
use crate::tls::Tls;
use crate::transport::{Rdma, Transport};

/// Settings of a [`Listener`]. Each has a default that suits most programs.
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

impl ListenerBuilder {
    /// Adds an address to listen on. Default: the addresses of all second NICs
    /// ([`second_nics`](crate::nic::second_nics)). Of those, the listener leaves out with a warning
    /// any that another host has, or that have just gone.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::Listener;
    ///
    /// // On one of several second NICs only.
    /// let listener = Listener::builder().address("192.168.112.5".parse()?).bind().await?;
    /// # Ok(()) }
    /// ```
    pub fn address(mut self, address: IpAddr) -> Self {
        self.addresses.push(address);
        self
    }

    /// Allows the default network: without a second NIC, the listener uses all addresses, of IPv4
    /// and IPv6. Default: no.
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

    /// Sets the port; 0 lets the kernel choose. Default: 18515.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::Listener;
    ///
    /// // For a test, any port that is free.
    /// let listener = Listener::builder().address("127.0.0.1".parse()?).port(0).bind().await?;
    /// assert_ne!(listener.local_addresses()[0].port(), 0);
    /// # Ok(()) }
    /// ```
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// Sets the largest payload of a frame, in bytes. Default: 8 MiB.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::Listener;
    ///
    /// // Uncompressed pictures in 4K.
    /// let listener = Listener::builder().frame_size(3840 * 2160 * 3).bind().await?;
    /// # Ok(()) }
    /// ```
    pub fn frame_size(mut self, bytes: u32) -> Self {
        self.limits.frame_size = bytes;
        self
    }

    /// Sets the number of slots of each connection: how many frames it holds until they are
    /// dropped, and so the credit of its sender. Default: 16. Where [`memory`](Self::memory) is not
    /// enough for that, a connection gets fewer. Under RDMA, it gets at most 4096, and at most as
    /// many as 256 MiB hold.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::Listener;
    ///
    /// // This program holds 64 frames at a time, and meanwhile 64 more may come.
    /// let listener = Listener::builder().slots(128).bind().await?;
    /// # Ok(()) }
    /// ```
    pub fn slots(mut self, count: u32) -> Self {
        self.limits.slots = count;
        self
    }

    /// Sets the most memory for frames of all connections together, in bytes. With a
    /// [`gpu`](Self::gpu), as much again of its memory is used for payloads that come there.
    ///
    /// By default, it is a quarter of the memory that this process may use, and at most 4 GiB; of a
    /// GPU's, 4 GiB. The process may use the least limit of its control group and of those above
    /// it, or what the machine has.
    ///
    /// A slot takes [`frame_size`](Self::frame_size) and 4.3 KiB, and each connection has
    /// [`slots`](Self::slots) of them. With the defaults, 4 GiB are enough for 31 senders with 16
    /// slots of 8 MiB, and the 128 MiB of a container of 512 MiB are 15 slots in all. Where the
    /// slots are too few:
    ///
    /// - A newcomer gets an even share. Senders give back slots for it that they have not used
    ///   lately, and then those beyond an even share. When others leave, senders that use all of
    ///   theirs get more.
    /// - A sender by RDMA, or of a version before, cannot give back some of its slots. By RDMA, it
    ///   gets at most half of those that are free. If it has more than an even share, the listener
    ///   closes its connection for a newcomer once it has sent nothing for a second or two. It
    ///   comes back, and gets fewer.
    /// - If no connection has more than one slot, or there are
    ///   [`max_connections`](Self::max_connections), a newcomer takes the place of another
    ///   connection, of which nothing is unacknowledged. It is one of the address with the most
    ///   connections, if the newcomer's address still has fewer; one that has sent nothing lately
    ///   is closed before others.
    /// - Otherwise the newcomer is refused with [`RefusalCode::Full`](crate::RefusalCode::Full),
    ///   and tries again.
    ///
    /// By TCP, memory is not used before a frame needs it. As much again may lie in the kernel
    /// until it is read. By RDMA, it is used, and locked, from the beginning of a connection until
    /// its last frame is dropped. Memory that a slow device has ready too late is kept for the next
    /// connections, for half a minute and at most two of them.
    ///
    /// Beside this memory, a listener remembers which frames it has had, at least once: usually
    /// some hundred bytes for each connected sender, and at most 128 KiB; for all senders that have
    /// gone, at most 64 MiB together. It forgets first the one that was connected for the shortest
    /// time.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::Listener;
    ///
    /// // The container has 2 GiB, and the program needs little: half is for frames, not a quarter.
    /// let listener = Listener::builder().memory(1 << 30).bind().await?;
    /// # Ok(()) }
    /// ```
    pub fn memory(mut self, bytes: usize) -> Self {
        self.limits.memory = Some(bytes);
        self
    }

    /// Sets the most connections. Default: 1024. [`memory`](Self::memory) says which one is closed
    /// for a newcomer if there are so many.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::Listener;
    ///
    /// // For 16 senders. While a pod is replaced, the old and the new one may both be connected.
    /// let listener = Listener::builder().max_connections(32).bind().await?;
    /// # Ok(()) }
    /// ```
    pub fn max_connections(mut self, count: usize) -> Self {
        self.limits.connections = count;
        self
    }

    /// Sets how long a sender may take for its handshake, and again to try RDMA. Default: 5 s.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// use multinet_client::Listener;
    ///
    /// // A client that connects and sends nothing is closed after a second.
    /// let listener = Listener::builder().patience(Duration::from_secs(1)).bind().await?;
    /// # Ok(()) }
    /// ```
    pub fn patience(mut self, patience: Duration) -> Self {
        self.limits.patience = patience;
        self
    }

    /// Sets the GPU that payloads are wanted in, from where [`Received::gpu`] returns them. RDMA
    /// devices that can write to it do so. Other payloads are copied when the program asks for
    /// them.
    ///
    /// ```no_run
    /// # async fn example(
    /// #     gpu: std::sync::Arc<dyn multinet_client::Gpu>,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::Listener;
    ///
    /// // With the feature cuda, `gpu` is Cuda::device(0)?.
    /// let listener = Listener::builder().gpu(gpu).bind().await?;
    /// let frame = listener.recv().await?;
    /// println!("{} bytes at {:#x}", frame.len(), frame.gpu()?.address());
    /// # Ok(()) }
    /// ```
    pub fn gpu(mut self, gpu: Arc<dyn Gpu>) -> Self {
        self.gpu = Some(gpu);
        self
    }

    /// Sets the time without any packet from a sender's host after which the sender counts as gone.
    /// Default: 10 s; at least 4 s.
    ///
    /// If this program's runtime has one thread, and computes for long, its senders wait; their
    /// [`silence`](crate::ConnectorBuilder::silence) says what to do then.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// use multinet_client::Listener;
    ///
    /// // The memory of a sender whose node has lost its power is free after 4 s.
    /// let listener = Listener::builder().silence(Duration::from_secs(4)).bind().await?;
    /// # Ok(()) }
    /// ```
    pub fn silence(mut self, silence: Duration) -> Self {
        self.limits.silence = silence.max(Duration::from_secs(4));
        self
    }

    /// Sets when a frame is acknowledged. Default: [`Acknowledge::Explicitly`].
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::{Acknowledge, Listener};
    ///
    /// let listener = Listener::builder().acknowledge(Acknowledge::OnDrop).bind().await?;
    /// let frame = listener.recv().await?;
    /// println!("{} bytes", frame.len());
    /// drop(frame); // acknowledges it
    /// # Ok(()) }
    /// ```
    pub fn acknowledge(mut self, acknowledge: Acknowledge) -> Self {
        self.acknowledge = acknowledge;
        self
    }

    /// Sets the identity of this process. Default: [`Identity::from_env`].
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::{Identity, Listener};
    ///
    /// // The uid from a file. A sender that expects another pod at this address is refused.
    /// let uid = std::fs::read_to_string("/etc/podinfo/uid")?;
    /// let identity = Identity::from_env().uid(uid.trim_end());
    /// let listener = Listener::builder().identity(identity).bind().await?;
    /// # Ok(()) }
    /// ```
    pub fn identity(mut self, identity: Identity) -> Self {
        self.identity = identity;
        self
    }

    /// Adds a service, and lets in only senders that have asked for one of those added. The first
    /// labels of its name are enough: `infer.vision` stands for `infer.vision.svc.multinet`, and
    /// `rail0._net.infer.vision.svc.multinet`. Default: any service.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::Listener;
    ///
    /// // A sender with a wrong name in its configuration is refused.
    /// let builder = Listener::builder().service("infer.vision").service("infer-canary.vision");
    /// let listener = builder.bind().await?;
    /// # Ok(()) }
    /// ```
    pub fn service(mut self, name: impl Into<String>) -> Self {
        self.services.push(name.into());
        self
    }

    /// Sets a rule for the addresses that may connect, applied before anything is read. The sender
    /// is told the error that the rule returns. The task that accepts connections calls it, so it
    /// must not block. Default: any address may connect.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::Listener;
    ///
    /// // The whole network reaches the port, but only one rack may send.
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

    /// Sets the transports that senders may use. Default: [`Transport::Auto`].
    ///
    /// By RDMA, a sender's device writes to the slots directly, so that all of a connection's slots
    /// are allocated and locked from its beginning.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::{Listener, Transport};
    ///
    /// // For hundreds of senders that seldom send. By TCP, slots take no memory before frames need
    /// // it, and go to the senders that use them.
    /// let listener = Listener::builder().transport(Transport::Tcp).bind().await?;
    /// # Ok(()) }
    /// ```
    pub fn transport(mut self, transport: Transport) -> Self {
        self.transport = transport;
        self
    }

    /// Sets the options of RDMA.
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

    /// Requires mutual TLS of all senders.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::{Listener, Tls};
    ///
    /// // Only the pods of this namespace may send.
    /// let file = |name| std::path::Path::new("/var/run/tls").join(name);
    /// let tls = Tls::from_files(file("tls.crt"), file("tls.key"), file("ca.crt"))?
    ///     .expect("spiffe://cluster.local/ns/vision/*")?;
    /// let listener = Listener::builder().tls(tls).bind().await?;
    /// # Ok(()) }
    /// ```
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Starts to listen.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::{BindError, Listener};
    ///
    /// let listener = match Listener::builder().bind().await {
    ///     Err(BindError::NoSecondNic { .. }) => {
    ///         return Err("this pod lacks the annotation k8s.v1.cni.cncf.io/networks".into());
    ///     }
    ///     bound => bound?,
    /// };
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`BindError`], if there is no address to listen on, or one that cannot be listened on.
    pub async fn bind(self) -> Result<Listener, BindError> {
        let sockets = self.sockets()?;
        let listener = self.start(sockets, None, None)?;
        let ListenerState { memory, config, .. } = &*listener.handle.shared;
        let (addresses, each) = (&listener.handle.addresses, config.limits.slots);
        info!(?addresses, "listening, with {memory}, {each} for each sender where they are enough");
        Ok(listener)
    }

    /// Returns sockets that listen where [`bind`](Self::bind) would, for another protocol on second
    /// NICs.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::Listener;
    ///
    /// // For a protocol of the program's own, off the default network, too.
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
}
