//! Logging of bad manifests: once when a problem appears or changes, and once when it is gone.

use multinet_crds::validate::Violation;
use multinet_runtime::TerminalSafe;
use tracing::field::display;
use tracing::{info, warn};

use super::file::{Severity, Subject};
use super::files::{Report, Served, Transition};

/// Number of faults that one log line names at most.
const MAX_FAULTS: usize = 5;

/// Logs problems of manifests that appeared, changed or went away.
pub(super) fn log_reports(reports: &[Report]) {
    for Report { file, subject, transition } in reports {
        let file = file.path().display().to_string();
        let file = TerminalSafe(&file);
        let object = name(subject);
        let object = object.as_deref().map(TerminalSafe).map(display);
        let (problem, served) = match transition {
            Transition::Found(problem, served) => (problem, served),
            Transition::Healed(problem) => {
                if problem.severity == Severity::Bad {
                    info!(%file, object, "the manifest is good again");
                }
                continue;
            }
        };
        let line = problem.line;
        let field =
            problem.faults.first().map(|fault| fault.field.as_str()).filter(|field| !field.is_empty());
        let field = field.map(TerminalSafe).map(display);
        let text = text(&problem.faults);
        let text = TerminalSafe(&text);
        match problem.severity {
            Severity::Bad => {
                let served = match served {
                    Served::Nothing => "nothing",
                    Served::LastGood => "the last good version",
                    Served::Other => "the same object from another place",
                };
                warn!(%file, line, object, field, served, "bad manifest: {text}");
            }
            Severity::PassedOver => warn!(%file, line, field, "manifest passed over: {text}"),
            Severity::Doubtful => warn!(%file, line, object, field, "manifest served, but: {text}"),
        }
    }
}

/// Returns the name of a subject; `None` for a whole file, which the path names.
fn name(subject: &Subject) -> Option<String> {
    match subject {
        Subject::File => None,
        Subject::Document(number) => Some(format!("document {number}")),
        Subject::Object(id) => Some(id.to_string()),
        Subject::Again(id, number) => Some(format!("{id} in document {number}")),
    }
}

fn text(faults: &[Violation]) -> String {
    let shown: Vec<String> = faults.iter().take(MAX_FAULTS).map(ToString::to_string).collect();
    let more = faults.len() - shown.len();
    let shown = shown.join("; ");
    if more == 0 { shown } else { format!("{shown}; and {more} more") }
}
