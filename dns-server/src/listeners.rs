//! All listeners together. Every socket is bound before the first one is served.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::thread::available_parallelism;

use anyhow::{Context as _, Result, anyhow};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use crate::config::Config;
use crate::limits::https::HTTPS_SHARE;
use crate::limits::process::OTHER_FILES;
use crate::limits::quic::QUIC_SHARE;
use crate::net::connections::Connections;
use crate::net::engine::Engine;
use crate::net::listen::{self, BoundDns, Listen, ListenProto};
use crate::net::quic::QuicListener;
use crate::net::tcp::StreamListener;
use crate::net::tls::Certificates;
use crate::net::udp::UdpListener;
use crate::ops::metrics::ConnectionMetrics;

/// Bound sockets of all listeners, with their certificate and limits on connections.
pub struct Listeners {
    bound: Vec<Bound>,
    certificates: Option<Certificates>,
    connections: Connections,
    /// HTTPS has a limit of its own, so that it cannot starve plain DNS. Its connections also hold
    /// more memory.
    https: Connections,
    /// QUIC has a limit of its own, for the same reasons as HTTPS.
    quic: Connections,
    shortfall: Option<Shortfall>,
}

/// How many connections the limit of open files allows, if that is less than half of the
/// configured.
struct Shortfall {
    most: usize,
    files: usize,
}

enum Bound {
    Dns(BoundDns),
    Tls(std::net::TcpListener, SocketAddr),
    Https(std::net::TcpListener, SocketAddr),
    Quic(std::net::UdpSocket, SocketAddr),
}

impl Bound {
    fn bind(listen: Listen, workers: usize) -> Result<Self> {
        Ok(match listen.proto {
            ListenProto::Dns => Self::Dns(listen::bind_dns(listen.addr, workers)?),
            ListenProto::Quic => {
                let socket = listen::bind_udp(listen.addr)?;
                let addr = socket.local_addr()?;
                Self::Quic(socket, addr)
            }
            ListenProto::Tls | ListenProto::Https => {
                let listener = listen::bind_tcp(listen.addr)?;
                let addr = listener.local_addr()?;
                if listen.proto == ListenProto::Tls {
                    Self::Tls(listener, addr)
                } else {
                    Self::Https(listener, addr)
                }
            }
        })
    }

    /// Returns the number of file descriptors that the listener's sockets take.
    fn sockets(&self) -> usize {
        match self {
            Self::Dns(bound) => bound.udp.len() + 1,
            Self::Tls(..) | Self::Https(..) | Self::Quic(..) => 1,
        }
    }

    /// Returns the listener's protocol and address, with the port that was bound.
    fn listen(&self) -> Listen {
        let (proto, addr) = match self {
            Self::Dns(bound) => (ListenProto::Dns, bound.addr),
            Self::Tls(_, addr) => (ListenProto::Tls, *addr),
            Self::Https(_, addr) => (ListenProto::Https, *addr),
            Self::Quic(_, addr) => (ListenProto::Quic, *addr),
        };
        Listen { proto, addr }
    }
}

impl Listeners {
    /// Loads the certificate, if one is given, and binds the address of every listener.
    pub fn bind(config: &Config, metrics: ConnectionMetrics) -> Result<Self> {
        let Config { listen, args, .. } = config;
        let files = args.tls_cert.as_ref().zip(args.tls_key.as_ref());
        let certificates = files.map(|(cert, key)| Certificates::load(cert, key)).transpose()?;
        let workers = args.udp_workers.or_else(|| available_parallelism().ok()).map_or(1, NonZeroUsize::get);
        let wanted = args.tcp_max_connections.get();
        let bind =
            |listen: &Listen| Bound::bind(*listen, workers).with_context(|| format!("--listen {listen}"));
        let bound = listen.iter().map(bind).collect::<Result<Vec<_>>>()?;
        // Without a free file descriptor, the watches of the API server could not be reopened.
        let files = rlimit::Resource::NOFILE.get_soft().map_or(usize::MAX, |files| files as usize);
        let sockets: usize = bound.iter().map(Bound::sockets).sum();
        let most = connection_limit(wanted, files.saturating_sub(sockets));
        Ok(Self {
            bound,
            certificates,
            connections: Connections::new(most, metrics.clone()),
            https: Connections::new(most / HTTPS_SHARE, metrics.clone()),
            quic: Connections::new(most / QUIC_SHARE, metrics),
            shortfall: (most < wanted / 2).then_some(Shortfall { most, files }),
        })
    }

    /// Returns the bound addresses of all listeners.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.bound.iter().map(|bound| bound.listen().addr)
    }

    /// Returns the bound addresses of the listeners for plain DNS.
    pub fn dns_addresses(&self) -> impl Iterator<Item = SocketAddr> {
        let listening = self.bound.iter().map(Bound::listen);
        listening.filter(|listen| listen.proto == ListenProto::Dns).map(|listen| listen.addr)
    }

    /// Serves until `shutdown`, and then until queries in progress are answered. All tasks are
    /// tracked in `tasks`.
    pub fn serve(self, engine: &Engine, tasks: &TaskTracker, shutdown: &CancellationToken) -> Result<()> {
        let Self { bound, certificates, connections, https, quic, shortfall } = self;
        if let Some(Shortfall { most, files }) = shortfall {
            warn!(
                most,
                files,
                "the limit of open files allows less than half of --tcp-max-connections; raise it (ulimit -n)"
            );
        }
        let certificates_for = |listen: Listen| {
            certificates.as_ref().ok_or_else(|| anyhow!("--listen {listen}: needs --tls-cert and --tls-key"))
        };
        for bound in bound {
            let listen = bound.listen();
            match bound {
                Bound::Dns(BoundDns { udp, tcp, .. }) => {
                    let threads = UdpListener::spawn(udp, engine, shutdown)?;
                    tasks.spawn(threads.finished());
                    let streams = StreamListener::tcp(tcp, engine.clone(), connections.clone())?;
                    tasks.spawn(streams.run(shutdown.clone()));
                }
                Bound::Tls(listener, _) => {
                    let certificates = certificates_for(listen)?;
                    let streams =
                        StreamListener::tls(listener, certificates, engine.clone(), connections.clone())?;
                    tasks.spawn(streams.run(shutdown.clone()));
                }
                Bound::Https(listener, _) => {
                    let certificates = certificates_for(listen)?;
                    let streams =
                        StreamListener::https(listener, certificates, engine.clone(), https.clone())?;
                    tasks.spawn(streams.run(shutdown.clone()));
                }
                Bound::Quic(socket, _) => {
                    let certificates = certificates_for(listen)?;
                    let listener = QuicListener::new(socket, certificates, engine.clone(), quic.clone())?;
                    tasks.spawn(listener.run(shutdown.clone()));
                }
            }
            info!("listening on {listen}");
        }
        if let Some(certificates) = certificates {
            tasks.spawn(certificates.follow(shutdown.clone()));
        }
        Ok(())
    }
}

/// Returns how many of the `wanted` connections fit into `files` file descriptors, beside those of
/// HTTPS and of the rest of the server.
fn connection_limit(wanted: usize, files: usize) -> usize {
    let free = files.saturating_sub(OTHER_FILES.min(files / 2));
    wanted.min(free / (HTTPS_SHARE + 1) * HTTPS_SHARE).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_connection_limit_leaves_file_descriptors_for_the_rest() {
        for (wanted, files, most) in [
            (20_000, 1 << 20, 20_000),
            (20_000, 20_000, 18_688),
            (20_000, 1024, 832),
            (20_000, 64, 16),
            (20_000, 0, 1),
            (3, 1024, 3),
            (20_000, usize::MAX, 20_000),
        ] {
            assert_eq!(connection_limit(wanted, files), most, "{wanted} of {files}");
        }
    }
}
