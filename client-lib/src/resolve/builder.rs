//! Settings of a [`Resolver`].

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::net::if_::if_nametoindex;

use super::conf::Conf;
use super::dns::Dns;
use super::{Inner, ResolveError, Resolver};

/// File with a pod's DNS configuration.
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// Default time to wait for a server. A cluster's DNS answers within milliseconds, and hickory
/// repeats a lost packet within this time. The five seconds of the C library would only delay the
/// next server.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Default time for which the last endpoints are kept while DNS fails.
const HOLD: Duration = Duration::from_secs(300);

/// Builder of a [`Resolver`], from [`Resolver::builder`].
///
/// The pod's `/etc/resolv.conf` supplies the settings that are not made here: servers, search path,
/// `ndots`, `timeout` and `attempts`.
///
/// # Examples
///
/// ```no_run
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// use multinet_client::Resolver;
///
/// // Endpoints of a minute ago are worse than none.
/// let resolver = Resolver::builder().hold(Duration::from_secs(60)).build()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "nothing is set up before build()"]
pub struct ResolverBuilder {
    servers: Vec<SocketAddr>,
    resolv_conf: Option<PathBuf>,
    search: Option<Vec<String>>,
    ndots: Option<usize>,
    timeout: Option<Duration>,
    hold: Option<Duration>,
}

impl ResolverBuilder {
    /// Queries these servers, in this order, instead of those of `resolv.conf`.
    ///
    /// The search path is still that of `resolv.conf`, if the file exists.
    ///
    /// ```
    /// use multinet_client::Resolver;
    ///
    /// // multinet-dns itself, first one replica, then the other one.
    /// let servers = ["10.244.1.7:53".parse()?, "10.244.2.9:53".parse()?];
    /// let resolver = Resolver::builder().servers(servers).build()?;
    /// assert_eq!(resolver.servers(), servers);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn servers(mut self, servers: impl IntoIterator<Item = SocketAddr>) -> Self {
        self.servers = servers.into_iter().collect();
        self
    }

    /// Reads this file (resolv.conf(5)) instead of `/etc/resolv.conf`. It must exist.
    ///
    /// ```
    /// use multinet_client::Resolver;
    ///
    /// let file = std::env::temp_dir().join(format!("resolv.conf-{}", std::process::id()));
    /// std::fs::write(&file, "nameserver 10.96.0.10\nsearch cluster.local\noptions ndots:5\n")?;
    /// let resolver = Resolver::builder().resolv_conf(&file).build()?;
    /// assert_eq!(resolver.servers()[0].port(), 53);
    /// assert_eq!((resolver.search().len(), resolver.ndots()), (1, 5));
    /// # std::fs::remove_file(file)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn resolv_conf(mut self, path: impl Into<PathBuf>) -> Self {
        self.resolv_conf = Some(path.into());
        self
    }

    /// Appends these domains to names that are not absolute, such as `cluster.local` from outside a
    /// pod.
    ///
    /// ```
    /// use multinet_client::Resolver;
    ///
    /// let builder = Resolver::builder().servers(["10.96.0.10:53".parse()?]);
    /// let resolver = builder.search(["cluster.local"]).build()?;
    /// assert_eq!(resolver.search(), ["cluster.local"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn search<S: Into<String>>(mut self, domains: impl IntoIterator<Item = S>) -> Self {
        self.search = Some(domains.into_iter().map(Into::into).collect());
        self
    }

    /// Sets the number of dots from which on a name is tried as it stands before the search path.
    ///
    /// ```
    /// use multinet_client::Resolver;
    ///
    /// // Full names only: none is tried with the search path first.
    /// let resolver = Resolver::builder().servers(["10.96.0.10:53".parse()?]).ndots(0).build()?;
    /// assert_eq!(resolver.ndots(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn ndots(mut self, ndots: usize) -> Self {
        self.ndots = Some(ndots);
        self
    }

    /// Sets how long one query waits for one server. Default: the `timeout` of `resolv.conf`, or 2
    /// seconds if the file does not set it.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// use multinet_client::Resolver;
    ///
    /// // The server is far away.
    /// let resolver = Resolver::builder().timeout(Duration::from_secs(5)).build()?;
    /// # Ok(()) }
    /// ```
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets how long the last endpoints are kept while DNS fails; see
    /// [`Change::Held`](super::Change::Held). Default: 5 minutes.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// use multinet_client::Resolver;
    ///
    /// // Pods seldom change here, and DNS may be upgraded for a quarter of an hour.
    /// let resolver = Resolver::builder().hold(Duration::from_secs(900)).build()?;
    /// # Ok(()) }
    /// ```
    pub fn hold(mut self, hold: Duration) -> Self {
        self.hold = Some(hold);
        self
    }

    /// Reads the configuration. Sends no query.
    ///
    /// ```
    /// use multinet_client::{ResolveError, Resolver};
    ///
    /// match Resolver::builder().resolv_conf("/nonexistent/resolv.conf").build() {
    ///     Err(ResolveError::BadConfig { path, .. }) => assert!(path.starts_with("/nonexistent")),
    ///     other => panic!("{other:?}"),
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ResolveError::BadConfig`] if the file cannot be read, and [`ResolveError::NoServers`] if
    /// neither the file nor [`servers`](Self::servers) names one.
    pub fn build(self) -> Result<Resolver, ResolveError> {
        let path = self.resolv_conf.as_deref().unwrap_or_else(|| Path::new(RESOLV_CONF));
        let is_needed = self.resolv_conf.is_some() || self.servers.is_empty();
        let conf = match fs::read(path) {
            Ok(text) => Conf::parse(&String::from_utf8_lossy(&text), |name| if_nametoindex(name).ok()),
            Err(_) if !is_needed => Conf::default(),
            Err(error) => return Err(bad_config(path, &error)),
        };
        let servers = if self.servers.is_empty() { conf.servers } else { self.servers };
        if servers.is_empty() {
            return Err(ResolveError::NoServers { path: path.to_owned() });
        }
        let timeout = self.timeout.or(conf.timeout).unwrap_or(TIMEOUT);
        let dns = Dns::new(servers, timeout, conf.attempts)
            .map_err(|error| bad_config(path, &io::Error::other(error)))?;
        Ok(Resolver {
            inner: Arc::new(Inner {
                dns,
                search: self.search.unwrap_or(conf.search),
                ndots: self.ndots.unwrap_or(conf.ndots),
                hold: self.hold.unwrap_or(HOLD),
            }),
        })
    }
}

fn bad_config(path: &Path, error: &io::Error) -> ResolveError {
    ResolveError::BadConfig { path: path.to_owned(), reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use tempfile::NamedTempFile;

    use super::*;

    fn file(text: &str) -> NamedTempFile {
        let mut file = NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    fn server(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    const POD: &str =
        "search n.svc.cluster.local cluster.local\nnameserver 10.96.0.10\noptions ndots:5 timeout:7\n";

    #[test]
    fn a_pods_configuration_is_read_from_its_resolv_conf() {
        let file = file(POD);
        let Resolver { inner } = Resolver::builder().resolv_conf(file.path()).build().unwrap();
        assert_eq!(inner.dns.servers(), [server("10.96.0.10:53")]);
        assert_eq!((inner.search.len(), inner.ndots, inner.hold), (2, 5, HOLD));
        assert!(format!("{:?}", inner.dns).contains("7s"));
    }

    #[test]
    fn settings_override_the_file() {
        let file = file(POD);
        let builder = Resolver::builder().resolv_conf(file.path()).servers([server("127.0.0.1:5353")]);
        let Resolver { inner } = builder.clone().build().unwrap();
        assert_eq!((inner.dns.servers(), inner.search.len()), (&[server("127.0.0.1:5353")][..], 2));

        let builder = builder.search(["z"]).ndots(1).timeout(Duration::from_secs(9)).hold(Duration::ZERO);
        let Resolver { inner } = builder.build().unwrap();
        assert_eq!(
            (inner.search.as_slice(), inner.ndots, inner.hold),
            (&["z".to_owned()][..], 1, Duration::ZERO)
        );
        assert!(format!("{:?}", inner.dns).contains("9s"));
    }

    #[test]
    fn an_unusable_file_is_named_in_the_error() {
        let missing = Resolver::builder().resolv_conf("/nonexistent/resolv.conf");
        let named = missing.clone().servers([server("127.0.0.1:53")]);
        for builder in [missing, named] {
            let error = builder.build().unwrap_err();
            assert!(error.is_permanent());
            assert!(error.to_string().starts_with("cannot use /nonexistent/resolv.conf"), "{error}");
        }
        let empty = file("search a\n");
        let error = Resolver::builder().resolv_conf(empty.path()).build().unwrap_err();
        assert_eq!(error, ResolveError::NoServers { path: empty.path().to_owned() });
    }
}
