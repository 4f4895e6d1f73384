//! How long a change takes from the API server to the answer.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams};
use multinet_testing::coredns::CoreDns;
use multinet_testing::dns::{Query, udp_socket};
use multinet_testing::objects::Objects;
use multinet_testing::replica::Replica;
use serde_json::json;

use crate::data::{Kind, SMALL};
use crate::load::Background;

/// Changes per row.
pub(crate) const CHANGES: usize = 500;

/// No change may take longer.
const BOUND: Duration = Duration::from_secs(10);

/// One row per server, idle and under load.
pub(crate) async fn table(objects: &Objects, ours: &Replica, core: &CoreDns) -> Result<String> {
    let mut rows = String::new();
    for loaded in [false, true] {
        for (name, server, kind) in
            [("multinet-dns", ours.dns(), Kind::Ours), ("CoreDNS", core.address(), Kind::Core)]
        {
            let load = if loaded { Some(Background::start(server, kind)?) } else { None };
            let state = if loaded { "under load" } else { "idle" };
            eprintln!("{CHANGES} changes, {name}, {state}");
            let api = objects.api(&kind.slice_types(), Some(SMALL.namespace)).await?;
            let mut delays = Vec::with_capacity(CHANGES);
            for change in 0..CHANGES {
                delays.push(one(&api, server, kind, change).await?);
            }
            drop(load);
            delays.sort_unstable();
            let at = |percent: usize| -> Result<f64> {
                let delay = delays.get(delays.len() * percent / 100).context("no measurement")?;
                Ok(delay.as_secs_f64() * 1e3)
            };
            rows += &format!("| {name}, {state} | {:.1} | {:.1} |\n", at(50)?, at(99)?);
        }
    }
    Ok(rows)
}

/// Gives a service another single address, and asks until the answer has it.
async fn one(api: &Api<DynamicObject>, server: SocketAddr, kind: Kind, change: usize) -> Result<Duration> {
    let service = change % SMALL.services;
    let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(172, 16, 0, 1)) + change as u32);
    let endpoints = json!([{"addresses": [address], "conditions": {"ready": true}, "hostname": "h0"}]);
    let patch = match kind {
        Kind::Ours => json!({"spec": {"endpoints": endpoints}}),
        Kind::Core => json!({"endpoints": endpoints}),
    };
    let name = kind.name(SMALL, service);
    let begun = Instant::now();
    let seen = tokio::task::spawn_blocking(move || -> Result<Duration> {
        let socket = udp_socket(server)?;
        let query = Query::new(&name, "A").to_wire();
        while begun.elapsed() < BOUND {
            let reply = socket.exchange(&query)?;
            if reply.windows(4).any(|octets| octets == address.octets()) {
                return Ok(begun.elapsed());
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        anyhow::bail!("{name} did not become {address}")
    });
    let patched = api.patch(&format!("s{service}"), &PatchParams::default(), &Patch::Merge(&patch)).await?;
    ensure!(patched.metadata.name.is_some(), "the API server gave back nothing");
    seen.await?
}
