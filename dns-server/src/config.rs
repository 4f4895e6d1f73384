//! The command line, and the configuration that it is checked into.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Error, Result, bail};
use clap::builder::FalseyValueParser;
use clap::{Parser, ValueEnum};
use ipnet::IpNet;
use multinet_runtime::ProgramArgs;
use multinet_runtime::command_line::{duration, separate_zones};

use crate::limits::debug::MAX_CAPACITY;
use crate::limits::flags;
use crate::net::listen::{Listen, ListenProto};
use crate::ops::dnstap::Collector;
use crate::secondary::notifier::Secondary;
use crate::secondary::transfer::allow::{self, AllowedClient};
use crate::source::Source;
use crate::store::name::Name;
use crate::store::reverse::{PRIVATE, ReverseName};

/// DNS for the second NICs of pods.
///
/// Serves MultiNetworkServices as headless services: A, AAAA, SRV, TXT and PTR records of the ready
/// endpoints in their MultiNetworkEndpointSlices, below `<service>.<namespace>.svc.<zone>`. The
/// objects come from YAML files or from the Kubernetes API server. CoreDNS reaches the server by a
/// `forward` stanza.
#[derive(Debug, Parser)]
#[command(name = "multinet-dns", version, max_term_width = 100, after_help = EXAMPLES)]
pub struct Args {
    /// File or folder with MultiNetworkServices and -EndpointSlices in YAML or JSON; changes are
    /// served within a second
    ///
    /// Folders are read recursively; objects of other kinds are ignored. May be repeated. Without
    /// this flag the objects come from the Kubernetes API server, as configured by KUBECONFIG or
    /// the pod's service account.
    #[arg(
        long,
        value_name = "PATH",
        env = "MULTINET_MANIFESTS",
        value_delimiter = ',',
        help_heading = "Source"
    )]
    pub(crate) manifests: Vec<PathBuf>,

    /// File that keeps the objects, so that the next run can answer (marked stale) until it has
    /// synced
    #[arg(long, value_name = "FILE", env = "MULTINET_SNAPSHOT", help_heading = "Source")]
    pub(crate) snapshot: Option<PathBuf>,

    /// Maximum age of the snapshot in --snapshot; an older one is not used
    #[arg(long, value_name = "TIME", env = "MULTINET_SNAPSHOT_MAX_AGE", default_value = flags::SNAPSHOT_MAX_AGE,
          value_parser = duration, requires = "snapshot", help_heading = "Source")]
    pub(crate) snapshot_max_age: Duration,

    /// Zone to answer for; may be repeated, PTR records point into the first
    #[arg(long, value_name = "NAME", env = "MULTINET_ZONE", value_delimiter = ',', value_parser = zone,
          default_value = flags::ZONE, help_heading = "Answers")]
    pub(crate) zone: Vec<Name>,

    /// Zone with names for the vertices of Numaflow's pipelines, such as vertexdomain.local; may be
    /// repeated [default: none]
    ///
    /// A service whose slices have the labels `numaflow.numaproj.io/pipeline-name` and
    /// `…/vertex-name` is also `<vertex>.<pipeline>.<namespace>.<zone>`.
    #[arg(long, value_name = "NAME", env = "MULTINET_VERTEX_ZONE", value_delimiter = ',', value_parser = zone,
          help_heading = "Answers")]
    pub(crate) vertex_zone: Vec<Name>,

    /// Reverse zone to answer for; may be repeated
    #[arg(long, value_name = "NAME", env = "MULTINET_REVERSE_ZONE", value_delimiter = ',',
          value_parser = reverse_zone, default_values = ["in-addr.arpa", "ip6.arpa"], help_heading = "Answers")]
    pub(crate) reverse_zone: Vec<Name>,

    /// Network whose addresses have names in the reverse zones; may be repeated
    ///
    /// Anyone who may write a service chooses its addresses, so give the ranges of your secondary
    /// networks. An address has the names of at most the 16 oldest services.
    #[arg(long, value_name = "CIDR", env = "MULTINET_REVERSE_RANGE", value_delimiter = ',', value_parser = network,
          default_values = PRIVATE, help_heading = "Answers")]
    pub(crate) reverse_range: Vec<IpNet>,

    /// Network within --reverse-range whose addresses have no names, such as that of the cluster's
    /// Services or pods; may be repeated
    #[arg(long, value_name = "CIDR", env = "MULTINET_REVERSE_EXCLUDE", value_delimiter = ',', value_parser = network,
          help_heading = "Answers")]
    pub(crate) reverse_exclude: Vec<IpNet>,

    /// TTL in seconds, 0 to 3600, of services that do not set their own
    #[arg(long, value_name = "SECONDS", env = "MULTINET_TTL", default_value_t = flags::TTL, allow_negative_numbers = true,
          value_parser = clap::value_parser!(u32).range(0..=3600), help_heading = "Answers")]
    pub(crate) ttl: u32,

    /// Whether each answer begins with another address record than the one before
    #[arg(long, env = "MULTINET_ANSWER_ORDER", default_value = "rotate", help_heading = "Answers")]
    pub(crate) answer_order: AnswerOrder,

    /// Address of this server, for `ns.dns.<zone>`; may be repeated [default: the addresses that it
    /// listens on, except wildcards]
    #[arg(
        long,
        value_name = "IP",
        env = "MULTINET_NS_ADDRESS",
        value_delimiter = ',',
        value_parser = ns_address,
        help_heading = "Answers"
    )]
    pub(crate) ns_address: Vec<IpAddr>,

    /// Network of hosts, or TSIG key of clients, that may transfer zones (AXFR, IXFR); may be
    /// repeated, one match is enough [default: no transfers]
    #[arg(
        long,
        value_name = "CIDR|key:NAME",
        env = "MULTINET_TRANSFER_TO",
        value_delimiter = ',',
        help_heading = "Transfers"
    )]
    pub(crate) transfer_to: Vec<AllowedClient>,

    /// Secondary to notify of every change (NOTIFY) over UDP, by default on port 53, signed if a
    /// key is named; may be repeated
    #[arg(
        long,
        value_name = "ADDR[:PORT][@KEY]",
        env = "MULTINET_NOTIFY",
        value_delimiter = ',',
        help_heading = "Transfers"
    )]
    pub(crate) notify: Vec<Secondary>,

    /// File with TSIG keys, as tsig-keygen writes them; reread on SIGHUP
    #[arg(long, value_name = "FILE", env = "MULTINET_TSIG_KEY_FILE", help_heading = "Transfers")]
    pub(crate) tsig_key_file: Option<PathBuf>,

    /// Address to listen on: `[dns://]ADDR:PORT` (UDP and TCP), `tls://…`, `https://…`,
    /// `quic://…`; may be repeated [default: `dns://127.0.0.1:5353` with --manifests, else
    /// `dns://[::]:53`]
    #[arg(
        long,
        value_name = "URL",
        env = "MULTINET_LISTEN",
        value_delimiter = ',',
        help_heading = "Listeners"
    )]
    pub(crate) listen: Vec<Listen>,

    /// Certificate chain in PEM for tls, https and quic; reread when it changes, and at once on
    /// SIGHUP
    #[arg(
        long,
        value_name = "FILE",
        env = "MULTINET_TLS_CERT",
        requires = "tls_key",
        help_heading = "Listeners"
    )]
    pub(crate) tls_cert: Option<PathBuf>,

    /// Private key in PEM of the certificate in --tls-cert
    #[arg(
        long,
        value_name = "FILE",
        env = "MULTINET_TLS_KEY",
        requires = "tls_cert",
        help_heading = "Listeners"
    )]
    pub(crate) tls_key: Option<PathBuf>,

    /// Threads that answer UDP, per address [default: one per core]
    #[arg(long, value_name = "N", env = "MULTINET_UDP_WORKERS", help_heading = "Listeners")]
    pub(crate) udp_workers: Option<NonZeroUsize>,

    /// Limit on TCP and TLS connections; HTTPS and QUIC may each have a sixteenth as many
    ///
    /// Beyond it, the longest idle connection of the client with the most connections is closed.
    #[arg(
        long,
        value_name = "N",
        env = "MULTINET_TCP_MAX_CONNECTIONS",
        default_value = flags::TCP_MAX_CONNECTIONS,
        help_heading = "Listeners"
    )]
    pub(crate) tcp_max_connections: NonZeroUsize,

    /// Largest UDP payload in bytes that is sent and announced, 512 to 4096
    ///
    /// Payloads above 1232 may be sent in fragments, which some networks drop.
    #[arg(long, value_name = "BYTES", env = "MULTINET_UDP_PAYLOAD_SIZE", default_value_t = flags::UDP_PAYLOAD,
          value_parser = clap::value_parser!(u16).range(512..=4096), help_heading = "Protection")]
    pub(crate) udp_payload_size: u16,

    /// Queries per second over UDP from each network of clients, /24 or /56 [default: no limit]
    ///
    /// A query beyond the limit is answered with TC (with BADCOOKIE if the client sends cookies),
    /// or dropped. Clients with a valid cookie, and those over TCP, TLS, HTTPS and QUIC, are never
    /// limited.
    #[arg(long, value_name = "N", env = "MULTINET_RATE_LIMIT",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000), help_heading = "Protection")]
    pub(crate) rate_limit: Option<u32>,

    /// Network exempt from the rate limit, such as that of CoreDNS; may be repeated
    #[arg(long, value_name = "CIDR", env = "MULTINET_RATE_LIMIT_EXEMPT", value_delimiter = ',',
          value_parser = network, requires = "rate_limit", help_heading = "Protection")]
    pub(crate) rate_limit_exempt: Vec<IpNet>,

    /// File with the secret of DNS cookies, shared by replicas behind one address [default: a
    /// random secret]
    ///
    /// A line of 32 hexadecimal digits. During a rollover, a second line holds the next or the
    /// previous secret, whose cookies are also valid. Reread on SIGHUP.
    #[arg(long, value_name = "FILE", env = "MULTINET_COOKIE_SECRET_FILE", help_heading = "Protection")]
    pub(crate) cookie_secret_file: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) program: ProgramArgs,

    /// Number of most frequent queries to show at /debug/top, 1 to 1000 [default: none]
    ///
    /// Each takes some 330 bytes per UDP thread, and per thread of the runtime for every other
    /// transport in use.
    #[arg(long, value_name = "N", env = "MULTINET_DEBUG_TOP", requires = "admin",
          value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_CAPACITY)),
          help_heading = "Operation")]
    pub(crate) debug_top: Option<u16>,

    /// Time for which the server still answers after SIGTERM, while it is not ready
    #[arg(long, value_name = "TIME", env = "MULTINET_LAMEDUCK", default_value = flags::LAMEDUCK, value_parser = duration,
          help_heading = "Operation")]
    pub(crate) lameduck: Duration,

    /// Log every query
    #[arg(long, env = "MULTINET_LOG_QUERIES", value_parser = FalseyValueParser::new(),
          help_heading = "Operation")]
    pub(crate) log_queries: bool,

    /// Collector that receives every query and reply by dnstap [default: none]
    ///
    /// Messages that it does not take in time are dropped and counted. Answers never wait.
    #[arg(long, value_name = "unix:PATH|tcp:ADDR:PORT", env = "MULTINET_DNSTAP", help_heading = "Operation")]
    pub(crate) dnstap: Option<Collector>,
}

const EXAMPLES: &str = "\
Examples:
  Serve YAML files on 127.0.0.1:5353, and ask:
    multinet-dns --manifests deploy/examples/quickstart
    dig @127.0.0.1 -p 5353 infer.vision.svc.multinet.cluster.local

  In a cluster, as the target of CoreDNS' forward plugin:
    multinet-dns --admin [::]:9153 --snapshot /var/lib/multinet/dns.snapshot

Exit status: 0 after SIGTERM or SIGINT; 2 if it could not start, with one line that says why.";

/// Order of the address records in an answer (`--answer-order`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum AnswerOrder {
    /// Each answer begins with another record than the one before.
    Rotate,
    /// Each answer has its records in ascending order.
    Fixed,
}

/// The server's configuration: flags that were checked against each other.
#[derive(Debug)]
pub(crate) struct Config {
    /// Source of the services and slices to serve.
    pub source: Source,
    /// Addresses and protocols to listen on; at least one.
    pub listen: Vec<Listen>,
    /// The flags as they were given.
    pub args: Args,
}

impl Config {
    /// Checks the flags against each other, and fills in those that are not given.
    ///
    /// # Errors
    ///
    /// One line that names the flags that conflict.
    pub(crate) fn new(args: Args) -> Result<Self> {
        check_zones(&args.zone, &args.vertex_zone, &args.reverse_zone)?;
        let source = match args.manifests.as_slice() {
            [] => Source::Kubernetes,
            paths => Source::Manifests(paths.to_vec()),
        };
        let listen = if args.listen.is_empty() { vec![default_listen(&source)] } else { args.listen.clone() };
        check_listen(&listen, args.tls_cert.is_some())?;
        Ok(Self { source, listen, args })
    }
}

fn default_listen(source: &Source) -> Listen {
    let addr = match source {
        Source::Manifests(_) => SocketAddr::from(([127, 0, 0, 1], 5353)),
        Source::Kubernetes => SocketAddr::from(([0u16; 8], 53)),
    };
    Listen { proto: ListenProto::Dns, addr }
}

fn check_zones(forward: &[Name], vertices: &[Name], reverse: &[Name]) -> Result<()> {
    let mut all = HashSet::new();
    if let Some(zone) = forward.iter().chain(vertices).chain(reverse).find(|zone| !all.insert(*zone)) {
        bail!("--zone/--vertex-zone/--reverse-zone {zone}: given twice; name each zone once");
    }
    let flagged = || {
        let forward = forward.iter().map(|zone| (zone, "--zone"));
        forward.chain(vertices.iter().map(|zone| (zone, "--vertex-zone")))
    };
    // The shortest service names, `a.b.svc.<zone>` and `a.b.c.<zone>`, and the server's own names
    // must fit.
    let is_long = |zone: &Name| zone.as_wire().len() + "hostmaster".len() + 1 > crate::store::name::MAX_NAME;
    if let Some((zone, flag)) = flagged().find(|(zone, _)| is_long(zone)) {
        bail!("{flag} {zone}: too long, no service name fits below it; choose a shorter zone");
    }
    let texts = |zones: &[Name]| zones.iter().map(ToString::to_string).collect::<Vec<_>>();
    separate_zones(&texts(forward), &texts(vertices)).map_err(Error::msg)
}

fn check_listen(listen: &[Listen], has_certificate: bool) -> Result<()> {
    for (position, one) in listen.iter().enumerate() {
        if let Some(other) = listen[..position].iter().find(|other| other.overlaps(one)) {
            bail!(
                "--listen {one}: takes the same port as --listen {other}; give each listener a port of its own"
            );
        }
        if one.proto != ListenProto::Dns && !has_certificate {
            bail!("--listen {one}: needs a certificate; give --tls-cert FILE and --tls-key FILE");
        }
    }
    Ok(())
}

fn zone(text: &str) -> Result<Name, String> {
    let name: Name = text.parse()?;
    let is_reverse = ["in-addr.arpa", "ip6.arpa"].iter().any(|top| is_below(&name, top));
    if is_reverse { Err("a reverse zone: give it as --reverse-zone".to_owned()) } else { Ok(name) }
}

fn reverse_zone(text: &str) -> Result<Name, String> {
    let name: Name = text.parse()?;
    match name.with_labels(ReverseName::of) {
        Some(ReverseName::Range(_)) => Ok(name),
        // The name of a single address owns PTR records, so it cannot be the apex of a zone.
        Some(ReverseName::Address(_)) => {
            Err("a reverse zone holds more than one address: leave out the first part".to_owned())
        }
        None => Err(
            "write a reverse zone as in-addr.arpa or ip6.arpa, or as 1.10.in-addr.arpa or 0.0.d.f.ip6.arpa \
                     for 10.1.0.0/16 or fd00::/16"
                .to_owned(),
        ),
    }
}

fn ns_address(text: &str) -> Result<IpAddr, String> {
    let address = text.parse::<IpAddr>().map_err(|error| error.to_string())?.to_canonical();
    if address.is_unspecified() {
        return Err("this is not the address of a host; give the address that clients use".to_owned());
    }
    Ok(address)
}

fn is_below(name: &Name, top: &str) -> bool {
    top.parse().is_ok_and(|top| name.is_within(&top))
}

fn network(text: &str) -> Result<IpNet, String> {
    allow::network(text).ok_or_else(|| format!("write a network as {}", allow::NETWORKS))
}

#[cfg(test)]
mod tests;
