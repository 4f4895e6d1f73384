//! Heat maps in one HTML file, which needs no other file and runs no script. Pure.

use super::grid::{Cell, Grid, is_slow};
use super::report::{MatrixReport, number};

/// Rules of the page. Colours only repeat what the text of a cell says.
const STYLE: &str = "
body { font: 15px/1.4 system-ui, sans-serif; margin: 2rem; color: #1a1a1a; background: #fff }
h1 { font-size: 1.3rem }
table { border-collapse: collapse; margin: 1rem 0 }
caption { text-align: left; font-weight: 600; padding-bottom: .4rem }
th, td { padding: .25rem .5rem; border: 1px solid #d0d0d0; text-align: right; font-variant-numeric: tabular-nums }
th { background: #f4f4f4; font-weight: 500; text-align: left }
thead th { vertical-align: bottom }
.slow, .failed { font-weight: 700; outline: 2px solid #a11; outline-offset: -2px }
.failed { background: #eee }
.none { background: #fafafa; color: #888 }
";

/// Policy that keeps a browser from loading anything.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

/// Returns the page.
pub(super) fn page(report: &MatrixReport) -> String {
    let title = format!("Bandwidth between the pods of {}", escaped(&report.service));
    let maps: String = report.grids.iter().map(|grid| map(report, grid)).collect();
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n\
         <body>\n<h1>{title}</h1>\n<p>Gb/s from the pod of each row to that of each column, {} for {} s. \
         A figure with ▼ is 20 % or more below the median of its rail; ✕ was not measured.</p>\n{maps}</body>\n</html>\n",
        report.size_in_words(),
        report.seconds
    )
}

fn map(report: &MatrixReport, grid: &Grid) -> String {
    let heads: String =
        report.hosts.iter().map(|name| format!("<th scope=\"col\">{}</th>", escaped(name))).collect();
    let median = grid.median();
    let rows = report.hosts.iter().zip(&grid.cells);
    let rows: String = rows.map(|(name, row)| self::row(row, median, name)).collect();
    let lines: String =
        report.remarks(grid).iter().map(|line| format!("<li>{}</li>\n", escaped(line))).collect();
    let list = if lines.is_empty() { String::new() } else { format!("<ul>\n{lines}</ul>\n") };
    format!(
        "<table>\n<caption>{}{}</caption>\n<thead><tr><th>from \\ to</th>{heads}</tr></thead>\n\
         <tbody>\n{rows}</tbody>\n</table>\n{list}",
        escaped(&grid.rail),
        escaped(&MatrixReport::figures_in_words(grid))
    )
}

fn row(row: &[Cell], median: Option<f64>, name: &str) -> String {
    let cells: String = row.iter().map(|cell| self::cell(cell, median)).collect();
    format!("<tr><th scope=\"row\">{}</th>{cells}</tr>\n", escaped(name))
}

fn cell(cell: &Cell, median: Option<f64>) -> String {
    match cell {
        Cell::Empty => "<td class=\"none\">–</td>".to_owned(),
        Cell::Failed(reason) => format!("<td class=\"failed\" title=\"{}\">✕</td>", escaped(reason)),
        Cell::Figure { gbps, .. } => {
            let colour = hue(*gbps, median.unwrap_or(*gbps));
            let (class, mark) = if is_slow(*gbps, median) { (" class=\"slow\"", "▼ ") } else { ("", "") };
            format!("<td{class} style=\"background: hsl({colour} 75% 82%)\">{mark}{}</td>", number(*gbps))
        }
    }
}

/// Returns the hue of a figure: from red at half the median to green at the median.
fn hue(gbps: f64, median: f64) -> u32 {
    let share = if median > 0.0 { gbps / median } else { 1.0 };
    // The value is between 0 and 120.
    ((share.clamp(0.5, 1.0) - 0.5) * 240.0) as u32
}

/// Returns text for HTML, also within quotes.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::report;
    use super::*;

    #[test]
    fn a_page_has_a_cell_for_each_pair_and_says_in_text_what_stands_out() {
        let page = page(&report());
        assert_eq!(page.matches("<td").count(), 16);
        assert!(
            page.contains("<td class=\"slow\" style=\"background: hsl(0 75% 82%)\">▼ 4.00</td>"),
            "{page}"
        );
        assert!(page.contains("<td style=\"background: hsl(120 75% 82%)\">10.0</td>"), "{page}");
        assert!(page.contains("<li>all that w-2 sends on rail0: 4.00 Gb/s, 60 % below"), "{page}");
    }

    #[test]
    fn a_page_refers_to_nothing_and_escapes_what_others_write() {
        let mut report = report();
        report.hosts[0] = "<script>alert(1)</script>".to_owned();
        report.grids[0].rail = "\"onload='x".to_owned();
        let page = page(&report);
        assert!(
            !page.contains("<script") && !page.contains("\"onload") && !page.contains("title=\"<gone>"),
            "{page}"
        );
        for reference in ["http://", "https://", "src=", "href=", "url(", "@import"] {
            assert!(!page.contains(reference), "{reference}");
        }
    }
}
