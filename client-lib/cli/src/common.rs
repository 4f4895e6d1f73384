//! Flags that several subcommands have, and the library's builders with these settings.

use std::convert::Infallible;
use std::io::{self, IsTerminal as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::builder::FalseyValueParser;
use clap::{Args, ValueEnum};
use multinet_client::{
    Connector, ConnectorBuilder, Forced, Listener, ListenerBuilder, Offers, OffersBuilder, Rdma,
    ResolveError, Resolver, ResolverBuilder, Tls, Transport,
};
use multinet_stderr::Format;
use nix::net::if_::if_nametoindex;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::output::{WithFlagNames, note};

/// Port of DNS servers that are given without one.
const DNS_PORT: u16 = 53;

/// Message about the likely cause where connections are made, but nothing large gets through them.
pub(crate) const LOST_PACKETS: &str =
    "Likely, large packets are lost on the way: the MTU of a NIC is greater than that of the network";

/// Returns a resolver for addresses, which are not looked up. It needs no resolv.conf.
///
/// # Errors
///
/// None is known, since nothing is read.
pub(crate) fn address_resolver() -> Result<Resolver, ResolveError> {
    Resolver::builder().servers([SocketAddr::from((Ipv4Addr::LOCALHOST, DNS_PORT))]).build()
}

/// Flags that choose the DNS servers.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct DnsArgs {
    /// DNS server to ask; may be repeated, later ones are asked where earlier ones fail [default:
    /// those of resolv.conf]
    #[arg(long = "server", value_name = "ADDR[:PORT]", env = "MULTINET_SERVER", value_delimiter = ',',
          value_parser = server, help_heading = "DNS")]
    pub(crate) servers: Vec<SocketAddr>,

    /// File to take servers, search path and ndots from [default: /etc/resolv.conf]
    #[arg(long, value_name = "FILE", env = "MULTINET_RESOLV_CONF", help_heading = "DNS")]
    pub(crate) resolv_conf: Option<PathBuf>,
}

/// Flags that choose the network for connections to a service.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct NetworkArgs {
    /// Only addresses on the network with this alias, such as rail0
    #[arg(long, value_name = "ALIAS", env = "MULTINET_NETWORK", help_heading = "Network")]
    pub(crate) network: Option<String>,

    /// Allow connections by the network of the default route, too
    #[arg(long, env = "MULTINET_ALLOW_DEFAULT_NETWORK", value_parser = FalseyValueParser::new(),
          help_heading = "Network")]
    pub(crate) allow_default_network: bool,
}

/// Flags of mutual TLS with peers: all three files, or none.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct TlsArgs {
    /// Our certificate chain in PEM: turns on mutual TLS
    #[arg(long, value_name = "FILE", env = "MULTINET_TLS_CERT", requires_all = ["tls_key", "tls_ca"],
          help_heading = "TLS")]
    tls_cert: Option<PathBuf>,

    /// Private key in PEM of that certificate
    #[arg(long, value_name = "FILE", env = "MULTINET_TLS_KEY", requires = "tls_cert", help_heading = "TLS")]
    tls_key: Option<PathBuf>,

    /// Certificates in PEM of the authorities that vouch for peers
    #[arg(long, value_name = "FILE", env = "MULTINET_TLS_CA", requires = "tls_cert", help_heading = "TLS")]
    tls_ca: Option<PathBuf>,

    /// Name that a peer's certificate has to have, a DNS name or spiffe://…; may be repeated
    /// [default: a client expects the service's name, which an address has not]
    #[arg(
        long,
        value_name = "NAME",
        env = "MULTINET_TLS_NAME",
        value_delimiter = ',',
        requires = "tls_cert",
        help_heading = "TLS"
    )]
    tls_name: Vec<String>,
}

/// Flags that choose how frames travel.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct TransportArgs {
    /// RDMA where both sides have it, else TCP (auto); or one of them only
    #[arg(long, value_enum, env = "MULTINET_TRANSPORT", default_value_t, help_heading = "Network")]
    transport: Kind,

    /// Poll for this many microseconds after something has come by RDMA, before waiting for an
    /// interrupt
    #[arg(long, value_name = "USEC", env = "MULTINET_BUSY_POLL", default_value_t = 0, help_heading = "Network",
          value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    busy_poll: u32,

    /// Cut frames of 256 KiB or more into this many parts, which go by RDMA queue pairs of their
    /// own
    #[arg(
        long,
        value_name = "COUNT",
        env = "MULTINET_STRIPES",
        default_value_t = 1,
        value_parser = clap::value_parser!(u8).range(1..=i64::from(Rdma::MOST_STRIPES)),
        help_heading = "Network"
    )]
    stripes: u8,

    /// Traffic class of what this side sends by RDMA: under RoCE v2 a byte of IP, four times the
    /// DSCP, and ECN
    #[arg(
        long,
        visible_alias = "tclass",
        value_name = "CLASS",
        env = "MULTINET_TRAFFIC_CLASS",
        default_value_t = 0,
        help_heading = "Network"
    )]
    traffic_class: u8,

    /// Service level of what this side sends by RDMA: InfiniBand's, or the priority of a VLAN under
    /// RoCE
    #[arg(short = 'S', long, visible_alias = "sl", value_name = "LEVEL", env = "MULTINET_SERVICE_LEVEL",
          default_value_t = 0, help_heading = "Network",
          value_parser = clap::value_parser!(u8).range(..=i64::from(Rdma::MOST_SERVICE_LEVEL)))]
    service_level: u8,

    /// How RDMA gets at the memory of GPUs: auto, dma-buf, peermem or staging
    #[arg(
        long,
        value_name = "METHOD",
        env = "MULTINET_GPU_METHOD",
        default_value = "auto",
        help_heading = "Network"
    )]
    gpu_method: Forced,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Kind {
    #[default]
    Auto,
    Rdma,
    Tcp,
}

/// Flags of subcommands that connect to a service.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ConnectArgs {
    #[command(flatten)]
    pub(crate) dns: DnsArgs,
    #[command(flatten)]
    pub(crate) network: NetworkArgs,
    #[command(flatten)]
    pub(crate) transport: TransportArgs,
    #[command(flatten)]
    pub(crate) tls: TlsArgs,
}

/// Flags of subcommands that listen.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ListenArgs {
    /// Address to listen on; may be repeated [default: those of all second NICs]
    #[arg(
        long,
        value_name = "IP",
        env = "MULTINET_ADDRESS",
        value_delimiter = ',',
        help_heading = "Network"
    )]
    address: Vec<IpAddr>,

    /// Where there is no second NIC, listen on all addresses
    #[arg(long, env = "MULTINET_ALLOW_DEFAULT_NETWORK", value_parser = FalseyValueParser::new(),
          help_heading = "Network")]
    pub(crate) allow_default_network: bool,

    /// Most memory for frames of all peers, or for the file of `put` [default: a quarter of what
    /// the container may have, 4 GiB at most]
    #[arg(long, value_name = "BYTES", env = "MULTINET_MEMORY")]
    memory: Option<usize>,

    #[command(flatten)]
    pub(crate) transport: TransportArgs,
    #[command(flatten)]
    pub(crate) tls: TlsArgs,
}

/// Flags of the log, which goes to standard error.
#[derive(Args, Clone, Debug)]
pub(crate) struct LogArgs {
    /// Lines to log to standard error: error, warn, info, debug, trace, off, or target=level,…
    /// [default: warn]
    #[arg(long, value_name = "FILTER", env = "RUST_LOG", value_parser = filter, global = true,
          help_heading = "Logs")]
    log_level: Option<String>,
}

impl DnsArgs {
    /// Builds the resolver: reads resolv.conf, but sends nothing yet.
    ///
    /// # Errors
    ///
    /// If no server is known.
    pub(crate) fn resolver(&self) -> Result<Resolver, ResolveError> {
        self.builder(&self.servers).build()
    }

    /// Builds a resolver by which endpoints are lost as soon as DNS does not confirm them.
    ///
    /// # Errors
    ///
    /// As [`resolver`](Self::resolver).
    pub(crate) fn strict_resolver(&self) -> Result<Resolver, ResolveError> {
        self.builder(&self.servers).hold(Duration::ZERO).build()
    }

    /// Builds a resolver that asks one server only.
    ///
    /// # Errors
    ///
    /// If resolv.conf cannot be read.
    pub(crate) fn resolver_of(&self, server: SocketAddr) -> Result<Resolver, ResolveError> {
        self.builder(&[server]).build()
    }

    fn builder(&self, servers: &[SocketAddr]) -> ResolverBuilder {
        let builder = Resolver::builder().servers(servers.iter().copied());
        match &self.resolv_conf {
            Some(file) => builder.resolv_conf(file),
            None => builder,
        }
    }
}

impl TlsArgs {
    /// Reads the files, if TLS is on.
    ///
    /// # Errors
    ///
    /// If a file cannot be used.
    pub(crate) fn tls(&self) -> anyhow::Result<Option<Tls>> {
        let (Some(certificate), Some(key), Some(trust)) = (&self.tls_cert, &self.tls_key, &self.tls_ca)
        else {
            return Ok(None);
        };
        let mut tls = Tls::from_files(certificate, key, trust)?;
        for name in &self.tls_name {
            tls = tls.expect(name).context("--tls-name")?;
        }
        Ok(Some(tls))
    }

    /// Returns whether TLS is on.
    pub(crate) fn is_on(&self) -> bool {
        self.tls_cert.is_some()
    }

    /// Returns whether TLS is on, without a name that peers' certificates must have.
    pub(crate) fn lacks_peer_names(&self) -> bool {
        self.tls_cert.is_some() && self.tls_name.is_empty()
    }
}

impl TransportArgs {
    pub(crate) fn transport(self) -> Transport {
        match self.transport {
            Kind::Auto => Transport::Auto,
            Kind::Rdma => Transport::Rdma,
            Kind::Tcp => Transport::Tcp,
        }
    }

    pub(crate) fn rdma(self) -> Rdma {
        Rdma::default()
            .busy_poll(Duration::from_micros(self.busy_poll.into()))
            .gpu_method(self.gpu_method)
            .stripes(self.stripes)
            .traffic_class(self.traffic_class)
            .service_level(self.service_level)
    }
}

impl ConnectArgs {
    /// Returns a connector builder with these settings.
    ///
    /// # Errors
    ///
    /// If TLS cannot be set up.
    pub(crate) fn connector(&self, resolver: Resolver) -> anyhow::Result<ConnectorBuilder> {
        let NetworkArgs { network, allow_default_network } = &self.network;
        let mut builder = Connector::builder()
            .resolver(resolver)
            .allow_default_network(*allow_default_network)
            .transport(self.transport.transport())
            .rdma(self.transport.rdma());
        if let Some(alias) = network {
            builder = builder.network(alias);
        }
        if let Some(tls) = self.tls.tls()? {
            builder = builder.tls(tls);
        }
        Ok(builder)
    }
}

impl ListenArgs {
    /// Returns a listener builder with these settings.
    ///
    /// # Errors
    ///
    /// If TLS cannot be set up.
    pub(crate) fn listener(&self) -> anyhow::Result<ListenerBuilder> {
        let mut builder = Listener::builder()
            .allow_default_network(self.allow_default_network)
            .transport(self.transport.transport())
            .rdma(self.transport.rdma());
        for address in &self.address {
            builder = builder.address(*address);
        }
        if let Some(bytes) = self.memory {
            builder = builder.memory(bytes);
        }
        if let Some(tls) = self.tls.tls()? {
            builder = builder.tls(tls);
        }
        Ok(builder)
    }
}

impl ListenArgs {
    /// Returns a builder with these settings, for a program that offers payloads.
    ///
    /// # Errors
    ///
    /// If TLS cannot be set up.
    pub(crate) fn offers(&self) -> anyhow::Result<OffersBuilder> {
        let mut builder = Offers::builder()
            .allow_default_network(self.allow_default_network)
            .transport(self.transport.transport())
            .rdma(self.transport.rdma());
        for address in &self.address {
            builder = builder.address(*address);
        }
        if let Some(bytes) = self.memory {
            builder = builder.budget(bytes);
        }
        if let Some(tls) = self.tls.tls()? {
            builder = builder.tls(tls);
        }
        Ok(builder)
    }
}

impl LogArgs {
    /// Sets up the log on standard error. It is called once. `quiet` is a filter that applies
    /// unless the command line or the environment has one.
    pub(crate) fn init(&self, quiet: &str) {
        // RUST_LOG may be set to nothing.
        let asked = self.log_level.clone().filter(|filter| !filter.trim().is_empty());
        let filter = asked.unwrap_or_else(|| format!("warn,rustls=off,{quiet}"));
        let colours = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
        let lines =
            multinet_stderr::layer(Format::Plain { colours }, WithFlagNames(multinet_stderr::stderr()));
        tracing_subscriber::registry().with(EnvFilter::new(filter)).with(lines).init();
        multinet_stderr::log_panics();
    }
}

/// Parses the address of a DNS server, such as `10.96.0.10`, `[fd00::a]:5353` or `fe80::a%eth0`.
fn server(text: &str) -> Result<SocketAddr, String> {
    let with_interface = || {
        let (ip, interface) = text.split_once('%')?;
        let index = if_nametoindex(interface).ok()?;
        Some(SocketAddrV6::new(ip.parse().ok()?, DNS_PORT, 0, index).into())
    };
    text.parse()
        .or_else(|_| text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, DNS_PORT)))
        .ok()
        .or_else(with_interface)
        .ok_or_else(|| {
            "write an address as 10.96.0.10, 10.96.0.10:5353, fd00::a, [fd00::a]:5353 or fe80::a%eth0"
                .to_owned()
        })
}

/// Parses a time such as `90s`, `5m` or `1h`; a number alone is seconds.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    let (number, unit) = match text.chars().last() {
        Some('s') => (&text[..text.len() - 1], 1),
        Some('m') => (&text[..text.len() - 1], 60),
        Some('h') => (&text[..text.len() - 1], 3600),
        _ => (text, 1),
    };
    let seconds = number.parse::<u32>().ok().and_then(|number| number.checked_mul(unit));
    seconds
        .map(|seconds| Duration::from_secs(seconds.into()))
        .ok_or_else(|| "write a time as 90s, 5m or 1h".to_owned())
}

fn filter(text: &str) -> Result<String, String> {
    match multinet_stderr::filter(text, []) {
        Err(reason) if !text.trim().is_empty() => {
            let is_inherited = std::env::var("RUST_LOG").is_ok_and(|inherited| inherited == text);
            Err(if is_inherited { format!("{reason} (RUST_LOG says so)") } else { reason })
        }
        _ => Ok(text.to_owned()),
    }
}

/// How long commands wait before they print what they wait for.
pub(crate) const SOON: Duration = Duration::from_secs(2);

/// Waits for something that may take up to `wait`. Prints how it stands if it does not come soon.
pub(crate) async fn wait_with_note<T>(state: &str, wait: Duration, coming: impl Future<Output = T>) -> T {
    let note_after_a_while = async {
        tokio::time::sleep(SOON).await;
        note(&format!("{state}, waiting up to {} s", wait.as_secs()));
        std::future::pending::<Infallible>().await
    };
    tokio::select! {
        outcome = coming => outcome,
        never = note_after_a_while => match never {},
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Flags {
        #[command(flatten)]
        transport: TransportArgs,
    }

    #[test]
    fn flags_of_packets_have_perftests_names_too() {
        let parse = |flags: &[&str]| Flags::try_parse_from(["multinet"].iter().chain(flags));
        let rdma = Rdma::default().gpu_method(Forced::No);
        for flags in [
            &["--service-level", "15", "--traffic-class", "106"][..],
            &["--sl=15", "--tclass=106"],
            &["-S", "15", "--tclass", "106"],
        ] {
            let Flags { transport } = parse(flags).unwrap();
            assert_eq!(transport.rdma(), rdma.clone().service_level(15).traffic_class(106));
        }
        assert_eq!(parse(&[]).unwrap().transport.rdma(), rdma);
        for flags in [["--sl", "16"], ["--tclass", "256"], ["--sl", "-1"]] {
            assert!(parse(&flags).is_err(), "{flags:?}");
        }
    }

    #[test]
    fn a_time_has_a_unit_or_is_in_seconds() {
        for (text, seconds) in [("0", 0), ("90", 90), ("90s", 90), ("5m", 300), ("1h", 3600)] {
            assert_eq!(time(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for wrong in ["", "s", "-1s", "1.5m", "5 m", "5min", "1d", "é", "2000000h"] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_server_is_parsed_with_and_without_a_port() {
        let cases = [
            ("10.96.0.10", "10.96.0.10:53"),
            ("10.96.0.10:5353", "10.96.0.10:5353"),
            ("fd00::a", "[fd00::a]:53"),
            ("[fd00::a]:5353", "[fd00::a]:5353"),
            ("fe80::a%lo", "[fe80::a%1]:53"),
        ];
        for (text, address) in cases {
            assert_eq!(server(text), Ok(address.parse().unwrap()));
        }
        for wrong in ["", "dns.example", "10.96.0.10:", "10.96.0.10:99999", "10.96.0.10%lo", "fe80::a%none"] {
            assert!(server(wrong).unwrap_err().starts_with("write an address as"), "{wrong}");
        }
    }
}
