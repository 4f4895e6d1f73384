//! `multinet torchrun`: finds this pod's place among the hosts of a service, and becomes torchrun.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use multinet_client::env::{Framework, Plan, Request, Service, Setting};
use multinet_client::{Endpoint, Pod, Sources};
use nix::unistd::{AccessFlags, access};
use tokio::time::{Instant, sleep};

use crate::bench::target::Target;
use crate::common::{DnsArgs, time, wait_with_note};
use crate::env::quoted;
use crate::exec::Prepared;
use crate::hosts::{AddressKind, WAIT};
use crate::output::note;
use crate::own_view::{LOOKS, place};
use crate::rendezvous::{self, Nodes, Rendezvous};

/// Flags of `multinet torchrun`.
#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub(crate) struct TorchrunArgs {
    /// Service whose hosts are the nodes. The first one listens on the port [default: 29500]
    #[arg(value_name = "SERVICE[:PORT]")]
    service: String,

    /// Number of nodes: wait until the service has exactly so many hosts, this pod among them
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    count: u32,

    /// How long to wait for the hosts, and for this pod's NICs, such as 90s, 5m or 1h [default: 5m]
    #[arg(long, value_name = "TIME", value_parser = time)]
    wait: Option<Duration>,

    #[command(flatten)]
    dns: DnsArgs,

    /// Further flags for torchrun, the program, and its arguments
    #[arg(last = true, required = true, value_name = "ARGS")]
    arguments: Vec<OsString>,
}

const HELP: &str = "\
The command line is the same on every pod. The first host by name, with numbers compared as numbers, is the master of a \
static rendezvous, and a pod's place in that order is its rank. torchrun gets the variables that `multinet env --for \
torchrun` prints; those that are set already stay.

Example:
  multinet torchrun train.vision.svc.multinet --count 4 -- --nproc-per-node=8 train.py

Exit status: that of torchrun; 1 if the service does not have --count hosts in time, or this pod is none of them; 2 if \
the command line is wrong; 126 or 127 if torchrun cannot be started or does not exist.";

/// torchrun, and its module, which some packages have without the script.
const SCRIPT: &str = "torchrun";
const MODULE: [&str; 3] = ["python3", "-m", "torch.distributed.run"];

/// Waits for the hosts, and returns torchrun with its flags and variables.
///
/// # Errors
///
/// If not all hosts are there in time, or this pod's facts cannot be read.
pub(crate) async fn prepare(args: TorchrunArgs) -> anyhow::Result<Prepared> {
    let (service, port) = Target::service(&args.service)?;
    let port = rendezvous::port(port)?;
    let wait = args.wait.unwrap_or(WAIT);
    let deadline = Instant::now() + wait;
    let nodes = Rendezvous { service, count: args.count, wait }.nodes(&args.dns.resolver()?).await?;
    let state = "not all addresses of this pod in the service can be used yet";
    let left = deadline.saturating_duration_since(Instant::now());
    let pod = wait_with_note(state, left, usable(&nodes, (wait, deadline))).await?;
    let plan = plan(&pod, &nodes);
    let flags = nodes.flags(port, AddressKind::Name);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let words = if is_in_path(SCRIPT, &path) { &[SCRIPT][..] } else { &MODULE };
    note(&summary(&pod, &plan, &words.join(" "), &flags));
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).args(flags).args(args.arguments).envs(plan.values());
    Ok(Prepared::Start(command))
}

/// Waits until this pod can use the addresses that its peers find it at.
///
/// # Errors
///
/// At the end of the wait, with what is missing; or the kernel's.
async fn usable(nodes: &Nodes, (wait, deadline): (Duration, Instant)) -> anyhow::Result<Pod> {
    loop {
        let pod = tokio::task::spawn_blocking(|| Pod::read(&Sources::default())).await?;
        let pod = named(pod.context("cannot read the facts about this pod")?, nodes);
        match lacks(&pod, nodes) {
            None => return Ok(pod),
            Some(reason) if Instant::now() >= deadline => bail!("{reason} (waited {} s)", wait.as_secs()),
            Some(_) => sleep(LOOKS).await,
        }
    }
}

/// Gives the rails of this pod the aliases that the service has for their networks, and puts them
/// in the order of these.
fn named(mut pod: Pod, nodes: &Nodes) -> Pod {
    let of_service = || nodes.hosts.iter().flat_map(|host| &host.addresses);
    for rail in &mut pod.rails {
        let has = |ip| rail.addresses.iter().any(|own| own.addr() == ip);
        let alias = of_service().find(|address| has(address.ip)).and_then(|address| address.network.clone());
        rail.network = alias.or_else(|| rail.network.take());
    }
    pod.rails.sort_by_cached_key(place);
    pod
}

/// Returns what this pod lacks of the addresses that its peers find it at. Without one of its
/// rails, it would have fewer than the others, or none, and PyTorch would hang or use the default
/// network.
fn lacks(pod: &Pod, nodes: &Nodes) -> Option<String> {
    let own = nodes.hosts.get(nodes.rank)?;
    let usable = || pod.rails.iter().flat_map(|rail| &rail.addresses).chain(&pod.default_network);
    let address = own.addresses.iter().find(|address| usable().all(|own| own.addr() != address.ip))?;
    let unusable =
        if pod.unusable.is_empty() { "the pod does not have it".to_owned() } else { pod.unusable.join(", ") };
    Some(format!("{}, an address of this pod in the service, cannot be used: {unusable}", address.ip))
}

/// Returns the one line about the start.
fn summary(pod: &Pod, plan: &Plan, program: &str, flags: &[String]) -> String {
    let variables: String = plan.values().map(|(name, value)| format!("{name}={} ", quoted(value))).collect();
    let kept = plan.variables.iter().filter(|variable| matches!(variable.setting, Setting::Kept(_)));
    let kept = kept.map(|variable| format!("; {} is set already", variable.name));
    let left_out = plan.left_out().map(|(name, reason)| format!("; {name} is left out: {reason}"));
    let of_pod =
        pod.unusable.iter().chain(&plan.lost).chain(&pod.warnings).map(|reason| format!("; {reason}"));
    let rest: String = kept.chain(left_out).chain(of_pod).collect();
    format!("starts {variables}{program} {}{rest}", flags.join(" "))
}

/// Returns the variables for torchrun and its backends.
fn plan(pod: &Pod, nodes: &Nodes) -> Plan {
    let addresses = nodes.hosts.iter().flat_map(|host| &host.addresses);
    let service = Service {
        own_name: nodes.hosts.get(nodes.rank).map(|own: &Endpoint| own.target.clone()),
        addresses: addresses.map(|address| (address.network.clone(), address.ip)).collect(),
    };
    let set = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let (rails, service) = (pod.rails.iter().collect(), Some(&service));
    Plan::of(&Request { frameworks: &[Framework::Torchrun], rails, pod, service, set: &set })
}

/// Returns whether a folder of `path` has a program that this process may start.
fn is_in_path(program: &str, path: &OsStr) -> bool {
    let can_start = |file: PathBuf| file.is_file() && access(&file, AccessFlags::X_OK).is_ok();
    std::env::split_paths(path).any(|folder| can_start(folder.join(program)))
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions, write};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_script_that_cannot_be_started_is_not_taken_for_torchrun() {
        let folder = tempfile::tempdir().unwrap();
        let (script, path) = (folder.path().join(SCRIPT), folder.path().as_os_str());
        write(&script, "#!/bin/sh\n").unwrap();
        for (mode, expected) in [(0o644, false), (0o755, true)] {
            set_permissions(&script, Permissions::from_mode(mode)).unwrap();
            assert_eq!(is_in_path(SCRIPT, path), expected, "{mode:o}");
        }
    }
}
