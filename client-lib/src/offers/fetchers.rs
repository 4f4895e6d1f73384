//! Serves the connections from fetchers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use tracing::{Instrument as _, debug, info_span};

use super::Shared;
use super::ledger::{Outcome, Ticket};
use crate::answer::{Answer, Status};
use crate::endpoint::{Endpoint, PodRef};
use crate::error::SendError;
use crate::frame::Frame;
use crate::handshake::TransportKind;
use crate::listener::{Fetcher, Listener};
use crate::peers::Sent;
use crate::peers::shared::Ask;
use crate::peers::single::{MAX_UNDECIDED, ONLY, SingleSender};
use crate::wire::MAX_ASKS;

/// Serves each connection in a task of its own.
pub(super) async fn accept(
    shared: Arc<Shared>,
    listener: Listener,
    mut arriving: mpsc::Receiver<Fetcher>,
    tasks: TaskTracker,
) {
    while let Some(Some(fetcher)) = shared.end.run_until_cancelled(arriving.recv()).await {
        let span = info_span!("fetcher", name = %fetcher.fetch.from, address = %fetcher.from);
        tasks.spawn(serve(Arc::clone(&shared), listener.clone(), fetcher).instrument(span));
    }
}

/// Completes the handshake, and answers the fetcher's questions until the connection ends.
async fn serve(shared: Arc<Shared>, listener: Listener, fetcher: Fetcher) {
    let Fetcher { stream, fetch, from, counted: _counted } = fetcher;
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
    let (sender, questions) = SingleSender::new(dialer.session, MAX_ASKS);
    let connected = shared.count_fetcher();
    let transport = if dialed.pair.is_some() { TransportKind::Rdma } else { TransportKind::Tcp };
    listener.log_connected(transport, dialed.instead_of_rdma.as_deref());
    let mut answering = std::pin::pin!(answer_all(&shared, &sender, questions));
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

/// Answers each question by a frame, and gives its ticket back when the fetcher has decided on it.
async fn answer_all(
    shared: &Shared,
    sender: &SingleSender,
    mut questions: mpsc::Receiver<Ask>,
) -> std::convert::Infallible {
    let mut answers = FuturesUnordered::new();
    loop {
        tokio::select! {
            // A fetcher that holds many payloads waits until it has dealt with some.
            Some(ask) = questions.recv(), if answers.len() < MAX_UNDECIDED => {
                answers.push(answer(shared, sender, ask));
            }
            Some(()) = answers.next() => {}
            // The connection has ended, too.
            else => std::future::pending().await,
        }
    }
}

async fn answer(shared: &Shared, sender: &SingleSender, Ask { number, id }: Ask) {
    let now = Instant::now().into_std();
    let Some((ticket, frame)) = shared.with(|state| state.ledger.fetch(now, id.as_str())) else {
        let _ = sender.send(with_answer(Frame::new(""), number, Status::Unknown)).await;
        return;
    };
    let (mut live, length) = (LiveFetch { shared, ticket: Some(ticket), sent: None }, frame.len());
    match sender.send(with_answer(frame, number, Status::Here)).await {
        Ok(sent) => {
            let _ = live.sent.insert(sent).acknowledged().await;
        }
        Err(SendError::TooLarge { .. }) => {
            drop(live);
            let status = Status::TooLarge(length as u64);
            let _ = sender.send(with_answer(Frame::new(""), number, status)).await;
        }
        // The connection has ended.
        Err(_) => {}
    }
}

/// Puts the answer before the frame's metadata.
fn with_answer(mut frame: Frame, number: u64, status: Status) -> Frame {
    let metadata = [&Answer { number, status }.encode(), &*frame.metadata].concat();
    frame.metadata = metadata.into();
    frame
}

/// A fetch under way, which ends when this is dropped, also with the connection.
struct LiveFetch<'s> {
    shared: &'s Shared,
    ticket: Option<Ticket>,
    /// The frame with the payload, once it has been given to the connection.
    sent: Option<Sent>,
}

impl Drop for LiveFetch<'_> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket.take() else { return };
        // The acknowledgement may have come with the end of the connection.
        let outcome = match self.sent.as_ref().and_then(Sent::outcome) {
            Some(Ok(())) => Outcome::Acknowledged,
            _ => Outcome::Returned,
        };
        let now = Instant::now().into_std();
        self.shared.with(|state| state.ledger.finished(now, ticket, outcome));
    }
}

/// A connection in the count of fetchers.
pub(super) struct Connected<'s>(&'s Shared);

impl Shared {
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
