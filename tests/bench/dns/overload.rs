//! Overload: a flood of queries in bursts, whose replies are dropped, and a few measured queries.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Result;
use socket2::SockRef;

use super::batch::send_burst;
use super::flight::Flight;
use super::questions::{BURST, Load};
use super::rate::{Paced, pace};
use super::udp::connected;

/// Measured queries per second.
const WATCHED: f64 = 2000.0;

/// Sends queries at a rate for some time, and returns the outcome of the measured ones.
pub(crate) fn flood(server: SocketAddr, load: &Load, per_second: f64, time: Duration) -> Result<Paced> {
    let socket = connected(server)?;
    // An unread reply costs the server as much as any other, and the generator nothing.
    SockRef::from(&socket).set_recv_buffer_size(0)?;
    let gap = Duration::from_secs_f64(BURST as f64 / per_second);
    let (mut ring, mut out, mut due) = (load.ring(), Vec::new(), Instant::now());
    pace(server, load, WATCHED, time, |now| {
        if now >= due
            && let Some(burst) = ring.next()
        {
            Flight::start(burst, BURST, 0, false, &mut out);
            // Packets that did not fit are not sent later.
            send_burst(&socket, &out, burst.size())?;
            due = (due + gap).max(now);
        }
        Ok(())
    })
}
