//! The task of one connection to a pod that offers payloads.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::pending::{Asked, Pending, PodOutcome};
use crate::endpoint::Endpoint;
use crate::error::DialError;
use crate::listener::{Asker, Listener};
use crate::peers::dial::{Dialer, Offering};
use crate::reference::OfferId;
use crate::wire::MAX_ASKS;

/// Time after which a connection without questions is closed, so that its slots can serve others.
const IDLE: Duration = Duration::from_secs(60);

/// A question for a payload, on its way to a pod.
pub(super) struct PayloadQuestion {
    pub(super) id: OfferId,
    pub(super) reply: oneshot::Sender<PodOutcome>,
}

/// A connection that is up. Questions are written by the tasks that ask them.
pub(super) struct Up {
    /// Number of the connection.
    link: u64,
    asker: Asker,
    pod: SocketAddr,
    /// Places of the questions that the pod may be asked at a time.
    places: Arc<Semaphore>,
    /// Time of the last question.
    last: Mutex<Instant>,
}

impl Up {
    /// Asks a question if the connection lasts, and the pod may be asked now. Returns it otherwise.
    pub(super) fn try_ask(&self, parts: &Parts, question: PayloadQuestion) -> Result<(), PayloadQuestion> {
        match Arc::clone(&self.places).try_acquire_owned() {
            Ok(place) if !self.asker.is_over() => {
                self.ask(parts, question, place);
                Ok(())
            }
            _ => Err(question),
        }
    }

    /// Returns how many bytes have come by TCP, also of a payload that has not come in full.
    pub(super) fn bytes(&self) -> u64 {
        self.asker.bytes()
    }

    fn ask(
        &self,
        parts: &Parts,
        PayloadQuestion { id, reply }: PayloadQuestion,
        place: OwnedSemaphorePermit,
    ) {
        let number = parts.numbers.fetch_add(1, Ordering::Relaxed);
        parts.pending.add(number, Asked { link: self.link, pod: self.pod, reply, _place: place });
        self.asker.ask(number, &id);
        *self.last.lock() = Instant::now();
        // The questions of a connection are dropped when it has ended. This one may have come after
        // that.
        if self.asker.is_over() {
            parts.pending.remove(number);
        }
    }
}

/// Parts that all connections of a connector's fetches share.
#[derive(Clone)]
pub(super) struct Parts {
    /// Slots for the payloads.
    pub(super) listener: Listener,
    pub(super) pending: Arc<Pending>,
    /// Number of the next question.
    pub(super) numbers: Arc<AtomicU64>,
    /// Number of the next connection.
    pub(super) links: Arc<AtomicU64>,
    /// Cancelled when nothing is fetched any more.
    pub(super) end: CancellationToken,
}

/// Connects to a pod and asks it, until the connection ends or is not needed.
pub(super) async fn run(
    parts: Parts,
    dialer: Arc<Dialer>,
    endpoint: Arc<Endpoint>,
    mut questions: mpsc::Receiver<PayloadQuestion>,
    up: Arc<OnceLock<Up>>,
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
    let (asker, places) = (fetching.asker(), Arc::new(Semaphore::new(MAX_ASKS)));
    let last = Mutex::new(Instant::now());
    let link = parts.links.fetch_add(1, Ordering::Relaxed);
    let up = up.get_or_init(|| Up { link, asker, pod: peer, places: Arc::clone(&places), last });
    let mut receiving = std::pin::pin!(fetching.run());
    let (mut place, mut idle) = (None, Instant::now() + IDLE);
    loop {
        tokio::select! {
            () = &mut receiving => break,
            free = Arc::clone(&places).acquire_owned(), if place.is_none() => place = free.ok(),
            question = questions.recv(), if place.is_some() => {
                let (Some(question), Some(place)) = (question, place.take()) else {
                    up.asker.close();
                    receiving.await;
                    break;
                };
                up.ask(&parts, question, place);
            }
            () = sleep_until(idle) => {
                let unanswered = MAX_ASKS - places.available_permits() - usize::from(place.is_some());
                let unused = up.last.lock().elapsed() >= IDLE;
                if unused && unanswered == 0 && up.asker.is_idle() {
                    up.asker.close();
                }
                idle = Instant::now() + IDLE;
            }
        }
    }
    parts.pending.forget(link);
}
