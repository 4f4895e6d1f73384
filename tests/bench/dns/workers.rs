//! Workers on a core each, and the generators that they need.
//!
//! With four cores, the generators have cores of their own. With less, each shares one with a
//! worker, and sleeps while there is nothing to do; so it is with one worker, too, to which two are
//! compared.

use std::time::Duration;

use anyhow::Result;

use super::flight::FEW;
use super::questions::Question;
use super::rounds::{self, Outcome};
use super::servers::{Server, pin};
use super::udp::{Shape, saturate};

/// More source ports, so that the kernel deals them out to workers more evenly.
const SHAPE: Shape = Shape { ports: 16, burst: 8, sleeps: false };

/// Whether generators have to share cores with workers.
pub(crate) fn are_cores_shared() -> bool {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get) < 4
}

/// CPU time of a server with so many workers per answer, in microseconds.
pub(crate) fn cost(server: &Server, workers: usize, time: Duration) -> Result<Outcome> {
    let servers: Vec<usize> = (0..workers).collect();
    let generators = if are_cores_shared() { servers.clone() } else { (2..2 + workers).collect() };
    let shape = Shape { sleeps: are_cores_shared(), ..SHAPE };
    pin(server, &servers)?;
    let load = Question::A.load(server.who.zone(), false)?;
    rounds::cost(server, &generators, FEW, || saturate(server.address, &load, shape, time / 10))?;
    rounds::cost(server, &generators, FEW, || saturate(server.address, &load, shape, time))
}
