//! Overload: a flood of queries in bursts, whose replies the generator drops, with a few measured
//! queries beside it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Result;
use socket2::SockRef;

use super::batch::send_burst;
use super::flight::Flight;
use super::questions::{BURST, Load};
use super::rate::{Paced, pace};
use super::udp::connected;

/// Queries a second that are watched.
const WATCHED: f64 = 2000.0;

/// Sends so many queries a second for that time. What is given is of those that are watched.
pub(crate) fn flood(server: SocketAddr, load: &Load, per_second: f64, time: Duration) -> Result<Paced> {
    let socket = connected(server)?;
    // A reply that is not read from the socket costs the server as much as any other, and the
    // generator nothing.
    SockRef::from(&socket).set_recv_buffer_size(0)?;
    let gap = Duration::from_secs_f64(BURST as f64 / per_second);
    let (mut ring, mut out, mut due) = (load.ring(), Vec::new(), Instant::now());
    pace(server, load, WATCHED, time, |now| {
        if now >= due
            && let Some(burst) = ring.next()
        {
            Flight::start(burst, BURST, 0, false, &mut out);
            // What there is no room for is not made up for.
            send_burst(&socket, &out, burst.size())?;
            due = (due + gap).max(now);
        }
        Ok(())
    })
}
