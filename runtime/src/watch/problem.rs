//! Failures of requests to the API server, sorted into a few kinds.

use std::error::Error;
use std::fmt;
use std::io;
use std::time::Duration;

use kube::core::Status;
use strum::{IntoStaticStr, VariantArray};

use crate::client::Unanswered;

/// Longest message that is kept, in bytes. A proxy may answer with a whole page.
const MESSAGE: usize = 300;

/// Pause after a 429 whose body names none. kube-apiserver's priority and fairness asks for a
/// second or more, but in the header Retry-After, which kube drops.
const BUSY: Duration = Duration::from_secs(1);

/// Cause of a refusal to create an object in a namespace that is being deleted. It needs no
/// warning, because all objects in the namespace will be gone (`k8s.io/api/core/v1`,
/// `NamespaceTerminatingCause`).
pub const NAMESPACE_TERMINATING: &str = "NamespaceTerminating";

/// Cause of a refusal because the API server has only older versions
/// (`metav1.CauseTypeResourceVersionTooLarge`).
const TOO_LARGE: &str = "ResourceVersionTooLarge";

/// Messages by which the API server refuses a request because a custom resource definition is being
/// deleted (`apiextensions-apiserver`, `customresource_handler.go`), or because that of an owner is
/// gone. For the latter, its admission plugin OwnerReferencesPermissionEnforcement answers 403, as
/// if a permission were missing. Neither status has a reason or a cause of its own to match.
const UNDEFINED: [&str; 2] =
    ["while custom resource definition is terminating", "because cannot find RESTMapping for APIVersion"];

/// Returns whether the details of a status name this cause.
pub fn has_cause(status: &Status, cause: &str) -> bool {
    status.details.iter().flat_map(|details| &details.causes).any(|named| named.reason == cause)
}

/// A failed request to the API server: the kind of failure, and a message.
#[derive(Clone, Debug)]
pub struct Problem {
    /// Kind of the failure of the request.
    pub kind: ProblemKind,
    /// Message of the API server or the operating system.
    pub message: String,
    /// Pause before the next attempt that the API server asks for; `None` if it asks for none.
    pub retry_after: Option<Duration>,
}

/// Kind of failure. Each calls for another reaction of this process or of the operator. Converts
/// into a value of the metric label `reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum ProblemKind {
    /// 404: the API server does not know the kind.
    Missing,
    /// The definition of the kind, or of its owner's kind, is being deleted or gone.
    Undefined,
    /// 403: the process lacks a permission.
    Forbidden,
    /// 401, or no credentials are available.
    Unauthorized,
    /// 429: the API server is overloaded, or its storage is being initialised.
    Busy,
    /// 5xx: the API server has an internal error.
    Failing,
    /// Any other 4xx: the API server does not accept the request.
    Refused,
    /// 410: the version to resume a watch from is too old, or from another storage.
    Expired,
    /// The storage has an older version than before, because it was restored from a backup.
    Restored,
    /// The answer cannot be decoded, or lacks a required field.
    Garbled,
    /// The connection to the API server failed.
    Unreachable,
    /// No answer of the API server arrived in time.
    Silent,
    /// The API server's answer broke off.
    Cut,
}

impl Problem {
    /// Creates a problem, and cuts off the end of a long message.
    pub fn new(kind: ProblemKind, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if message.len() > MESSAGE {
            message.truncate(message.floor_char_boundary(MESSAGE));
            message.push('…');
        }
        Self { kind, message, retry_after: None }
    }
}

impl From<Box<Status>> for Problem {
    /// Converts a status that was the answer to a request, or an event of a watch.
    fn from(status: Box<Status>) -> Self {
        let kind = match status.code {
            // An API server whose storage was restored from a backup has only older versions.
            _ if has_cause(&status, TOO_LARGE) => ProblemKind::Expired,
            403 | 405 if UNDEFINED.iter().any(|text| status.message.contains(text)) => ProblemKind::Undefined,
            401 => ProblemKind::Unauthorized,
            403 => ProblemKind::Forbidden,
            404 => ProblemKind::Missing,
            410 => ProblemKind::Expired,
            429 => ProblemKind::Busy,
            400..500 => ProblemKind::Refused,
            _ => ProblemKind::Failing,
        };
        let asked = status.details.map_or(0, |details| details.retry_after_seconds);
        let asked = (asked > 0).then(|| Duration::from_secs(asked.into()));
        let message =
            if status.message.is_empty() { format!("status {}", status.code) } else { status.message };
        Self {
            retry_after: asked.or_else(|| (kind == ProblemKind::Busy).then_some(BUSY)),
            ..Self::new(kind, message)
        }
    }
}

impl From<kube::Error> for Problem {
    fn from(error: kube::Error) -> Self {
        let kind = match error {
            kube::Error::Api(status) => return status.into(),
            kube::Error::Auth(_) => ProblemKind::Unauthorized,
            kube::Error::ReadEvents(_) => ProblemKind::Cut,
            kube::Error::SerdeError(_)
            | kube::Error::FromUtf8(_)
            | kube::Error::LinesCodecMaxLineLengthExceeded => ProblemKind::Garbled,
            kube::Error::BuildRequest(_) | kube::Error::HttpError(_) => ProblemKind::Refused,
            _ => ProblemKind::Unreachable,
        };
        Self::new(kind, innermost(&error))
    }
}

impl ProblemKind {
    /// Returns whether the watch cannot resume from its last version and has to list anew.
    pub fn needs_list(self) -> bool {
        matches!(
            self,
            Self::Missing | Self::Undefined | Self::Refused | Self::Expired | Self::Restored | Self::Garbled
        )
    }

    /// Returns whether the problem occurs in healthy watches, too, and ends with the next attempt.
    pub fn is_routine(self) -> bool {
        matches!(self, Self::Expired | Self::Cut)
    }
}

impl fmt::Display for ProblemKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "the API server does not know this kind",
            Self::Undefined => "a custom resource definition is being deleted, or gone",
            Self::Forbidden => "the API server does not allow it",
            Self::Unauthorized => "the API server does not accept our credentials",
            Self::Busy => "the API server is busy",
            Self::Failing => "the API server fails",
            Self::Refused => "the API server refuses the request",
            Self::Expired => "the API server no longer knows the version that we know",
            Self::Restored => "the API server's storage has been restored from a backup",
            Self::Garbled => "the API server's answer cannot be read",
            Self::Unreachable => "the API server cannot be reached",
            Self::Silent => "the API server does not answer",
            Self::Cut => "the connection to the API server broke off",
        })
    }
}

/// Returns the message of the last error in the chain of sources, which is "Connection refused"
/// rather than "client error". The API server's URL comes before it, if the chain has one.
fn innermost(error: &(dyn Error + 'static)) -> String {
    let mut innermost = error;
    let mut server = None;
    while let Some(source) = innermost.source() {
        innermost = source;
        server = server.or_else(|| source.downcast_ref::<Unanswered>());
    }
    let text = match innermost.downcast_ref::<io::Error>() {
        // A time limit of the client itself, whose text is only "deadline has elapsed".
        Some(error) if error.kind() == io::ErrorKind::TimedOut && error.raw_os_error().is_none() => {
            "no answer in time".to_owned()
        }
        _ => innermost.to_string(),
    };
    match server {
        Some(unanswered) => format!("{}: {text}", unanswered.server),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use kube::core::response::{StatusCause, StatusDetails};

    use super::*;

    fn status(code: u16) -> Box<Status> {
        Status::failure("because", "Reason").with_code(code).boxed()
    }

    #[test]
    fn status_codes_map_to_kinds() {
        let cases = [
            (400, ProblemKind::Refused),
            (401, ProblemKind::Unauthorized),
            (403, ProblemKind::Forbidden),
            (404, ProblemKind::Missing),
            (410, ProblemKind::Expired),
            (422, ProblemKind::Refused),
            (429, ProblemKind::Busy),
            (500, ProblemKind::Failing),
            (504, ProblemKind::Failing),
            (0, ProblemKind::Failing),
        ];
        for (code, kind) in cases {
            assert_eq!(Problem::from(status(code)).kind, kind, "{code}");
        }
    }

    #[test]
    fn a_definition_that_is_being_deleted_is_not_reported_as_a_missing_permission() {
        let cases = [
            (
                405,
                "create not allowed while custom resource definition is terminating",
                ProblemKind::Undefined,
            ),
            (
                403,
                "endpointslices.discovery.k8s.io \"a\" is forbidden: cannot set blockOwnerDeletion in this case because \
                 cannot find RESTMapping for APIVersion multinetwork.numaproj.io/v1alpha1 Kind MultiNetworkService: no matches",
                ProblemKind::Undefined,
            ),
            (405, "the server does not allow this method on the requested resource", ProblemKind::Refused),
            (
                403,
                "is forbidden: User \"x\" cannot create resource \"endpointslices\"",
                ProblemKind::Forbidden,
            ),
        ];
        for (code, message, kind) in cases {
            let status = Box::new(Status::failure(message, "").with_code(code));
            assert_eq!(Problem::from(status).kind, kind, "{message}");
        }
    }

    #[test]
    fn a_version_that_the_server_does_not_have_yet_needs_a_list() {
        let cause = StatusCause {
            reason: "ResourceVersionTooLarge".into(),
            message: String::new(),
            field: String::new(),
        };
        let details = StatusDetails { causes: vec![cause], retry_after_seconds: 1, ..details() };
        let problem = Problem::from(Box::new(status(504).with_details(details)));
        assert_eq!(problem.kind, ProblemKind::Expired);
        assert!(problem.kind.needs_list());
    }

    #[test]
    fn a_pause_that_the_server_asks_for_is_kept() {
        let details = StatusDetails { retry_after_seconds: 7, ..details() };
        let problem = Problem::from(Box::new(status(429).with_details(details)));
        assert_eq!(problem.retry_after, Some(Duration::from_secs(7)));
        assert_eq!(Problem::from(status(429)).retry_after, Some(BUSY));
        assert_eq!(Problem::from(status(503)).retry_after, None);
    }

    #[test]
    fn the_message_is_that_of_the_innermost_error() {
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        let problem = Problem::from(kube::Error::Service(Box::new(io::Error::other(refused))));
        assert_eq!(
            (problem.kind, problem.message.as_str()),
            (ProblemKind::Unreachable, "connection refused")
        );
    }

    #[test]
    fn a_timeout_of_the_client_has_a_message_of_its_own() {
        let elapsed = io::Error::new(io::ErrorKind::TimedOut, "deadline has elapsed");
        let problem = Problem::from(kube::Error::Service(Box::new(elapsed)));
        assert_eq!((problem.kind, problem.message.as_str()), (ProblemKind::Unreachable, "no answer in time"));
    }

    #[test]
    fn a_long_message_is_cut() {
        let problem = Problem::new(ProblemKind::Failing, "ä".repeat(1000));
        assert!(problem.message.len() < MESSAGE + 4 && problem.message.ends_with('…'));
    }

    fn details() -> StatusDetails {
        StatusDetails {
            name: String::new(),
            group: String::new(),
            kind: String::new(),
            uid: String::new(),
            causes: Vec::new(),
            retry_after_seconds: 0,
        }
    }
}
