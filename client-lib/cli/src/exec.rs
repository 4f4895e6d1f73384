//! `multinet exec`: starts a program with the variables by which frameworks use this pod's second
//! NICs.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::bail;
use multinet_client::env::{Plan, Setting};
use tokio::time::Instant;

use crate::common::time;
use crate::env::quoted;
use crate::output::note;
use crate::own_view::{OwnView, OwnViewArgs};

/// Flags of `multinet exec`.
#[derive(clap::Args, Debug)]
#[command(after_help = HELP)]
pub(crate) struct ExecArgs {
    #[command(flatten)]
    view: OwnViewArgs,

    /// Wait this long, such as 60s or 5m, until all second NICs with addresses can be used, or
    /// those of --network, and until the service of --service has this pod [default: do not wait]
    #[arg(long, value_name = "TIME", value_parser = time)]
    wait: Option<Duration>,

    /// Fail, and do not start the program, if there is no second NIC, one cannot be used, a
    /// variable cannot be known, or the service does not have this pod
    #[arg(long)]
    strict: bool,

    /// Program to start, and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

const HELP: &str = "\
Sets the variables that `multinet env` prints and that are not set already, says so in one line on standard error, and \
becomes the program: it keeps the process ID, gets all signals, and its exit status is its own. No signal is blocked, and \
those that were ignored stay so, but SIGPIPE.

A pod that gets ready only by the program is in DNS before only if the service has publishNotReadyAddresses.

Examples:
  multinet exec -- python3 train.py
  multinet exec --for vllm --service prefill.llm.svc.multinet --wait 60s -- vllm serve MODEL

Exit status: that of the program; 1 if it was not started, with one line that says why; 2 if the command line is wrong; 126 \
or 127 if the program cannot be started or does not exist.";

/// Program that is ready to start, or the exit status without one.
pub(crate) enum Prepared {
    Start(Command),
    End(ExitCode),
}

impl From<ExitCode> for Prepared {
    fn from(status: ExitCode) -> Self {
        Self::End(status)
    }
}

/// Waits for what the command line asks for, and returns the program with its variables.
pub(crate) async fn prepare(args: ExecArgs) -> anyhow::Result<Prepared> {
    let begin = Instant::now();
    let view = args.view.view(args.wait.unwrap_or_default()).await?;
    let plan = args.view.plan(&view)?;
    let waited = args.wait.filter(|wait| begin.elapsed() >= *wait);
    let waited = waited.map(|wait| format!(" after {} s", wait.as_secs())).unwrap_or_default();
    let unusable = [args.view.unusable(&view), plan.lost.as_slice()].concat();
    if args.strict {
        let left_out = plan.left_out().map(|(name, reason)| format!("{name}: {reason}"));
        let missing: Vec<String> = match is_without_nic(&view, &plan) {
            true => view.lacks().into_iter().collect(),
            false => view.missing.iter().chain(&unusable).cloned().chain(left_out).collect(),
        };
        if !missing.is_empty() {
            bail!("--strict{waited}: {}", missing.join("; "));
        }
    }
    note(&summary(&view, &unusable, &plan, &waited));
    let mut command = Command::new(&args.command[0]);
    command.args(&args.command[1..]).envs(plan.values());
    Ok(Prepared::Start(command))
}

/// Returns whether nothing is known, since there is no second NIC. A launcher without one may know
/// its workers' range of addresses from DNS.
fn is_without_nic(view: &OwnView, plan: &Plan) -> bool {
    view.pod.rails.is_empty() && (!view.has_service() || plan.values().next().is_none())
}

/// Returns the one line about the variables.
fn summary(view: &OwnView, unusable: &[String], plan: &Plan, waited: &str) -> String {
    let set: Vec<String> = plan.values().map(|(name, value)| format!("{name}={}", quoted(value))).collect();
    let mut parts = vec![match set.is_empty() {
        true => "no variable is set".to_owned(),
        false => format!("sets {}", set.join(" ")),
    }];
    parts.extend(view.lacks().map(|lacks| format!("{lacks}{waited}")));
    if !view.pod.rails.is_empty() {
        parts.extend(unusable.iter().map(|reason| format!("{reason}{waited}")));
    }
    let kept = plan.variables.iter().filter(|variable| matches!(variable.setting, Setting::Kept(_)));
    parts.extend(kept.map(|variable| format!("{} is set already", variable.name)));
    if !is_without_nic(view, plan) {
        parts.extend(plan.left_out().map(|(name, reason)| format!("{name} is left out: {reason}")));
    }
    parts.extend(view.pod.warnings.iter().cloned());
    parts.join("; ")
}

/// Becomes the program. Returns only if it cannot be started.
pub(crate) fn start(mut command: Command) -> ExitCode {
    let error = command.exec();
    note(&format!("cannot start {}: {error}", command.get_program().display()));
    ExitCode::from(if error.kind() == ErrorKind::NotFound { 127 } else { 126 })
}
