//! A closed loop over TCP: many queries by one write on each of several connections, and the next
//! ones after all answers.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use socket2::SockRef;

use super::flight::{Flight, Tally};
use super::questions::{BURST, Load};

const CONNECTIONS: usize = 4;

/// Bound for replies. A stream loses nothing, so a later reply means a fault.
const PATIENCE: Duration = Duration::from_secs(10);

/// Bytes per read: more than a burst of the longest replies.
const ROOM: usize = 128 << 10;

/// A connection, and the part of a reply that was read.
struct Connection<'l> {
    stream: TcpStream,
    flight: Option<Flight<'l>>,
    next_id: u16,
    out: Vec<u8>,
    written: usize,
    buffer: Vec<u8>,
    filled: usize,
}

/// Sends queries for some time, and then waits for the open ones.
pub(crate) fn saturate(server: SocketAddr, load: &Load, time: Duration) -> Result<Tally> {
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        connections.push(Connection::open(server)?);
    }
    let (mut ring, mut tally) = (load.ring(), Tally::default());
    let end = Instant::now() + time;
    loop {
        let now = Instant::now();
        let mut is_over = now >= end;
        for connection in &mut connections {
            if now < end
                && connection.flight.is_none()
                && let Some(burst) = ring.next()
            {
                let id = connection.next_id;
                connection.flight = Some(Flight::start(burst, BURST, id, true, &mut connection.out));
                connection.next_id = id.wrapping_add(BURST as u16);
                connection.written = 0;
            }
            connection.write()?;
            connection.read(&mut tally)?;
            if let Some(flight) = &mut connection.flight {
                ensure!(!flight.expire(now, PATIENCE, &mut tally), "replies over TCP are missing");
                if flight.is_over() {
                    connection.flight = None;
                }
            }
            is_over &= connection.flight.is_none();
        }
        if is_over {
            return Ok(tally);
        }
    }
}

impl Connection<'_> {
    fn open(server: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(server)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            flight: None,
            next_id: fastrand::u16(..),
            out: Vec::new(),
            written: 0,
            buffer: vec![0; ROOM],
            filled: 0,
        })
    }

    fn write(&mut self) -> Result<()> {
        if self.written < self.out.len() {
            match self.stream.write(&self.out[self.written..]) {
                Ok(written) => self.written += written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn read(&mut self, tally: &mut Tally) -> Result<()> {
        match self.stream.read(&mut self.buffer[self.filled..]) {
            Ok(0) => bail!("the server has closed a connection"),
            Ok(read) => self.filled += read,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        // Otherwise a server that uses Nagle's algorithm would wait for delayed acknowledgements,
        // 40 ms each time. The kernel forgets this option soon.
        SockRef::from(&self.stream).set_tcp_quickack(true)?;
        let mut rest = &self.buffer[..self.filled];
        while let Some((length, tail)) = rest.split_first_chunk()
            && let Some((reply, tail)) = tail.split_at_checked(usize::from(u16::from_be_bytes(*length)))
        {
            match &mut self.flight {
                Some(flight) => flight.take(reply, tally),
                None => tally.count_stray(),
            }
            rest = tail;
        }
        let (rest, filled) = (rest.len(), self.filled);
        self.buffer.copy_within(filled - rest..filled, 0);
        self.filled = rest;
        Ok(())
    }
}
