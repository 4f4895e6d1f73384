//! One resolution, as a task.

use std::panic::resume_unwind;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use tokio_util::task::AbortOnDropHandle;

use super::{ResolveError, Resolved, Resolver};

type Outcome = Result<Resolved, ResolveError>;

/// Resolution in a task of its own, which is aborted on drop. Its queries take places among those
/// in flight, for which other resolutions wait. So it must make progress even if its owner does not
/// poll it.
pub(super) struct Resolution {
    task: AbortOnDropHandle<(Instant, Outcome)>,
    name: String,
    resolver: Resolver,
}

impl Resolution {
    /// Starts to resolve a service. `last` is the full name that answered the previous resolution.
    pub(super) fn start(resolver: &Resolver, name: &str, port: &str, last: Option<&str>) -> Self {
        let task = tokio::spawn({
            let (resolver, last) = (resolver.clone(), last.map(str::to_owned));
            let (name, port) = (name.to_owned(), port.to_owned());
            async move {
                let outcome = resolver.resolve_again(&name, &port, last.as_deref()).await;
                (now(), outcome)
            }
        });
        Self { task: AbortOnDropHandle::new(task), name: name.to_owned(), resolver: resolver.clone() }
    }
}

/// Completes with the outcome of the resolution, and the time at which it was known.
impl Future for Resolution {
    type Output = (Instant, Outcome);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = ready!(Pin::new(&mut self.task).poll(context));
        Poll::Ready(outcome.unwrap_or_else(|error| match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            // The runtime of the task has been shut down.
            Err(_) => {
                let (name, servers) = (self.name.clone(), self.resolver.servers().to_vec());
                (now(), Err(ResolveError::Timeout { name, servers }))
            }
        }))
    }
}

/// Returns the time by tokio's clock, which tests can pause.
pub(super) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
