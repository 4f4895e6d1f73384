//! The manifests of the golden tables, a server that serves them, and a builder for other
//! manifests.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::OnceLock;

use multinet_testing::server::{Flags, Server};

/// Zone of a server without `--zone`, without the last dot.
pub(crate) const ZONE: &str = "multinet.cluster.local";

/// Returns the folder with the manifests of the golden tables.
pub(crate) fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/conformance/fixtures"))
}

/// Returns a shared server that serves the fixtures with default flags, for tests that only send
/// queries.
///
/// # Panics
///
/// If the server does not start.
pub(crate) fn server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| match Flags::new().start(&folder()) {
        Ok(server) => server,
        Err(error) => panic!("{error:#}"),
    })
}

/// Manifest of a service with a slice per address family.
#[derive(Debug, Clone)]
pub(crate) struct Service<'a> {
    /// Name in the namespace `test`.
    pub(crate) name: &'a str,
    /// Ready endpoints: address, and hostname if it has one.
    pub(crate) endpoints: Vec<(IpAddr, Option<String>)>,
}

impl<'a> Service<'a> {
    /// Creates a service without endpoints.
    pub(crate) fn new(name: &'a str) -> Self {
        Self { name, endpoints: Vec::new() }
    }

    /// Adds an endpoint without a hostname.
    pub(crate) fn endpoint(mut self, address: impl Into<IpAddr>) -> Self {
        self.endpoints.push((address.into(), None));
        self
    }

    /// Adds endpoints with hostnames.
    pub(crate) fn hosts(mut self, hosts: impl IntoIterator<Item = (IpAddr, String)>) -> Self {
        self.endpoints.extend(hosts.into_iter().map(|(address, host)| (address, Some(host))));
        self
    }

    /// Returns the YAML, with the port `http`, the network `fast`, and slices of at most a thousand
    /// endpoints.
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
                // Writing to a String cannot fail.
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

/// Returns the DNS name of a [`Service`], or one below it.
pub(crate) fn name(relative: &str) -> String {
    format!("{relative}.test.svc.{ZONE}")
}
