//! The order of address records. `--answer-order fixed` is tested in `truncation`, and the rotation
//! of any answer in `dns-server/src/answer/compose.rs`.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Context, Result, ensure};
use multinet_testing::dns::{Query, Reply, Transport};
use multinet_testing::server::{Flags, Manifests, Server};

use crate::fixtures::{Service, name};

/// Number of the service's addresses of each family.
const ADDRESSES: usize = 5;

fn start() -> Result<(Manifests, Server)> {
    let manifests = Manifests::new()?;
    let service = (1..=ADDRESSES as u8).fold(Service::new("ring"), |service, n| {
        let v6 = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n.into());
        service.endpoint(Ipv4Addr::new(10, 0, 0, n)).endpoint(v6)
    });
    manifests.write("ring.yaml", &service.yaml())?;
    let server = Flags::new().start(manifests.path())?;
    Ok((manifests, server))
}

/// Returns the addresses in the order of the message.
fn addresses(reply: &Reply) -> Result<Vec<IpAddr>> {
    let last = |line: String| line.rsplit(' ').next().map(str::parse);
    reply
        .answers()
        .into_iter()
        .map(|line| last(line).context("an empty record")?.context("no address"))
        .collect()
}

/// Fails unless each answer is a rotation of the first, and every address comes first in some
/// answer.
fn check_rotation(replies: &[Vec<IpAddr>]) -> Result<()> {
    let mut ring = replies.first().context("no replies")?.clone();
    ring.sort_unstable();
    let mut first = BTreeSet::new();
    for reply in replies {
        let begin =
            ring.iter().position(|address| Some(address) == reply.first()).context("an empty answer")?;
        let mut expected = ring.clone();
        expected.rotate_left(begin);
        ensure!(*reply == expected, "{reply:?} is no rotation of {ring:?}");
        first.insert(begin);
    }
    ensure!(first.len() == ADDRESSES, "only {} of {ADDRESSES} addresses ever come first", first.len());
    Ok(())
}

#[test]
fn the_order_of_addresses_rotates_by_default() -> Result<()> {
    let (_manifests, server) = start()?;
    for transport in Transport::ALL {
        for qtype in ["A", "AAAA"] {
            let query = Query::new(&name("ring"), qtype);
            let replies: Result<Vec<_>> =
                (0..60).map(|_| addresses(&transport.ask(server.dns(), &query)?)).collect();
            check_rotation(&replies?).with_context(|| format!("{qtype} over {transport:?}"))?;
        }
    }
    Ok(())
}
