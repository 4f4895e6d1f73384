//! TLS handshakes of a listener. They run on threads of their own, and their number is limited so
//! that each gets its turn while its client waits. Beyond the limit a new handshake evicts another
//! ([`ConnectionLimit`]): the oldest one of the network and client that have begun the most.

use std::io;
use std::net::IpAddr;

use multinet_runtime::ConnectionLimit;
use prometheus_client::metrics::counter::Counter;
use tokio::net::TcpStream;
use tokio::select;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::task::AbortOnDropHandle;

use crate::limits::tcp::{HANDSHAKE_TIME, MAX_HANDSHAKES};
use crate::net::crypto_runtime::CryptoRuntime;

/// Performs the TLS handshakes of one listener, on threads of their own.
#[derive(Debug)]
pub(super) struct Handshakes {
    runtime: CryptoRuntime,
    places: ConnectionLimit,
}

impl Handshakes {
    /// Starts the threads that perform the handshakes.
    ///
    /// # Errors
    ///
    /// If the system has no more threads.
    pub(super) fn new() -> io::Result<Self> {
        Self::with_limit(MAX_HANDSHAKES)
    }

    fn with_limit(most: usize) -> io::Result<Self> {
        Ok(Self {
            runtime: CryptoRuntime::new("tls")?,
            places: ConnectionLimit::new(most, Counter::default()),
        })
    }

    /// Performs a handshake with a client at address `peer`.
    ///
    /// # Errors
    ///
    /// If the handshake fails, takes too long, or is evicted in favor of another.
    pub(super) async fn perform(
        &self,
        acceptor: &TlsAcceptor,
        stream: TcpStream,
        peer: IpAddr,
    ) -> io::Result<TlsStream<TcpStream>> {
        let place = self.places.admit(peer);
        let handshake = self.runtime.handle().spawn(acceptor.accept(stream));
        select! {
            () = place.evicted() => Err(io::Error::other("too many handshakes are under way")),
            made = timeout(HANDSHAKE_TIME, AbortOnDropHandle::new(handshake)) => made??,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use multinet_testing::pki::{Authority, Folder};
    use tokio::net::TcpListener;
    use tokio::task::JoinHandle;

    use super::*;
    use crate::net::tls::Certificates;

    #[tokio::test]
    async fn a_handshake_beyond_the_limit_evicts_the_oldest_of_the_busiest_client() {
        let folder = Folder::of(&Authority::new().issue(&["dns.test"]), "");
        let [cert, key, _] = folder.paths();
        let config = Certificates::load(cert, key).unwrap().server_config(&[]);
        let (acceptor, handshakes) =
            (TlsAcceptor::from(config), Arc::new(Handshakes::with_limit(3).unwrap()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut clients = Vec::new();
        let mut begun: Vec<JoinHandle<io::Result<TlsStream<TcpStream>>>> = Vec::new();
        for client in [1, 2, 2, 2] {
            clients.push(TcpStream::connect(listener.local_addr().unwrap()).await.unwrap());
            let (stream, _) = listener.accept().await.unwrap();
            let (acceptor, handshakes) = (acceptor.clone(), Arc::clone(&handshakes));
            begun.push(tokio::spawn(async move {
                handshakes.perform(&acceptor, stream, [10, 0, client, 1].into()).await
            }));
            tokio::task::yield_now().await;
        }
        let ended = begun.remove(1).await.unwrap().unwrap_err();
        assert!(ended.to_string().contains("too many handshakes"), "{ended}");
        assert!(begun.iter().all(|handshake| !handshake.is_finished()));
    }
}
