//! The two compared systems: multinet, and the Kubernetes programs for the default network.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use multinet_testing::ask::ask_udp;
use multinet_testing::cluster::Cluster;
use multinet_testing::wait::eventually;

/// Bound for a server to have all data.
const START: Duration = Duration::from_secs(120);

/// One of the two compared systems: its kind of objects, and the programs that follow them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// MultiNetworkServices: `multinet-controller` and `multinet-dns`.
    Ours,
    /// Headless Services: kube-controller-manager and CoreDNS.
    Core,
}

impl Side {
    pub(crate) const BOTH: [Self; 2] = [Self::Ours, Self::Core];

    pub(crate) fn zone(self) -> &'static str {
        match self {
            Self::Ours => "multinet.cluster.local",
            Self::Core => "cluster.local",
        }
    }
}

/// Returns the configuration of CoreDNS' `kubernetes` plugin.
pub(crate) fn kubernetes_plugin(cluster: &Cluster) -> String {
    let kubeconfig = cluster.admin_kubeconfig().display();
    format!("kubernetes {} in-addr.arpa ip6.arpa {{\n    kubeconfig {kubeconfig}\n  }}", Side::Core.zone())
}

/// Waits until a server has addresses for a name.
pub(crate) async fn until_known(server: SocketAddr, name: &str) -> Result<()> {
    eventually(&format!("{name} to resolve"), START, async || {
        let reply = ask_udp(server, name, "A").await?;
        ensure!(reply.rcode() == "NOERROR", "{}", reply.rcode());
        Ok(())
    })
    .await
}
