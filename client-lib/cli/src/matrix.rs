//! `multinet matrix`: measures the bandwidth between all pairs of a service's pods.
//!
//! ```text
//!  hosts of the service ──> rounds of disjoint pairs ──> questions to their servers ──> grid
//!                                                                      table, JSON or HTML <─┘
//! ```

mod asking;
mod grid;
mod html;
mod progress;
mod report;
mod rounds;
mod table;

use std::collections::BTreeSet;
use std::io::{self, IsTerminal as _};
use std::net::IpAddr;
use std::process::ExitCode;

use anyhow::{bail, ensure};
use clap::{Args, ValueEnum};
use futures::future::join_all;
use multinet_client::nic::route_to;
use multinet_client::{Connector, Endpoint, Identity, Listener, Resolver, Transport};

use self::asking::{Load, Servers};
use self::grid::{Cell, Grid};
use self::progress::MeasurementProgress;
use self::report::MatrixReport;
use crate::bench::request::MAX_SECONDS;
use crate::bench::target::Target;
use crate::common::{DnsArgs, NetworkArgs, TlsArgs};
use crate::hosts;
use crate::output::{note, print};

/// Port of `multinet bench server`, unless the command line names one.
const DEFAULT_PORT: u16 = 18515;

/// Flags of `multinet matrix`.
#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub(crate) struct MatrixArgs {
    /// Service whose pods run `multinet bench server --matrix SERVICE`, on a port of the service or
    /// with this number [default: 18515]
    #[arg(value_name = "SERVICE[:PORT]")]
    service: String,

    /// Size of a message in bytes
    #[arg(short, long, value_name = "BYTES", default_value_t = 1 << 20,
          value_parser = clap::value_parser!(u32).range(1..=8 << 20))]
    size: u32,

    /// How long each pair is measured, in each direction
    #[arg(short = 'D', long, value_name = "SECONDS", default_value_t = 2,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_SECONDS)))]
    duration: u32,

    /// How the result is written
    #[arg(short, long, value_enum, default_value_t = MatrixFormat::Table)]
    output: MatrixFormat,

    /// End with status 1 if a figure is below so many Gb/s
    #[arg(long, value_name = "GBPS", value_parser = expected)]
    expect: Option<f64>,

    #[command(flatten)]
    dns: DnsArgs,

    #[command(flatten)]
    network: NetworkArgs,

    #[command(flatten)]
    tls: TlsArgs,
}

const HELP: &str = "\
Every pod of the service runs `multinet bench server --matrix SERVICE`, and this command runs in one of them. Pairs are \
measured in rounds without a common pod, first in one direction, then in the other, and rail by rail: of N pods, \
(N - 1) * 2 * rails * SECONDS in all. A pod or pair that cannot be measured is named, and the others go on. Figures 20 % \
below the median of their rail are named, too.

Examples:
  multinet matrix train.vision.svc.multinet
  multinet matrix train.vision.svc.multinet -D 5 --network rail0 --expect 90
  multinet matrix train.vision.svc.multinet -o html > matrix.html

Exit status: 0 if all pairs were measured, and none is below --expect; 1 otherwise; 2 if the command line is wrong.";

/// Format of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MatrixFormat {
    /// A grid for each rail, for people
    Table,
    /// JSON, for programs
    Json,
    /// One HTML file with heat maps, which needs no other
    Html,
}

/// Network of the service, with the address of each host on it.
struct Rail {
    name: String,
    addresses: Vec<Option<IpAddr>>,
}

/// Measures, and prints the result.
pub(crate) async fn run(args: MatrixArgs) -> anyhow::Result<ExitCode> {
    let (service, port) = Target::service(&args.service)?;
    let hosts = find(&args.dns.resolver()?, &service, port).await?;
    ensure!(hosts.len() > 1, "{service} has one host only, {}: a matrix needs two", hosts::names(&hosts));
    let alias = args.network.network.as_deref().filter(|alias| !alias.is_empty());
    let rails = rails(&service, &hosts, alias)?;
    let servers = connect(&args, &service, &hosts).await?;

    let mut grids: Vec<Grid> = rails.iter().map(|rail| Grid::new(&rail.name, hosts.len())).collect();
    let load = Load { size: args.size, seconds: args.duration };
    let rounds = rounds::rounds(hosts.len());
    let mut progress =
        MeasurementProgress::new(rounds.len(), rounds.iter().map(Vec::len).sum::<usize>() * 2 * rails.len());
    for round in &rounds {
        progress.round();
        for (rail, grid) in rails.iter().zip(&mut grids) {
            for is_back in [false, true] {
                let pairs = round.iter().map(|&(a, b)| if is_back { (b, a) } else { (a, b) });
                let outcomes =
                    join_all(pairs.map(|pair| measure((&servers, &hosts), rail, pair, load))).await;
                progress.add(outcomes.len());
                outcomes.into_iter().for_each(|((from, to), cell)| grid.cells[from][to] = cell);
            }
        }
    }
    drop(progress);

    let hosts = hosts.into_iter().map(|host| host.host).collect();
    let report = MatrixReport { service, size: args.size, seconds: args.duration, hosts, grids };
    let is_coloured =
        io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    print(&match args.output {
        MatrixFormat::Table => table::text(&report, is_coloured),
        MatrixFormat::Json => report.json()?,
        MatrixFormat::Html => html::page(&report),
    })?;
    Ok(verdict(&report, args.expect))
}

/// Returns the hosts, with the port of their servers.
async fn find(resolver: &Resolver, service: &str, port: Option<String>) -> anyhow::Result<Vec<Endpoint>> {
    let number = port.as_deref().map_or(Ok(DEFAULT_PORT), str::parse);
    match (number, port) {
        (Ok(number), _) => {
            let mut hosts = hosts::pods(resolver, service, None).await?;
            hosts.iter_mut().for_each(|host| host.port = number);
            Ok(hosts)
        }
        (Err(_), name) => hosts::pods(resolver, service, name.as_deref()).await,
    }
}

async fn connect(args: &MatrixArgs, service: &str, hosts: &[Endpoint]) -> anyhow::Result<Servers> {
    let allow = args.network.allow_default_network;
    let tls = args.tls.tls()?;
    // The pod's uid is left out: one of the hosts is this pod, which a sender would leave out.
    let mut connector = Connector::builder()
        .resolver(args.dns.resolver()?)
        .identity(Identity::new("multinet matrix"))
        .transport(Transport::Tcp)
        .allow_default_network(allow);
    let known: BTreeSet<IpAddr> =
        hosts.iter().flat_map(|host| &host.addresses).map(|address| address.ip).collect();
    let mut listener = Listener::builder().port(0).frame_size(1).transport(Transport::Tcp).admit(move |ip| {
        match known.contains(&ip) {
            true => Ok(()),
            false => Err(format!("{ip} is no host of this matrix")),
        }
    });
    for source in sources(service, hosts, allow)? {
        listener = listener.address(source);
    }
    if let Some(tls) = tls {
        connector = connector.tls(tls.clone());
        listener = listener.tls(tls);
    }
    Servers::connect(&connector.build()?, listener.bind().await?, service, hosts).await
}

/// Returns the addresses from which this process connects to the hosts: their servers connect back
/// there.
fn sources(service: &str, hosts: &[Endpoint], allow: bool) -> anyhow::Result<BTreeSet<IpAddr>> {
    let routes =
        hosts.iter().flat_map(|host| &host.addresses).filter_map(|address| route_to(address.ip).ok());
    let sources: BTreeSet<IpAddr> =
        routes.filter(|route| allow || !route.is_default_network).map(|route| route.source).collect();
    ensure!(
        !sources.is_empty(),
        "no second NIC of this pod leads to {service}: run this in one of its pods, attached to its networks"
    );
    Ok(sources)
}

async fn measure(
    (servers, hosts): (&Servers, &[Endpoint]),
    rail: &Rail,
    pair: (usize, usize),
    load: Load,
) -> ((usize, usize), Cell) {
    let cell = match target(rail, pair) {
        Ok(target) => servers.measure(pair, target, load).await,
        Err(lacking) => Cell::Failed(format!("{} has no address there", hosts[lacking].host)),
    };
    (pair, cell)
}

/// Returns the address to measure towards, or the host of the two that has none on the rail.
fn target(rail: &Rail, (from, to): (usize, usize)) -> Result<IpAddr, usize> {
    rail.addresses[from].ok_or(from).and_then(|_| rail.addresses[to].ok_or(to))
}

/// Returns the rails of the hosts, or the one with an alias.
fn rails(service: &str, hosts: &[Endpoint], alias: Option<&str>) -> anyhow::Result<Vec<Rail>> {
    // Without TXT records, DNS does not tell the networks.
    let name = |network: &Option<String>| network.clone().unwrap_or_else(|| "-".to_owned());
    let all = hosts.iter().flat_map(|host| &host.addresses).map(|address| name(&address.network));
    let names: BTreeSet<String> = all.collect();
    if let Some(alias) = alias.filter(|alias| !names.contains(*alias)) {
        bail!("{service} has no address on network {alias}, only on {}", Vec::from_iter(names).join(", "));
    }
    let address = |host: &Endpoint, rail: &str| {
        host.addresses.iter().find(|address| name(&address.network) == rail).map(|address| address.ip)
    };
    let rail =
        |name: String| Rail { addresses: hosts.iter().map(|host| address(host, &name)).collect(), name };
    Ok(names.into_iter().filter(|name| alias.is_none_or(|alias| alias == name)).map(rail).collect())
}

/// Returns the exit status, and says why it is 1.
fn verdict(report: &MatrixReport, expect: Option<f64>) -> ExitCode {
    let figures: Vec<f64> = report.cells().filter_map(Cell::gbps).collect();
    let failed = report.cells().filter(|cell| matches!(cell, Cell::Failed(_))).count();
    let below = expect.map_or(0, |expected| figures.iter().filter(|gbps| **gbps < expected).count());
    if failed > 0 {
        note(&format!("{failed} of {} measurements failed", failed + figures.len()));
    }
    if let Some(expected) = expect.filter(|_| below > 0) {
        note(&format!("{below} of {} figures are below the {expected} Gb/s of --expect", figures.len()));
    }
    if failed + below == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn expected(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(gbps) if gbps.is_finite() && gbps > 0.0 => Ok(gbps),
        _ => Err("give a number of gigabits per second, such as 90 or 0.5".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use multinet_client::EndpointAddress;

    use super::*;

    fn host(addresses: &[(&str, &str)]) -> Endpoint {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let mut host = Endpoint::at((ip(addresses[0].0), DEFAULT_PORT).into());
        let address = |(text, alias): &(&str, &str)| {
            let mut address = EndpointAddress::new(ip(text));
            address.network = Some((*alias).to_owned());
            address
        };
        host.addresses = addresses.iter().map(address).collect();
        host
    }

    #[test]
    fn a_host_without_an_address_on_a_rail_is_a_failure_there() {
        let hosts = [host(&[("10.0.0.1", "rail0"), ("10.1.0.1", "rail1")]), host(&[("10.0.0.2", "rail0")])];
        let rails = rails("train", &hosts, None).unwrap();
        assert_eq!(target(&rails[0], (0, 1)), Ok([10, 0, 0, 2].into()));
        assert_eq!(target(&rails[1], (0, 1)), Err(1));
        assert_eq!(target(&rails[1], (1, 0)), Err(1));
    }
}
