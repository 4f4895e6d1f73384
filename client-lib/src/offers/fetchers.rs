//! Serves the connections from fetchers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use tracing::{Instrument as _, debug, info_span};

use super::OffersState;
use super::ledger::{FetchEnd, Fetched, Ticket};
use crate::answer::{PayloadAnswer, Status};
use crate::endpoint::{Endpoint, PodRef};
use crate::error::SendError;
use crate::frame::Frame;
use crate::handshake::TransportKind;
use crate::listener::{ArrivedFetcher, Listener};
use crate::peers::Sent;
use crate::peers::shared::Ask;
use crate::peers::single::{Answering, MAX_UNDECIDED, ONLY, SingleSender};
use crate::wire::MAX_ASKS;

/// Serves each connection in a task of its own.
pub(super) async fn accept(
    shared: Arc<OffersState>,
    listener: Listener,
    mut arriving: mpsc::Receiver<ArrivedFetcher>,
    tasks: TaskTracker,
) {
    while let Some(Some(fetcher)) = shared.end.run_until_cancelled(arriving.recv()).await {
        let span = info_span!("fetcher", name = %fetcher.fetch.from, address = %fetcher.from);
        tasks.spawn(serve(Arc::clone(&shared), listener.clone(), fetcher).instrument(span));
    }
}

/// Completes the handshake, and answers the fetcher's questions until the connection ends.
async fn serve(shared: Arc<OffersState>, listener: Listener, fetcher: ArrivedFetcher) {
    let ArrivedFetcher { stream, fetch, from, counted: _counted } = fetcher;
    let knows_taken = fetch.knows_taken;
    let mut endpoint = Endpoint::at(from);
    (endpoint.host, endpoint.node) = (fetch.from, fetch.node);
    endpoint.pod = fetch.from_uid.map(|uid| PodRef { uid: Some(uid), ..PodRef::default() });
    let dialer = listener.dialer(fetch.service, SingleSender::window());
    let taking_over = dialer.take_over(stream, (&endpoint, ONLY, from));
    let dialed = match shared.end.run_until_cancelled(taking_over).await {
        Some(Ok(dialed)) => dialed,
        Some(Err(error)) => return listener.log_turned_away(&error),
        None => return,
    };
    let (queue, answers) = mpsc::channel(MAX_ASKS);
    let asked = {
        let shared = Arc::clone(&shared);
        move |to: &Answering, ask| answer(&shared, to, ask, knows_taken, &queue)
    };
    let sender = SingleSender::new(dialer.session, asked);
    let connected = shared.count_fetcher();
    let transport = if dialed.pair.is_some() { TransportKind::Rdma } else { TransportKind::Tcp };
    listener.log_connected(transport, dialed.instead_of_rdma.as_deref());
    let mut answering = std::pin::pin!(follow(sender.answering(), answers));
    let mut running = std::pin::pin!(sender.run(dialed));
    let ended = tokio::select! {
        ended = &mut running => ended,
        never = &mut answering => match never {},
        () = shared.end.cancelled() => {
            sender.close();
            running.await
        }
    };
    debug!("the connection has ended: {ended}");
    drop(connected);
    // The tickets that are still out are given back here, when no device reads the payloads any
    // more.
}

/// Answers a question by a frame. The rest is left to [`follow`]. Returns whether there is a place
/// in its queue, which a fetcher that keeps to the limit on questions does not fill.
fn answer(
    shared: &Arc<OffersState>,
    to: &Answering,
    Ask { number, id }: Ask,
    knows_taken: bool,
    queue: &mpsc::Sender<Given>,
) -> bool {
    let Ok(place) = queue.try_reserve() else { return false };
    let now = Instant::now().into_std();
    let (frame, fetch) = match shared.with(|state| state.ledger.fetch(now, id.as_str())) {
        Fetched::Here(ticket, frame) => {
            let fetch = LiveFetch { shared: Arc::clone(shared), ticket: Some(ticket), sent: None };
            (with_answer(frame, number, Status::Here), Some(fetch))
        }
        Fetched::Taken if knows_taken => (with_answer(Frame::new(""), number, Status::Taken), None),
        Fetched::Taken | Fetched::Unknown => (with_answer(Frame::new(""), number, Status::Unknown), None),
    };
    match (to.try_send(frame), fetch) {
        (Ok(sent), Some(fetch)) => place.send(Given::Sent(fetch.sent_by(sent))),
        (Ok(_), None) => {}
        (Err((frame, _)), fetch) => place.send(Given::Waiting { number, frame, fetch }),
    }
    true
}

/// An answer that the connection has been given, or for which it had no room.
enum Given {
    Sent(LiveFetch),
    Waiting { number: u64, frame: Frame, fetch: Option<LiveFetch> },
}

/// Sends the answers that wait for room, and gives tickets back when the fetcher has decided on
/// them.
async fn follow(to: Answering, mut answers: mpsc::Receiver<Given>) -> std::convert::Infallible {
    let mut followed = FuturesUnordered::new();
    loop {
        tokio::select! {
            // A fetcher that holds many payloads waits until it has dealt with some.
            Some(given) = answers.recv(), if followed.len() < MAX_UNDECIDED => {
                followed.push(follow_one(&to, given));
            }
            Some(()) = followed.next() => {}
            // The connection has ended, too.
            else => std::future::pending().await,
        }
    }
}

async fn follow_one(to: &Answering, given: Given) {
    let fetch = match given {
        Given::Sent(fetch) => fetch,
        Given::Waiting { number, frame, fetch } => {
            let length = frame.len() as u64;
            match (to.send(frame).await, fetch) {
                (Ok(sent), Some(fetch)) => fetch.sent_by(sent),
                (Err(SendError::TooLarge { .. }), fetch) => {
                    drop(fetch);
                    let answer = with_answer(Frame::new(""), number, Status::TooLarge(length));
                    let _ = to.send(answer).await;
                    return;
                }
                // There was no payload, or the connection has ended.
                _ => return,
            }
        }
    };
    if let Some(sent) = &fetch.sent {
        let _ = sent.acknowledged().await;
    }
}

/// Puts the answer before the frame's metadata.
fn with_answer(mut frame: Frame, number: u64, status: Status) -> Frame {
    let metadata = [&PayloadAnswer { number, status }.encode(), &*frame.metadata].concat();
    frame.metadata = metadata.into();
    frame
}

/// A fetch under way, which ends when this is dropped, also with the connection.
struct LiveFetch {
    shared: Arc<OffersState>,
    ticket: Option<Ticket>,
    /// The frame with the payload, once it has been given to the connection.
    sent: Option<Sent>,
}

impl LiveFetch {
    /// Notes that the connection has been given the payload.
    fn sent_by(mut self, sent: Sent) -> Self {
        self.sent = Some(sent);
        self
    }
}

impl Drop for LiveFetch {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket.take() else { return };
        // The acknowledgement may have come with the end of the connection.
        let outcome = match self.sent.as_ref().and_then(Sent::outcome) {
            Some(Ok(())) => FetchEnd::Acknowledged,
            _ => FetchEnd::Returned,
        };
        let now = Instant::now().into_std();
        self.shared.with(|state| state.ledger.finished(now, ticket, outcome));
    }
}

/// A connection in the count of fetchers.
pub(super) struct Connected<'s>(&'s OffersState);

impl OffersState {
    fn count_fetcher(&self) -> Connected<'_> {
        self.fetchers.fetch_add(1, Ordering::Relaxed);
        Connected(self)
    }
}

impl Drop for Connected<'_> {
    fn drop(&mut self) {
        self.0.fetchers.fetch_sub(1, Ordering::Relaxed);
    }
}
