//! The tables.

use std::collections::BTreeSet;
use std::slice::from_ref;

use anyhow::{Context as _, Result};
use multinet_testing::bench::{Table, at_most, figure, ratio, text};

use super::memory::Memory;
use super::rounds::{Figures, Measure};
use super::rows::Row;
use super::servers::Who;

/// Bound of our memory, as a part of CoreDNS' settled memory.
const MEMORY_TARGET: f64 = 0.5;

/// Returns the table of the ratios; a dash where no round has both figures.
pub(crate) fn ratios(note: String, rows: &[Row], figures: &Figures, memory: Option<Memory>) -> Result<Table> {
    let mut table = Table::new("Ratios", note, "multinet-dns | measured | target");
    for row in rows {
        let of = |key| figures.get(key).context("not measured");
        let rounds = of(&row.ours)?.iter().zip(of(&row.over)?);
        let ratio = ratio(rounds.map(|(ours, over)| ours / over));
        let verdict = at_most(row.target, from_ref(&ratio));
        table.row([text(&row.title), ratio, verdict]);
    }
    if let Some(Memory { endpoints, settled: [ours, core], .. }) = memory {
        let ratio = ratio([ours / core]);
        let verdict = at_most(Some(MEMORY_TARGET), from_ref(&ratio));
        table.row([
            text(format!("RSS with {endpoints} endpoints, over CoreDNS settled (once)")),
            ratio,
            verdict,
        ]);
    }
    Ok(table)
}

pub(crate) fn medians(figures: &Figures) -> Table {
    let columns = format!(" | {}", Who::ALL.map(Who::name).join(" | "));
    let mut table = Table::new("Medians", "In microseconds.", &columns);
    let measures: BTreeSet<Measure> = figures.keys().map(|(measure, _)| *measure).collect();
    for measure in measures {
        let cell = |who| figures.get(&(measure, who)).map_or_else(|| text(""), |it| figure(it.clone(), 2));
        table.row([text(title(measure))].into_iter().chain(Who::ALL.map(cell)));
    }
    table
}

pub(crate) fn memory(Memory { endpoints, at_start, settled, rest }: Memory) -> Table {
    let note = format!("In MiB, with {endpoints} endpoints from the API server.");
    let columns = format!(" | after the start | {} s later", rest.as_secs());
    let mut table = Table::new("Resident sets", note, &columns);
    for (side, who) in [Who::Ours, Who::Core].into_iter().enumerate() {
        table.row([text(who.name()), figure([at_start[side]], 0), figure([settled[side]], 0)]);
    }
    table
}

fn title(measure: Measure) -> String {
    match measure {
        Measure::Udp(question) => format!("UDP, {}", question.name()),
        Measure::Apart => "UDP, A, each from a port of its own".into(),
        Measure::Tcp(question) => format!("TCP, {}", question.name()),
        Measure::Everyday => "UDP, A at 10,000 queries/s".into(),
        Measure::Latency => "p99 latency at half of saturation".into(),
        Measure::Overload => "p99 latency of what is answered, at twice of saturation (bound: 2000)".into(),
        Measure::Workers(1) => "one worker, many ports".into(),
        Measure::Workers(count) => format!("{count} workers, many ports"),
    }
}
