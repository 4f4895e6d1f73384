//! Results of benchmarks: a JSON document, and Markdown tables made from it.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::io::{self, Write as _};
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use crate::measure::median;

/// Arguments of a benchmark, after its name.
#[derive(Debug, Default)]
pub struct Arguments {
    /// `--quick`: measures little, to check that the benchmark works.
    pub is_quick: bool,
    /// `--only GROUP,…`.
    pub only: Option<String>,
}

/// Results of one run.
#[derive(Debug, Serialize, Deserialize)]
pub struct Results {
    machine: String,
    versions: BTreeMap<String, String>,
    tables: Vec<Table>,
}

/// Table with a title and a note.
#[derive(Debug, Serialize, Deserialize)]
pub struct Table {
    title: String,
    note: String,
    columns: Vec<String>,
    rows: Vec<Vec<Cell>>,
}

/// Cell of a table.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Cell {
    /// Name, count or verdict.
    Text(String),
    /// Median of several rounds, with their spread.
    Figure {
        /// The median.
        median: f64,
        /// The smallest value.
        least: f64,
        /// The largest value.
        most: f64,
        /// Number of decimal places in the table.
        digits: usize,
        /// Whether the table shows the spread, too.
        shows_spread: bool,
    },
}

impl Arguments {
    /// Parses the arguments after the benchmark's name.
    pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self> {
        let mut parsed = Self::default();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--quick" => parsed.is_quick = true,
                "--only" => parsed.only = Some(arguments.next().context("--only wants a list of groups")?),
                other => bail!("unknown argument {other:?}; known are --quick and --only GROUP,…"),
            }
        }
        Ok(parsed)
    }
}

impl Results {
    /// Creates the results of this machine, with the versions of the other programs measured.
    pub fn new(versions: &[(&str, String)], tables: Vec<Table>) -> Result<Self> {
        let kernel = String::from_utf8(Command::new("uname").arg("-sm").output()?.stdout)?;
        let machine = format!("{} cores, {}", std::thread::available_parallelism()?, kernel.trim());
        let versions = versions.iter().map(|(name, version)| ((*name).to_owned(), version.clone()));
        Ok(Self { machine, versions: versions.collect(), tables })
    }

    /// Writes the JSON document to standard output.
    pub fn write(&self) -> Result<()> {
        Ok(writeln!(io::stdout(), "{}", serde_json::to_string_pretty(self)?)?)
    }
}

/// Reads the JSON document from standard input, and writes its tables as Markdown to standard
/// output.
pub fn page() -> Result<()> {
    let results: Results = serde_json::from_reader(io::stdin().lock())?;
    Ok(write!(io::stdout(), "{results}")?)
}

impl Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Machine: {}.", self.machine)?;
        for (place, (name, version)) in self.versions.iter().enumerate() {
            write!(f, "{} {name} {version}", if place == 0 { " Peers:" } else { "," })?;
        }
        writeln!(f, "{}", if self.versions.is_empty() { "" } else { "." })?;
        self.tables.iter().try_for_each(|table| write!(f, "\n{table}"))
    }
}

impl Table {
    /// Creates a table without rows. `columns` are separated by ` | `.
    pub fn new(title: impl Display, note: impl Display, columns: &str) -> Self {
        let columns = columns.split(" | ").map(ToOwned::to_owned).collect();
        Self { title: title.to_string(), note: note.to_string(), columns, rows: Vec::new() }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().collect());
    }
}

impl Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "### {}\n", self.title)?;
        if !self.note.is_empty() {
            writeln!(f, "{}\n", self.note)?;
        }
        writeln!(f, "| {} |\n|{}", self.columns.join(" | "), "---|".repeat(self.columns.len()))?;
        for row in &self.rows {
            let cells: Vec<String> = row.iter().map(ToString::to_string).collect();
            writeln!(f, "| {} |", cells.join(" | "))?;
        }
        Ok(())
    }
}

impl Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Text(ref text) => f.write_str(text),
            Self::Figure { median, least, most, digits, shows_spread: true } if least < most => {
                write!(f, "{median:.digits$} ({least:.digits$}–{most:.digits$})")
            }
            Self::Figure { median, digits, .. } => write!(f, "{median:.digits$}"),
        }
    }
}

/// Returns a cell with text.
pub fn text(what: impl Display) -> Cell {
    Cell::Text(what.to_string())
}

/// Returns a cell with the median of the values; a dash if there are none.
pub fn figure(values: impl IntoIterator<Item = f64>, digits: usize) -> Cell {
    cell(values, |_| digits, false)
}

/// Returns a cell with the median of ratios, whose spread the table shows.
pub fn ratio(values: impl IntoIterator<Item = f64>) -> Cell {
    cell(values, |median| if median < 0.1 { 3 } else { 2 }, true)
}

fn cell(values: impl IntoIterator<Item = f64>, digits: impl Fn(f64) -> usize, shows_spread: bool) -> Cell {
    let values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    match median(values) {
        Ok(median) => Cell::Figure { median, least, most, digits: digits(median), shows_spread },
        Err(_) => text("–"),
    }
}

/// Returns the verdict whether all ratios are at most `target`; an empty cell without a target, or
/// if a ratio is missing.
pub fn at_most(target: Option<f64>, ratios: &[Cell]) -> Cell {
    verdict("at most", target, ratios, |median, target| median <= target)
}

/// Returns the verdict whether all ratios are at least `target`.
pub fn at_least(target: Option<f64>, ratios: &[Cell]) -> Cell {
    verdict("at least", target, ratios, |median, target| median >= target)
}

fn verdict(words: &str, target: Option<f64>, ratios: &[Cell], is_met: impl Fn(f64, f64) -> bool) -> Cell {
    let median = |cell: &Cell| if let Cell::Figure { median, .. } = cell { Some(*median) } else { None };
    let medians: Option<Vec<f64>> = ratios.iter().map(median).collect();
    text(match target.zip(medians) {
        Some((target, medians)) if medians.iter().all(|&median| is_met(median, target)) => {
            format!("{words} {target}: met")
        }
        Some((target, _)) => format!("{words} {target}: **missed**"),
        None => String::new(),
    })
}

/// Returns the version that a program prints: the first number in a word, after a dash or a `v` if
/// the word has one.
pub fn version(program: impl AsRef<Path>, flag: &str) -> Result<String> {
    let program = program.as_ref();
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new(program).arg(flag).env("PATH", format!("{path}:/usr/sbin:/sbin")).output();
    let output = output.with_context(|| format!("cannot start {}", program.display()))?;
    // Some programs print it to standard error.
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed);
    let words = printed.split_whitespace().map(|word| word.rsplit('-').next().unwrap_or(word));
    let mut numbers = words.map(|word| word.trim_start_matches('v'));
    let found = numbers.find(|word| word.starts_with(|first: char| first.is_ascii_digit()));
    Ok(found
        .with_context(|| format!("no version in the output of {}: {printed:?}", program.display()))?
        .to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_json_document_is_rendered_as_tables() {
        let mut table = Table::new("Ratios", "Of 3 rounds.", "what | time | / other | target");
        let over = ratio([0.5, 0.4, 0.7, f64::NAN]);
        table.row([text("A"), figure([2.0, 1.0, 4.0], 1), over.clone(), at_most(Some(0.4), &[over])]);
        table.row([text("B"), figure([3.0], 0), ratio([0.05]), at_least(Some(0.04), &[ratio([0.05])])]);
        table.row([text("C"), figure([f64::INFINITY], 0), ratio([]), at_most(Some(1.0), &[ratio([])])]);
        let results = Results {
            machine: "2 cores".into(),
            versions: [("NSD", "4.6.1"), ("Knot", "3.2.6")].map(|(name, it)| (name.into(), it.into())).into(),
            tables: vec![table],
        };
        let read: Results = serde_json::from_str(&serde_json::to_string(&results).unwrap()).unwrap();
        let expected = "\
Machine: 2 cores. Peers: Knot 3.2.6, NSD 4.6.1.

### Ratios

Of 3 rounds.

| what | time | / other | target |
|---|---|---|---|
| A | 2.0 | 0.50 (0.40–0.70) | at most 0.4: **missed** |
| B | 3 | 0.050 | at least 0.04: met |
| C | – | – |  |
";
        assert_eq!(read.to_string(), expected);
    }
}
