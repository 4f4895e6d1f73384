//! Command-line arguments, and the configuration that they result in.

use std::path::PathBuf;

use clap::Parser;
use clap::builder::FalseyValueParser;
use ipnet::IpNet;
use multinet_runtime::command_line::{self, separate_zones};
use multinet_runtime::lease::LeaseArgs;
use multinet_runtime::lease::flags::identity;
use multinet_runtime::{LeaseConfig, ProgramArgs};

use crate::etcd::EtcdConfig;
use crate::index::Settings;
use crate::limits::flags;

/// Length of the shortest name of a service, which must fit in front of the zone.
const SHORTEST_NAME: usize = "a.b.svc.".len();

/// Private ranges (RFC 1918, RFC 6598, RFC 4193), whose addresses have PTR records by default.
const PRIVATE: [&str; 5] = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"];

/// Publishes MultiNetworkServices as keys in etcd, for CoreDNS' plugin etcd.
///
/// Reads services and their slices, and writes the keys of their names, in the format of SkyDNS.
/// Where CoreDNS can forward to multinet-dns, use that instead: its answers are complete
/// (docs/publish.md). Several replicas may run: the one that holds the Lease writes.
#[derive(Debug, Parser)]
#[command(name = "multinet-publish", version, max_term_width = 100, after_help = EXAMPLES)]
pub struct Args {
    /// URL of a member of etcd, such as `https://10.0.0.1:2379`; may be repeated, one is used at a
    /// time
    #[arg(long, value_name = "URL", env = "MULTINET_ETCD", value_delimiter = ',', required = true, value_parser = url,
          help_heading = "etcd")]
    etcd: Vec<String>,

    /// Certificates in PEM that etcd's certificate is checked by, for https
    #[arg(long, value_name = "FILE", env = "MULTINET_ETCD_CA", help_heading = "etcd")]
    etcd_ca: Option<PathBuf>,

    /// Certificate chain in PEM of this client; read again with each connection
    #[arg(
        long,
        value_name = "FILE",
        env = "MULTINET_ETCD_CERT",
        requires = "etcd_key",
        help_heading = "etcd"
    )]
    etcd_cert: Option<PathBuf>,

    /// Private key in PEM of the certificate in --etcd-cert
    #[arg(
        long,
        value_name = "FILE",
        env = "MULTINET_ETCD_KEY",
        requires = "etcd_cert",
        help_heading = "etcd"
    )]
    etcd_key: Option<PathBuf>,

    /// User of etcd
    #[arg(
        long,
        value_name = "NAME",
        env = "MULTINET_ETCD_USER",
        requires = "etcd_password_file",
        help_heading = "etcd"
    )]
    etcd_user: Option<String>,

    /// File with the password of --etcd-user; read again with each connection
    #[arg(
        long,
        value_name = "FILE",
        env = "MULTINET_ETCD_PASSWORD_FILE",
        requires = "etcd_user",
        help_heading = "etcd"
    )]
    etcd_password_file: Option<PathBuf>,

    /// Key that all others are below: the `path` of CoreDNS' plugin
    #[arg(long, value_name = "KEY", env = "MULTINET_PREFIX", default_value = flags::PREFIX, value_parser = prefix,
          help_heading = "Keys")]
    prefix: String,

    /// Zone of services; may be repeated, PTR records point into the first
    #[arg(long, value_name = "NAME", env = "MULTINET_ZONE", value_delimiter = ',', default_value = flags::ZONE,
          value_parser = zone, help_heading = "Keys")]
    zone: Vec<String>,

    /// Zone with names for the vertices of Numaflow's pipelines, such as vertexdomain.local; may be
    /// repeated [default: none]
    #[arg(long, value_name = "NAME", env = "MULTINET_VERTEX_ZONE", value_delimiter = ',', value_parser = zone,
          help_heading = "Keys")]
    vertex_zone: Vec<String>,

    /// TTL in seconds, 1 to 3600, of services that do not set their own
    #[arg(long, value_name = "SECONDS", env = "MULTINET_TTL", default_value_t = flags::TTL,
          value_parser = clap::value_parser!(u32).range(1..=3600), help_heading = "Keys")]
    ttl: u32,

    /// Network whose addresses have PTR records; may be repeated
    ///
    /// Anyone who may write a service chooses its addresses, so give the ranges of your secondary
    /// networks. An address has the name of the oldest service that publishes it.
    #[arg(long, value_name = "CIDR", env = "MULTINET_REVERSE_RANGE", value_delimiter = ',', default_values = PRIVATE,
          help_heading = "Keys")]
    reverse_range: Vec<IpNet>,

    /// Network within --reverse-range whose addresses have no PTR records; may be repeated
    #[arg(
        long,
        value_name = "CIDR",
        env = "MULTINET_REVERSE_EXCLUDE",
        value_delimiter = ',',
        help_heading = "Keys"
    )]
    reverse_exclude: Vec<IpNet>,

    /// Name that owns the prefix [default: the uid of the namespace kube-system]
    ///
    /// The first publisher writes its owner into etcd. One with another owner ends with an error
    /// and changes nothing, so that two clusters never delete each other's keys.
    #[arg(long, value_name = "NAME", env = "MULTINET_OWNER", value_parser = identity, help_heading = "Keys")]
    owner: Option<String>,

    /// Replace another owner of the prefix once, at the start, and delete the keys that it left;
    /// for a cluster that was rebuilt
    #[arg(long, env = "MULTINET_TAKE_OVER", value_parser = FalseyValueParser::new(), help_heading = "Keys")]
    take_over: bool,

    #[command(flatten)]
    lease: LeaseArgs,

    #[command(flatten)]
    program: ProgramArgs,
}

const EXAMPLES: &str = "\
The API server is that of the pod's service account, or of KUBECONFIG.

Example:
  multinet-publish --etcd https://10.0.0.1:2379 --etcd-ca ca.crt --etcd-cert tls.crt --etcd-key tls.key

Exit status: 0 after SIGTERM or SIGINT; 2 if it could not start, or if the prefix belongs to another
owner, with one line that says why.";

/// Checked configuration of the publisher.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where etcd is, and how to connect.
    pub etcd: EtcdConfig,
    /// Which keys there are.
    pub settings: Settings,
    /// Name that owns the prefix; `None` for the uid of the namespace kube-system.
    pub owner: Option<String>,
    /// Whether to replace another owner.
    pub take_over: bool,
    /// Name and duration of the Lease, and the identity of this process.
    pub lease: LeaseConfig,
    /// Log and admin endpoints.
    pub program: ProgramArgs,
}

/// A conflict between flags of the command line.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The flags name the same zone twice.
    #[error("--zone/--vertex-zone {0}: given twice; name each zone once")]
    DuplicateZone(String),
    /// A zone lies where another one has names.
    #[error("{0}")]
    Overlap(String),
    /// A URL needs TLS, and nothing says which certificates to trust.
    #[error("--etcd {0}: needs the certificates to check etcd's by; give --etcd-ca FILE")]
    NoAuthority(String),
}

impl Config {
    /// Checks the arguments against each other, and takes defaults that depend on the environment
    /// from the pod or the host.
    ///
    /// # Errors
    ///
    /// [`ConfigError`], if they conflict.
    pub fn new(args: Args) -> Result<Self, ConfigError> {
        let zones: Vec<&String> = args.zone.iter().chain(&args.vertex_zone).collect();
        for (position, zone) in zones.iter().enumerate() {
            if zones[..position].contains(zone) {
                return Err(ConfigError::DuplicateZone((*zone).clone()));
            }
        }
        separate_zones(&args.zone, &args.vertex_zone).map_err(ConfigError::Overlap)?;
        let is_encrypted = |url: &&String| url.starts_with("https://");
        if let Some(url) = args.etcd.iter().find(is_encrypted).filter(|_| args.etcd_ca.is_none()) {
            return Err(ConfigError::NoAuthority(url.clone()));
        }
        Ok(Self {
            etcd: EtcdConfig {
                urls: args.etcd,
                ca: args.etcd_ca,
                identity: args.etcd_cert.zip(args.etcd_key),
                user: args.etcd_user.zip(args.etcd_password_file),
            },
            settings: Settings {
                prefix: args.prefix,
                zones: args.zone,
                vertex_zones: args.vertex_zone,
                ttl: args.ttl,
                reverse_ranges: args.reverse_range,
                reverse_excludes: args.reverse_exclude,
            },
            owner: args.owner,
            take_over: args.take_over,
            lease: args.lease.config("multinet-publish"),
            program: args.program,
        })
    }
}

fn url(text: &str) -> Result<String, String> {
    let advice = || "write a URL as https://10.0.0.1:2379 or http://127.0.0.1:2379".to_owned();
    let uri: http::Uri = text.parse().map_err(|_| advice())?;
    let is_one = matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some();
    if is_one && uri.path() == "/" && uri.query().is_none() { Ok(text.to_owned()) } else { Err(advice()) }
}

/// Parses a prefix. Returns it without a slash at its end.
fn prefix(text: &str) -> Result<String, String> {
    let key = text.trim_end_matches('/');
    let is_one = key.strip_prefix('/').is_some_and(|rest| {
        rest.split('/').all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_graphic()))
    });
    // CoreDNS takes the labels of targets from all parts of a key but the first two.
    let has_one_part = key.matches('/').count() == 1;
    match (is_one, has_one_part) {
        (true, true) => Ok(key.to_owned()),
        (true, false) => {
            Err("a prefix has one part, as /skydns: CoreDNS takes further ones for labels".to_owned())
        }
        (false, _) => Err("write a prefix as /skydns".to_owned()),
    }
}

fn zone(text: &str) -> Result<String, String> {
    command_line::zone(text, SHORTEST_NAME)
}

#[cfg(test)]
mod tests {
    use multinet_runtime::command_line::one_line;

    use super::*;

    fn config(flags: &[&str]) -> Result<Config, String> {
        let args = Args::try_parse_from(["multinet-publish"].iter().chain(flags));
        let args = args.map_err(|error| one_line(&error, "multinet-publish"))?;
        Config::new(args).map_err(|error| error.to_string())
    }

    const ETCD: [&str; 2] = ["--etcd", "http://127.0.0.1:2379"];

    #[test]
    fn defaults_match_the_documentation() {
        let config = config(&ETCD).unwrap();
        assert_eq!(config.settings.prefix, "/skydns");
        assert_eq!(config.settings.zones, ["multinet.cluster.local"]);
        assert!(config.settings.vertex_zones.is_empty() && config.owner.is_none() && !config.take_over);
        assert_eq!((config.settings.ttl, config.settings.reverse_ranges.len()), (5, PRIVATE.len()));
        assert_eq!(config.lease.name, "multinet-publish");
    }

    #[test]
    fn prefixes_and_zones_are_normalized() {
        let config =
            config(&[&ETCD[..], &["--prefix", "/dns/", "--zone", "Fast.Example."]].concat()).unwrap();
        assert_eq!((config.settings.prefix.as_str(), &*config.settings.zones[0]), ("/dns", "fast.example"));
    }

    #[test]
    fn invalid_arguments_are_refused_with_advice() {
        for (flags, message) in [
            (&[][..], "--etcd"),
            (&["--etcd", "10.0.0.1:2379"], "write a URL as https://"),
            (&["--etcd", "https://10.0.0.1:2379/path"], "write a URL as https://"),
            (&["--etcd", "https://10.0.0.1:2379"], "give --etcd-ca FILE"),
            (&["--etcd", ETCD[1], "--etcd-cert", "x"], "--etcd-key"),
            (&["--etcd", ETCD[1], "--etcd-user", "x"], "--etcd-password-file"),
            (&["--etcd", ETCD[1], "--prefix", "skydns"], "write a prefix as /skydns"),
            (&["--etcd", ETCD[1], "--prefix", "/"], "write a prefix as /skydns"),
            (&["--etcd", ETCD[1], "--prefix", "/a/b"], "has one part"),
            (&["--etcd", ETCD[1], "--zone", "a_b"], "write a zone as"),
            (&["--etcd", ETCD[1], "--zone", "a", "--vertex-zone", "a"], "given twice"),
            (
                &["--etcd", ETCD[1], "--zone", "b.a", "--vertex-zone", "a"],
                "lies among the names of --vertex-zone a",
            ),
            (
                &["--etcd", ETCD[1], "--zone", "a", "--vertex-zone", "svc.a"],
                "--vertex-zone svc.a: lies among the services of --zone a",
            ),
            (&["--etcd", ETCD[1], "--ttl", "0"], "0 is not in 1..=3600"),
            (&["--etcd", ETCD[1], "--owner", "a b"], "without spaces"),
        ] {
            let error = config(flags).unwrap_err();
            assert!(error.contains(message), "{flags:?}: {error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }
}
