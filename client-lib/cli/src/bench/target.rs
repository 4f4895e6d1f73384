//! Whom a command line names: a service, a host, or an address.

use std::net::{IpAddr, SocketAddr};

use anyhow::bail;
use multinet_client::{Connector, ConnectorBuilder};

use crate::common::ConnectArgs;

/// What perftest and `Listener` listen on if nobody says otherwise.
const DEFAULT_PORT: &str = "18515";

/// A name and a port, as `Connector::connect` takes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) port: String,
}

impl Target {
    /// `infer.vision.svc.multinet`, `host:18515`, `10.0.0.1`, `10.0.0.1:18515`, `fd00::1`, `[fd00::1]:18515`, and a port beside.
    ///
    /// # Errors
    ///
    /// If there are two ports.
    pub(crate) fn parse(name: &str, port: Option<&str>) -> anyhow::Result<Self> {
        let (host, inside) = match (name.parse::<SocketAddr>(), name.rsplit_once(':')) {
            (Ok(address), _) => (address.ip().to_string(), Some(address.port().to_string())),
            // An IPv6 address has colons of its own.
            (Err(_), Some((host, port))) if name.parse::<IpAddr>().is_err() => {
                (host.to_owned(), Some(port.to_owned()))
            }
            (Err(_), _) => (name.to_owned(), None),
        };
        let port = match (inside, port) {
            (Some(inside), Some(port)) => bail!("two ports for {host}: {inside} and {port}; give one"),
            (Some(port), None) => port,
            (None, port) => port.unwrap_or(DEFAULT_PORT).to_owned(),
        };
        Ok(Self { name: host, port })
    }

    /// A connector to it. Where it is an address, nobody is asked for it, so that no resolv.conf is needed.
    ///
    /// # Errors
    ///
    /// If DNS or TLS cannot be set up.
    pub(crate) fn connector(&self, args: &ConnectArgs) -> anyhow::Result<ConnectorBuilder> {
        let mut args = args.clone();
        if self.name.parse::<IpAddr>().is_ok()
            && args.dns.servers.is_empty()
            && args.dns.resolv_conf.is_none()
        {
            args.dns.servers.push(SocketAddr::from(([127, 0, 0, 1], 53)));
        }
        args.connector()
    }

    /// As people would write it.
    pub(crate) fn display(&self) -> String {
        match self.name.parse() {
            Ok(IpAddr::V6(ip)) => format!("[{ip}]:{}", self.port),
            _ => format!("{}:{}", self.name, self.port),
        }
    }
}

/// A connector to one address, which the other side has named.
///
/// # Errors
///
/// If there is no resolver to be had, though none is asked.
pub(crate) fn connector_to_address() -> anyhow::Result<ConnectorBuilder> {
    let nobody = SocketAddr::from(([127, 0, 0, 1], 53));
    let resolver = multinet_client::Resolver::builder().servers([nobody]).build()?;
    Ok(Connector::builder().resolver(resolver))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_addresses_and_ports() {
        let cases = [
            ("infer.vision.svc.multinet", None, "infer.vision.svc.multinet", "18515"),
            ("infer.vision.svc.multinet", Some("rdma"), "infer.vision.svc.multinet", "rdma"),
            ("host:7", None, "host", "7"),
            ("host:rdma", None, "host", "rdma"),
            ("10.0.0.1", None, "10.0.0.1", "18515"),
            ("10.0.0.1", Some("9"), "10.0.0.1", "9"),
            ("10.0.0.1:9", None, "10.0.0.1", "9"),
            ("fd00::1", None, "fd00::1", "18515"),
            ("[fd00::1]:9", None, "fd00::1", "9"),
        ];
        for (text, port, name, expected) in cases {
            let target = Target::parse(text, port).unwrap();
            assert_eq!((target.name.as_str(), target.port.as_str()), (name, expected), "{text}");
        }
        for two in ["host:7", "10.0.0.1:9", "[fd00::1]:9"] {
            assert!(
                Target::parse(two, Some("8")).unwrap_err().to_string().starts_with("two ports for"),
                "{two}"
            );
        }
        assert_eq!(Target::parse("fd00::1", None).unwrap().display(), "[fd00::1]:18515");
    }
}
