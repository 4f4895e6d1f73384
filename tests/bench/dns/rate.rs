//! An open loop over UDP: single packets at a fixed rate, and the latency of each answer.
//!
//! Latency counts from the time when a packet was due, so that it includes a delay of the generator
//! that the server caused.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::Result;
use multinet_testing::measure::median;

use super::flight::Tally;
use super::questions::{Expected, Load, id};
use super::udp::{PATIENCE, connected};

/// Source ports.
const PORTS: usize = 4;

/// After a longer delay, the generator skips the overdue packets, because sending them would flood
/// the server.
const HELD_UP: Duration = Duration::from_millis(1);

/// Bound of open queries on each port, a power of two.
const OPEN: usize = 4096;

/// Parts of a run, whose percentiles are computed separately.
const PARTS: usize = 20;

/// Result of a run at a fixed rate.
#[derive(Debug)]
pub(crate) struct Paced {
    pub(crate) tally: Tally,
    /// The latency of each query, in order; none if it was lost.
    latencies: Vec<Option<Duration>>,
}

impl Paced {
    /// Returns the 99th percentile of latencies in microseconds; a lost query counts as infinite.
    /// It is the median over parts of the run, so that one pause of the machine does not decide.
    pub(crate) fn p99(&self) -> Result<f64> {
        p99(self.latencies.iter().map(|latency| latency.map_or(f64::INFINITY, micros)).collect())
    }

    /// Returns the 99th percentile of the answered queries alone.
    pub(crate) fn p99_of_answered(&self) -> Result<f64> {
        p99(self.latencies.iter().flatten().copied().map(micros).collect())
    }
}

fn micros(latency: Duration) -> f64 {
    latency.as_secs_f64() * 1e6
}

fn p99(latencies: Vec<f64>) -> Result<f64> {
    let parts = latencies.chunks((latencies.len() / PARTS).max(100)).map(|part| {
        let mut part = part.to_vec();
        part.sort_by(f64::total_cmp);
        part.get(part.len() * 99 / 100).copied().unwrap_or(f64::INFINITY)
    });
    median(parts.collect())
}

/// A source port, and its open queries by the low bits of their ids.
struct Port<'l> {
    socket: UdpSocket,
    open: Vec<Option<Open<'l>>>,
    next_id: u16,
}

#[derive(Clone, Copy)]
struct Open<'l> {
    id: u16,
    due: Instant,
    /// The index among all queries.
    number: usize,
    packet: &'l [u8],
    expected: Expected,
}

/// Sends queries at a rate for some time, and runs `between` after each turn.
pub(crate) fn pace(
    server: SocketAddr,
    load: &Load,
    per_second: f64,
    time: Duration,
    mut between: impl FnMut(Instant) -> Result<()>,
) -> Result<Paced> {
    let mut ports = Vec::new();
    for _ in 0..PORTS {
        ports.push(Port { socket: connected(server)?, open: vec![None; OPEN], next_id: fastrand::u16(..) });
    }
    let total = (per_second * time.as_secs_f64()) as usize;
    let gap = Duration::from_secs_f64(1.0 / per_second);
    let mut singles = load.singles();
    let mut paced = Paced { tally: Tally::default(), latencies: vec![None; total] };
    let mut buffer = [0; 2048];
    let (mut due, mut sent) = (Instant::now(), 0);
    while sent < total || ((paced.tally.answered as usize) < sent && due.elapsed() < PATIENCE) {
        for port in &mut ports {
            let now = Instant::now();
            if sent < total
                && now >= due
                && let Some((packet, expected)) = singles.next()
            {
                if now - due > HELD_UP {
                    due = now;
                }
                port.send(Open { id: port.next_id, due, number: sent, packet, expected }, &mut buffer)?;
                (sent, due) = (sent + 1, due + gap);
            }
            port.receive(&mut buffer, &mut paced);
            between(now)?;
        }
    }
    paced.tally.lost = (sent as u64).saturating_sub(paced.tally.answered);
    Ok(paced)
}

impl<'l> Port<'l> {
    fn send(&mut self, query: Open<'l>, buffer: &mut [u8]) -> Result<()> {
        let out = &mut buffer[..query.packet.len()];
        out.copy_from_slice(query.packet);
        out[..2].copy_from_slice(&query.id.to_be_bytes());
        self.socket.send(out)?;
        self.next_id = query.id.wrapping_add(1);
        self.open[usize::from(query.id) % OPEN] = Some(query);
        Ok(())
    }

    fn receive(&mut self, buffer: &mut [u8], paced: &mut Paced) {
        // On any receive error the query counts as lost.
        let Ok(length) = self.socket.recv(buffer) else { return };
        let now = Instant::now();
        let reply = &buffer[..length];
        let open = id(reply).and_then(|id| self.open[usize::from(id) % OPEN].take_if(|open| open.id == id));
        match open {
            Some(open) => {
                paced.tally.count(open.expected.fault(open.packet, reply));
                paced.latencies[open.number] = Some(now.saturating_duration_since(open.due));
            }
            None => paced.tally.count_stray(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_pause_does_not_decide_the_p99() {
        let mut latencies = vec![Some(Duration::from_micros(10)); 20_000];
        latencies[500..900].fill(None);
        let mut paced = Paced { tally: Tally::default(), latencies };
        assert_eq!(paced.p99().unwrap(), 10.0);
        // Two slow queries of a hundred in every part do.
        for hundred in paced.latencies.chunks_mut(100) {
            hundred[..2].fill(Some(Duration::from_micros(500)));
        }
        assert_eq!(paced.p99().unwrap(), 500.0);
        // Lost queries do not count for the percentile of answered ones.
        paced.latencies.iter_mut().skip(2).step_by(2).for_each(|latency| *latency = None);
        assert_eq!((paced.p99().unwrap(), paced.p99_of_answered().unwrap()), (f64::INFINITY, 500.0));
    }
}
