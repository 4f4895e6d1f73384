//! Memory with many endpoints from one API server: multinet-dns with MultiNetworkServices, and
//! with the data of TXT records; CoreDNS with headless Services.

use std::time::Duration;

use anyhow::Result;
use multinet_testing::cluster::Cluster;
use multinet_testing::coredns::CoreDns;
use multinet_testing::measure::Log;
use multinet_testing::replica::Options;
use multinet_testing::usage::resident_mebibytes;

use super::data::{self, NAMESPACE, hundreds};
use crate::side::{Side, kubernetes_plugin, until_known};

/// Resident sets of multinet-dns and CoreDNS, in MiB.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    pub(crate) endpoints: usize,
    pub(crate) at_start: [f64; 2],
    pub(crate) settled: [f64; 2],
    /// Pause before the resident sets counted as settled.
    pub(crate) rest: Duration,
}

/// Starts both servers on a cluster with many services of a hundred endpoints each.
pub(crate) async fn measure(services: usize, rest: Duration, log: &Log) -> Result<Memory> {
    let set = hundreds(services);
    let cluster = Cluster::start().await?;
    cluster.apply_crds().await?;
    cluster.apply_rbac().await?;
    let objects = cluster.objects().await?;
    for side in Side::BOTH {
        log.print(&format!("creating {services} services of {} endpoints, {side:?}", set.endpoints));
        data::create(&objects, side, &[set]).await?;
    }
    let kubeconfig = cluster.dns_server_kubeconfig(cluster.address()).await?;
    let ours = Options::new(&kubeconfig).start_ready().await?;
    let core = CoreDns::start(&[(".", &kubernetes_plugin(&cluster))]).await?;
    for (server, side) in [(ours.dns(), Side::Ours), (core.address(), Side::Core)] {
        let name = format!("{}.{NAMESPACE}.svc.{}", set.service(set.services - 1), side.zone());
        until_known(server, &name).await?;
    }
    let resident = || anyhow::Ok([resident_mebibytes(ours.pid())?, resident_mebibytes(core.pid())?]);
    let at_start = resident()?;
    log.print(&format!("memory at start {at_start:.0?} MiB; waiting {} s", rest.as_secs()));
    tokio::time::sleep(rest).await;
    let settled = resident()?;
    log.print(&format!("memory settled {settled:.0?} MiB"));
    Ok(Memory { endpoints: services * set.endpoints, at_start, settled, rest })
}
