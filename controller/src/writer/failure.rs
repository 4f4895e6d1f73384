//! Classifies failed requests: what they mean for the work, and how long to wait before a retry.

use std::fmt;

use kube::Resource;
use kube::core::Status;
use multinet_runtime::TerminalSafe;
use multinet_runtime::watch::{NAMESPACE_TERMINATING, Problem, ProblemKind, has_cause, resource};

use crate::metrics::{Reason, Verb};
use crate::queue::Backoff;

/// Command that installs multinet's CRDs: advice for an API server that does not serve its kinds.
const HINT: &str = "kubectl apply -f deploy/crds";

/// Result of a request that did not return the object.
#[derive(Debug)]
pub(super) enum RequestError {
    /// Nothing is left to do: the object to delete is gone, or so is the object that the write was
    /// for.
    Done,
    /// The object has another version than expected, or does not exist. The slices must be listed.
    Stale,
    /// No conclusive answer: the write may have been made or not.
    Unknown(Failure),
    /// The write was not made.
    Failed(Failure),
    /// Leadership has ended. Nothing more may be written.
    NotLeader,
}

/// Description of a failed request, for logs and the service's status.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) reason: Reason,
    /// Verb and resource, such as `update of multinetworkendpointslices.multinetwork.numaproj.io`.
    request: String,
    message: String,
    /// Pause before the next attempt.
    pub(super) pause: Backoff,
}

impl Failure {
    /// Creates a failure of a request for kind `K`.
    pub(super) fn new<K: Resource<DynamicType = ()>>(verb: Verb, problem: Problem) -> Self {
        let pause = match (problem.kind, problem.retry_after) {
            (_, Some(asked)) => Backoff::RetryAfter(asked),
            (ProblemKind::Forbidden | ProblemKind::Missing | ProblemKind::Undefined, _) => Backoff::Service,
            (ProblemKind::Refused, _) => Backoff::Longest,
            _ => Backoff::Outage,
        };
        Self {
            reason: Reason::Problem(problem.kind),
            request: request::<K>(verb),
            message: problem.message,
            pause,
        }
    }

    /// Creates a failure for objects that another writer keeps changing.
    pub(super) fn conflict<K: Resource<DynamicType = ()>>() -> Self {
        Self {
            reason: Reason::Conflict,
            request: resource::<K>(),
            message: "another writer keeps changing them; find it in the API server's audit log".to_owned(),
            pause: Backoff::Service,
        }
    }

    /// Returns whether the API server failed internally (5xx).
    pub(super) fn is_of_the_server(&self) -> bool {
        self.reason == Reason::Problem(ProblemKind::Failing)
    }

    /// Returns whether the failure may pass by itself. Users see such a failure only if it lasts.
    pub(super) fn is_passing(&self) -> bool {
        match self.reason {
            Reason::Conflict => true,
            Reason::Invalid => false,
            Reason::Problem(kind) => !matches!(
                kind,
                ProblemKind::Forbidden
                    | ProblemKind::Missing
                    | ProblemKind::Undefined
                    | ProblemKind::Refused
                    | ProblemKind::Unauthorized
            ),
        }
    }
}

impl fmt::Display for Failure {
    /// Writes one line: what failed, why, and what to do.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { request, message, .. } = self;
        let message = TerminalSafe(message);
        match self.reason {
            Reason::Conflict => write!(f, "{request}: {message}"),
            Reason::Invalid => {
                write!(f, "{request}: the API server says that the object is not valid: {message}")
            }
            Reason::Problem(kind @ ProblemKind::Missing) => {
                write!(f, "{request}: {kind}; waiting for it: {HINT}")
            }
            Reason::Problem(kind @ ProblemKind::Undefined) => {
                write!(f, "{request}: {kind}: {message}; to have it back: {HINT}")
            }
            Reason::Problem(kind @ ProblemKind::Forbidden) => {
                write!(f, "{kind}; waiting for a role that grants {request}: {message}")
            }
            Reason::Problem(kind) => write!(f, "{request}: {kind}: {message}"),
        }
    }
}

/// Classifies an error of a request with this verb.
pub(super) fn classify<K: Resource<DynamicType = ()>>(verb: Verb, error: kube::Error) -> RequestError {
    if let kube::Error::Api(status) = &error {
        match status.code {
            409 => return RequestError::Stale,
            404 if is_of_an_object(status) => {
                return if verb == Verb::Update { RequestError::Stale } else { RequestError::Done };
            }
            403 if verb == Verb::Create && has_cause(status, NAMESPACE_TERMINATING) => {
                return RequestError::Done;
            }
            422 => return RequestError::Failed(invalid::<K>(verb, status)),
            _ => {}
        }
    }
    let problem = Problem::from(error);
    let is_unknown = matches!(
        problem.kind,
        ProblemKind::Failing
            | ProblemKind::Garbled
            | ProblemKind::Unreachable
            | ProblemKind::Silent
            | ProblemKind::Cut
    );
    let failure = Failure::new::<K>(verb, problem);
    if is_unknown { RequestError::Unknown(failure) } else { RequestError::Failed(failure) }
}

/// Returns whether a 404 concerns an object or its namespace, rather than an unknown kind.
fn is_of_an_object(status: &Status) -> bool {
    status.details.as_ref().is_some_and(|details| !details.kind.is_empty())
}

fn invalid<K: Resource<DynamicType = ()>>(verb: Verb, status: &Status) -> Failure {
    let problem = Problem::new(ProblemKind::Refused, status.message.as_str());
    Failure { reason: Reason::Invalid, ..Failure::new::<K>(verb, problem) }
}

fn request<K: Resource<DynamicType = ()>>(verb: Verb) -> String {
    let status = if verb == Verb::Apply { "/status" } else { "" };
    format!("{} of {}{status}", verb.rbac(), resource::<K>())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kube::core::response::{StatusCause, StatusDetails};
    use multinet_crds::MultiNetworkEndpointSlice;

    use super::*;

    fn details(kind: &str, causes: &[&str]) -> StatusDetails {
        let cause = |reason: &&str| StatusCause {
            reason: (*reason).into(),
            message: String::new(),
            field: String::new(),
        };
        StatusDetails {
            name: "infer".into(),
            group: String::new(),
            kind: kind.into(),
            uid: String::new(),
            causes: causes.iter().map(cause).collect(),
            retry_after_seconds: 0,
        }
    }

    fn answer(verb: Verb, code: u16, details: Option<StatusDetails>) -> RequestError {
        let status = Status { details, ..Status::failure("because", "Reason").with_code(code) };
        classify::<MultiNetworkEndpointSlice>(verb, kube::Error::Api(status.boxed()))
    }

    fn text(error: &RequestError) -> String {
        match error {
            RequestError::Unknown(failure) => format!("unknown: {failure}"),
            RequestError::Failed(failure) => format!("failed: {failure}"),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn the_meaning_of_a_status_code_depends_on_the_verb() {
        let object = || Some(details("multinetworkendpointslices", &[]));
        for (verb, code, details, expected) in [
            (Verb::Create, 409, object(), "Stale"),
            (Verb::Update, 409, object(), "Stale"),
            (Verb::Delete, 409, object(), "Stale"),
            (Verb::Apply, 409, object(), "Stale"),
            (Verb::Update, 404, object(), "Stale"),
            (Verb::Delete, 404, object(), "Done"),
            (Verb::Apply, 404, object(), "Done"),
            (Verb::Create, 404, Some(details("namespaces", &[])), "Done"),
            (Verb::Create, 403, Some(details("namespaces", &["NamespaceTerminating"])), "Done"),
        ] {
            assert_eq!(text(&answer(verb, code, details)), expected, "{verb:?} {code}");
        }
    }

    #[test]
    fn failures_are_described_with_advice() {
        for (verb, code, expected) in [
            (
                Verb::Create,
                403,
                "failed: the API server does not allow it; waiting for a role that grants create of \
                 multinetworkendpointslices.multinetwork.numaproj.io: because",
            ),
            (
                Verb::Apply,
                403,
                "failed: the API server does not allow it; waiting for a role that grants patch of \
                 multinetworkendpointslices.multinetwork.numaproj.io/status: because",
            ),
            (
                Verb::Update,
                404,
                "failed: update of multinetworkendpointslices.multinetwork.numaproj.io: the API server does not know \
                 this kind; waiting for it: kubectl apply -f deploy/crds",
            ),
            (
                Verb::Update,
                422,
                "failed: update of multinetworkendpointslices.multinetwork.numaproj.io: the API server says that the \
                 object is not valid: because",
            ),
            (
                Verb::Delete,
                500,
                "unknown: delete of multinetworkendpointslices.multinetwork.numaproj.io: the API server fails: because",
            ),
            (
                Verb::Delete,
                429,
                "failed: delete of multinetworkendpointslices.multinetwork.numaproj.io: the API server is busy: because",
            ),
        ] {
            assert_eq!(text(&answer(verb, code, None)), expected);
        }
    }

    #[test]
    fn pauses_fit_the_failure() {
        let pause = |code, details| match answer(Verb::Create, code, details) {
            RequestError::Failed(failure) | RequestError::Unknown(failure) => failure.pause,
            other => panic!("{other:?}"),
        };
        assert_eq!(pause(403, None), Backoff::Service);
        assert_eq!(pause(422, None), Backoff::Longest);
        assert_eq!(pause(413, None), Backoff::Longest);
        assert_eq!(pause(503, None), Backoff::Outage);
        assert_eq!(pause(401, None), Backoff::Outage);
        assert_eq!(pause(429, None), Backoff::RetryAfter(Duration::from_secs(1)));
        let asked = StatusDetails { retry_after_seconds: 7, ..details("", &[]) };
        assert_eq!(pause(429, Some(asked)), Backoff::RetryAfter(Duration::from_secs(7)));
    }
}
