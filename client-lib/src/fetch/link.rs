//! The task of one connection to a pod that offers payloads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::pending::{Asked, Outcome, Pending};
use crate::endpoint::Endpoint;
use crate::error::DialError;
use crate::listener::Listener;
use crate::peers::dial::{Dialer, Offering};
use crate::reference::OfferId;
use crate::wire::MAX_ASKS;

/// Time after which a connection without questions is closed, so that its slots can serve others.
const IDLE: Duration = Duration::from_secs(60);

/// A question for a payload, on its way to a pod.
pub(super) struct Question {
    pub(super) id: OfferId,
    pub(super) reply: oneshot::Sender<Outcome>,
}

/// Parts that all connections of a connector's fetches share.
#[derive(Clone)]
pub(super) struct Parts {
    /// Slots for the payloads.
    pub(super) listener: Listener,
    pub(super) pending: Arc<Pending>,
    /// Number of the next question.
    pub(super) numbers: Arc<AtomicU64>,
    /// Cancelled when nothing is fetched any more.
    pub(super) end: CancellationToken,
}

/// Connects to a pod and asks it, until the connection ends or is not needed.
pub(super) async fn run(
    parts: Parts,
    dialer: Arc<Dialer>,
    endpoint: Arc<Endpoint>,
    mut questions: mpsc::Receiver<Question>,
) {
    let connecting = async {
        let Offering { stream, hello, peer } = dialer.dial_to_fetch(&endpoint).await?;
        let fetching = parts.listener.connected(stream, hello, &endpoint, peer).await?;
        Ok::<_, DialError>((fetching, peer))
    };
    let (fetching, peer) = match parts.end.run_until_cancelled(connecting).await {
        None => return,
        Some(Ok(connected)) => connected,
        Some(Err(error)) => {
            let error = Arc::new(error);
            questions.close();
            while let Some(question) = questions.recv().await {
                let _ = question.reply.send(Err(Arc::clone(&error)));
            }
            return;
        }
    };
    let asker = fetching.asker();
    let mut receiving = std::pin::pin!(fetching.run());
    let places = Arc::new(Semaphore::new(MAX_ASKS));
    let (mut place, mut idle) = (None, Instant::now() + IDLE);
    loop {
        tokio::select! {
            () = &mut receiving => break,
            free = Arc::clone(&places).acquire_owned(), if place.is_none() => place = free.ok(),
            question = questions.recv(), if place.is_some() => {
                let (Some(Question { id, reply }), Some(place)) = (question, place.take()) else {
                    asker.close();
                    receiving.await;
                    break;
                };
                let number = parts.numbers.fetch_add(1, Ordering::Relaxed);
                parts.pending.add(number, Asked { pod: peer, reply, _place: place });
                asker.ask(number, &id);
                idle = Instant::now() + IDLE;
            }
            () = sleep_until(idle) => {
                let unanswered = MAX_ASKS - places.available_permits() - usize::from(place.is_some());
                if unanswered == 0 && asker.is_idle() {
                    asker.close();
                }
                idle = Instant::now() + IDLE;
            }
        }
    }
    parts.pending.forget(peer);
}
