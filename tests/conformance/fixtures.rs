//! The manifests that the tables are about, a server that serves them, and manifests made to
//! measure.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::OnceLock;

use multinet_testing::server::{Flags, Server};

/// The zone of a server without `--zone`, without the last dot.
pub(crate) const ZONE: &str = "multinet.cluster.local";

/// The folder of the manifests that the tables are about.
pub(crate) fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/conformance/fixtures"))
}

/// A server that serves the fixtures with default flags, for all tests that only ask.
///
/// # Panics
/// If the server does not start.
pub(crate) fn server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| match Flags::new().start(&folder()) {
        Ok(server) => server,
        Err(error) => panic!("{error:#}"),
    })
}

/// A service and its one slice per address family, as a manifest.
#[derive(Debug, Clone)]
pub(crate) struct Service<'a> {
    /// Its name, in the namespace `test`.
    pub(crate) name: &'a str,
    /// Its ready endpoints: address, and hostname if there is one.
    pub(crate) endpoints: Vec<(IpAddr, Option<String>)>,
}

impl<'a> Service<'a> {
    /// A service without endpoints.
    pub(crate) fn new(name: &'a str) -> Self {
        Self { name, endpoints: Vec::new() }
    }

    /// With one more endpoint without hostname.
    pub(crate) fn endpoint(mut self, address: impl Into<IpAddr>) -> Self {
        self.endpoints.push((address.into(), None));
        self
    }

    /// With these endpoints of one hostname each.
    pub(crate) fn hosts(mut self, hosts: impl IntoIterator<Item = (IpAddr, String)>) -> Self {
        self.endpoints.extend(hosts.into_iter().map(|(address, host)| (address, Some(host))));
        self
    }

    /// The manifest: port `http`, network `fast`, slices of at most a thousand endpoints.
    pub(crate) fn yaml(&self) -> String {
        let Self { name, endpoints } = self;
        let mut yaml = format!(
            "apiVersion: multinetwork.numaproj.io/v1alpha1\nkind: MultiNetworkService\n\
             metadata: {{name: {name}, namespace: test}}\n\
             spec: {{networks: [{{name: fast}}], ports: [{{name: http, port: 80, protocol: TCP}}]}}\n"
        );
        for (family, is_v4) in [("IPv4", true), ("IPv6", false)] {
            let endpoints: Vec<_> =
                endpoints.iter().filter(|(address, _)| address.is_ipv4() == is_v4).collect();
            for (number, endpoints) in endpoints.chunks(1000).enumerate() {
                // A String takes all that is written to it.
                let _ = write!(
                    yaml,
                    "---\napiVersion: multinetwork.numaproj.io/v1alpha1\nkind: MultiNetworkEndpointSlice\n\
                     metadata:\n  name: {name}-{number}-{}\n  namespace: test\n  \
                     labels: {{multinetwork.numaproj.io/service-name: {name}}}\n\
                     spec:\n  addressType: {family}\n  network: {{name: fast, namespace: test}}\n  \
                     ports: [{{name: http, port: 80, protocol: TCP}}]\n  endpoints:\n",
                    family.to_lowercase()
                );
                for (address, host) in endpoints {
                    let host = host.as_ref().map(|host| format!(", hostname: {host}")).unwrap_or_default();
                    let _ = writeln!(yaml, "    - {{addresses: [\"{address}\"]{host}}}"); // as above
                }
            }
        }
        yaml
    }
}

/// The name of a [`Service`], or one below it.
pub(crate) fn name(relative: &str) -> String {
    format!("{relative}.test.svc.{ZONE}")
}
