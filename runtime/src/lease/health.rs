//! Log messages about failed requests of an election.

use super::election::Request;
use crate::TerminalSafe;
use crate::watch::health::Outage;
use crate::watch::problem::{Problem, ProblemKind};

/// Logs failures of an election's requests, once per outage.
///
/// An outage lasts from the first failed request until a round without failures. During it, each
/// kind of problem is logged once, and at last the end of the outage.
pub(super) struct LeaseHealth {
    /// Namespace and name of the lease, for logs.
    title: String,
    namespace: String,
    outage: Option<Outage>,
    /// Whether a request of the current round of the election has failed.
    failed: bool,
}

impl LeaseHealth {
    pub(super) fn new(title: String, namespace: &str) -> Self {
        Self { title, namespace: namespace.to_owned(), outage: None, failed: false }
    }

    /// Records and logs a failed request about the lease.
    pub(super) fn failed(&mut self, request: &Request, problem: &Problem) {
        self.failed = true;
        let text = self.explain(request, problem);
        if self.outage.get_or_insert_with(Outage::new).record(problem.kind) {
            tracing::warn!("{}", TerminalSafe(&text));
        } else {
            tracing::debug!("{}", TerminalSafe(&text));
        }
    }

    /// Ends a round of requests. Without failures in it, the outage is over.
    pub(super) fn end_round(&mut self) {
        if !std::mem::take(&mut self.failed)
            && let Some(outage) = self.outage.take()
        {
            let seconds = outage.since.elapsed().as_secs();
            tracing::info!("the lease {} can be used again, after {seconds} s", self.title);
        }
    }

    /// Returns the log message about a failed request for the lease, with its remedy.
    fn explain(&self, request: &Request, problem: &Problem) -> String {
        let Problem { kind, message, .. } = problem;
        let Self { title, namespace, .. } = self;
        match (kind, request) {
            (ProblemKind::Forbidden, _) => format!(
                "{kind}; waiting for a role that grants get, create and update of leases.coordination.k8s.io \
                 in the namespace {namespace}: {message}"
            ),
            (ProblemKind::Missing, _) => {
                format!("cannot create the lease {title}; waiting for the namespace: {message}")
            }
            (_, Request::Read) => format!("cannot read the lease {title}: {kind}: {message}"),
            (_, Request::Create(_) | Request::Update(_)) => {
                format!("cannot write the lease {title}: {kind}: {message}")
            }
        }
    }
}
