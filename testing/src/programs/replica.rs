//! `multinet-dns` as it runs in a cluster: fed by an API server, with a ServiceAccount's token.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use crate::ask::ask_udp;
use crate::dns::Reply;
use crate::wait::eventually;

pub use crate::program::{BOUND, Options, Program as Replica};

impl Options {
    /// A DNS server with the cluster and user of a kubeconfig file, on a port that the kernel picks.
    pub fn new(kubeconfig: &Path) -> Self {
        Self::of("multinet-dns", kubeconfig).port(0)
    }

    /// On that port of loopback, for a DNS server that is to come back at the same place.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.listen = Some(format!("dns://127.0.0.1:{port}"));
        self
    }
}

impl Replica {
    /// Asks over UDP.
    pub async fn ask(&self, name: &str, rtype: &str) -> Result<Reply> {
        ask_udp(self.dns(), name, rtype).await
    }

    /// How many queries it has answered, by its own count.
    pub async fn queries(&self) -> Result<u64> {
        self.metric("multinet_dns_requests_total").await
    }

    /// Waits until the data of an answer are these, in any order; none for a name that does not exist.
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

    /// The serial of its zone.
    pub async fn serial(&self) -> Result<u32> {
        let reply = self.ask("multinet.cluster.local", "SOA").await?;
        reply.serial().with_context(|| format!("no SOA in\n{}", reply.text("")))
    }
}
