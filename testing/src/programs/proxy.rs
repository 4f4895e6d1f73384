//! Network between two programs, as a proxy that a test cuts and heals.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, Result};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::process::free_port;

/// State of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// Carries everything.
    Up,
    /// Carries nothing: datagrams are lost, and streams stall. When the link is up again, streams
    /// go on, as TCP does after lost packets.
    Silent,
    /// Carries nothing: existing and new streams are reset.
    Reset,
}

/// State of the network, with the number of times that existing streams were lost.
#[derive(Debug, Clone, Copy)]
struct State {
    link: Link,
    resets: usize,
    strandings: usize,
}

/// Fate of one stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamFate {
    Carry,
    Wait,
    Reset,
}

impl State {
    /// Returns the fate of a stream that began when the state was `born`.
    fn fate(self, born: Self) -> StreamFate {
        if self.strandings != born.strandings {
            StreamFate::Wait
        } else if self.link == Link::Reset || self.resets != born.resets {
            StreamFate::Reset
        } else if self.link == Link::Up {
            StreamFate::Carry
        } else {
            StreamFate::Wait
        }
    }
}

/// Proxy with one UDP and TCP port in front of another.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    state: watch::Sender<State>,
    datagrams: Arc<AtomicUsize>,
    streams: Arc<AtomicUsize>,
    // Dropping the proxy drops these tasks, which ends them.
    _tasks: JoinSet<()>,
}

impl Proxy {
    /// Starts a proxy in front of `target`. The link is up.
    pub async fn start(target: SocketAddr) -> Result<Self> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        let listener = TcpListener::bind(address).await.context("cannot listen for the proxy")?;
        let socket = UdpSocket::bind(address).await.context("cannot listen for the proxy")?;
        let (sender, state) = watch::channel(State { link: Link::Up, resets: 0, strandings: 0 });
        let (datagrams, streams) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(carry_streams(listener, target, state.clone(), Arc::clone(&streams)));
        tasks.spawn(carry_datagrams(socket, target, state, Arc::clone(&datagrams)));
        Ok(Self { address, state: sender, datagrams, streams, _tasks: tasks })
    }

    /// Returns the address of the proxy.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts or heals the network.
    pub fn set(&self, link: Link) {
        self.state.send_modify(|state| {
            state.link = link;
            state.resets += usize::from(link == Link::Reset);
        });
    }

    /// Strands the existing streams: they carry nothing more and never end, whatever the link's
    /// state, as if the host at their other end had lost its power. Later streams are not affected.
    pub fn strand(&self) {
        self.state.send_modify(|state| state.strandings += 1);
    }

    /// Returns the number of datagrams from clients, including lost ones.
    pub fn datagrams(&self) -> usize {
        self.datagrams.load(Ordering::Relaxed)
    }

    /// Returns the number of streams from clients.
    pub fn streams(&self) -> usize {
        self.streams.load(Ordering::Relaxed)
    }
}

async fn carry_streams(
    listener: TcpListener,
    target: SocketAddr,
    state: watch::Receiver<State>,
    count: Arc<AtomicUsize>,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((client, _)) = accepted else { continue };
                count.fetch_add(1, Ordering::Relaxed);
                connections.spawn(carry_stream(client, target, state.clone()));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Carries one stream to its end. Errors need no report, because both ends see them.
async fn carry_stream(mut client: TcpStream, target: SocketAddr, mut state: watch::Receiver<State>) {
    let born = *state.borrow();
    let heard = state.wait_for(|now| now.fate(born) != StreamFate::Wait).await.map(|now| now.fate(born));
    let server = match heard {
        Ok(StreamFate::Carry) => TcpStream::connect(target).await.ok(),
        _ => None,
    };
    let Some(mut server) = server else {
        let _ = client.set_zero_linger();
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    let there = pump(from_client, to_server, born, state.clone());
    let back = pump(from_server, to_client, born, state.clone());
    tokio::select! {
        _ = async { tokio::join!(there, back) } => return,
        _ = state.wait_for(|now| now.fate(born) == StreamFate::Reset) => {}
    }
    // A socket with zero linger sends RST when it is closed.
    let _ = (client.set_zero_linger(), server.set_zero_linger());
}

/// Carries one direction of a stream that began when the state was `born`.
async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    born: State,
    mut state: watch::Receiver<State>,
) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 16];
    loop {
        let length = from.read(&mut buffer).await?;
        // Data that arrives while the link is down is sent once it is up.
        if state.wait_for(|now| now.fate(born) == StreamFate::Carry).await.is_err() {
            return Ok(());
        }
        if length == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..length]).await?;
    }
}

async fn carry_datagrams(
    socket: UdpSocket,
    target: SocketAddr,
    state: watch::Receiver<State>,
    count: Arc<AtomicUsize>,
) {
    let socket = Arc::new(socket);
    // Each client has a socket to the target, as behind a NAT.
    let mut upstream: HashMap<SocketAddr, Arc<UdpSocket>> = HashMap::new();
    let mut replies = JoinSet::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let Ok((length, client)) = socket.recv_from(&mut buffer).await else {
            continue;
        };
        count.fetch_add(1, Ordering::Relaxed);
        if state.borrow().link != Link::Up {
            continue;
        }
        let upstream = match upstream.entry(client) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(free) => {
                let Ok(fresh) = connected(target).await else {
                    continue;
                };
                let fresh = Arc::new(fresh);
                replies.spawn(carry_replies(Arc::clone(&fresh), Arc::clone(&socket), client, state.clone()));
                free.insert(fresh)
            }
        };
        // A datagram that is refused counts as lost.
        let _ = upstream.send(&buffer[..length]).await;
    }
}

async fn connected(target: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    socket.connect(target).await?;
    Ok(socket)
}

async fn carry_replies(
    upstream: Arc<UdpSocket>,
    socket: Arc<UdpSocket>,
    client: SocketAddr,
    state: watch::Receiver<State>,
) {
    let mut buffer = vec![0; 1 << 16];
    loop {
        let Ok(length) = upstream.recv(&mut buffer).await else {
            continue;
        };
        if state.borrow().link == Link::Up {
            let _ = socket.send_to(&buffer[..length], client).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;
    use crate::process::free_port;

    /// Long enough for a message over loopback to arrive.
    const SOON: Duration = Duration::from_millis(100);
    const BOUND: Duration = Duration::from_secs(10);

    /// Starts an echo server for both protocols.
    async fn echo() -> SocketAddr {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port().unwrap()));
        let listener = TcpListener::bind(address).await.unwrap();
        let socket = UdpSocket::bind(address).await.unwrap();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                tokio::spawn(async move {
                    let (mut from, mut to) = stream.split();
                    tokio::io::copy(&mut from, &mut to).await
                });
            }
        });
        tokio::spawn(async move {
            let mut buffer = [0; 64];
            loop {
                let (length, client) = socket.recv_from(&mut buffer).await.unwrap();
                socket.send_to(&buffer[..length], client).await.unwrap();
            }
        });
        address
    }

    async fn read(stream: &mut TcpStream) -> io::Result<[u8; 4]> {
        let mut buffer = [0; 4];
        stream.read_exact(&mut buffer).await?;
        Ok(buffer)
    }

    /// Returns a stream that has carried a message in both directions.
    async fn carrying(proxy: &Proxy) -> TcpStream {
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        stream.write_all(b"ping").await.unwrap();
        carries(&mut stream, b"ping").await;
        stream
    }

    async fn carries(stream: &mut TcpStream, expected: &[u8; 4]) {
        assert_eq!(&timeout(BOUND, read(stream)).await.unwrap().unwrap(), expected);
    }

    async fn is_reset(mut stream: TcpStream) {
        let error = timeout(BOUND, read(&mut stream)).await.unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }

    #[tokio::test]
    async fn streams_stall_while_the_link_is_silent() {
        let proxy = Proxy::start(echo().await).await.unwrap();
        let mut stream = carrying(&proxy).await;
        proxy.set(Link::Silent);
        stream.write_all(b"late").await.unwrap();
        let mut early = TcpStream::connect(proxy.address()).await.unwrap();
        early.write_all(b"soon").await.unwrap();
        timeout(SOON, read(&mut stream)).await.unwrap_err();
        timeout(SOON, read(&mut early)).await.unwrap_err();

        proxy.set(Link::Up);
        carries(&mut stream, b"late").await;
        carries(&mut early, b"soon").await;
        assert_eq!(proxy.streams(), 2);
    }

    #[tokio::test]
    async fn streams_are_reset_while_the_link_is_reset() {
        let proxy = Proxy::start(echo().await).await.unwrap();
        let stream = carrying(&proxy).await;
        proxy.set(Link::Reset);
        is_reset(stream).await;
        is_reset(TcpStream::connect(proxy.address()).await.unwrap()).await;

        // Streams do not survive a reset, however short.
        proxy.set(Link::Up);
        let stream = carrying(&proxy).await;
        proxy.set(Link::Reset);
        proxy.set(Link::Up);
        is_reset(stream).await;
    }

    #[tokio::test]
    async fn stranded_streams_stay_silent() {
        let proxy = Proxy::start(echo().await).await.unwrap();
        let mut stranded = carrying(&proxy).await;
        proxy.strand();
        stranded.write_all(b"lost").await.unwrap();
        proxy.set(Link::Reset);
        proxy.set(Link::Up);
        timeout(SOON, read(&mut stranded)).await.unwrap_err();
        carrying(&proxy).await;
    }

    #[tokio::test]
    async fn datagrams_are_lost_while_the_link_is_not_up() {
        let proxy = Proxy::start(echo().await).await.unwrap();
        let socket = connected(proxy.address()).await.unwrap();
        let mut buffer = [0; 64];
        for link in [Link::Up, Link::Silent, Link::Reset, Link::Up] {
            proxy.set(link);
            socket.send(b"ping").await.unwrap();
            if link == Link::Up {
                timeout(BOUND, socket.recv(&mut buffer)).await.unwrap().unwrap();
            } else {
                timeout(SOON, socket.recv(&mut buffer)).await.unwrap_err();
            }
        }
        assert_eq!(proxy.datagrams(), 4);
    }
}
