//! `multinet hostfile`: prints the hosts of a service in the format of a launcher.

mod format;

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use multinet_client::Endpoint;

use self::format::HostFormat;
use crate::bench::target::Target;
use crate::common::{DnsArgs, time};
use crate::hosts::{self, AddressKind, WAIT, by_name, not_so_many};
use crate::output::{Usage, print};
use crate::rendezvous::{self, Rendezvous};

/// Flags of `multinet hostfile`.
#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub(crate) struct HostfileArgs {
    /// Service whose hosts are printed, such as train.vision.svc.multinet, or one of its networks,
    /// such as rail0._net.train.vision.svc.multinet
    service: String,

    /// Wait until the service has so many hosts, or more
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    count: Option<u32>,

    /// How long to wait for the hosts of --count, such as 90s, 5m or 1h [default: 5m]
    #[arg(long, value_name = "TIME", value_parser = time, requires = "count")]
    wait: Option<Duration>,

    /// Processes that a host takes, as its GPUs
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    slots: u32,

    /// Format to print
    #[arg(short, long, value_enum, default_value_t = HostFormat::Mpi)]
    format: HostFormat,

    /// Print names of hosts, or an address of each
    #[arg(long, value_enum, default_value_t = AddressKind::Name)]
    address: AddressKind,

    /// Only hosts on the network with this alias, such as rail0, with their names and addresses
    /// there
    #[arg(long, value_name = "ALIAS", env = "MULTINET_NETWORK", help_heading = "Network")]
    network: Option<String>,

    #[command(flatten)]
    dns: DnsArgs,
}

const HELP: &str = "\
The order is the same on every pod: that of the names, with numbers compared as numbers. A host is one line, however \
many rails it has: its name leads to all of them, or to that of --network. With --address ip, it is the address on the \
first network by alias, IPv4 before IPv6, or on that of --network.

Examples:
  multinet hostfile train.vision.svc.multinet --count 4 > hosts && multinet exec --for mpi -- mpirun --hostfile hosts ./train
  multinet hostfile train.vision.svc.multinet --count 4 --format deepspeed > /job/hostfile
  flags=$(multinet hostfile train.vision.svc.multinet --count 4 --format torchrun) && torchrun $flags train.py

Exit status: 0 if the hosts are printed; 1 if there are fewer than --count, with their names, or DNS fails; 2 if the \
command line is wrong.";

/// Waits for the hosts of a service, and prints them.
pub(crate) async fn run(args: HostfileArgs) -> anyhow::Result<ExitCode> {
    let (service, port) = Target::service(&args.service)?;
    // As in a manifest that sets MULTINET_NETWORK to nothing.
    let service = match args.network.filter(|alias| !alias.is_empty()) {
        Some(alias) => on_network(&service, &alias)?,
        None => service,
    };
    let wait = args.wait.unwrap_or(WAIT);
    if args.format == HostFormat::Torchrun {
        let Some(count) = args.count else {
            return Err(Usage(
                "torchrun needs the same number of nodes on every pod: give --count".to_owned(),
            )
            .into());
        };
        let port = rendezvous::port(port)?;
        let nodes = Rendezvous { service, count, wait }.nodes(&args.dns.resolver()?).await?;
        let flags = nodes.flags(port, args.address);
        print(&(flags.join(" ") + "\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(port) = port {
        return Err(Usage(format!("a host file has no ports: leave out :{port}")).into());
    }
    let resolver = args.dns.resolver()?;
    // Two pods of one name are told apart by their addresses only.
    let hosts = |pods: &[Endpoint]| match args.address {
        AddressKind::Name => by_name(pods, &BTreeSet::new()),
        AddressKind::Ip => pods.to_vec(),
    };
    let pods = match args.count {
        Some(count) => {
            let count = count as usize;
            let note = format!("{service} does not have {count} hosts yet");
            let missing = |pods: &[Endpoint]| {
                let hosts = hosts(pods);
                (hosts.len() < count).then(|| not_so_many(&service, &hosts, count))
            };
            hosts::wait_for(&resolver, &service, (wait, &note), missing).await?
        }
        None => hosts::pods(&resolver, &service, None).await?,
    };
    print(&format::text(args.format, &hosts(&pods), args.slots, args.address)?)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the name of a service on one of its networks.
fn on_network(service: &str, alias: &str) -> Result<String, Usage> {
    if service.contains("._net.") {
        return Err(Usage(format!("{service} is one network already: leave out --network {alias}")));
    }
    Ok(format!("{alias}._net.{service}"))
}
