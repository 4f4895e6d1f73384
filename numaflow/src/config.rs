//! Command-line arguments, and the configuration that they result in.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::FalseyValueParser;
use clap::{ArgAction, Args as ClapArgs, Parser, Subcommand};
use multinet_runtime::command_line::{self, duration, object_name};
use multinet_runtime::lease::LeaseArgs;
use multinet_runtime::{LeaseConfig, ProgramArgs};

use crate::keeper::KeeperConfig;
use crate::limits::flags;
use crate::plan::Settings;
use crate::service::PROGRAM;

/// Shortest lifetime of a certificate. The next one is in use a hundredth after it was made.
const SHORTEST_LIFETIME: Duration = Duration::from_secs(60);

/// Length of the longest name of a vertex in front of its zone: three labels.
const LONGEST_VERTEX: usize = 3 * 64;

/// Gives vertices of Numaflow second NICs, and names for each other's pods on them.
///
/// Reads Pipelines with the annotation multinetwork.numaproj.io/direct-edges. Writes a
/// MultiNetworkService for each end of a direct edge. Its webhook gives their Vertices networks,
/// devices and environment, whenever Numaflow writes them. Several replicas may run: all answer the
/// webhook, and the one that holds the Lease writes.
#[derive(Debug, Parser)]
#[command(name = "multinet-numaflow", version, max_term_width = 100, after_help = EXAMPLES,
          args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,

    #[command(flatten)]
    serve: ServeArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print Pipelines and MonoVertices from files with everything injected
    ///
    /// Prints each Pipeline without the annotations about direct edges, with networks, devices and
    /// environment in its vertices, followed by its MultiNetworkServices. The result needs no
    /// multinet-numaflow in the cluster.
    Inject {
        /// File with Pipelines and MonoVertices, in YAML or JSON; - for standard input
        #[arg(short, long = "filename", value_name = "FILE", required = true)]
        files: Vec<PathBuf>,

        #[command(flatten)]
        injection: InjectionArgs,
    },
}

#[derive(Debug, ClapArgs)]
struct InjectionArgs {
    /// Zone of the vertices' names, as multinet-dns --vertex-zone has it
    #[arg(long, value_name = "NAME", env = "MULTINET_VERTEX_ZONE", default_value = flags::VERTEX_ZONE,
          value_parser = zone, help_heading = "Injection")]
    vertex_zone: String,

    /// Zone of the DNS server, for the names of MonoVertices
    #[arg(long, value_name = "NAME", env = "MULTINET_ZONE", default_value = flags::ZONE, value_parser = zone,
          help_heading = "Injection")]
    zone: String,

    /// Whether containers get the capability IPC_LOCK, which RDMA needs to lock memory
    #[arg(long, value_name = "BOOL", env = "MULTINET_IPC_LOCK", default_value_t = true, action = ArgAction::Set,
          help_heading = "Injection")]
    ipc_lock: bool,
}

#[derive(Debug, ClapArgs)]
struct ServeArgs {
    #[command(flatten)]
    injection: InjectionArgs,

    /// Address of the webhook
    #[arg(long, value_name = "ADDR:PORT", env = "MULTINET_LISTEN", default_value = flags::LISTEN,
          help_heading = "Webhook")]
    listen: SocketAddr,

    /// Name of the MutatingWebhookConfiguration, whose caBundle and failurePolicy are written;
    /// without such an object nothing is injected, and only services are written
    #[arg(long, value_name = "NAME", env = "MULTINET_WEBHOOK_CONFIGURATION",
          default_value = flags::WEBHOOK_CONFIGURATION, value_parser = object_name, help_heading = "Webhook")]
    webhook_configuration: String,

    /// File with the webhook's certificate chain in PEM, for example of cert-manager, which then
    /// also writes the caBundle [default: the program makes certificates, and keeps them in a
    /// Secret of the Lease's name]
    #[arg(
        long,
        value_name = "FILE",
        env = "MULTINET_TLS_CERT",
        requires = "tls_key",
        help_heading = "Webhook"
    )]
    tls_cert: Option<PathBuf>,

    /// File with the private key of --tls-cert in PEM
    #[arg(
        long,
        value_name = "FILE",
        env = "MULTINET_TLS_KEY",
        requires = "tls_cert",
        help_heading = "Webhook"
    )]
    tls_key: Option<PathBuf>,

    /// Validity of the certificates that the program makes, 1m or longer
    #[arg(long, value_name = "TIME", env = "MULTINET_CERTIFICATE_LIFETIME",
          default_value = flags::CERTIFICATE_LIFETIME, value_parser = lifetime, help_heading = "Webhook")]
    certificate_lifetime: Duration,

    /// Let changed vertices wait while the webhook is down, instead of injecting later
    #[arg(long, env = "MULTINET_FAIL_CLOSED", value_parser = FalseyValueParser::new(), help_heading = "Webhook")]
    fail_closed: bool,

    #[command(flatten)]
    lease: LeaseArgs,

    #[command(flatten)]
    program: ProgramArgs,

    /// Time for which the webhook goes on answering after SIGTERM
    #[arg(long, value_name = "TIME", env = "MULTINET_LAMEDUCK", default_value = flags::LAMEDUCK,
          value_parser = duration, help_heading = "Operation")]
    lameduck: Duration,
}

const EXAMPLES: &str = "\
The API server is that of the pod's service account, or of KUBECONFIG.

Examples:
  In a cluster:
    multinet-numaflow --admin [::]:9153 --identity $(POD_NAME)

  Without a cluster:
    multinet-numaflow inject -f pipeline.yaml | kubectl apply -f -

Exit status: 0 after SIGTERM or SIGINT, or when everything was printed; 2 if it could not start, or a \
file is wrong, with one line that says why.";

/// Job of the process.
#[derive(Debug, Clone)]
pub enum Job {
    /// Serve a cluster.
    Serve(Box<Config>),
    /// Print files with everything injected.
    Inject {
        /// Names of the files; `-` for standard input.
        files: Vec<PathBuf>,
        /// Settings of the injection.
        settings: Settings,
    },
}

/// Checked configuration of the program in a cluster.
#[derive(Debug, Clone)]
pub struct Config {
    /// Settings of the injection.
    pub settings: Settings,
    /// Address of the webhook.
    pub listen: SocketAddr,
    /// Settings about certificate and webhook configuration.
    pub keeper: KeeperConfig,
    /// Name and duration of the Lease, and the identity of this process.
    pub lease: LeaseConfig,
    /// Time for which the webhook goes on answering after SIGTERM.
    pub lameduck: Duration,
    /// Log and admin endpoints.
    pub program: ProgramArgs,
}

impl Job {
    /// Builds the job. Takes defaults that depend on the environment from the pod or the host.
    pub fn new(args: Args) -> Self {
        let Args { command, serve } = args;
        if let Some(Command::Inject { files, injection }) = command {
            return Self::Inject { files, settings: injection.settings() };
        }
        let lease = serve.lease.config(PROGRAM);
        Self::Serve(Box::new(Config {
            settings: serve.injection.settings(),
            listen: serve.listen,
            keeper: KeeperConfig {
                configuration: serve.webhook_configuration,
                secret: (lease.namespace.clone(), lease.name.clone()),
                files: serve.tls_cert.zip(serve.tls_key),
                lifetime: serve.certificate_lifetime,
                fail_closed: serve.fail_closed,
            },
            lease,
            lameduck: serve.lameduck,
            program: serve.program,
        }))
    }
}

impl InjectionArgs {
    fn settings(self) -> Settings {
        let Self { vertex_zone, zone, ipc_lock } = self;
        Settings { vertex_zone, zone, ipc_lock }
    }
}

fn zone(text: &str) -> Result<String, String> {
    command_line::zone(text, LONGEST_VERTEX)
}

fn lifetime(text: &str) -> Result<Duration, String> {
    let duration = duration(text)?;
    let is_possible = (SHORTEST_LIFETIME..=Duration::from_secs(10 * 365 * 86_400)).contains(&duration);
    is_possible.then_some(duration).ok_or_else(|| "choose from 1m to 87600h".to_owned())
}

#[cfg(test)]
mod tests {
    use multinet_runtime::command_line::one_line;

    use super::*;

    fn job(flags: &[&str]) -> Result<Job, String> {
        let args = Args::try_parse_from(["multinet-numaflow"].iter().chain(flags));
        args.map(Job::new).map_err(|error| one_line(&error, "multinet-numaflow"))
    }

    #[test]
    fn defaults_match_the_documentation() {
        let Job::Serve(config) = job(&[]).unwrap() else { panic!("it serves") };
        let Settings { vertex_zone, zone, ipc_lock } = &config.settings;
        assert_eq!((vertex_zone.as_str(), zone.as_str()), ("vertexdomain.local", "multinet.cluster.local"));
        assert!(*ipc_lock && !config.keeper.fail_closed && config.program.admin.is_none());
        assert_eq!(config.listen.to_string(), "[::]:9443");
        assert_eq!(config.keeper.configuration, "multinet-numaflow");
        let secret = ("multinet-system".to_owned(), "multinet-numaflow".to_owned());
        assert_eq!((&config.keeper.secret, config.keeper.lifetime.as_secs()), (&secret, 90 * 86_400));
        assert_eq!((&config.lease.namespace, &config.lease.name), (&secret.0, &secret.1));
    }

    #[test]
    fn files_are_injected_without_any_flag_of_the_server() {
        let job = job(&["inject", "-f", "a.yaml", "-f", "-", "--ipc-lock=false", "--zone", "Nics.Example."]);
        let Job::Inject { files, settings } = job.unwrap() else { panic!("it injects") };
        assert_eq!((files.len(), settings.ipc_lock, settings.zone.as_str()), (2, false, "nics.example"));
    }

    #[test]
    fn invalid_arguments_are_refused_with_one_line_of_advice() {
        let long = ["x".repeat(61).as_str(); 2].join(".");
        for (flags, message) in [
            (&["--vertex-zone", "a_b"][..], "write a zone as a DNS name"),
            (&["--vertex-zone", &long], "choose a shorter zone"),
            (&["--listen", "9443"], "invalid"),
            (&["--tls-cert", "tls.crt"], "--tls-key"),
            (&["--tls-key", "tls.key"], "--tls-cert"),
            (&["--certificate-lifetime", "59s"], "choose from 1m"),
            (&["--webhook-configuration", "A"], "the name of an object is"),
            (&["--ipc-lock", "maybe"], "maybe"),
            (&["inject"], "--filename"),
            (&["--fail-closed", "inject", "-f", "a"], "cannot be used with"),
        ] {
            let error = job(flags).unwrap_err();
            assert!(error.contains(message), "{flags:?}: {error}");
            assert!(!error.contains('\n') && error.ends_with("see multinet-numaflow --help"), "{error}");
        }
    }
}
