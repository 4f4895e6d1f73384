//! Serves the connections from fetchers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
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

/// Longest time after the deadline of its offer for which a fetcher may hold a payload. It is also
/// bounded by the time on offer. Then the connection is closed: the payload counts against the
/// budget.
const HELD_ON: Duration = Duration::from_secs(30);

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
    let (queue, answers) = AnswerQueue::new();
    let overdue = CancellationToken::new();
    let asked = {
        let shared = Arc::clone(&shared);
        move |to: &Answering, ask| answer(&shared, to, ask, knows_taken, &queue)
    };
    let sender = SingleSender::new(dialer.session, asked);
    let connected = shared.count_fetcher();
    let transport = if dialed.pair.is_some() { TransportKind::Rdma } else { TransportKind::Tcp };
    listener.log_connected(transport, dialed.instead_of_rdma.as_deref());
    let look_up_again = |ask: &Ask| look_up(&shared, ask, knows_taken);
    let mut answering = std::pin::pin!(follow(sender.answering(), answers, look_up_again, &overdue));
    let mut running = std::pin::pin!(sender.run(dialed));
    let ended = tokio::select! {
        ended = &mut running => ended,
        never = &mut answering => match never {},
        () = overdue.cancelled() => {
            listener.log_overdue(HELD_ON.min(shared.deadline));
            sender.close();
            running.await
        }
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

/// Answers a question by a frame. The rest is left to [`follow`]. Returns whether an answer that
/// waits for room has a place, as it has if the fetcher keeps to the limit on questions.
fn answer(
    shared: &Arc<OffersState>,
    to: &Answering,
    ask: Ask,
    knows_taken: bool,
    queue: &AnswerQueue,
) -> bool {
    if shared.state.lock().ledger.is_being_fetched(ask.id.as_str()) {
        // This fetcher may have acknowledged the payload just before.
        return queue.again.try_send(ask).is_ok();
    }
    let WaitingAnswer { number, frame, fetch } = look_up(shared, &ask, knows_taken);
    match (to.try_send(frame), fetch) {
        (Ok(sent), Some(fetch)) => queue.sent.send(fetch.sent_by(sent)).is_ok(),
        (Ok(_), None) => true,
        (Err((frame, _)), fetch) => queue.waiting.try_send(WaitingAnswer { number, frame, fetch }).is_ok(),
    }
}

/// Returns the answer to a question.
fn look_up(shared: &Arc<OffersState>, &Ask { number, ref id }: &Ask, knows_taken: bool) -> WaitingAnswer {
    let now = Instant::now().into_std();
    let (fetched, deadline) = shared.with(|state| {
        let fetched = state.ledger.fetch(now, id.as_str());
        let deadline =
            if let Fetched::Here(ticket, _) = &fetched { state.ledger.deadline(ticket) } else { None };
        (fetched, deadline)
    });
    let (frame, fetch) = match fetched {
        Fetched::Here(ticket, frame) => {
            let until = deadline.unwrap_or(now) + HELD_ON.min(shared.deadline);
            let fetch = LiveFetch { shared: Arc::clone(shared), ticket: Some(ticket), until, sent: None };
            (with_answer(frame, number, Status::Here), Some(fetch))
        }
        Fetched::Taken if knows_taken => (with_answer(Frame::new(""), number, Status::Taken), None),
        Fetched::Taken | Fetched::Unknown => (with_answer(Frame::new(""), number, Status::Unknown), None),
    };
    WaitingAnswer { number, frame, fetch }
}

/// Queue of answers to [`follow`].
struct AnswerQueue {
    /// Answers that the connection has been given. Its window bounds them.
    sent: mpsc::UnboundedSender<LiveFetch>,
    /// Answers for which the connection had no room.
    waiting: mpsc::Sender<WaitingAnswer>,
    /// Questions for payloads that others fetch, or the fetcher itself.
    again: mpsc::Sender<Ask>,
}

/// The other end of a [`AnswerQueue`].
struct QueuedAnswers {
    sent: mpsc::UnboundedReceiver<LiveFetch>,
    waiting: mpsc::Receiver<WaitingAnswer>,
    again: mpsc::Receiver<Ask>,
}

struct WaitingAnswer {
    number: u64,
    frame: Frame,
    fetch: Option<LiveFetch>,
}

impl AnswerQueue {
    fn new() -> (Self, QueuedAnswers) {
        let (sent, next_sent) = mpsc::unbounded_channel();
        let (waiting, next_waiting) = mpsc::channel(MAX_ASKS);
        let (again, next_again) = mpsc::channel(MAX_ASKS);
        let queued = QueuedAnswers { sent: next_sent, waiting: next_waiting, again: next_again };
        (Self { sent, waiting, again }, queued)
    }
}

/// Sends the answers that wait for room, and gives tickets back when the fetcher has decided on
/// them. Cancels `overdue` if it holds one for too long. Questions that come again are looked up
/// once the decisions before them have counted.
async fn follow(
    to: Answering,
    mut answers: QueuedAnswers,
    look_up: impl Fn(&Ask) -> WaitingAnswer,
    overdue: &CancellationToken,
) -> std::convert::Infallible {
    let mut sent = FuturesUnordered::new();
    let mut waiting = FuturesUnordered::new();
    loop {
        tokio::select! {
            Some(fetch) = answers.sent.recv() => sent.push(decided(fetch, overdue)),
            // A fetcher that holds many payloads waits until it has dealt with some.
            Some(one) = answers.waiting.recv(), if waiting.len() < MAX_UNDECIDED => {
                waiting.push(send(&to, one));
            }
            Some(ask) = answers.again.recv(), if waiting.len() < MAX_UNDECIDED => {
                while let Some(Some(fetch)) = waiting.next().now_or_never() {
                    sent.extend(fetch.map(|fetch| decided(fetch, overdue)));
                }
                while let Ok(fetch) = answers.sent.try_recv() {
                    sent.push(decided(fetch, overdue));
                }
                while let Some(Some(())) = sent.next().now_or_never() {}
                waiting.push(send(&to, look_up(&ask)));
            }
            Some(fetch) = waiting.next() => sent.extend(fetch.map(|fetch| decided(fetch, overdue))),
            Some(()) = sent.next() => {}
            // The connection has ended, too.
            else => std::future::pending().await,
        }
    }
}

/// Sends an answer once there is room. Returns the fetch that it began.
async fn send(to: &Answering, WaitingAnswer { number, frame, fetch }: WaitingAnswer) -> Option<LiveFetch> {
    let length = frame.len() as u64;
    match (to.send(frame).await, fetch) {
        (Ok(sent), Some(fetch)) => Some(fetch.sent_by(sent)),
        (Err(SendError::TooLarge { .. }), fetch) => {
            drop(fetch);
            let answer = with_answer(Frame::new(""), number, Status::TooLarge(length));
            let _ = to.send(answer).await;
            None
        }
        // There was no payload, or the connection has ended.
        _ => None,
    }
}

/// Waits until the fetcher has decided on a payload. If it holds it for too long, the ticket stays
/// out until the connection has ended.
async fn decided(fetch: LiveFetch, overdue: &CancellationToken) {
    let Some(sent) = &fetch.sent else { return };
    if timeout_at(fetch.until.into(), sent.acknowledged()).await.is_err() {
        overdue.cancel();
        std::future::pending::<()>().await;
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
    /// Time by which the fetcher has to have decided.
    until: std::time::Instant,
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
