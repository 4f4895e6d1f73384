//! Compares `multinet-dns` with CoreDNS' kubernetes plugin, both fed with the same data by the same API server, and
//! prints their part of `docs/benchmarks.md`.
//!
//! Run by `make bench`, on release builds. Every load is bounded and on loopback.

#![forbid(unsafe_code)]

mod data;
mod latency;
mod load;

use std::io::{self, Write as _};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use multinet_testing::cluster::Cluster;
use multinet_testing::coredns::CoreDns;
use multinet_testing::measure::middle;
use multinet_testing::replica::{Options, Replica};
use multinet_testing::usage::resident_mebibytes;
use multinet_testing::wait::eventually;

use crate::data::{Kind, LARGE, SMALL};
use crate::load::{Question, cpu_per_query};

/// How often each load is repeated; medians are shown.
const ROUNDS: usize = 3;

#[tokio::main]
async fn main() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.apply_crds().await?;
    cluster.apply_rbac().await?;
    let objects = cluster.objects().await?;

    eprintln!("creating {} endpoints of each kind", SMALL.endpoints());
    data::create(&objects, SMALL).await?;
    let (ours, core) = servers(&cluster).await?;
    wait_for(&ours, &core, SMALL).await?;
    let small = (resident_mebibytes(ours.pid())?, resident_mebibytes(core.pid())?);
    let queries = queries(&ours, &core)?;
    let delays = latency::table(&objects, &ours, &core).await?;
    drop((ours, core));

    eprintln!("creating {} endpoints of each kind", LARGE.endpoints());
    data::create(&objects, LARGE).await?;
    let (ours, core) = servers(&cluster).await?;
    wait_for(&ours, &core, LARGE).await?;
    let large = (resident_mebibytes(ours.pid())?, resident_mebibytes(core.pid())?);

    io::stdout().write_all(page(&queries, &delays, small, large)?.as_bytes())?;
    Ok(())
}

async fn servers(cluster: &Cluster) -> Result<(Replica, CoreDns)> {
    let kubeconfig = cluster.dns_server_kubeconfig(cluster.address()).await?;
    let ours = Options::new(&kubeconfig).start_ready().await?;
    let admin = cluster.admin_kubeconfig().display();
    let plugins = format!("kubernetes cluster.local in-addr.arpa ip6.arpa {{\n    kubeconfig {admin}\n  }}");
    let core = CoreDns::start(&[(".", &plugins)]).await?;
    Ok((ours, core))
}

/// Waits until both servers know the last service of a data set.
async fn wait_for(ours: &Replica, core: &CoreDns, set: data::Set) -> Result<()> {
    for (server, kind) in [(ours.dns(), Kind::Ours), (core.address(), Kind::Core)] {
        let name = kind.name(set, set.services - 1);
        eventually(&format!("{name} to resolve"), Duration::from_secs(120), async || {
            let reply = multinet_testing::ask::ask_udp(server, &name, "A").await?;
            anyhow::ensure!(reply.rcode() == "NOERROR", "{}", reply.rcode());
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// One row per question: CPU per query of ours and of CoreDNS, in microseconds, and their ratio.
fn queries(ours: &Replica, core: &CoreDns) -> Result<String> {
    let mut rows = String::new();
    for question in [Question::A, Question::Nxdomain, Question::Srv] {
        let (mut our_costs, mut core_costs) = (Vec::new(), Vec::new());
        // In turn, so that a slow moment of the machine meets both.
        for round in 0..ROUNDS {
            eprintln!("{} queries, round {}", question.name(), round + 1);
            our_costs.push(cpu_per_query(ours.pid(), ours.dns(), Kind::Ours, question)?);
            core_costs.push(cpu_per_query(core.pid(), core.address(), Kind::Core, question)?);
        }
        let (our_cost, core_cost) = (middle(our_costs)?, middle(core_costs)?);
        rows += &format!(
            "| {} | {our_cost:.1} | {core_cost:.1} | {:.1} |\n",
            question.name(),
            core_cost / our_cost
        );
    }
    Ok(rows)
}

fn page(queries: &str, delays: &str, small: (f64, f64), large: (f64, f64)) -> Result<String> {
    let version = String::from_utf8(Command::new("uname").arg("-sm").output()?.stdout)?;
    let cores = std::thread::available_parallelism()?;
    Ok(format!(
        "Written by `make bench`. The peer is CoreDNS 1.14.7 with its kubernetes plugin, in the same run, with the same data in\n\
         the same API server: for every MultiNetworkService a headless Service, for every slice an EndpointSlice. Machine:\n\
         {cores} cores, {}.\n\n\
         ### CPU per query\n\n\
         User and system time of the server's process in microseconds, over UDP on loopback, server and dnsperf on a core\n\
         each; median of {ROUNDS} rounds. {} services of {} endpoints.\n\n\
         | question | multinet-dns | CoreDNS | CoreDNS / multinet-dns |\n|---|---|---|---|\n{queries}\n\
         ### Memory\n\n\
         Resident set in MiB after start and sync.\n\n\
         | endpoints | multinet-dns | CoreDNS | CoreDNS / multinet-dns |\n|---|---|---|---|\n\
         | {} | {:.0} | {:.0} | {:.1} |\n| {} | {:.0} | {:.0} | {:.1} |\n\n\
         ### From slice to answer\n\n\
         From sending the PATCH of a slice to the API server until a query is answered with the changed address,\n\
         {} changes one after the other, in milliseconds. Under load, each server answers 10,000 queries a second meanwhile.\n\n\
         | | p50 | p99 |\n|---|---|---|\n{delays}",
        version.trim(),
        SMALL.services,
        SMALL.endpoints_each,
        SMALL.endpoints(),
        small.0,
        small.1,
        small.1 / small.0,
        LARGE.endpoints(),
        large.0,
        large.1,
        large.1 / large.0,
        latency::CHANGES,
    ))
}
