//! Asks DNS for the endpoints of a service, and keeps asking (DESIGN.md, DNS and client-lib).
//!
//! ```text
//!  Resolver ──> question   what was given, and the full names that it may stand for (pure)
//!           ──> lookup     which questions, in which order
//!                 ├─> verdict  what their answers mean where none has endpoints (pure)
//!                 └─> dns  one question to servers, over UDP or TCP; with sockets, the only file with hickory in it
//!           ──> records    records in, endpoints out (pure), with facts, one TXT record
//!  Watch    ──> refresh    when to ask again, what to hold on to, what to say (pure, with a passed clock)
//! ```

mod advice;
mod builder;
mod conf;
mod dns;
mod error;
mod facts;
#[cfg(any(test, fuzzing))]
#[path = "../fuzz/doors/resolve.rs"]
pub(crate) mod fuzzing;
mod list;
mod lookup;
mod question;
mod records;
mod refresh;
mod resolution;
mod sockets;
mod verdict;
mod watch;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use self::builder::ResolverBuilder;
use self::dns::Dns;
pub use self::error::ResolveError;
pub(crate) use self::list::List;
use self::question::Host;
pub use self::question::Question;
pub(crate) use self::question::service_of;
use self::resolution::Resolution;
pub use self::watch::Watch;
use crate::endpoint::Endpoint;

/// Finds the endpoints of services on secondary networks.
///
/// A clone asks the same servers; all of them together have a bounded number of questions in flight.
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_client::Resolver;
///
/// let resolver = Resolver::builder().build()?;
/// let found = resolver.resolve("rail0._net.infer.vision.svc.multinet", "rdma").await?;
/// println!("{:?}", found.endpoints);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Resolver {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    dns: Dns,
    search: Vec<String>,
    ndots: usize,
    hold: Duration,
}

/// The endpoints of a service, as DNS knew them at a moment.
///
/// # Examples
///
/// ```no_run
/// # async fn example(resolver: &multinet_client::Resolver) -> Result<(), Box<dyn std::error::Error>> {
/// let found = resolver.resolve("infer.vision.svc.multinet", "rdma").await?;
/// let nodes: std::collections::BTreeSet<_> = found.endpoints.iter().filter_map(|it| it.node.as_deref()).collect();
/// println!("{}: {} endpoints on {} nodes", found.name, found.endpoints.len(), nodes.len());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resolved {
    /// The full name that answered, without the dot at its end.
    pub name: String,
    /// The endpoints, at least one, sorted.
    pub endpoints: Vec<Endpoint>,
    /// How long this may be relied on: the smallest time to live of the records.
    pub ttl: Duration,
}

impl Resolved {
    /// Whether a listener would hear nothing new.
    fn is_same_set(&self, other: &Self) -> bool {
        (&self.name, &self.endpoints) == (&other.name, &other.endpoints)
    }
}

/// What has happened to a service's endpoints; from [`Watch`].
///
/// # Examples
///
/// ```no_run
/// # async fn example(resolver: &multinet_client::Resolver) -> Result<(), Box<dyn std::error::Error>> {
/// use futures::StreamExt as _;
/// use multinet_client::Change;
///
/// let mut changes = resolver.watch("infer.vision.svc.multinet", "rdma");
/// while let Some(change) = changes.next().await {
///     match change {
///         Change::Endpoints(now) => println!("{} endpoints", now.endpoints.len()),
///         Change::Lost { error } => println!("nobody to send to: {error}"),
///         // The last endpoints still hold.
///         _ => {}
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// These are the endpoints now. They differ from the last ones.
    Endpoints(Resolved),
    /// DNS fails; the last endpoints go on to hold, for as long as [`ResolverBuilder::hold`] says. Said once
    /// for each kind of failure in an outage.
    Held {
        /// When the outage was noticed.
        since: Instant,
        /// What DNS said, or did not.
        error: ResolveError,
    },
    /// DNS answers again while the last endpoints still held. If they have changed, that comes next.
    Recovered,
    /// There are no endpoints: the hold is over, or there never were any.
    Lost {
        /// What DNS said, or did not.
        error: ResolveError,
    },
}

impl Resolver {
    /// Sets up a resolver; without further ado, the one of the pod's `/etc/resolv.conf`.
    ///
    /// ```
    /// use multinet_client::Resolver;
    ///
    /// // From outside a pod: the cluster's DNS, and what a pod's search path would end with.
    /// let resolver = Resolver::builder().servers(["10.96.0.10:53".parse()?]).search(["cluster.local"]).build()?;
    /// assert_eq!(resolver.search(), ["cluster.local"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn builder() -> ResolverBuilder {
        ResolverBuilder::default()
    }

    /// The endpoints of a service, asked for once.
    ///
    /// `name` is that of a service, `infer.vision.svc.multinet`, or of one of its networks,
    /// `rail0._net.infer.vision.svc.multinet`. With fewer dots than `ndots` it is tried with the domains of the search
    /// path first; one with a dot at its end is tried as it stands only, and only that may be answered by a wildcard. An
    /// address is taken as it is.
    ///
    /// `port` is the name of a service port, as in the service's `spec.ports`, or a number. With a name, endpoints come
    /// with all that DNS knows of them. With a number that is only their addresses, each of which becomes an endpoint. `*`
    /// is every named port: an endpoint comes once for each.
    ///
    /// All families are returned, IPv4 and IPv6. Answers are not cached.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), multinet_client::ResolveError> {
    /// use multinet_client::Resolver;
    ///
    /// let resolver = Resolver::builder().build()?;
    /// let found = resolver.resolve("infer.vision.svc.multinet", "rdma").await?;
    /// for endpoint in &found.endpoints {
    ///     println!("{endpoint} on {:?}", endpoint.node);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// See [`ResolveError`]. An error is never an empty set: that it is known that there is nothing is
    /// [`ResolveError::is_negative`].
    pub async fn resolve(&self, name: &str, port: &str) -> Result<Resolved, ResolveError> {
        let (_, outcome) = Resolution::start(self, name, port, None).await;
        outcome
    }

    /// Follows the endpoints of a service, until the [`Watch`] is dropped.
    ///
    /// DNS is asked again at the end of the records' time to live, but at least every 5 minutes and at most every second,
    /// with some jitter. While it fails (NXDOMAIN, SERVFAIL, time-outs and all else), the last endpoints are
    /// held on to for a bounded time, and DNS is asked after 1 second, then less and less often, down to every 30 seconds.
    /// Once a full name has answered, no other of the search path is asked for.
    ///
    /// The first change comes as soon as something is known, be it a failure.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), multinet_client::ResolveError> {
    /// use futures::StreamExt;
    /// use multinet_client::{Change, Resolver};
    ///
    /// let mut changes = Resolver::builder().build()?.watch("infer.vision.svc.multinet", "rdma");
    /// while let Some(change) = changes.next().await {
    ///     match change {
    ///         Change::Endpoints(now) => println!("{} endpoints", now.endpoints.len()),
    ///         Change::Held { error, .. } => println!("keeping the last ones: {error}"),
    ///         Change::Recovered => println!("DNS is back"),
    ///         Change::Lost { error } => println!("none: {error}"),
    ///         _ => {}
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub fn watch(&self, name: &str, port: &str) -> Watch {
        Watch::new(self.clone(), name, port)
    }

    /// The servers that are asked, in this order.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::Resolver;
    ///
    /// let resolver = Resolver::builder().build()?;
    /// println!("asks {:?}", resolver.servers());
    /// # Ok(()) }
    /// ```
    pub fn servers(&self) -> &[SocketAddr] {
        self.inner.dns.servers()
    }

    /// The domains that are tried behind names that are not absolute, in this order.
    ///
    /// ```
    /// use multinet_client::Resolver;
    ///
    /// let resolver = Resolver::builder().servers(["10.96.0.10:53".parse()?]).search(["cluster.local"]).build()?;
    /// let tried = resolver.search().iter().map(|domain| format!("infer.vision.svc.multinet.{domain}"));
    /// assert_eq!(tried.collect::<Vec<_>>(), ["infer.vision.svc.multinet.cluster.local"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn search(&self) -> &[String] {
        &self.inner.search
    }

    /// Names with fewer dots are tried with the search path before they are tried as they stand.
    ///
    /// ```
    /// use multinet_client::Resolver;
    ///
    /// let resolver = Resolver::builder().servers(["10.96.0.10:53".parse()?]).ndots(5).build()?;
    /// let name = "infer.vision.svc.multinet";
    /// assert!(name.matches('.').count() < resolver.ndots(), "the search path comes first");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn ndots(&self) -> usize {
        self.inner.ndots
    }

    fn hold(&self) -> Duration {
        self.inner.hold
    }

    /// Resolves; after a first answer only the full name that gave it. An answer for another name of the search path
    /// would be one for another service, also when this one has no endpoint any more.
    async fn resolve_again(
        &self,
        name: &str,
        port: &str,
        last: Option<&str>,
    ) -> Result<Resolved, ResolveError> {
        let question = Question::parse(name, port)?;
        let (host, is_absolute) = match &question.host {
            Host::Name { name, is_absolute } => (name, *is_absolute),
            Host::Address(ip) => return lookup::address(*ip, &question.port),
        };
        let Inner { dns, search, ndots, .. } = &*self.inner;
        let session = dns.session();
        match last {
            Some(last) => lookup::resolve(&session, last, &question.port, &[last.to_owned()], true).await,
            None => {
                let candidates = question::candidates(host, is_absolute, &question.port, search, *ndots);
                lookup::resolve(&session, host, &question.port, &candidates, is_absolute).await
            }
        }
    }
}
