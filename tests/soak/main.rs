//! Tests with much data, or of long duration: a million endpoints from a real API server, a restart
//! and an outage with them, and millions of queries. `make test` runs each as a short round. `make
//! soak` runs them in full on a release build, and writes their figures to docs/benchmarks.md.
//!
//! Short rounds check only that answers are right. Full rounds, beside which nothing else runs,
//! also check bounds of time and memory.

#![forbid(unsafe_code)]

mod data;
mod million;
mod saturation;

use std::fs::OpenOptions;
use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context as _, Result};

/// Extent of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Round {
    Short,
    Full,
}

/// Prints a row of the table of figures, and appends it to the file that `tests/soak.sh` names.
fn report(what: &str, figure: &str) -> Result<()> {
    let row = format!("| {what} | {figure} |\n");
    eprint!("{row}");
    if let Some(file) = std::env::var_os("MULTINET_SOAK_TABLE") {
        let opened = OpenOptions::new().append(true).create(true).open(&file);
        opened.and_then(|mut file| file.write_all(row.as_bytes())).context("cannot write the table")?;
    }
    Ok(())
}

fn milliseconds(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}
