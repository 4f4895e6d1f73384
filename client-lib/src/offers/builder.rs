//! Settings of payloads on offer, and the start of their port.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::fetchers;
use super::ledger::{LedgerLimits, OfferLedger};
use super::{LockedLedger, MAX_OFFERS, Offers, OffersHandle, OffersState};
use crate::error::BindError;
use crate::identity::Identity;
use crate::listener::{Listener, ListenerBuilder, default_memory};
use crate::tls::Tls;
use crate::transport::{Rdma, Transport};

/// Time for which the id of a taken payload gets no new offer: messages may be delivered again
/// meanwhile.
const REMEMBER: Duration = Duration::from_secs(150);

/// Upper bound of a deadline.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 86400);

/// Settings of [`Offers`], and what [`bind`](Self::bind) starts them with.
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// use multinet_client::Offers;
///
/// let offers = Offers::builder().budget(8 << 30).deadline(Duration::from_secs(60)).bind().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is on offer before bind()"]
pub struct OffersBuilder {
    listener: ListenerBuilder,
    budget: Option<usize>,
    deadline: Duration,
    host: Option<String>,
}

impl Default for OffersBuilder {
    fn default() -> Self {
        Self {
            listener: Listener::builder().port(18516),
            budget: None,
            deadline: Duration::from_secs(600),
            host: None,
        }
    }
}

impl OffersBuilder {
    /// Adds an address to listen on. Without any, the addresses of all second NICs.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let builder = multinet_client::Offers::builder();
    /// let builder = builder.address("192.168.111.5".parse()?);
    /// # Ok(()) }
    /// ```
    pub fn address(mut self, address: IpAddr) -> Self {
        self.listener = self.listener.address(address);
        self
    }

    /// Sets whether to listen on all addresses where there is no second NIC. Default: no.
    ///
    /// ```
    /// # let builder = multinet_client::Offers::builder();
    /// // For a test without a second NIC.
    /// let builder = builder.allow_default_network(true);
    /// ```
    pub fn allow_default_network(mut self, is_allowed: bool) -> Self {
        self.listener = self.listener.allow_default_network(is_allowed);
        self
    }

    /// Sets the port. Default: 18516. With 0, the kernel chooses one.
    ///
    /// ```
    /// # let builder = multinet_client::Offers::builder();
    /// let builder = builder.port(0);
    /// ```
    pub fn port(mut self, port: u16) -> Self {
        self.listener = self.listener.port(port);
        self
    }

    /// Sets the identity of this process for fetchers. Default: that of
    /// [`Identity::from_env`].
    ///
    /// ```
    /// # let builder = multinet_client::Offers::builder();
    /// use multinet_client::Identity;
    ///
    /// let builder = builder.identity(Identity::new("decode-0"));
    /// ```
    pub fn identity(mut self, identity: Identity) -> Self {
        self.listener = self.listener.identity(identity);
        self
    }

    /// Adds a service whose endpoint this pod is. Fetchers that ask for another one are refused.
    /// Without any, all are accepted.
    ///
    /// ```
    /// # let builder = multinet_client::Offers::builder();
    /// let builder = builder.service("decode.vision");
    /// ```
    pub fn service(mut self, name: impl Into<String>) -> Self {
        self.listener = self.listener.service(name);
        self
    }

    /// Sets a function that decides from which addresses fetchers may connect. The text of its
    /// error is the reason that a refused fetcher is told.
    ///
    /// ```
    /// # let builder = multinet_client::Offers::builder();
    /// let builder = builder.admit(|address| match address.is_loopback() {
    ///     true => Ok(()),
    ///     false => Err("fetchers must run on the same host as this program".to_owned()),
    /// });
    /// ```
    pub fn admit(mut self, admits: impl Fn(IpAddr) -> Result<(), String> + Send + Sync + 'static) -> Self {
        self.listener = self.listener.admit(admits);
        self
    }

    /// Sets the transport of the payloads. Default: RDMA where both sides can, or else TCP.
    ///
    /// ```
    /// # let builder = multinet_client::Offers::builder();
    /// use multinet_client::Transport;
    ///
    /// let builder = builder.transport(Transport::Tcp);
    /// ```
    pub fn transport(mut self, transport: Transport) -> Self {
        self.listener = self.listener.transport(transport);
        self
    }

    /// Sets the use of RDMA devices.
    ///
    /// ```
    /// # let builder = multinet_client::Offers::builder();
    /// use multinet_client::Rdma;
    ///
    /// let builder = builder.rdma(Rdma::default());
    /// ```
    pub fn rdma(mut self, rdma: Rdma) -> Self {
        self.listener = self.listener.rdma(rdma);
        self
    }

    /// Sets the certificates. Fetchers must then present one that they trust, too, and that is for
    /// a name which [`Tls::expect`] allows, if it was called.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let builder = multinet_client::Offers::builder();
    /// use multinet_client::Tls;
    ///
    /// let tls = Tls::from_files("/tls/ca.crt", "/tls/tls.crt", "/tls/tls.key")?;
    /// let builder = builder.tls(tls.expect("spiffe://cluster.local/ns/vision/sa/infer")?);
    /// # Ok(()) }
    /// ```
    pub fn tls(mut self, tls: Tls) -> Self {
        self.listener = self.listener.tls(tls);
        self
    }

    /// Sets the time limit for each step of a fetcher's handshake. Default: 5 s.
    ///
    /// ```
    /// # let builder = multinet_client::Offers::builder();
    /// use std::time::Duration;
    ///
    /// let builder = builder.patience(Duration::from_secs(2));
    /// ```
    pub fn patience(mut self, patience: Duration) -> Self {
        self.listener = self.listener.patience(patience);
        self
    }

    /// Sets the time without an answer from its host after which a fetcher counts as gone. Default:
    /// 10 s, and at least 4 s.
    ///
    /// ```
    /// # let builder = multinet_client::Offers::builder();
    /// use std::time::Duration;
    ///
    /// let builder = builder.silence(Duration::from_secs(30));
    /// ```
    pub fn silence(mut self, silence: Duration) -> Self {
        self.listener = self.listener.silence(silence);
        self
    }

    /// Sets the most connections from fetchers at a time. Default: 1024. Those of one address have
    /// a sixteenth of them, but at least 8.
    ///
    /// ```
    /// # let builder = multinet_client::Offers::builder();
    /// let builder = builder.max_connections(128);
    /// ```
    pub fn max_connections(mut self, count: usize) -> Self {
        self.listener = self.listener.max_connections(count);
        self
    }

    /// Sets the most bytes of all payloads together, those included that a fetch still reads.
    /// Default: a quarter of the memory limit of this process, and at most 4 GiB.
    ///
    /// ```
    /// # let builder = multinet_client::Offers::builder();
    /// let builder = builder.budget(1 << 30);
    /// ```
    pub fn budget(mut self, bytes: usize) -> Self {
        self.budget = Some(bytes);
        self
    }

    /// Sets the time for which a payload is on offer. Default: 10 minutes.
    ///
    /// ```
    /// # let builder = multinet_client::Offers::builder();
    /// use std::time::Duration;
    ///
    /// let builder = builder.deadline(Duration::from_secs(60));
    /// ```
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets the host name in references. Default: the one that the kernel reports, which is the
    /// pod's. Fetchers ask the endpoint of this name first.
    ///
    /// ```
    /// # let builder = multinet_client::Offers::builder();
    /// let builder = builder.host("decode-0");
    /// ```
    pub fn host(mut self, name: impl Into<String>) -> Self {
        self.host = Some(name.into());
        self
    }

    /// Starts to listen for fetchers.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let offers = multinet_client::Offers::builder().bind().await?;
    /// println!("references begin with {}/", offers.host());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`BindError`], as for a [`Listener`], or if the host name cannot be one.
    pub async fn bind(self) -> Result<Offers, BindError> {
        let host = match self.host {
            Some(host) => host,
            None => std::fs::read_to_string("/proc/sys/kernel/hostname").map_err(BindError::HostName)?,
        };
        let host = host.trim().try_into().map_err(BindError::Host)?;
        let budget = self.budget.unwrap_or_else(default_memory);
        let (listener, arriving) = self.listener.bind_for_fetchers()?;
        let settings =
            LedgerLimits { budget, max_offers: MAX_OFFERS, remember: REMEMBER, max_remembered: MAX_OFFERS };
        let shared = Arc::new(OffersState {
            state: Mutex::new(LockedLedger { ledger: OfferLedger::new(settings), waiting: HashMap::new() }),
            earlier: Notify::new(),
            host,
            // The clock does not go further.
            deadline: self.deadline.min(LONGEST),
            budget,
            fetchers: AtomicUsize::new(0),
            end: CancellationToken::new(),
        });
        let tasks = TaskTracker::new();
        tasks.spawn({
            let shared = Arc::clone(&shared);
            async move {
                shared.end.run_until_cancelled(shared.run_deadlines()).await;
            }
        });
        tasks.spawn(fetchers::accept(Arc::clone(&shared), listener.clone(), arriving, tasks.clone()));
        Ok(Offers { handle: Arc::new(OffersHandle { shared, listener, tasks }) })
    }
}
