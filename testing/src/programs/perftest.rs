//! Parsing of the output of perftest's programs, of `multinet bench` in the same format, and of
//! UCX' ucx_perftest.

use anyhow::{Context as _, Result};

/// Returns the numbers of all result rows for messages of this size: the iterations first, without
/// the size.
pub fn rows(said: &str, size: u32) -> Vec<Vec<f64>> {
    let mut rows = Vec::new();
    let mut is_within = false;
    for line in said.lines().map(str::trim) {
        let words: Result<Vec<f64>, _> = line.split_whitespace().map(str::parse).collect();
        match words.as_deref() {
            Ok([first, rest @ ..]) if is_within && *first == f64::from(size) => rows.push(rest.to_vec()),
            // perftest may print warnings between the header and the row.
            _ if line.starts_with("#bytes") => is_within = true,
            _ if line.starts_with("---") => is_within = false,
            _ => {}
        }
    }
    rows
}

/// Returns the numbers in the output of `ucx_perftest -f -v`.
pub fn ucx_row(said: &str) -> Result<Vec<f64>> {
    let row = said.lines().last().context("ucx_perftest printed nothing")?;
    let figures = row.split(',').map(|figure| Ok(figure.trim().parse()?));
    figures.collect::<Result<_>>().with_context(|| said.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_rows_are_parsed_and_other_lines_ignored() {
        let said = "\
 TX depth        : 128
 65536 65536
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
Conflicting CPU frequency values detected: 1.0 != 2.0. CPU Frequency is not max.
 65536      200              105.44             105.18\t\t     0.001683
 2          200              0.00               -nan  \t\t     0.061442
---------------------------------------------------------------------------------------
 65536      1 2 3 4
";
        assert_eq!(rows(said, 65_536), [[200.0, 105.44, 105.18, 0.001_683]]);
        assert!(rows(said, 2).first().is_none_or(|row| row[2].is_nan()));
        assert!(rows(said, 200).is_empty() && rows("", 2).is_empty());
    }
}
