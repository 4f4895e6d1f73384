//! RDMA with the kernel's verbs, over soft-RoCE in a guest.

mod docs;
mod doctor;
mod fallback;
mod fork;
mod gpu;
mod guest;
mod hostile;
mod link;
mod linking;
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

/// How long a script may take in the guest. Most take seconds.
const BOUND: Duration = Duration::from_secs(600);

/// Where listeners are, on the link.
const HERE: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);

/// So many for `make test`, which show the fact, and so many for `make soak`.
fn amount(few: usize, many: usize) -> usize {
    if std::env::var_os(soak::AT_LENGTH).is_some() { many } else { few }
}

/// Of cases that differ in words only, each third for `make test`, and all for `make soak`.
fn some<T>(cases: Vec<T>) -> impl Iterator<Item = T> {
    cases.into_iter().step_by(amount(3, 1))
}

/// A resolver for those who are told of their endpoints.
fn nobody() -> Result<Resolver> {
    Ok(Resolver::builder().servers([SocketAddr::from(([127, 0, 0, 1], 9))]).build()?)
}

/// A PeerSet of these endpoints, for ever.
fn follow(connector: ConnectorBuilder, all: Vec<Endpoint>) -> Result<PeerSet> {
    Ok(connector.build()?.follow("infer", stream::iter([all])))
}

/// How many queue pairs the kernel knows of.
fn pairs() -> Result<usize> {
    Ok(pairs_in_words()?.len())
}

/// What the kernel says of each queue pair.
fn pairs_in_words() -> Result<Vec<String>> {
    let said = run(Command::new("rdma").args(["resource", "show", "qp"]))?;
    Ok(said.lines().filter(|line| line.contains("type RC")).map(ToOwned::to_owned).collect())
}
