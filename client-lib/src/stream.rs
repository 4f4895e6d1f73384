//! A connection as messages: TCP, with or without TLS.
//!
//! Reading is a task of its own, which nothing but the socket wakes. Writing needs no task switch as long as the socket takes what there is: whoever has something to say calls
//! [`MessageWriter::try_flush`], and the connection's task goes on where the socket was full, or where small messages come one after the other
//! and are better written together ([`MessageWriter::try_flush_later`]). One payload is written from where
//! it lies; it is read to where it stays.

mod handoff;
mod read_task;
mod reader;
mod writer;

use std::io;
use std::net::IpAddr;
use std::time::Duration;

pub(crate) use handoff::HandoffLock;
pub(crate) use read_task::ReadTask;
pub(crate) use reader::MessageReader;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio_rustls::TlsStream;
pub(crate) use writer::{Body, Message, MessageSource, MessageWriter, NoMessages, SHORT};

/// A connection to or from a peer.
pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// The half that is read from.
pub(crate) enum ReadHalf {
    Plain(OwnedReadHalf),
    Tls(tokio::io::ReadHalf<Box<TlsStream<TcpStream>>>),
}

/// The half that is written to.
pub(crate) enum WriteHalf {
    Plain(OwnedWriteHalf),
    Tls(tokio::io::WriteHalf<Box<TlsStream<TcpStream>>>),
}

impl Stream {
    /// Ours, and the other side's.
    pub(crate) fn addresses(&self) -> io::Result<(IpAddr, IpAddr)> {
        let stream = match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => stream.get_ref().0,
        };
        Ok((stream.local_addr()?.ip().to_canonical(), stream.peer_addr()?.ip().to_canonical()))
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

/// So many bytes wait in the kernel to be sent, at most: a slow peer should cost no more memory than that. With less, who writes large
/// frames sleeps and wakes several times for each (128 KiB: two thirds of the speed from 256 KiB up); with more, it is not faster. What
/// is under way is not limited by it.
const MAX_UNSENT: u32 = 1 << 20;

/// Sends at once what is written, and notices within `patience` that the other side is gone: by keep-alives when nothing is under
/// way, by the lack of acknowledgements when something is (TCP_USER_TIMEOUT, RFC 5482).
pub(crate) fn tune(stream: &TcpStream, patience: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    // Only speed is lost without.
    let _ = socket.set_tcp_notsent_lowat(MAX_UNSENT);
    let step = (patience / 4).max(Duration::from_secs(1));
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(step).with_interval(step).with_retries(3))?;
    socket.set_tcp_user_timeout(Some(patience))
}

/// So many bytes are under way at most to a receiver on this machine (the kernel doubles it, and counts what it needs itself).
const LOCAL_SEND_BUFFER: usize = 384 << 10;

/// For a receiver on the same machine. What is under way to it lies in the machine's memory; as long as that fits in a core's cache (1 MiB or more
/// today), to copy it takes half the time, and nothing is gained by more: there is no distance to fill. (Between machines the kernel finds out
/// itself how much it takes.)
pub(crate) fn use_small_send_buffer(stream: &TcpStream) {
    // Only speed is lost without.
    let _ = SockRef::from(stream).set_send_buffer_size(LOCAL_SEND_BUFFER);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn less_is_under_way_on_the_same_machine() {
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
