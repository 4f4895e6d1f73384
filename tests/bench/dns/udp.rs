//! A closed loop over UDP: bursts from several source ports, each sent after the answers to the
//! port's last burst. So the server is always busy, and its queue never overflows.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::MsgFlags;

use super::batch::{Batch, send_burst};
use super::flight::{Flight, Tally};
use super::questions::{BURST, Load};

/// Time after which a query counts as lost.
pub(crate) const PATIENCE: Duration = Duration::from_millis(500);

/// Settings of the generator.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// Source ports.
    pub(crate) ports: usize,
    /// Packets per burst; the next burst waits for their answers.
    pub(crate) burst: usize,
    /// Whether it sleeps while idle, because it shares its core with the server.
    pub(crate) sleeps: bool,
}

/// Generator on a core of its own. The open queries fit into the server's receive buffer of 208
/// KiB, Linux' default.
pub(crate) const OWN_CORE: Shape = Shape { ports: 4, burst: BURST, sleeps: false };

/// Generator with each query from a port of its own, so that the server sends each reply alone.
pub(crate) const APART: Shape = Shape { ports: 64, burst: 1, sleeps: false };

/// A source port.
struct Port<'l> {
    socket: UdpSocket,
    flight: Option<Flight<'l>>,
    next_id: u16,
}

/// Sends queries for some time, and then waits for the open ones.
pub(crate) fn saturate(server: SocketAddr, load: &Load, shape: Shape, time: Duration) -> Result<Tally> {
    let mut ports = Vec::new();
    for _ in 0..shape.ports {
        ports.push(Port { socket: connected(server)?, flight: None, next_id: fastrand::u16(..) });
    }
    let (mut ring, mut tally) = (load.ring(), Tally::default());
    let (mut batch, mut out) = (Batch::<()>::new(), Vec::new());
    let end = Instant::now() + time;
    loop {
        let now = Instant::now();
        let (mut is_idle, mut is_over) = (true, now >= end);
        for port in &mut ports {
            if now < end
                && port.flight.is_none()
                && let Some(burst) = ring.next()
            {
                let flight = Flight::start(burst, shape.burst, port.next_id, false, &mut out);
                // A socket with a full buffer is tried again in the next turn.
                if send_burst(&port.socket, &out, burst.size())? {
                    port.next_id = port.next_id.wrapping_add(shape.burst as u16);
                    port.flight = Some(flight);
                    is_idle = false;
                }
            }
            is_idle &= batch.receive(&port.socket, MsgFlags::MSG_DONTWAIT)? == 0;
            for reply in batch.messages() {
                match &mut port.flight {
                    Some(flight) => flight.take(reply, &mut tally),
                    None => tally.count_stray(),
                }
            }
            port.flight.take_if(|flight| flight.is_over() || flight.expire(now, PATIENCE, &mut tally));
            is_over &= port.flight.is_none();
        }
        if is_over {
            return Ok(tally);
        }
        if is_idle && shape.sleeps {
            wait(&ports)?;
        }
    }
}

/// Opens a socket that receives from one server only.
pub(crate) fn connected(server: SocketAddr) -> Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.connect(server)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn wait(ports: &[Port<'_>]) -> Result<()> {
    let mut sockets: Vec<_> =
        ports.iter().map(|port| PollFd::new(port.socket.as_fd(), PollFlags::POLLIN)).collect();
    poll(&mut sockets, PollTimeout::try_from(PATIENCE)?)?;
    Ok(())
}
