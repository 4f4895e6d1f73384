//! One stream: a query in, its reply out.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hickory_proto::op::Message;
use hickory_proto::rr::rdata::opt::EdnsCode;
use quinn::{Connection, ReadToEndError, RecvStream, SendStream, VarInt};
use tokio::time::timeout;
use tracing::debug;

use crate::engine::{Handled, Peer, Worker};

/// How long a query may take to arrive, and a reply to be acknowledged.
const STREAM_TIME: Duration = Duration::from_secs(10);

/// The most that a stream carries: a message with its length.
const MAX_STREAM: usize = 2 + 65_535;

/// DOQ_INTERNAL_ERROR (RFC 9250 §4.3, as those below).
const INTERNAL_ERROR: VarInt = VarInt::from_u32(1);

/// DOQ_PROTOCOL_ERROR.
const PROTOCOL_ERROR: VarInt = VarInt::from_u32(2);

/// DOQ_UNSPECIFIED_ERROR.
const UNSPECIFIED_ERROR: VarInt = VarInt::from_u32(5);

/// Why a stream ends without a reply.
enum Failure {
    /// It alone.
    Stream(VarInt, &'static str),
    /// With its connection: the peer broke the protocol.
    Connection(&'static str),
}

/// The whole life of one stream.
pub(super) async fn exchange(
    connection: Connection,
    worker: Arc<Mutex<Worker>>,
    mut to: SendStream,
    mut from: RecvStream,
) {
    let peer = connection.remote_address();
    match respond(&worker, peer.into(), &mut to, &mut from).await {
        Ok(()) => {}
        Err(Failure::Stream(code, reason)) => {
            debug!(%peer, reason, "no reply");
            // Both fail only for what has ended already.
            let _ = to.reset(code);
            let _ = from.stop(code);
        }
        Err(Failure::Connection(reason)) => {
            debug!(%peer, reason, "connection closed");
            connection.close(PROTOCOL_ERROR, reason.as_bytes());
        }
    }
}

async fn respond(
    worker: &Mutex<Worker>,
    peer: Peer,
    to: &mut SendStream,
    from: &mut RecvStream,
) -> Result<(), Failure> {
    let request = timeout(STREAM_TIME, from.read_to_end(MAX_STREAM))
        .await
        .map_err(|_| Failure::Stream(UNSPECIFIED_ERROR, "the query took too long"))?
        .map_err(|error| match error {
            ReadToEndError::TooLong => Failure::Connection("more than one message on a stream"),
            ReadToEndError::Read(_) => Failure::Stream(UNSPECIFIED_ERROR, "the query broke off"),
        })?;
    let reply = answer(worker, peer, message(&request).map_err(Failure::Connection)?)?;
    // Finished is what the peer has acknowledged: closing the connection would drop the rest.
    let sent = timeout(STREAM_TIME, async {
        to.write_all(&reply).await.is_ok() && to.finish().is_ok() && to.stopped().await.is_ok()
    });
    match sent.await {
        Ok(true) => Ok(()),
        Ok(false) | Err(_) => Err(Failure::Stream(UNSPECIFIED_ERROR, "the reply was not taken")),
    }
}

/// The one message of a stream, if it is as RFC 9250 demands.
fn message(request: &[u8]) -> Result<&[u8], &'static str> {
    let (length, message) = request.split_first_chunk::<2>().ok_or("no message on a stream")?;
    let length = usize::from(u16::from_be_bytes(*length));
    if message.len() < length {
        return Err("half of a message on a stream");
    }
    if message.len() > length {
        return Err("more than one message on a stream");
    }
    // §4.2.1
    if message.get(..2) != Some(&[0; 2]) {
        return Err("the message id is not 0");
    }
    if has_keepalive(message) {
        return Err("edns-tcp-keepalive over QUIC");
    }
    Ok(message)
}

/// Whether a query with nothing but an OPT record has an option that is of TCP only (RFC 9250 §5.5.2).
fn has_keepalive(message: &[u8]) -> bool {
    let is_candidate = message.get(6..12) == Some(&[0, 0, 0, 0, 0, 1]);
    let edns = || Message::from_vec(message).ok()?.edns;
    is_candidate && edns().is_some_and(|edns| edns.option(EdnsCode::Keepalive).is_some())
}

/// The reply with its length in front. Zones are not transferred over this transport: the engine refuses.
fn answer(worker: &Mutex<Worker>, peer: Peer, query: &[u8]) -> Result<Vec<u8>, Failure> {
    let mut reply = Vec::with_capacity(512);
    reply.extend([0; 2]);
    let handled = {
        let mut worker = worker.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = Instant::now();
        let handled = worker.answer(query, peer, &mut reply);
        worker.took(1, begun.elapsed());
        handled
    };
    let length = u16::try_from(reply.len() - 2).ok();
    match (handled, length) {
        (Handled::Reply, Some(length)) => {
            reply[..2].copy_from_slice(&length.to_be_bytes());
            Ok(reply)
        }
        (Handled::Ignore, _) => Err(Failure::Connection("the message is no query")),
        _ => Err(Failure::Stream(INTERNAL_ERROR, "no reply to send")),
    }
}
