//! The target of a command line: a service, a host, or an address.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::bail;
use multinet_client::nic::RouteError;
use multinet_client::resolve::Question;
use multinet_client::{
    ConnectError, Connector, ConnectorBuilder, DialError, PeerSet, RefusalCode, ResolveError,
};

use crate::common::{ConnectArgs, address_resolver, wait_with_note};
use crate::output::Usage;

/// Port of a target that names none: the default port of perftest and of `Listener`.
const DEFAULT_PORT: &str = "18515";

/// Name and port of the service, host or address to connect to, as `Connector::connect` takes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) port: String,
}

impl Target {
    /// Parses a name such as `infer.vision.svc.multinet`, `host:18515`, `10.0.0.1` or
    /// `[fd00::1]:18515`, and a port that is given separately.
    ///
    /// # Errors
    ///
    /// [`Usage`], if there are two ports.
    pub(crate) fn parse(name: &str, port: Option<&str>) -> Result<Self, Usage> {
        let (name, port) = Self::split(name, port)?;
        Ok(Self { name, port: port.unwrap_or_else(|| DEFAULT_PORT.to_owned()) })
    }

    /// Does the same as [`parse`](Self::parse), for commands to which a service without a port
    /// means all of its ports. An address without a port has the default port.
    ///
    /// # Errors
    ///
    /// [`Usage`], if there are two ports; or an error for text that can be neither a name nor a
    /// port.
    pub(crate) fn parse_all_ports(
        name: &str,
        port: Option<&str>,
    ) -> anyhow::Result<(String, Option<String>)> {
        let (name, port) = Self::split(name, port)?;
        let default = name.parse::<IpAddr>().is_ok().then(|| DEFAULT_PORT.to_owned());
        let port = port.or(default);
        Question::parse(&name, port.as_deref().unwrap_or("*"))?;
        Ok((name, port))
    }

    /// Parses the name of a service, for commands to which an address is none, and the port that
    /// may follow it.
    ///
    /// # Errors
    ///
    /// [`Usage`], if the text is an address, or no name.
    pub(crate) fn service(text: &str) -> Result<(String, Option<String>), Usage> {
        let (name, port) = Self::split(text, None)?;
        match name.parse::<IpAddr>() {
            Ok(_) => Err(Usage(format!("{name} is an address: give the name of a service"))),
            Err(_) => Ok((name, port)),
        }
    }

    /// Splits off the port, if there is one, in the name or separate from it.
    ///
    /// # Errors
    ///
    /// [`Usage`], if there are two ports, or the text is no name.
    pub(crate) fn split(name: &str, port: Option<&str>) -> Result<(String, Option<String>), Usage> {
        if let Some(mistake) = mistake(name) {
            return Err(Usage(mistake));
        }
        let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
        let name = bare.filter(|bare| bare.parse::<Ipv6Addr>().is_ok()).unwrap_or(name);
        let (host, inside) = match (name.parse::<SocketAddr>(), name.rsplit_once(':')) {
            (Ok(address), _) => (address.ip().to_string(), Some(address.port().to_string())),
            // An IPv6 address has colons of its own.
            (Err(_), Some((host, port))) if name.parse::<IpAddr>().is_err() => {
                (host.to_owned(), Some(port.to_owned()))
            }
            (Err(_), _) => (name.to_owned(), None),
        };
        match (inside, port) {
            (Some(inside), Some(port)) => {
                Err(Usage(format!("two ports for {host}: {inside} and {port}; give one")))
            }
            (inside, port) => Ok((host, inside.or_else(|| port.map(ToOwned::to_owned)))),
        }
    }

    /// Returns a connector builder for the target. An address needs no resolv.conf.
    ///
    /// # Errors
    ///
    /// [`Usage`], if the target is an address, of which the certificate's name or the network is
    /// not known; or if DNS or TLS cannot be set up.
    pub(crate) fn connector(&self, args: &ConnectArgs) -> anyhow::Result<ConnectorBuilder> {
        let is_address = self.name.parse::<IpAddr>().is_ok();
        if is_address && args.tls.lacks_peer_names() {
            let name = &self.name;
            return Err(Usage(format!(
                "no certificate is for an address: say by --tls-name what that of {name} is for"
            ))
            .into());
        }
        if let (true, Some(alias)) = (is_address, &args.network.network) {
            let name = &self.name;
            return Err(Usage(format!(
                "which network {name} is on is not known, as only DNS says it: leave out --network {alias}, or give the \
                 service's name"
            ))
            .into());
        }
        let needs_no_dns = is_address && args.dns.servers.is_empty() && args.dns.resolv_conf.is_none();
        args.connector(if needs_no_dns { address_resolver()? } else { args.dns.resolver()? })
    }

    /// Refuses a port that can only be the name of a file, as in `send ADDRESS FILE`.
    ///
    /// # Errors
    ///
    /// [`Usage`], with the correct command line.
    pub(crate) fn has_no_file(&self) -> Result<(), Usage> {
        match Question::parse(&self.name, &self.port) {
            Err(ResolveError::BadPort { port, reason }) => Err(Usage(format!(
                "{port:?} is not a port: {reason}; if it is the file to send, write --file {port}, or put a port before it"
            ))),
            _ => Ok(()),
        }
    }

    /// Connects to the target's peers, within `wait`.
    ///
    /// # Errors
    ///
    /// [`ConnectError`], with a hint if the name may be the cause.
    pub(crate) async fn connect(&self, connector: &Connector, wait: Duration) -> anyhow::Result<PeerSet> {
        let error = match wait_with_note("not connected yet", wait, connector.connect(&self.name, &self.port))
            .await
        {
            Ok(peers) => return Ok(peers),
            Err(error) => error,
        };
        let is_by_default_network = matches!(&error, ConnectError::Lasting { last, .. }
            if matches!(**last, DialError::Route(RouteError::DefaultNetwork { .. })));
        // In a pod, a short name leads to a core Service, which is on the default network.
        if is_by_default_network && !self.is_multinets() {
            let name = &self.name;
            bail!("{error}; {name} may be a core Service: names of multinet's have svc.multinet in them");
        }
        if matches!(&error, ConnectError::Lasting { last, .. } if is_wrong_role(last)) {
            bail!("{error}: fetch from it by multinet get, or give the port on which frames are received");
        }
        Err(error.into())
    }

    /// Returns whether the target is an address, or a name in the usual zone.
    fn is_multinets(&self) -> bool {
        self.name.parse::<IpAddr>().is_ok() || self.name.split('.').any(|label| label == "multinet")
    }

    /// Returns the target as `name:port`, an IPv6 address in brackets.
    pub(crate) fn display(&self) -> String {
        match self.name.parse() {
            Ok(IpAddr::V6(ip)) => format!("[{ip}]:{}", self.port),
            _ => format!("{}:{}", self.name, self.port),
        }
    }
}

/// Returns whether the peer refuses because it offers payloads, and receives no frames; or the
/// other way round.
pub(crate) fn is_wrong_role(error: &DialError) -> bool {
    matches!(error, DialError::Refused { code: RefusalCode::Role, .. })
}

/// Returns a correction of text that is not a name, such as a URL; `None` if it may be one.
fn mistake(name: &str) -> Option<String> {
    if let Some((_, rest)) = name.split_once("://") {
        let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
        let authority = authority.rsplit('@').next().unwrap_or(authority);
        return Some(format!("{name:?} is a URL: give the name alone, {authority}"));
    }
    if let Some((address, _)) = name.split_once('%')
        && address.trim_start_matches('[').parse::<Ipv6Addr>().is_ok()
    {
        return Some(format!(
            "{name:?} is an address with an interface: link-local addresses are not supported, give another one of that NIC"
        ));
    }
    let (first, second) = name.split_once('/')?;
    Some(if first.parse::<IpAddr>().is_ok() {
        format!("{name:?} is a network: give an address alone, such as {first}")
    } else {
        let (service, namespace) = match first {
            "mnsvc" | "service" | "svc" | "pod" => (second, "NAMESPACE"),
            namespace => (second, namespace),
        };
        format!(
            "{name:?} is no name in DNS: a service is SERVICE.NAMESPACE.svc.multinet, such as {service}.{namespace}.svc.multinet"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_has_a_name_and_a_port() {
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
            ("[fd00::1]", None, "fd00::1", "18515"),
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

    #[test]
    fn text_that_is_no_name_is_refused_with_a_correction() {
        let cases = [
            (
                "http://infer.vision.svc.multinet:80/v1",
                "is a URL: give the name alone, infer.vision.svc.multinet:80",
            ),
            ("tcp://user@10.0.0.1", "is a URL: give the name alone, 10.0.0.1"),
            ("10.0.0.1/24", "is a network: give an address alone, such as 10.0.0.1"),
            ("vision/infer", "such as infer.vision.svc.multinet"),
            ("mnsvc/infer", "such as infer.NAMESPACE.svc.multinet"),
            ("fe80::1%net1", "link-local addresses are not supported"),
            ("[fe80::1%net1]:9", "link-local addresses are not supported"),
        ];
        for (text, needle) in cases {
            let said = Target::parse(text, None).unwrap_err().to_string();
            assert!(said.starts_with(&format!("{text:?} is ")) && said.contains(needle), "{said}");
        }
    }

    #[test]
    fn a_file_in_the_place_of_a_port_is_refused() {
        for (name, port, is_file) in [
            ("10.0.0.1", "model.bin", true),
            ("10.0.0.1", "model", true),
            ("10.0.0.1", "9", false),
            ("infer.vision.svc.multinet", "model.bin", true),
            ("infer.vision.svc.multinet", "./model", true),
            ("infer.vision.svc.multinet", "rdma", false),
        ] {
            let refused =
                Target::parse(name, Some(port)).unwrap().has_no_file().map_err(|error| error.to_string());
            let is_refused = refused.is_err_and(|said| said.contains(&format!("write --file {port}, or")));
            assert_eq!(is_refused, is_file, "{name} {port}");
        }
    }

    #[test]
    fn a_service_without_a_port_stands_for_all_its_ports() {
        let cases = [
            ("infer.vision", None, Ok(("infer.vision", None))),
            ("infer.vision:rdma", None, Ok(("infer.vision", Some("rdma")))),
            ("10.0.0.1", None, Ok(("10.0.0.1", Some("18515")))),
            ("infer.vision", Some("70000"), Err("\"70000\" is not a port")),
            ("infer.vision:70000", None, Err("\"70000\" is not a port")),
            ("a b", None, Err("\"a b\" is not the name of a service")),
            ("host:7", Some("8"), Err("two ports for host")),
        ];
        for (text, port, expected) in cases {
            let parsed = Target::parse_all_ports(text, port).map_err(|error| error.to_string());
            match (parsed, expected) {
                (Ok((name, port)), Ok(expected)) => assert_eq!((&*name, port.as_deref()), expected, "{text}"),
                (Err(error), Err(start)) => assert!(error.starts_with(start), "{text}: {error}"),
                (parsed, _) => panic!("{text}: {parsed:?}"),
            }
        }
    }
}
