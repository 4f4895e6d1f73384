//! Sockets for hickory that keep the interface of a link-local server (`fe80::1%eth0`). hickory
//! knows a server by its IP address, which has no interface.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hickory_resolver::net::runtime::{
    DnsUdpSocket, RuntimeProvider, TokioHandle, TokioRuntimeProvider, TokioTime,
};
use tokio::net::UdpSocket;

/// Factory of the sockets that hickory uses to query one DNS server.
#[derive(Clone)]
pub(super) struct Sockets {
    tokio: TokioRuntimeProvider,
    server: SocketAddr,
}

/// UDP socket that sends to one server, whatever target hickory passes.
pub(super) struct Udp {
    socket: UdpSocket,
    server: SocketAddr,
}

type Connecting<T> = Pin<Box<dyn Send + Future<Output = io::Result<T>>>>;

impl Sockets {
    pub(super) fn to(server: SocketAddr) -> Self {
        Self { tokio: TokioRuntimeProvider::default(), server }
    }
}

impl RuntimeProvider for Sockets {
    type Handle = TokioHandle;
    type Timer = TokioTime;
    type Udp = Udp;
    type Tcp = <TokioRuntimeProvider as RuntimeProvider>::Tcp;

    fn create_handle(&self) -> Self::Handle {
        self.tokio.create_handle()
    }

    fn connect_tcp(
        &self,
        _server: SocketAddr,
        bind: Option<SocketAddr>,
        wait: Option<Duration>,
    ) -> Connecting<Self::Tcp> {
        self.tokio.connect_tcp(self.server, bind, wait)
    }

    fn bind_udp(&self, local: SocketAddr, _server: SocketAddr) -> Connecting<Self::Udp> {
        let server = self.server;
        Box::pin(async move { Ok(Udp { socket: UdpSocket::bind(local).await?, server }) })
    }
}

impl DnsUdpSocket for Udp {
    type Time = TokioTime;

    fn poll_recv_from(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<(usize, SocketAddr)>> {
        DnsUdpSocket::poll_recv_from(&self.socket, cx, buf)
    }

    fn poll_send_to(&self, cx: &mut Context<'_>, buf: &[u8], _target: SocketAddr) -> Poll<io::Result<usize>> {
        DnsUdpSocket::poll_send_to(&self.socket, cx, buf, self.server)
    }
}
