//! All listeners together. Every socket is bound before the first one is served.

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::num::NonZeroUsize;
use std::thread::available_parallelism;

use anyhow::{Context as _, Result, anyhow};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use crate::answer::proto::Proto;
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
pub(crate) struct Listeners {
    bound: Vec<Bound>,
    certificates: Option<Certificates>,
    connections: Connections,
    /// HTTPS has a limit of its own, so that it cannot starve plain DNS. Its connections also hold
    /// more memory.
    https: Connections,
    /// QUIC has a limit of its own, for the same reasons as HTTPS.
    quic: Connections,
}

/// Bound sockets of one listener.
struct Bound {
    /// The listener's protocol and address, with the port that was bound.
    listen: Listen,
    sockets: Sockets,
}

enum Sockets {
    Dns(BoundDns),
    /// Socket of TLS or HTTPS.
    Stream(TcpListener),
    Quic(UdpSocket),
}

impl Bound {
    fn bind(listen: Listen, workers: usize) -> Result<Self> {
        let (addr, sockets) = match listen.proto {
            ListenProto::Dns => {
                let bound = listen::bind_dns(listen.addr, workers)?;
                (bound.addr, Sockets::Dns(bound))
            }
            ListenProto::Quic => {
                let socket = listen::bind_udp(listen.addr)?;
                (socket.local_addr()?, Sockets::Quic(socket))
            }
            ListenProto::Tls | ListenProto::Https => {
                let listener = listen::bind_tcp(listen.addr)?;
                (listener.local_addr()?, Sockets::Stream(listener))
            }
        };
        Ok(Self { listen: Listen { addr, ..listen }, sockets })
    }

    /// Returns the number of file descriptors that the listener's sockets take.
    fn files(&self) -> usize {
        match &self.sockets {
            Sockets::Dns(bound) => bound.udp.len() + 1,
            Sockets::Stream(_) | Sockets::Quic(_) => 1,
        }
    }
}

impl Listeners {
    /// Loads the certificate, if one is given, and binds the address of every listener.
    pub(crate) fn bind(config: &Config, metrics: ConnectionMetrics) -> Result<Self> {
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
        let sockets: usize = bound.iter().map(Bound::files).sum();
        let most = connection_limit(wanted, files.saturating_sub(sockets));
        if most < wanted / 2 {
            warn!(
                most,
                files,
                "the limit of open files allows less than half of --tcp-max-connections; raise it (ulimit -n)"
            );
        }
        Ok(Self {
            bound,
            certificates,
            connections: Connections::new(most, metrics.clone()),
            https: Connections::new(most / HTTPS_SHARE, metrics.clone()),
            quic: Connections::new(most / QUIC_SHARE, metrics),
        })
    }

    /// Returns the bound addresses of all listeners.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.bound.iter().map(|bound| bound.listen.addr)
    }

    /// Returns the bound addresses of the listeners for plain DNS.
    pub(crate) fn dns_addresses(&self) -> impl Iterator<Item = SocketAddr> {
        let dns = self.bound.iter().filter(|bound| bound.listen.proto == ListenProto::Dns);
        dns.map(|bound| bound.listen.addr)
    }

    /// Serves until `shutdown`, and then until queries in progress are answered. All tasks are
    /// tracked in `tasks`.
    pub(crate) fn serve(
        self,
        engine: &Engine,
        tasks: &TaskTracker,
        shutdown: &CancellationToken,
    ) -> Result<()> {
        let Self { bound, certificates, connections, https, quic } = self;
        let certificates_for = |listen: Listen| {
            certificates.as_ref().ok_or_else(|| anyhow!("--listen {listen}: needs --tls-cert and --tls-key"))
        };
        for Bound { listen, sockets } in bound {
            match sockets {
                Sockets::Dns(BoundDns { udp, tcp, .. }) => {
                    let threads = UdpListener::spawn(udp, engine, shutdown)?;
                    tasks.spawn(threads.finished());
                    let streams = StreamListener::tcp(tcp, engine.clone(), connections.clone())?;
                    tasks.spawn(streams.run(shutdown.clone()));
                }
                Sockets::Stream(listener) => {
                    let (proto, connections) = match listen.proto {
                        ListenProto::Https => (Proto::Https, &https),
                        _ => (Proto::Tls, &connections),
                    };
                    let (certificates, engine) = (certificates_for(listen)?, engine.clone());
                    let streams =
                        StreamListener::secured(listener, proto, certificates, engine, connections.clone())?;
                    tasks.spawn(streams.run(shutdown.clone()));
                }
                Sockets::Quic(socket) => {
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
