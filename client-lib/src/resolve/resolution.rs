//! One resolution, as a task.

use std::panic::resume_unwind;
use std::pin::Pin;
use std::time::Instant;

use tokio_util::task::AbortOnDropHandle;

use super::{ResolveError, Resolved, Resolver};

type Outcome = Result<Resolved, ResolveError>;

/// Resolution in a task of its own, which is aborted on drop. Its queries take places among those
/// in flight, for which other resolutions wait. So it must make progress even if its owner does not
/// poll it. Completes with the outcome, and the time at which it was known.
pub(super) type Resolution = Pin<Box<dyn Future<Output = (Instant, Outcome)> + Send + Sync>>;

/// Starts to resolve a service. `last` is the full name that answered the previous resolution.
pub(super) fn start(resolver: &Resolver, name: &str, port: &str, last: Option<&str>) -> Resolution {
    let (resolver, last) = (resolver.clone(), last.map(str::to_owned));
    let (name, port) = (name.to_owned(), port.to_owned());
    let unknown = ResolveError::Timeout { name: name.clone(), servers: resolver.servers().to_vec() };
    let task = AbortOnDropHandle::new(tokio::spawn(async move {
        let outcome = resolver.resolve_again(&name, &port, last.as_deref()).await;
        (now(), outcome)
    }));
    Box::pin(async move {
        task.await.unwrap_or_else(|error| match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            // The runtime of the task has been shut down.
            Err(_) => (now(), Err(unknown)),
        })
    })
}

/// Returns the time by tokio's clock, which tests can pause.
pub(super) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
