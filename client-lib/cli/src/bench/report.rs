//! The output of `multinet bench client`.

use serde_json::{Value, json};

use super::ClientArgs;
use super::figures::{Bandwidth, Latency};
use super::table::{LINE, Test, Unit};
use crate::output::{ReportFormat, print};

/// Results so far. Text is printed as results come, JSON at the end.
pub(super) struct BenchReport {
    output: ReportFormat,
    info: Value,
    results: Vec<Value>,
}

impl BenchReport {
    /// Begins a report, and prints the head of the table. `depth` is the number of messages under
    /// way on each connection; `missing` are the peers that take no part, each with the reason.
    pub(super) fn begin(
        args: &ClientArgs,
        test: Test,
        target: &str,
        ((peers, connections), transport, depth): ((usize, usize), &str, u64),
        missing: Vec<String>,
    ) -> anyhow::Result<Self> {
        let (title, unit) = match test {
            Test::Bandwidth(unit) => ("Write BW Test", unit.name()),
            Test::Latency => ("Write Latency Test", "usec"),
        };
        let info = json!({
            "test": title,
            "target": target,
            "Transport_type": transport,
            "unit": unit,
            "peers": peers,
            "connections_per_peer": args.connections,
            "connections": connections,
            "tx_depth": depth,
            "missing": missing,
        });
        let wanted = peers * usize::from(args.connections);
        let fewer =
            if connections < wanted { format!(" ({connections} of {wanted})") } else { String::new() };
        let report = Self { output: args.output, info, results: Vec::new() };
        report.text(|| {
            format!(
                "{LINE}                    multinet {title}\n \
                 Target          : {}\n Number of peers : {peers}\t\tTransport type : {transport}\n \
                 Connections     : {} each{fewer}\tTX depth       : {}\n{LINE}{}",
                target,
                args.connections,
                depth,
                test.header()
            )
        })?;
        Ok(report)
    }

    pub(super) fn bandwidth(&mut self, figures: Bandwidth, unit: Unit) -> anyhow::Result<()> {
        self.results.push(figures.json(unit));
        self.text(|| figures.row(unit))
    }

    pub(super) fn latency(&mut self, figures: Latency) -> anyhow::Result<()> {
        self.results.push(figures.json());
        self.text(|| figures.row())
    }

    pub(super) fn end(self) -> anyhow::Result<()> {
        match self.output {
            ReportFormat::Text => print(LINE),
            ReportFormat::Json => {
                let document = json!({ "test_info": self.info, "results": self.results });
                print(&format!("{document:#}\n"))
            }
        }
    }

    fn text(&self, text: impl FnOnce() -> String) -> anyhow::Result<()> {
        match self.output {
            ReportFormat::Text => print(&text()),
            ReportFormat::Json => Ok(()),
        }
    }
}
