//! Pages of JSON, which may be as long as the cluster is large: sent chunk by chunk as the client takes them, to one client
//! at a time, so that their text is never in memory, and what they show is there once, however many ask and however slowly.

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

/// How much is made before the client takes it, in bytes.
const CHUNK: usize = 64 << 10;

/// How long a client may take until there is room for another chunk: others wait meanwhile.
const SEND_TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 3 } else { 10 });

/// Makes what a path shows. It is called on a blocking thread of the runtime, never twice at the same time.
pub type Page = Arc<dyn Fn(PageWriter) -> io::Result<()> + Send + Sync>;

/// A page that shows what `make` gives, as it is at the time. What that is must not change while it is shown.
pub fn page<S: Serialize>(make: impl Fn() -> S + Send + Sync + 'static) -> Page {
    Arc::new(move |sink| sink.send(&make()))
}

/// Where a page goes.
#[derive(Debug)]
pub struct PageWriter {
    length: oneshot::Sender<u64>,
    chunks: mpsc::Sender<Bytes>,
}

impl PageWriter {
    /// Made twice: its length is said first, so that a client knows whether it has got all of it.
    fn send(self, shown: &impl Serialize) -> io::Result<()> {
        let mut length = ByteCounter(0);
        write(&mut length, shown)?;
        let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
        self.length.send(length.0).map_err(gone)?;
        let mut out = BufWriter::with_capacity(CHUNK, ChunkWriter(self.chunks));
        let written = write(&mut out, shown).and_then(|()| out.flush());
        // Dropped, it would try to write the rest, and wait for the client once more.
        drop(out.into_parts());
        written
    }
}

fn write(mut out: impl Write, shown: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut out, shown)?;
    out.write_all(b"\n")
}

/// Counts bytes.
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

/// Waits until the client has taken the chunk before, or is gone, or takes none.
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

/// Answers with a page, when those who came before have it.
pub(super) async fn respond(page: Page, one_at_a_time: Arc<Mutex<()>>) -> Response {
    let permit = one_at_a_time.lock_owned().await;
    let (length, has_begun) = oneshot::channel();
    let (chunks, to_send) = mpsc::channel(1);
    // Nobody waits for it: a page that breaks off is shorter than was said.
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
