//! Workers on a core each, and their generators.
//!
//! With four cores, the generators have cores of their own. With fewer, each shares a core with a
//! worker, and sleeps while idle. That is so for one worker too, because two workers are compared
//! with one.

use std::time::Duration;

use anyhow::Result;

use super::flight::FEW;
use super::questions::Question;
use super::rounds::{self, Outcome};
use super::servers::{Server, pin};
use super::udp::{Shape, saturate};

/// More source ports, so that the kernel distributes them to workers more evenly.
const SHAPE: Shape = Shape { ports: 16, burst: 8, sleeps: false };

/// Returns whether generators share cores with workers.
pub(crate) fn are_cores_shared() -> bool {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get) < 4
}

/// Measures the CPU time per answer of a server with `workers` workers, in microseconds.
pub(crate) fn cost(server: &Server, workers: usize, time: Duration) -> Result<Outcome> {
    let servers: Vec<usize> = (0..workers).collect();
    let generators = if are_cores_shared() { servers.clone() } else { (2..2 + workers).collect() };
    let shape = Shape { sleeps: are_cores_shared(), ..SHAPE };
    pin(server, &servers)?;
    let load = Question::A.load(server.who.zone(), false)?;
    rounds::cost(server, &generators, FEW, || saturate(server.address, &load, shape, time / 10))?;
    rounds::cost(server, &generators, FEW, || saturate(server.address, &load, shape, time))
}
