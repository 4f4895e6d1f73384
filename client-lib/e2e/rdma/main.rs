//! RDMA by the kernel's verbs: soft-RoCE in a guest.

mod docs;
mod doctor;
mod fallback;
mod fork;
mod gpu;
mod guest;
mod hostile;
mod link;
mod linking;
mod matrix;
mod nearest;
mod peers;
mod removal;
mod soak;
mod stand_in;
mod stripes;
mod turmoil;
mod verbs;

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use futures::stream;
use multinet_client::{ConnectorBuilder, Endpoint, PeerSet, Resolver};
use multinet_testing::guest::LINK;
use multinet_testing::process::run;

/// The longest time that a script may take in the guest. Most take seconds.
const BOUND: Duration = Duration::from_secs(600);

/// The address of the listeners on the link.
const HERE: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);

/// Returns the amount for `make test`, which shows the fact, or that for `make soak`.
fn amount(few: usize, many: usize) -> usize {
    if std::env::var_os(soak::AT_LENGTH).is_some() { many } else { few }
}

/// Returns every third case for `make test`, and all for `make soak`. The cases are variations of
/// one.
fn some<T>(cases: Vec<T>) -> impl Iterator<Item = T> {
    cases.into_iter().step_by(amount(3, 1))
}

/// Returns a resolver without a server, for tests that pass their endpoints.
fn no_resolver() -> Result<Resolver> {
    Ok(Resolver::builder().servers([SocketAddr::from(([127, 0, 0, 1], 9))]).build()?)
}

/// Returns a PeerSet whose endpoints never change.
fn follow(connector: ConnectorBuilder, all: Vec<Endpoint>) -> Result<PeerSet> {
    Ok(connector.build()?.follow("infer", stream::iter([all])))
}

/// Returns the number of queue pairs in the kernel.
fn pairs() -> Result<usize> {
    Ok(pair_lines()?.len())
}

/// Returns the kernel's line for each queue pair.
fn pair_lines() -> Result<Vec<String>> {
    let said = run(Command::new("rdma").args(["resource", "show", "qp"]))?;
    Ok(said.lines().filter(|line| line.contains("type RC")).map(ToOwned::to_owned).collect())
}
