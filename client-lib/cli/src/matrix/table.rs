//! Grids for a terminal. Pure.

use multinet_stderr::TerminalSafe;

use super::grid::{Cell, Grid, is_slow};
use super::report::{MatrixReport, number};

/// Width of a figure with its mark.
const WIDTH: usize = 7;

const RED: &str = "\x1b[31m";
const GREEN: &str = "\x1b[32m";
const YELLOW: &str = "\x1b[33m";
const RESET: &str = "\x1b[0m";

/// Share of the median below which a figure is yellow, before it stands out.
const FAIR: f64 = 0.9;

/// Returns a grid for each rail, and below it a line for all that stands out or has failed.
pub(super) fn text(report: &MatrixReport, is_coloured: bool) -> String {
    let grids: Vec<String> = report.grids.iter().map(|grid| one(report, grid, is_coloured)).collect();
    grids.join("\n")
}

fn one(report: &MatrixReport, grid: &Grid, is_coloured: bool) -> String {
    let names: Vec<String> = report.hosts.iter().map(|name| TerminalSafe(name).to_string()).collect();
    let digits = names.len().saturating_sub(1).to_string().len();
    let wide = names.iter().map(|name| name.chars().count()).max().unwrap_or_default();
    let median = grid.median();
    let mut text = format!(
        "{}: Gb/s of {}{}; rows send to columns\n{:width$}",
        TerminalSafe(&grid.rail),
        report.size_in_words(),
        TerminalSafe(&MatrixReport::figures_in_words(grid)),
        "",
        width = digits + 1 + wide
    );
    for host in 0..names.len() {
        text.push_str(&format!("{host:>WIDTH$}"));
    }
    text.push('\n');
    for (host, (name, row)) in names.iter().zip(&grid.cells).enumerate() {
        text.push_str(&format!("{host:>digits$} {name:wide$}"));
        for cell in row {
            let (word, colour) = word(cell, median);
            let padding = " ".repeat(WIDTH.saturating_sub(word.chars().count()));
            match colour.filter(|_| is_coloured) {
                Some(colour) => text.push_str(&format!("{padding}{colour}{word}{RESET}")),
                None => text.push_str(&format!("{padding}{word}")),
            }
        }
        text.push('\n');
    }
    report.remarks(grid).iter().for_each(|line| text.push_str(&format!("{}\n", TerminalSafe(line))));
    text
}

/// Returns the text of a cell and its colour. An exclamation mark says that it stands out, also
/// without colours.
fn word(cell: &Cell, median: Option<f64>) -> (String, Option<&'static str>) {
    match cell {
        Cell::Empty => ("-".to_owned(), None),
        Cell::Failed(_) => ("x!".to_owned(), Some(RED)),
        Cell::Figure { gbps, .. } if is_slow(*gbps, median) => (format!("{}!", number(*gbps)), Some(RED)),
        Cell::Figure { gbps, .. } => {
            let is_fair = median.is_some_and(|median| *gbps < FAIR * median);
            (number(*gbps), Some(if is_fair { YELLOW } else { GREEN }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::report;
    use super::*;

    #[test]
    fn a_grid_has_a_row_for_each_sender_and_names_what_stands_out() {
        let expected = "\
rail0: Gb/s of messages of 1048576 bytes by TCP, median 10.0; rows send to columns
            0      1      2      3
0 w-0       -   10.0   10.0     x!
1 w-1    10.0      -   10.0     x!
2 w-2   4.00!  4.00!      -     x!
3 w-10     x!     x!     x!      -
all that w-2 sends on rail0: 4.00 Gb/s, 60 % below the rail's median of 10.0
w-10 to and from all others on rail0: not measured: <gone>
";
        assert_eq!(text(&report(), false), expected);
    }

    #[test]
    fn a_rail_without_a_figure_says_so() {
        let mut report = report();
        report.grids[0].cells.iter_mut().flatten().for_each(|cell| *cell = Cell::Failed("gone".to_owned()));
        let text = text(&report, false);
        assert!(text.starts_with("rail0: Gb/s of messages of 1048576 bytes, none measured; rows"), "{text}");
    }

    #[test]
    fn colours_change_nothing_but_the_colour() {
        let coloured = text(&report(), true);
        assert!(
            coloured.contains("\x1b[31m4.00!\x1b[0m") && coloured.contains("\x1b[32m10.0\x1b[0m"),
            "{coloured}"
        );
        let plain = [RED, GREEN, YELLOW, RESET].iter().fold(coloured, |text, code| text.replace(code, ""));
        assert_eq!(plain, text(&report(), false));
    }

    #[test]
    fn names_from_dns_do_not_steer_the_terminal() {
        let mut report = report();
        report.hosts[0] = "w\x1b[2J".to_owned();
        report.grids[0].rail = "rail\x1b[2J".to_owned();
        assert!(!text(&report, false).contains('\x1b'));
    }
}
