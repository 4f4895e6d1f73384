//! `multinet-dns` as in a cluster: it follows an API server, with a ServiceAccount's token.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use crate::ask::ask_udp;
use crate::dns::Reply;
use crate::wait::eventually;

pub use crate::program::{BOUND, Options, Program as Replica};

impl Options {
    /// Returns the options of a DNS server for the cluster and user of a kubeconfig file, on a port
    /// that the kernel picks.
    pub fn new(kubeconfig: &Path) -> Self {
        Self::of("multinet-dns", kubeconfig).port(0)
    }

    /// Sets the port on loopback, for a DNS server that is restarted at the same address.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.listen = Some(format!("dns://127.0.0.1:{port}"));
        self
    }
}

impl Replica {
    /// Sends a query over UDP.
    pub async fn ask(&self, name: &str, rtype: &str) -> Result<Reply> {
        ask_udp(self.dns(), name, rtype).await
    }

    /// Returns the number of answered queries, by the server's metric.
    pub async fn queries(&self) -> Result<u64> {
        self.metric("multinet_dns_requests_total").await
    }

    /// Waits until an answer has these data, in any order. No data stand for a name that does not
    /// exist.
    pub async fn answers(&self, name: &str, rtype: &str, data: &[&str]) -> Result<()> {
        let rcode = if data.is_empty() { "NXDOMAIN" } else { "NOERROR" };
        let mut data = data.to_vec();
        data.sort_unstable();
        eventually(&format!("{name} {rtype} to be {data:?}"), BOUND, async || {
            let reply = self.ask(name, rtype).await?;
            ensure!(reply.rcode() == rcode && reply.data() == data, "it is\n{}", reply.text(""));
            Ok(())
        })
        .await
    }

    /// Returns the serial of the zone.
    pub async fn serial(&self) -> Result<u32> {
        let reply = self.ask("multinet.cluster.local", "SOA").await?;
        reply.serial().with_context(|| format!("no SOA in\n{}", reply.text("")))
    }
}
