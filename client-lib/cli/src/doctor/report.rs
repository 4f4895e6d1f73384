//! Findings, as text and as JSON.

use std::fmt;

use multinet_stderr::TerminalSafe;
use serde::Serialize;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    /// The finding is that all is well.
    Ok,
    /// The finding is useful to know, but needs no action.
    Note,
    /// The thing works, but not as well as it might, or not for long.
    Warning,
    /// The thing does not work.
    Problem,
}

/// A finding of `multinet doctor`. Each of its texts is one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) level: Level,
    pub(super) about: &'static str,
    pub(super) message: String,
    pub(super) fix: Option<String>,
}

/// Subject of findings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subject(&'static str);

pub(super) const DNS: Subject = Subject("dns");
pub(super) const NETWORK: Subject = Subject("network");
pub(super) const SERVICE: Subject = Subject("service");
pub(super) const ENDPOINT: Subject = Subject("endpoint");
pub(super) const PEER: Subject = Subject("peer");
pub(super) const RDMA: Subject = Subject("rdma");
pub(super) const GPU: Subject = Subject("gpu");
#[cfg(feature = "devices")]
pub(super) const MEMORY: Subject = Subject("memory");

impl Subject {
    pub(super) fn good(self, message: impl Into<String>) -> Finding {
        Finding { level: Level::Ok, about: self.0, message: message.into(), fix: None }
    }

    pub(super) fn note(self, message: impl Into<String>) -> Finding {
        Finding { level: Level::Note, ..self.good(message) }
    }

    pub(super) fn warning(self, message: impl Into<String>, fix: impl Into<String>) -> Finding {
        self.finding(Level::Warning, message, fix)
    }

    pub(super) fn problem(self, message: impl Into<String>, fix: impl Into<String>) -> Finding {
        self.finding(Level::Problem, message, fix)
    }

    pub(super) fn finding(self, level: Level, message: impl Into<String>, fix: impl Into<String>) -> Finding {
        Finding { level, fix: Some(fix.into()), ..self.good(message) }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{self:?}").to_lowercase())
    }
}

/// Returns the findings as lines for people.
pub(super) fn text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for Finding { level, about, message, fix } in findings {
        // Peers and DNS servers write parts of it.
        let message = TerminalSafe(message);
        text.push_str(&format!("{level:<8} {about:<9} {message}\n"));
        if let Some(fix) = fix {
            text.push_str(&format!("{:<8} {:<9} fix: {fix}\n", "", ""));
        }
    }
    let count = |wanted: Level| findings.iter().filter(|finding| finding.level == wanted).count();
    let (problems, warnings) = (count(Level::Problem), count(Level::Warning));
    text.push_str(&format!("{}, {}\n", plural(problems, "problem"), plural(warnings, "warning")));
    text
}

/// Returns the findings as one JSON object. The field names are documented in `multinet doctor
/// --help`, and stay.
pub(super) fn json(findings: &[Finding]) -> serde_json::Result<String> {
    #[derive(Serialize)]
    struct Document<'a> {
        worst: Level,
        findings: &'a [Finding],
    }
    let report = Document { worst: worst(findings), findings };
    Ok(serde_json::to_string_pretty(&report)? + "\n")
}

/// Returns the level of the worst finding; [`Level::Ok`] if there are none.
pub(super) fn worst(findings: &[Finding]) -> Level {
    findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Ok)
}

fn plural(count: usize, what: &str) -> String {
    match count {
        0 => format!("no {what}s"),
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    }
}
