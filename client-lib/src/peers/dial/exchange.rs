//! The first message of a handshake, and the answer to it.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::error::DialError;
use crate::handshake::{HandshakeError, PREAMBLE, Preamble, Refusal, VERSION};
use crate::stream::Stream;
use crate::tls;

pub(super) enum ExchangeError {
    Io(io::Error),
    Handshake(HandshakeError),
}

impl ExchangeError {
    pub(super) fn into_dial(self, peer: SocketAddr) -> DialError {
        match self {
            Self::Handshake(source) => DialError::Handshake { peer, source },
            Self::Io(error) => match tls::explain(&error) {
                Some(source) => DialError::Tls { peer, source },
                None => DialError::Closed { peer },
            },
        }
    }
}

impl From<io::Error> for ExchangeError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<HandshakeError> for ExchangeError {
    fn from(error: HandshakeError) -> Self {
        Self::Handshake(error)
    }
}

/// Sends the first message of a handshake, and reads the answer: a value, or a refusal.
pub(super) async fn exchange<T>(
    stream: &mut Stream,
    first: &[u8],
    decode: impl FnOnce(&[u8]) -> Result<Result<T, Refusal>, HandshakeError>,
) -> Result<Result<T, Refusal>, ExchangeError> {
    let written = write(stream, first).await;
    // A peer that refuses by TLS sends the reason before it closes. That reason tells more than a
    // failed write.
    let preamble = match (written, preamble(stream).await) {
        (Err(error), Err(ExchangeError::Io(reason))) if tls::explain(&reason).is_none() => {
            return Err(error.into());
        }
        (_, read) => read?,
    };
    let Preamble { version, length } = Preamble::decode(preamble)?;
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    match decode(&body) {
        // A refusal can be read in any version. An acceptance of another version may agree to
        // something unknown here.
        Ok(Err(refusal)) => Ok(Err(refusal)),
        _ if version != VERSION => Err(HandshakeError::Version(version).into()),
        answer => Ok(answer?),
    }
}

pub(super) async fn write(stream: &mut Stream, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes).await?;
    stream.flush().await
}

async fn preamble(stream: &mut Stream) -> Result<[u8; PREAMBLE], ExchangeError> {
    let mut preamble = [0; PREAMBLE];
    let mut length = 0;
    while length < PREAMBLE {
        match stream.read(&mut preamble[length..]).await? {
            0 if length == 0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            // A TLS alert is shorter than a preamble.
            0 => return Err(HandshakeError::from_first_bytes(&preamble[..length]).into()),
            read => length += read,
        }
    }
    Ok(preamble)
}
