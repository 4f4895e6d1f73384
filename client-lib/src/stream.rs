//! Messages over the connection of the handshake: TCP, with or without TLS.
//!
//! Reading has a task of its own, which only the socket wakes. Writing needs no task switch as long
//! as the socket has room: the caller of [`MessageWriter::try_flush`] writes itself. The
//! connection's task goes on where the socket was full, or collects small messages that follow each
//! other closely ([`MessageWriter::try_flush_later`]). Payloads are not copied: they are written
//! from, and read to, the memory where they stay.

mod handoff;
mod read_task;
mod reader;
mod writer;

use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

#[cfg(feature = "rdma")]
pub(crate) use handoff::HandoffLock;
pub(crate) use read_task::ReadTask;
pub(crate) use reader::MessageReader;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio_rustls::TlsStream;
pub(crate) use writer::{Body, Message, MessageSource, MessageWriter, NoMessages, SHORT};

use crate::tls::holder_names;

/// Connection to or from a peer, with or without TLS.
pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Reading half of a connection to or from a peer.
pub(crate) enum ReadHalf {
    Plain(OwnedReadHalf),
    Tls(tokio::io::ReadHalf<Box<TlsStream<TcpStream>>>),
}

/// Writing half of a connection to or from a peer.
pub(crate) enum WriteHalf {
    Plain(OwnedWriteHalf),
    Tls(tokio::io::WriteHalf<Box<TlsStream<TcpStream>>>),
}

impl Stream {
    /// Returns the connection's local IP address, and the peer's.
    pub(crate) fn addresses(&self) -> io::Result<(IpAddr, IpAddr)> {
        let stream = self.tcp();
        Ok((stream.local_addr()?.ip().to_canonical(), stream.peer_addr()?.ip().to_canonical()))
    }

    /// Returns the names that identify the holder of the peer's certificate; none without TLS.
    pub(crate) fn owner(&self) -> Vec<String> {
        match self {
            Self::Plain(_) => Vec::new(),
            Self::Tls(stream) => holder_names(stream.get_ref().1.peer_certificates()),
        }
    }

    pub(crate) fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => stream.get_ref().0,
        }
    }

    pub(crate) fn split(self) -> (ReadHalf, WriteHalf) {
        match self {
            Self::Plain(stream) => {
                let (reader, writer) = stream.into_split();
                (ReadHalf::Plain(reader), WriteHalf::Plain(writer))
            }
            Self::Tls(stream) => {
                let (reader, writer) = tokio::io::split(stream);
                (ReadHalf::Tls(reader), WriteHalf::Tls(writer))
            }
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// The most bytes that wait in the kernel to be sent, so that a slow peer costs no more memory than
/// this.
///
/// With less, a writer of large frames sleeps and wakes several times for each (128 KiB gives two
/// thirds of the speed of 256 KiB and more). With more, it is not faster. Bytes in flight do not
/// count.
const MAX_UNSENT: u32 = 1 << 20;

/// Configures a socket to send at once, and to notice within `patience` that the peer is gone.
///
/// Keep-alives notice it while nothing is in flight. TCP_USER_TIMEOUT (RFC 5482) notices missing
/// acknowledgements.
pub(crate) fn tune(stream: &TcpStream, patience: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    // Without it, only speed is lost.
    let _ = socket.set_tcp_notsent_lowat(MAX_UNSENT);
    let step = (patience / 4).max(Duration::from_secs(1));
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(step).with_interval(step).with_retries(3))?;
    socket.set_tcp_user_timeout(Some(patience))
}

/// Send buffer for a receiver on the same machine, in bytes. The kernel doubles the number, to
/// cover its own overhead.
const LOCAL_SEND_BUFFER: usize = 384 << 10;

/// Limits the bytes in flight to a receiver on the same machine.
///
/// They lie in this machine's memory. As long as they fit into a core's cache (1 MiB or more
/// today), copying them takes half the time. More would not help, as there is no distance to fill.
/// Between machines, the kernel finds the best size itself.
pub(crate) fn use_small_send_buffer(stream: &TcpStream) {
    // Without it, only speed is lost.
    let _ = SockRef::from(stream).set_send_buffer_size(LOCAL_SEND_BUFFER);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_small_send_buffer_is_set_on_the_socket() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let socket = SockRef::from(&stream);
        socket.set_send_buffer_size(16 << 10).unwrap();
        let before = socket.send_buffer_size().unwrap();
        use_small_send_buffer(&stream);
        // The kernel's own limit (net.core.wmem_max) may be lower.
        let after = socket.send_buffer_size().unwrap();
        assert!(before < after && after <= 2 * LOCAL_SEND_BUFFER, "{before} {after}");
    }
}
