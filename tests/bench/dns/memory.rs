//! Memory with many endpoints, from the same API server: ours as MultiNetworkServices, with what TXT records are made of;
//! CoreDNS' as headless Services.

use std::time::Duration;

use anyhow::{Result, ensure};
use multinet_testing::ask::ask_udp;
use multinet_testing::cluster::Cluster;
use multinet_testing::coredns::CoreDns;
use multinet_testing::measure::Log;
use multinet_testing::replica::Options;
use multinet_testing::usage::resident_mebibytes;
use multinet_testing::wait::eventually;

use crate::data::{self, Kind, NAMESPACE, Set, hundreds};
use crate::servers::kubernetes_plugin;

/// Resident sets in MiB.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    pub(crate) endpoints: usize,
    pub(crate) ours: Resident,
    pub(crate) core: Resident,
    /// How long both were left alone before they counted as settled.
    pub(crate) rest: Duration,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Resident {
    pub(crate) at_start: f64,
    pub(crate) settled: f64,
}

/// Starts both servers on a cluster with so many services of a hundred endpoints.
pub(crate) async fn measure(services: usize, rest: Duration, log: &Log) -> Result<Memory> {
    let set = hundreds(services);
    let cluster = Cluster::start().await?;
    cluster.apply_crds().await?;
    cluster.apply_rbac().await?;
    let objects = cluster.objects().await?;
    for kind in [Kind::Ours, Kind::Core] {
        log.say(&format!("creating {services} services of {} endpoints, {kind:?}", set.endpoints));
        data::create(&objects, kind, &[set]).await?;
    }
    let kubeconfig = cluster.dns_server_kubeconfig(cluster.address()).await?;
    let ours = Options::new(&kubeconfig).start_ready().await?;
    let core = CoreDns::start(&[(".", &kubernetes_plugin(&cluster))]).await?;
    for (server, kind) in [(ours.dns(), Kind::Ours), (core.address(), Kind::Core)] {
        until_known(server, kind, set).await?;
    }
    let resident = || anyhow::Ok([resident_mebibytes(ours.pid())?, resident_mebibytes(core.pid())?]);
    let at_start = resident()?;
    log.say(&format!("memory at start {at_start:.0?} MiB; now {} s of rest", rest.as_secs()));
    tokio::time::sleep(rest).await;
    let settled = resident()?;
    log.say(&format!("memory settled {settled:.0?} MiB"));
    let [ours, core] =
        [0, 1].map(|place: usize| Resident { at_start: at_start[place], settled: settled[place] });
    Ok(Memory { endpoints: services * set.endpoints, ours, core, rest })
}

async fn until_known(server: std::net::SocketAddr, kind: Kind, set: Set) -> Result<()> {
    let name = format!("{}.{NAMESPACE}.svc.{}", set.service(set.services - 1), kind.zone());
    eventually(&format!("{name} to resolve"), Duration::from_secs(120), async || {
        let reply = ask_udp(server, &name, "A").await?;
        ensure!(reply.rcode() == "NOERROR", "{}", reply.rcode());
        Ok(())
    })
    .await
}
