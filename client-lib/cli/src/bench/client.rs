//! `multinet bench client`: connects, measures size by size, prints.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

use multinet_client::PeerSet;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use super::figures::{Bandwidth, Latency};
use super::memory::Memory;
use super::table::{LINE, Test, Unit};
use super::target::Target;
use super::{ClientArgs, Output, bandwidth, latency};
use crate::output::print;

/// How long peers beyond the first, and connections beyond the first, are waited for.
const COMPANY: Duration = Duration::from_secs(5);

/// How long the servers have to say goodbye.
const GOODBYE: Duration = Duration::from_secs(5);

pub(super) async fn run(args: ClientArgs) -> anyhow::Result<ExitCode> {
    let memory = Memory::of(args.device.use_cuda)?;
    let target = Target::parse(&args.name, args.port.as_deref())?;
    let connector = target.connector(&args.connect)?.rdma(args.device.rdma(args.connect.transport));
    let connector = connector.connections_per_peer(args.connections).build()?;
    let peers = connector.connect(&target.name, &target.port).await?;
    everybody_is_there(&peers).await;

    let unit = if args.report_gbits { Unit::Gigabits } else { Unit::Mebibytes };
    let test = if args.latency { Test::Latency } else { Test::Bandwidth(unit) };
    let sizes = args.sizes();
    let messages = sizes.iter().map(|&size| memory.message(size as usize));
    let largest = sizes.iter().copied().max().unwrap_or_default();

    let mut report = Report::begin(&args, test, &target, &peers)?;
    match test {
        Test::Bandwidth(unit) => {
            let connections = u64::from(args.connections) * peers.statistics().connected as u64;
            let depth = args.tx_depth.saturating_mul(connections);
            for message in messages {
                let figures = bandwidth::measure(&peers, message?, args.extent(), connections, depth).await?;
                report.bandwidth(figures, unit)?;
            }
        }
        Test::Latency => {
            let there_and_back = latency::PingPong::begin(&peers, &args, largest, &memory).await?;
            for message in messages {
                report.latency(there_and_back.measure(message?, args.extent()).await?)?;
            }
            there_and_back.end().await?;
        }
    }
    report.end()?;
    peers.close(GOODBYE).await;
    Ok(ExitCode::SUCCESS)
}

/// Completes when all peers, with all their connections, are there, or those that are missing have had their time: the first
/// connection is enough for [`multinet_client::Connector::connect`], but not for a comparison.
async fn everybody_is_there(peers: &PeerSet) {
    let deadline = Instant::now() + COMPANY;
    let all = peers.peers().len();
    // What is missing is not waited for again; the report says how many there are.
    let _ = timeout(COMPANY, peers.connected(all)).await;
    let mut credits = peers.statistics().credits;
    while Instant::now() < deadline {
        sleep(Duration::from_millis(20)).await;
        let now = peers.statistics().credits;
        if now == credits {
            return;
        }
        credits = now;
    }
}

/// How messages travel: to all peers alike, or by both ways.
fn transport(peers: &PeerSet) -> String {
    let kinds = peers.status().into_iter().filter_map(|status| status.transport);
    let names: BTreeSet<_> = kinds.map(|kind| kind.to_string().to_uppercase()).collect();
    Vec::from_iter(names).join(" and ")
}

/// What has been measured so far: text as it comes, JSON at the end.
struct Report {
    output: Output,
    info: Value,
    results: Vec<Value>,
}

impl Report {
    fn begin(args: &ClientArgs, test: Test, target: &Target, peers: &PeerSet) -> anyhow::Result<Self> {
        let (title, unit) = match test {
            Test::Bandwidth(unit) => ("Write BW Test", unit.name()),
            Test::Latency => ("Write Latency Test", "usec"),
        };
        let count = if test == Test::Latency { 1 } else { peers.statistics().connected };
        let depth = if test == Test::Latency { 1 } else { args.tx_depth };
        let transport = transport(peers);
        let info = json!({
            "test": title,
            "target": target.display(),
            "Transport_type": transport,
            "unit": unit,
            "peers": count,
            "connections_per_peer": args.connections,
            "tx_depth": depth,
        });
        let report = Self { output: args.output, info, results: Vec::new() };
        report.text(|| {
            format!(
                "{LINE}                    multinet {title}\n \
                 Target          : {}\n Number of peers : {count}\t\tTransport type : {transport}\n \
                 Connections     : {} each\tTX depth       : {}\n{LINE}{}",
                target.display(),
                args.connections,
                depth,
                test.header()
            )
        })?;
        Ok(report)
    }

    fn bandwidth(&mut self, figures: Bandwidth, unit: Unit) -> anyhow::Result<()> {
        self.results.push(figures.json(unit));
        self.text(|| figures.row(unit))
    }

    fn latency(&mut self, figures: Latency) -> anyhow::Result<()> {
        self.results.push(figures.json());
        self.text(|| figures.row())
    }

    fn end(self) -> anyhow::Result<()> {
        match self.output {
            Output::Text => print(LINE),
            Output::Json => {
                let document = json!({ "test_info": self.info, "results": self.results });
                print(&format!("{document:#}\n"))
            }
        }
    }

    fn text(&self, text: impl FnOnce() -> String) -> anyhow::Result<()> {
        match self.output {
            Output::Text => print(&text()),
            Output::Json => Ok(()),
        }
    }
}
