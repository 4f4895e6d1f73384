//! A connection's task: connects, reads what the receiver says, writes what was not written at once.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::time::timeout;
use tracing::{Instrument as _, info, info_span, warn};

use super::dial::Dialer;
use super::shared::Link;
use crate::endpoint::Endpoint;
use crate::outbound::Impossible;
use crate::stream::{Body, Inlet, Message, Outlet, Reading, Stream};
use crate::wire::{CloseCode, Control, HEADER, Header, MAX_TEXT, WireError, sequences};

/// What receivers say is short.
const AHEAD: usize = 1 << 10;

/// How long a goodbye may take.
const GOODBYE: Duration = Duration::from_secs(1);

/// Why a connection ended.
#[derive(Debug, Error)]
pub(crate) enum Ended {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the peer closed the connection")]
    Closed,
    #[error("the peer closed the connection: {0}")]
    Said(String),
    #[error("the peer broke the protocol: {0}")]
    Wire(#[from] WireError),
    #[error("the peer broke the protocol: a frame, where only receivers' messages are allowed")]
    Data,
    #[error("the peer broke the protocol: {0}")]
    Impossible(#[from] Impossible),
    #[error("it is no longer needed")]
    NotNeeded,
}

/// Until the connection has ended, for whatever reason.
pub(crate) async fn serve(link: Arc<Link>, dialer: Arc<Dialer>, endpoint: Arc<Endpoint>) {
    let span = info_span!("peer", host = %endpoint.host, lane = link.id.lane, epoch = link.id.epoch);
    async {
        let connecting = link.end.run_until_cancelled(dialer.dial(&endpoint, link.id));
        match connecting.await {
            None => {}
            Some(Err(error)) => {
                let text = error.to_string();
                let mut state = link.shared.state();
                let is_news =
                    state.failures.insert(link.id.peer, text.clone()).is_none_or(|last| last != text);
                drop(state);
                if is_news {
                    warn!("cannot connect: {text}; trying again");
                }
            }
            Some(Ok((stream, accept))) => {
                let (slots, frame_size) = (accept.slots, accept.frame_size);
                let rdma = dialer.transport.instead_of_rdma();
                info!(slots, frame_size, transport = %accept.transport, rdma, "connected");
                let ended = converse(&link, stream, slots, frame_size).await;
                match ended {
                    Ended::NotNeeded => info!("closed"),
                    ended => warn!("the connection has ended: {ended}"),
                }
            }
        }
        let mut state = link.shared.state();
        state.outbound.down(tokio::time::Instant::now().into_std(), link.id);
        state.links.remove(&link.id);
        drop(state);
        link.shared.changed();
    }
    .instrument(span)
    .await;
}

async fn converse(link: &Arc<Link>, stream: Stream, slots: u32, frame_size: u32) -> Ended {
    let (reader, writer) = stream.split();
    let outlet = link.outlet.get_or_init(|| Outlet::new(writer));
    {
        let mut state = link.shared.state();
        state.failures.remove(&link.id.peer);
        let now = tokio::time::Instant::now().into_std();
        state.outbound.up(now, link.id, slots, frame_size as usize);
    }
    link.shared.changed();
    let mut reading = Reading::start(listen(Arc::clone(link), Inlet::new(reader, AHEAD)));
    let ended = tokio::select! {
        ended = reading.ended() => ended,
        // What the receiver said before it went is here already: frames that it has taken are not lost.
        error = outlet.run(&**link) => match timeout(GOODBYE, reading.ended()).await {
            Ok(said @ Ended::Said(_)) => said,
            _ => error.into(),
        },
        () = link.end.cancelled() => Ended::NotNeeded,
    };
    reading.stop().await;
    let (code, text) = match &ended {
        Ended::Wire(_) | Ended::Data | Ended::Impossible(_) => (CloseCode::Protocol, ended.to_string()),
        Ended::NotNeeded => (CloseCode::Done, String::new()),
        Ended::Io(_) | Ended::Closed | Ended::Said(_) => return ended,
    };
    // The other side learns of the end in any case; this only says why.
    let _ = timeout(GOODBYE, outlet.finish([close(code, text)])).await;
    ended
}

pub(crate) fn close(code: CloseCode, mut text: String) -> Message {
    text.truncate(text.floor_char_boundary(MAX_TEXT));
    let header = Header::Close { code, text: text.len() }.encode();
    Message { header, body: Body::Bytes(text.into()) }
}

/// Tells the state machine what the receiver says.
async fn listen(link: Arc<Link>, mut inlet: Inlet) -> Ended {
    let mut body = Vec::new();
    loop {
        match hear(&link, &mut inlet, &mut body).await {
            Ok(()) => {}
            Err(ended) => return ended,
        }
    }
}

async fn hear(link: &Link, inlet: &mut Inlet, body: &mut Vec<u8>) -> Result<(), Ended> {
    let header: [u8; HEADER] = inlet.header().await?.ok_or(Ended::Closed)?;
    match Header::decode(&header)? {
        Header::Data(_) => Err(Ended::Data),
        Header::Close { text, .. } => {
            body.resize(text, 0);
            inlet.fill(body).await?;
            let said = String::from_utf8_lossy(body).escape_debug().to_string();
            Err(if said.is_empty() { Ended::Closed } else { Ended::Said(said) })
        }
        Header::Control(control) => {
            body.resize(control.body(), 0);
            inlet.fill(body).await?;
            settle(link, control, body)?;
            Ok(())
        }
    }
}

fn settle(link: &Link, control: Control, body: &[u8]) -> Result<(), Impossible> {
    let acked = usize::from(control.acked);
    let has_actions = {
        let outbound = &mut link.shared.state().outbound;
        outbound.control(
            tokio::time::Instant::now().into_std(),
            link.id,
            (control.freed, control.taken),
            sequences(body).take(acked),
            sequences(body).skip(acked),
        )?;
        outbound.has_actions()
    };
    link.shared.progress.notify_waiters();
    // As a rule there is nothing to do but to let senders know, and this is the way of every frame.
    if has_actions {
        link.shared.wake.notify_one();
    }
    Ok(())
}
