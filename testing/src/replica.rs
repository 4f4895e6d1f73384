//! `multinet-dns` as it runs in a cluster: fed by an API server, with a ServiceAccount's token.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use reqwest::StatusCode;
use tempfile::TempDir;

use crate::ask::ask_udp;
use crate::dns::Reply;
use crate::http;
use crate::process::Process;
use crate::server::command;
use crate::wait::eventually;

/// How long anything may take: to start, to sync, to see a change, to end. Usually it is a fraction of a second, but the
/// machine may be busy, and a dead connection is given up after 35 s.
pub const BOUND: Duration = Duration::from_secs(60);

/// A running `multinet-dns`.
#[derive(Debug)]
pub struct Replica {
    // Before the folder that it writes to, so that it is dropped first.
    process: Process,
    dns: SocketAddr,
    tls: Option<SocketAddr>,
    admin: SocketAddr,
    _folder: TempDir,
}

/// What a replica is started with.
#[derive(Debug, Clone)]
pub struct Options {
    kubeconfig: PathBuf,
    listen: String,
    flags: Vec<String>,
}

impl Options {
    /// A replica with the cluster and user of a kubeconfig file, on a port that the kernel picks.
    pub fn new(kubeconfig: &Path) -> Self {
        Self { kubeconfig: kubeconfig.to_owned(), listen: "dns://127.0.0.1:0".to_owned(), flags: Vec::new() }
    }

    /// On that port of loopback, for a replica that is to come back at the same place.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.listen = format!("dns://127.0.0.1:{port}");
        self
    }

    /// With one more flag and its value.
    #[must_use]
    pub fn flag(mut self, name: &str, value: impl AsRef<Path>) -> Self {
        self.flags.extend([name.to_owned(), value.as_ref().display().to_string()]);
        self
    }

    /// Starts the replica, and waits until it listens. It need not be ready by then.
    pub async fn start(&self) -> Result<Replica> {
        let folder = TempDir::with_prefix("multinet-dns-")?;
        let mut command = command()?;
        command
            .env("KUBECONFIG", &self.kubeconfig)
            .args(["--listen", &self.listen, "--admin", "127.0.0.1:0", "--lameduck", "0s"])
            .args(["--log-format", "plain"])
            .args(&self.flags);
        let mut process = Process::spawn(&mut command, &folder.path().join("multinet-dns.log"))?;
        let dns = address(&mut process, "listening on dns://").await?;
        let tls = if self.flags.iter().any(|flag| flag.starts_with("tls://")) {
            Some(address(&mut process, "listening on tls://").await?)
        } else {
            None
        };
        let admin = address(&mut process, "admin on http://").await?;
        Ok(Replica { process, dns, tls, admin, _folder: folder })
    }

    /// Starts the replica, and waits until it is ready.
    pub async fn start_ready(&self) -> Result<Replica> {
        let replica = self.start().await?;
        replica.ready().await?;
        Ok(replica)
    }
}

impl Replica {
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Where it answers plain DNS, over UDP and TCP.
    pub fn dns(&self) -> SocketAddr {
        self.dns
    }

    /// Where it answers DNS over TLS.
    pub fn tls(&self) -> Result<SocketAddr> {
        self.tls.context("started without a tls:// listener")
    }

    /// The running program.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Asks over UDP.
    pub async fn ask(&self, name: &str, rtype: &str) -> Result<Reply> {
        ask_udp(self.dns, name, rtype).await
    }

    /// Waits until it is ready.
    pub async fn ready(&self) -> Result<()> {
        eventually("multinet-dns to be ready", BOUND, async || {
            let (status, body) = self.readyz().await?;
            ensure!(status.is_success(), "/readyz: {status}: {body}");
            Ok(())
        })
        .await
    }

    /// What `/readyz` says.
    pub async fn readyz(&self) -> Result<(StatusCode, String)> {
        http::get_any(&format!("http://{}/readyz", self.admin)).await
    }

    /// How many queries it has answered, by its own count.
    pub async fn queries(&self) -> Result<u64> {
        self.metric("multinet_dns_requests_total").await
    }

    /// The sum of a metric's samples whose names and labels begin with `prefix`; zero while there is none, but
    /// an error if there is no such metric.
    pub async fn metric(&self, prefix: &str) -> Result<u64> {
        http::metric(self.admin, prefix).await
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

    /// SIGKILL.
    pub fn kill(&mut self) -> Result<()> {
        self.process.kill()
    }

    /// SIGTERM, and waits for the end.
    pub async fn terminate(&mut self) -> Result<ExitStatus> {
        self.process.terminate(BOUND).await
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        self.process.log()
    }
}

async fn address(process: &mut Process, line: &str) -> Result<SocketAddr> {
    let text = process.logged(line, BOUND).await?;
    text.trim_end_matches('/').parse().with_context(|| format!("{line}{text}"))
}
