//! JSON pages, whose length grows with the cluster.
//!
//! A page is sent in chunks, at the pace of the client, so that its text is never in memory as a
//! whole. Clients of a page wait for each other, so that the state that it shows is copied at most
//! once at a time, however many clients ask and however slow they are.

use std::io::{self, BufWriter, Write};
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures::stream;
use serde::Serialize;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::timeout;

/// Size of a chunk, in bytes. One is rendered ahead of the client.
const CHUNK: usize = 64 << 10;

/// Time limit for a client to take a chunk. Other clients of the page wait meanwhile.
const SEND_TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 3 } else { 10 });

/// Renders a page. Called on a blocking thread of the runtime, and never concurrently.
pub type Page = Arc<dyn Fn(PageWriter) -> io::Result<()> + Send + Sync>;

/// Returns a page that shows the value of `make` as JSON. The value must not change while it is
/// rendered, because it is rendered twice.
pub fn page<S: Serialize>(make: impl Fn() -> S + Send + Sync + 'static) -> Page {
    Arc::new(move |sink| sink.send(&make()))
}

/// Destination of a page: the response to a client.
#[derive(Debug)]
pub struct PageWriter {
    length: oneshot::Sender<u64>,
    chunks: mpsc::Sender<Bytes>,
}

impl PageWriter {
    /// Renders `shown` twice: once to find its length, for the header by which a client knows that
    /// it has received all of it, and once to send it.
    fn send(self, shown: &impl Serialize) -> io::Result<()> {
        let mut length = ByteCounter(0);
        write(&mut length, shown)?;
        let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
        self.length.send(length.0).map_err(gone)?;
        let mut out = BufWriter::with_capacity(CHUNK, ChunkWriter(self.chunks));
        let written = write(&mut out, shown).and_then(|()| out.flush());
        // Dropping the BufWriter would flush it, and so wait for the client once more.
        drop(out.into_parts());
        written
    }
}

fn write(mut out: impl Write, shown: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut out, shown)?;
    out.write_all(b"\n")
}

/// Writer that only counts the bytes of a page.
struct ByteCounter(u64);

impl Write for ByteCounter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writer that sends chunks to the client. A write waits until the client has taken the chunk
/// before, and fails if the client is gone or too slow.
struct ChunkWriter(mpsc::Sender<Bytes>);

impl Write for ChunkWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = timeout(SEND_TIMEOUT, self.0.send(Bytes::copy_from_slice(bytes)));
        match Handle::current().block_on(sent) {
            Ok(Ok(())) => Ok(bytes.len()),
            Ok(Err(_)) => Err(io::ErrorKind::BrokenPipe.into()),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Answers with a page, once the clients that asked for it before are done.
pub(super) async fn respond(page: Page, one_at_a_time: Arc<Mutex<()>>) -> Response {
    let permit = one_at_a_time.lock_owned().await;
    let (length, has_begun) = oneshot::channel();
    let (chunks, to_send) = mpsc::channel(1);
    // The task is not awaited: a client sees from Content-Length that a page broke off.
    tokio::task::spawn_blocking(move || {
        let _permit = permit;
        page(PageWriter { length, chunks })
    });
    let Ok(length) = has_begun.await else {
        return (StatusCode::INTERNAL_SERVER_ERROR, "the page cannot be shown\n").into_response();
    };
    let next = |mut to_send: mpsc::Receiver<Bytes>| async {
        let chunk = to_send.recv().await?;
        Some((io::Result::Ok(chunk), to_send))
    };
    let head = [(CONTENT_TYPE, "application/json".to_owned()), (CONTENT_LENGTH, length.to_string())];
    (head, Body::from_stream(stream::unfold(to_send, next))).into_response()
}
