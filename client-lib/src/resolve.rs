//! Resolves a service's name to endpoints by DNS, once or again and again.
//!
//! ```text
//!  Resolver ──> question    name and port, and the full names that they may stand for (pure)
//!           ──> lookup      the queries of one resolution, in their order
//!                 ├─> dns      one query to the servers, over UDP or TCP; uses hickory, by sockets
//!                 └─> verdict  the outcome where no name has endpoints (pure)
//!           ──> records     endpoints out of records (pure); facts reads one TXT record
//!  Watch    ──> refresh     when to query again and what to report (pure, with the time passed in)
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
pub(crate) use self::question::{flaw as name_flaw, service_of};
pub use self::watch::Watch;
use crate::endpoint::Endpoint;

/// Resolver of services on secondary networks.
///
/// Clones share the servers and a limit on the queries in flight.
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

/// Endpoints of a service, as DNS knew them at one moment.
///
/// # Examples
///
/// ```no_run
/// # async fn example(
/// #     resolver: &multinet_client::Resolver,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let found = resolver.resolve("infer.vision.svc.multinet", "rdma").await?;
/// let nodes = found.endpoints.iter().filter_map(|endpoint| endpoint.node.as_deref());
/// let nodes = std::collections::BTreeSet::from_iter(nodes);
/// println!("{}: {} endpoints on {} nodes", found.name, found.endpoints.len(), nodes.len());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resolved {
    /// Full name of the service for which DNS answered, without the dot at its end.
    pub name: String,
    /// Endpoints of the service, sorted; at least one.
    pub endpoints: Vec<Endpoint>,
    /// Time for which the answer may be used: the smallest time to live of its records.
    pub ttl: Duration,
}

impl Resolved {
    /// Returns whether the endpoints, and the name that they belong to, are the same.
    fn is_same_set(&self, other: &Self) -> bool {
        (&self.name, &self.endpoints) == (&other.name, &other.endpoints)
    }
}

/// Change of a service's endpoints, from [`Watch`].
///
/// # Examples
///
/// ```no_run
/// # async fn example(
/// #     resolver: &multinet_client::Resolver,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// use futures::StreamExt as _;
/// use multinet_client::Change;
///
/// let mut changes = resolver.watch("infer.vision.svc.multinet", "rdma");
/// while let Some(change) = changes.next().await {
///     match change {
///         Change::Endpoints(now) => println!("{} endpoints", now.endpoints.len()),
///         Change::Lost { error } => println!("no endpoints: {error}"),
///         // The last endpoints still hold.
///         _ => {}
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// The service has these endpoints now. They differ from the last ones.
    Endpoints(Resolved),
    /// DNS fails. The last endpoints are kept, for as long as [`ResolverBuilder::hold`] allows.
    /// Each kind of failure is reported once in an outage.
    Held {
        /// Time of the first failure in this outage.
        since: Instant,
        /// Failure of the latest query.
        error: ResolveError,
    },
    /// DNS answers again, and the last endpoints were still kept. If they have changed,
    /// [`Endpoints`](Self::Endpoints) follows.
    Recovered,
    /// No endpoints are known: they were kept as long as allowed, or have never been known.
    Lost {
        /// Failure or negative answer because of which no endpoints are known.
        error: ResolveError,
    },
}

impl Resolver {
    /// Returns a builder. Its defaults are the settings of the pod's `/etc/resolv.conf`.
    ///
    /// ```
    /// use multinet_client::Resolver;
    ///
    /// // Outside a pod: the cluster's DNS server, and the last domain of a pod's search path.
    /// let builder = Resolver::builder().servers(["10.96.0.10:53".parse()?]);
    /// let resolver = builder.search(["cluster.local"]).build()?;
    /// assert_eq!(resolver.search(), ["cluster.local"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn builder() -> ResolverBuilder {
        ResolverBuilder::default()
    }

    /// Resolves the endpoints of a service once.
    ///
    /// `name` is that of a service, `infer.vision.svc.multinet`, of one of its networks,
    /// `rail0._net.infer.vision.svc.multinet`, or of one of its hosts,
    /// `infer-0.infer.vision.svc.multinet`. A name with fewer dots than `ndots` is tried with
    /// the domains of the search path first. A name with a dot at its end is tried only as it
    /// stands, and may be answered by a wildcard. An IP address needs no query.
    ///
    /// `port` is the name of a service port, as in the service's `spec.ports`, a number, or `*`.
    /// For a name, or the number of a named port, endpoints have all that DNS knows of them. For
    /// another number, each address of the service is an endpoint, with nothing but that address.
    /// `*` stands for every named port: an endpoint is returned once for each.
    ///
    /// IPv4 and IPv6 addresses are returned. Answers are not cached.
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
    /// [`ResolveError`]. An empty set is an error, too: [`ResolveError::is_negative`] returns
    /// whether DNS has answered that nothing is there.
    pub async fn resolve(&self, name: &str, port: &str) -> Result<Resolved, ResolveError> {
        let (_, outcome) = resolution::start(self, name, port, None).await;
        outcome
    }

    /// Follows the endpoints of a service until the [`Watch`] is dropped.
    ///
    /// DNS is queried again at the end of the records' time to live, with some jitter: at most once
    /// a second, and at least every 5 minutes. While it fails (NXDOMAIN, SERVFAIL, time-outs and
    /// others), the last endpoints are kept for a bounded time. It is then queried after 1 second,
    /// and after longer and longer intervals of up to 30 seconds. After a full name has answered,
    /// no other name of the search path is queried.
    ///
    /// The first change comes with the first outcome, which may be a failure.
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

    /// Returns the servers, in the order in which they are queried.
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

    /// Returns the domains of the search path, in their order.
    ///
    /// ```
    /// use multinet_client::Resolver;
    ///
    /// let builder = Resolver::builder().servers(["10.96.0.10:53".parse()?]);
    /// let resolver = builder.search(["cluster.local"]).build()?;
    /// let name = "infer.vision.svc.multinet";
    /// let tried = resolver.search().iter().map(|domain| format!("{name}.{domain}"));
    /// assert_eq!(tried.collect::<Vec<_>>(), ["infer.vision.svc.multinet.cluster.local"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn search(&self) -> &[String] {
        &self.inner.search
    }

    /// Returns the number of dots from which on a name is tried as it stands before the search
    /// path.
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

    /// Resolves a name. After the first answer, `last` is the full name that gave it, and no other
    /// is tried. Another name of the search path would be another service, even if this one has no
    /// endpoint any more.
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
