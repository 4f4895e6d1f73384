//! `multinet env`: prints the variables by which frameworks use this pod's second NICs.

mod format;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::ValueEnum;
use multinet_client::Rail;

use crate::output::{note, print};
use crate::own_view::OwnViewArgs;
use format::Format;
pub(crate) use format::quoted;

/// Flags of `multinet env`.
#[derive(clap::Args, Debug)]
#[command(after_help = HELP)]
pub(crate) struct EnvArgs {
    #[command(flatten)]
    view: OwnViewArgs,

    /// How variables are written
    #[arg(long, value_enum, default_value_t = Format::Shell)]
    format: Format,

    /// Print this fact about the first rail instead
    #[arg(long, value_enum, conflicts_with = "format")]
    value: Option<Fact>,

    /// Fail if a variable cannot be known, a second NIC cannot be used, or the service does not
    /// have this pod
    #[arg(long)]
    strict: bool,
}

const HELP: &str = "\
Variables that are set already are left as they are. One that cannot be known is left out, with a comment that says why. \
docs/frameworks.md lists the variables of each framework.

Examples:
  eval \"$(multinet env)\"
  eval \"$(multinet env --for nccl,nvshmem --network rail0)\"
  multinet env --format nccl.conf > /etc/nccl.conf
  ip=$(multinet env --value ip) && ray start --address head:6379 --node-ip-address \"$ip\"

Exit status: 0 if all went well; 1 if the facts cannot be read, the pod has no such network or GPU, or with --strict a \
variable cannot be known; 2 if the command line is wrong.";

/// Fact about a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Fact {
    /// Its address
    Ip,
    /// Its interface
    Interface,
    /// Its RDMA device
    Rdma,
    /// The row of the device's GID table that stands for its address
    Gid,
}

/// Prints variables, or a fact.
pub(crate) async fn run(args: EnvArgs) -> anyhow::Result<ExitCode> {
    let view = args.view.view(Duration::ZERO).await?;
    let mut lacks = [view.missing.as_slice(), args.view.unusable(&view)].concat();
    if let Some(fact) = args.value {
        if args.strict && !lacks.is_empty() {
            bail!("--strict: {}", lacks.join("; "));
        }
        let rails = args.view.rails(&view)?;
        let rail = rails.first().with_context(|| view.lacks().unwrap_or_default())?;
        print(&format!("{}\n", fact.of(rail)?))?;
        return Ok(ExitCode::SUCCESS);
    }
    let plan = args.view.plan(&view)?;
    lacks.extend(plan.lost.iter().cloned());
    if args.strict {
        lacks.extend(plan.left_out().map(|(name, reason)| format!("{name}: {reason}")));
        if !lacks.is_empty() {
            bail!("--strict: {}", lacks.join("; "));
        }
    }
    lacks.iter().chain(&view.pod.warnings).for_each(|warning| note(warning));
    print(&args.format.text(&args.view.rails(&view)?, &plan)?)?;
    Ok(ExitCode::SUCCESS)
}

impl Fact {
    fn of(self, rail: &Rail) -> anyhow::Result<String> {
        let name = rail.name();
        let rdma = || rail.rdma.as_ref().map_err(|reason| anyhow::anyhow!("{name}: {reason}"));
        Ok(match self {
            Self::Ip => rail.address().with_context(|| format!("{name} has no address"))?.to_string(),
            Self::Interface => rail.interface.clone().with_context(|| format!("{name} has no interface"))?,
            Self::Rdma => rdma()?.device.clone(),
            Self::Gid => rdma()?.index.to_string(),
        })
    }
}
