//! Sends one request: when it may begin, how long it may take, and how it is counted.

use std::fmt::Debug;
use std::future::Future;
use std::pin::pin;

use kube::Resource;
use multinet_runtime::watch::{Problem, ProblemKind};
use tokio::time::{Instant, timeout_at};

use super::failure::{Failure, RequestError, classify};
use super::{Job, Writer};
use crate::limits::writes::REQUEST_TIME;
use crate::metrics::{ResultLabel, Verb};

impl Writer {
    /// Sends a request for kind `K` when the service gets a permit, if this process is still the
    /// leader. Abandons it when leadership ends. The lease may be renewed meanwhile, which extends
    /// the time.
    ///
    /// The request must not have begun. Futures of [`kube::Api`] send nothing before they are
    /// polled.
    pub(super) async fn send<K, T>(
        &self,
        Job { service, term }: Job<'_>,
        verb: Verb,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, RequestError>
    where
        K: Resource<DynamicType = ()> + Debug,
    {
        let _permit = self.requests.acquire(service).await;
        let Some(mut end) = self.leads_until(term) else { return Err(RequestError::NotLeader) };
        let sent = Instant::now();
        let limit = sent + REQUEST_TIME;
        let mut request = pin!(request);
        let answer = loop {
            match timeout_at(end.min(limit), &mut request).await {
                Ok(answer) => break answer.map_err(|error| classify::<K>(verb, error)),
                Err(_) if end <= limit => match self.leads_until(term) {
                    // The lease was renewed, so `later` is after the end that has just passed.
                    // Otherwise `leads_until` returns `None`.
                    Some(later) => end = later,
                    None => break Err(RequestError::NotLeader),
                },
                Err(_) => {
                    let silence = format!("no answer within {} s", REQUEST_TIME.as_secs());
                    let problem = Problem::new(ProblemKind::Silent, silence);
                    break Err(RequestError::Unknown(Failure::new::<K>(verb, problem)));
                }
            }
        };
        self.metrics.request::<K>(verb, counted(&answer), sent.elapsed());
        answer
    }

    /// Returns the time by which a request that begins now must end; `None` if the term has ended.
    fn leads_until(&self, term: u64) -> Option<Instant> {
        // Read the end before the term. If another term begins in between, the comparison then
        // fails.
        let end = self.leadership.write_deadline()?;
        (self.leadership.term() == term).then_some(end)
    }
}

fn counted<T>(answer: &Result<T, RequestError>) -> ResultLabel {
    match answer {
        Ok(_) | Err(RequestError::Done) => ResultLabel::Ok,
        Err(RequestError::Stale) => ResultLabel::Conflict,
        Err(RequestError::Unknown(_)) => ResultLabel::Failed,
        Err(RequestError::Failed(failure)) if failure.is_passing() => ResultLabel::Failed,
        Err(RequestError::Failed(_)) => ResultLabel::Refused,
        Err(RequestError::NotLeader) => ResultLabel::GivenUp,
    }
}
