//! Command-line arguments, and the configuration that they result in.

use clap::Parser;
use multinet_runtime::lease::LeaseArgs;
use multinet_runtime::{ProgramArgs, command_line};

use crate::caps::Caps;
use crate::limits::flags;

/// Length of the shortest service name, which must fit in front of the zone.
const SHORTEST_NAME: usize = "a.b.svc.".len();

/// Controller that publishes the addresses of pods' secondary interfaces.
///
/// Reads pods, Multus' network status, resource claims and nodes. Writes MultiNetworkEndpointSlices
/// and the status of MultiNetworkServices, which multinet-dns serves. Several replicas may run: the
/// one that holds the Lease writes, the others take over when it fails.
#[derive(Debug, Parser)]
#[command(name = "multinet-controller", version, max_term_width = 100, after_help = EXAMPLES)]
pub struct Args {
    /// Zone of the DNS server, for `status.hostname`
    #[arg(long, value_name = "NAME", env = "MULTINET_ZONE", default_value = flags::ZONE,
          value_parser = zone, help_heading = "Slices")]
    pub(crate) zone: String,

    /// Maximum number of endpoints in a slice, 1 to 1000
    ///
    /// The cost and duration of a change grow with the size of the slice that is written. The cost
    /// of creating a service, and the memory that slices take, grow with the number of slices
    /// (docs/benchmarks.md). When this limit changes, existing slices are merged gradually.
    #[arg(long, value_name = "N", env = "MULTINET_MAX_ENDPOINTS_PER_SLICE", default_value_t = flags::ENDPOINTS_PER_SLICE,
          value_parser = clap::value_parser!(u16).range(1..=1000), help_heading = "Slices")]
    pub(crate) max_endpoints_per_slice: u16,

    /// Maximum number of endpoints in a slice of a mirror, 1 to 1000 (Kubernetes' own slices have
    /// 100)
    #[arg(long, value_name = "N", env = "MULTINET_MAX_ENDPOINTS_PER_MIRROR_SLICE", default_value_t = flags::ENDPOINTS_PER_MIRROR_SLICE,
          value_parser = clap::value_parser!(u16).range(1..=1000), help_heading = "Slices")]
    pub(crate) max_endpoints_per_mirror_slice: u16,

    /// Maximum number of published addresses of a pod on a network
    ///
    /// Published addresses stay; the others follow in the order in which the pod reports them. A
    /// service has condition Capped while this limit or one of the next two leaves addresses out.
    /// The memory that multinet-dns needs depends on these limits (docs/operations.md).
    #[arg(long, value_name = "N", env = "MULTINET_MAX_ADDRESSES_PER_POD", default_value_t = flags::ADDRESSES_PER_POD,
          value_parser = clap::value_parser!(u32).range(1..=10_000_000), help_heading = "Slices")]
    pub(crate) max_addresses_per_pod: u32,

    /// Maximum number of published addresses of a service, over all of its networks; published
    /// addresses stay, the others follow by the age of their pods
    #[arg(long, value_name = "N", env = "MULTINET_MAX_ADDRESSES_PER_SERVICE", default_value_t = flags::ADDRESSES_PER_SERVICE,
          value_parser = clap::value_parser!(u32).range(1..=10_000_000), help_heading = "Slices")]
    pub(crate) max_addresses_per_service: u32,

    /// Maximum number of published addresses of all services in a namespace
    #[arg(long, value_name = "N", env = "MULTINET_MAX_ADDRESSES_PER_NAMESPACE", default_value_t = flags::ADDRESSES_PER_NAMESPACE,
          value_parser = clap::value_parser!(u32).range(1..=10_000_000), help_heading = "Slices")]
    pub(crate) max_addresses_per_namespace: u32,

    /// Maximum number of concurrent requests, 1 to 1000
    ///
    /// A namespace gets at most a sixteenth of them, so that no tenant keeps the API server busy.
    /// With a fast API server, a higher number makes many changes in one namespace faster.
    #[arg(long, value_name = "N", env = "MULTINET_CONCURRENT_WRITES", default_value_t = flags::CONCURRENT_WRITES,
          value_parser = clap::value_parser!(u16).range(1..=1000), help_heading = "Slices")]
    pub(crate) concurrent_writes: u16,

    #[command(flatten)]
    pub(crate) lease: LeaseArgs,

    #[command(flatten)]
    pub(crate) program: ProgramArgs,
}

const EXAMPLES: &str = "\
The API server is that of the pod's service account, or of KUBECONFIG.

Examples:
  In a cluster:
    multinet-controller --admin [::]:9153 --identity $(POD_NAME)

  On a workstation, for the cluster of kubectl's context:
    multinet-controller --admin 127.0.0.1:9153 --lease-namespace default

Exit status: 0 after SIGTERM or SIGINT; 2 if it could not start, with one line that says why.";

impl Args {
    /// Returns the limits on the number of published addresses.
    pub(crate) fn caps(&self) -> Caps {
        Caps {
            pod: self.max_addresses_per_pod as usize,
            service: self.max_addresses_per_service as usize,
            namespace: self.max_addresses_per_namespace as usize,
        }
    }
}

fn zone(text: &str) -> Result<String, String> {
    command_line::zone(text, SHORTEST_NAME)
}

#[cfg(test)]
mod tests {
    use multinet_runtime::command_line::one_line;

    use super::*;

    fn config(flags: &[&str]) -> Result<Args, String> {
        let args = Args::try_parse_from(["multinet-controller"].iter().chain(flags));
        args.map_err(|error| one_line(&error, "multinet-controller"))
    }

    #[test]
    fn defaults_match_the_documentation() {
        let config = config(&[]).unwrap();
        assert_eq!(config.zone, "multinet.cluster.local");
        let limits = |config: &Args| (config.max_endpoints_per_slice, config.max_endpoints_per_mirror_slice);
        assert_eq!((limits(&config), config.concurrent_writes), ((25, 100), 32));
        assert_eq!(config.caps(), Caps::default());
        let caps = ["pod=1", "service=2", "namespace=3"].map(|cap| format!("--max-addresses-per-{cap}"));
        let caps = self::config(&caps.each_ref().map(String::as_str)).unwrap().caps();
        assert_eq!(caps, Caps { pod: 1, service: 2, namespace: 3 });
        let both = ["--max-endpoints-per-slice", "6", "--max-endpoints-per-mirror-slice", "7"];
        assert_eq!(limits(&self::config(&both[..2]).unwrap()), (6, 100));
        assert_eq!(limits(&self::config(&both).unwrap()), (6, 7));
        assert_eq!(config.program.admin, None);
    }

    #[test]
    fn invalid_arguments_are_refused_with_one_line_of_advice() {
        let long = ["x".repeat(61).as_str(); 4].join(".");
        assert!(config(&["--zone", &["x".repeat(60).as_str(); 4].join(".")]).is_ok());
        for (flags, message) in [
            (&["--zone", "a_b"][..], "write a zone as a DNS name"),
            (&["--zone", &long], "choose a shorter zone"),
            (&["--max-endpoints-per-slice", "0"], "0 is not in 1..=1000"),
            (&["--max-endpoints-per-slice", "1001"], "1001 is not in 1..=1000"),
            (&["--max-endpoints-per-mirror-slice", "0"], "0 is not in 1..=1000"),
            (&["--max-addresses-per-pod", "0"], "0 is not in 1..=10000000"),
            (&["--concurrent-writes", "0"], "0 is not in 1..=1000"),
            (&["--concurrent-writes", "4000000000000000000"], "is not in 1..=1000"),
            (&["--admin", "9154"], "invalid"),
            (&["--unknown"], "--unknown"),
        ] {
            let error = config(flags).unwrap_err();
            assert!(error.contains(message), "{flags:?}: {error}");
            assert!(!error.contains('\n') && error.ends_with("see multinet-controller --help"), "{error}");
        }
    }
}
