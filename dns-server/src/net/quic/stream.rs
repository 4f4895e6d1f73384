//! One stream: reads a query, writes its reply.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use parking_lot::Mutex;
use quinn::{Connection, RecvStream, SendStream, VarInt};
use tokio::time::timeout;
use tracing::debug;

use super::EXCESSIVE_LOAD;
use crate::limits::quic::STREAM_TIME;
use crate::net::connections::MemoryAccount;
use crate::net::engine::{Handled, Worker};

/// Error code DOQ_INTERNAL_ERROR (RFC 9250 §4.3): the engine made no reply to send.
const INTERNAL_ERROR: VarInt = VarInt::from_u32(1);

/// Error code DOQ_PROTOCOL_ERROR (RFC 9250 §4.3): the client broke the protocol.
const PROTOCOL_ERROR: VarInt = VarInt::from_u32(2);

/// Error code DOQ_UNSPECIFIED_ERROR (RFC 9250 §4.3): the client was too slow, or broke off.
const UNSPECIFIED_ERROR: VarInt = VarInt::from_u32(5);

/// Reason why a QUIC stream ends without a reply.
enum StreamError {
    /// Resets only the stream, with this error code. The text is for the log.
    Stream(VarInt, &'static str),
    /// Closes the connection with this reason, since the client broke the protocol.
    Connection(&'static str),
}

/// Error for a stream whose query or reply exceeds the memory budget for clients.
const NO_ROOM: StreamError =
    StreamError::Stream(EXCESSIVE_LOAD, "the server's memory for clients is used up");

/// Reads the query of one stream, and writes its reply or resets the stream.
pub(super) async fn serve_stream(
    connection: Connection,
    worker: Arc<Mutex<Worker>>,
    mut to: SendStream,
    mut from: RecvStream,
    mut memory: MemoryAccount,
) {
    let peer = connection.remote_address();
    match respond(&worker, peer, &mut to, &mut from, &mut memory).await {
        Ok(()) => {}
        Err(StreamError::Stream(code, reason)) => {
            debug!(%peer, reason, "a query over QUIC gets no reply");
            // Both calls fail only if the stream has already ended.
            let _ = to.reset(code);
            let _ = from.stop(code);
        }
        Err(StreamError::Connection(reason)) => {
            debug!(%peer, reason, "closing a QUIC connection whose client breaks the protocol");
            connection.close(PROTOCOL_ERROR, reason.as_bytes());
        }
    }
}

async fn respond(
    worker: &Mutex<Worker>,
    peer: SocketAddr,
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
    // Waits for the acknowledgement: closing the connection would drop unacknowledged data.
    let sent = timeout(STREAM_TIME, async {
        let written = to.write_all_chunks(&mut [Bytes::from(reply)]).await;
        written.is_ok() && to.finish().is_ok() && to.stopped().await.is_ok()
    });
    match sent.await {
        Ok(true) => Ok(()),
        Ok(false) | Err(_) => Err(StreamError::Stream(
            UNSPECIFIED_ERROR,
            "the client did not acknowledge the reply; only this stream is reset",
        )),
    }
}

/// Reads the stream up to the end of its one message. quinn keeps data behind a gap, bounded by the
/// stream's small window.
async fn receive(from: &mut RecvStream, memory: &mut MemoryAccount) -> Result<Vec<u8>, StreamError> {
    let mut request = Vec::new();
    loop {
        let chunk = from.read_chunk(usize::MAX, true).await;
        let chunk = chunk.map_err(|_| {
            StreamError::Stream(UNSPECIFIED_ERROR, "the client ended the stream within its query")
        })?;
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

/// Reason for closing a connection: a stream has data behind its one message.
const TRAILING_DATA: &str = "more than one message on a stream";

/// Returns the one message of a stream, if the stream is as RFC 9250 requires.
fn message(request: &[u8]) -> Result<&[u8], &'static str> {
    let (length, message) = request.split_first_chunk::<2>().ok_or("no message on a stream")?;
    let length = usize::from(u16::from_be_bytes(*length));
    if message.len() < length {
        return Err("an incomplete message on a stream");
    }
    if message.len() > length {
        return Err(TRAILING_DATA);
    }
    // The message ID must be 0 (§4.2.1).
    if message.get(..2) != Some(&[0; 2]) {
        return Err("the message id is not 0");
    }
    Ok(message)
}

/// Returns the reply with its length in front. The engine refuses zone transfers over this
/// transport.
fn answer(worker: &Mutex<Worker>, peer: SocketAddr, query: &[u8]) -> Result<Vec<u8>, StreamError> {
    let mut reply = Vec::with_capacity(512);
    reply.extend([0; 2]);
    let handled = {
        let mut worker = worker.lock();
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
