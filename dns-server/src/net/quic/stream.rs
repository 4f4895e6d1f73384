//! One stream: a query in, its reply out.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use quinn::{Connection, RecvStream, SendStream, VarInt};
use tokio::time::timeout;
use tracing::debug;

use super::EXCESSIVE_LOAD;
use crate::answer::peer::Peer;
use crate::net::engine::{Handled, Worker};
use crate::net::tcp::MemoryAccount;

/// How long a query may take to arrive, and a reply to be acknowledged.
const STREAM_TIME: Duration = Duration::from_secs(10);

/// DOQ_INTERNAL_ERROR (RFC 9250 §4.3, as those below).
const INTERNAL_ERROR: VarInt = VarInt::from_u32(1);

/// DOQ_PROTOCOL_ERROR.
const PROTOCOL_ERROR: VarInt = VarInt::from_u32(2);

/// DOQ_UNSPECIFIED_ERROR.
const UNSPECIFIED_ERROR: VarInt = VarInt::from_u32(5);

/// Why a stream ends without a reply.
enum StreamError {
    /// It alone.
    Stream(VarInt, &'static str),
    /// With its connection: the peer broke the protocol.
    Connection(&'static str),
}

/// For want of memory.
const NO_ROOM: StreamError = StreamError::Stream(EXCESSIVE_LOAD, "too much is held for clients");

/// The whole life of one stream.
pub(super) async fn serve_stream(
    connection: Connection,
    worker: Arc<Mutex<Worker>>,
    mut to: SendStream,
    mut from: RecvStream,
    mut memory: MemoryAccount,
) {
    let peer = connection.remote_address();
    match respond(&worker, peer.into(), &mut to, &mut from, &mut memory).await {
        Ok(()) => {}
        Err(StreamError::Stream(code, reason)) => {
            debug!(%peer, reason, "no reply");
            // Both fail only for what has ended already.
            let _ = to.reset(code);
            let _ = from.stop(code);
        }
        Err(StreamError::Connection(reason)) => {
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
    memory: &mut MemoryAccount,
) -> Result<(), StreamError> {
    let request = timeout(STREAM_TIME, receive(from, memory))
        .await
        .map_err(|_| StreamError::Stream(UNSPECIFIED_ERROR, "the query took too long"))??;
    let mut reply = answer(worker, peer, message(&request).map_err(StreamError::Connection)?)?;
    drop(request);
    reply.shrink_to_fit();
    if !memory.set(reply.len()) {
        return Err(NO_ROOM);
    }
    // Finished is what the peer has acknowledged: closing the connection would drop the rest.
    let sent = timeout(STREAM_TIME, async {
        let written = to.write_all_chunks(&mut [Bytes::from(reply)]).await;
        written.is_ok() && to.finish().is_ok() && to.stopped().await.is_ok()
    });
    match sent.await {
        Ok(true) => Ok(()),
        Ok(false) | Err(_) => Err(StreamError::Stream(UNSPECIFIED_ERROR, "the reply was not taken")),
    }
}

/// What a stream carries, in order, as far as its one message goes. What has come beyond a gap stays with quinn, in the
/// little that a stream's window allows.
async fn receive(from: &mut RecvStream, memory: &mut MemoryAccount) -> Result<Vec<u8>, StreamError> {
    let mut request = Vec::new();
    loop {
        let chunk = from.read_chunk(usize::MAX, true).await;
        let chunk = chunk.map_err(|_| StreamError::Stream(UNSPECIFIED_ERROR, "the query broke off"))?;
        let Some(chunk) = chunk else { return Ok(request) };
        request.extend_from_slice(&chunk.bytes);
        if !memory.set(request.capacity()) {
            return Err(NO_ROOM);
        }
        let length = request.first_chunk().map(|length| 2 + usize::from(u16::from_be_bytes(*length)));
        if length.is_some_and(|length| request.len() > length) {
            return Err(StreamError::Connection(TRAILING_DATA));
        }
    }
}

/// What is wrong with a stream that goes on behind its message.
const TRAILING_DATA: &str = "more than one message on a stream";

/// The one message of a stream, if it is as RFC 9250 demands.
fn message(request: &[u8]) -> Result<&[u8], &'static str> {
    let (length, message) = request.split_first_chunk::<2>().ok_or("no message on a stream")?;
    let length = usize::from(u16::from_be_bytes(*length));
    if message.len() < length {
        return Err("half of a message on a stream");
    }
    if message.len() > length {
        return Err(TRAILING_DATA);
    }
    // §4.2.1
    if message.get(..2) != Some(&[0; 2]) {
        return Err("the message id is not 0");
    }
    Ok(message)
}

/// The reply with its length in front. Zones are not transferred over this transport: the engine refuses.
fn answer(worker: &Mutex<Worker>, peer: Peer, query: &[u8]) -> Result<Vec<u8>, StreamError> {
    let mut reply = Vec::with_capacity(512);
    reply.extend([0; 2]);
    let handled = {
        let mut worker = worker.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = Instant::now();
        let handled = worker.answer(query, peer, &mut reply);
        worker.record_duration(1, begun.elapsed());
        handled
    };
    let length = u16::try_from(reply.len() - 2).ok();
    match (handled, length) {
        (Handled::Reply, Some(length)) => {
            reply[..2].copy_from_slice(&length.to_be_bytes());
            Ok(reply)
        }
        (Handled::Ignore, _) => {
            Err(StreamError::Connection("the message is no query, or has edns-tcp-keepalive"))
        }
        _ => Err(StreamError::Stream(INTERNAL_ERROR, "no reply to send")),
    }
}
