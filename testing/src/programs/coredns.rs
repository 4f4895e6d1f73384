//! A real CoreDNS.

use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

use crate::ask::ask_udp;
use crate::process::{Process, free_port};
use crate::tools::tool;

/// Time limit to start. It takes a second, but the machine may be busy.
const START: Duration = Duration::from_secs(30);

/// Zone that every CoreDNS in tests serves itself, so that the readiness check needs no upstream.
const READY: &str = "ready.invalid";

/// Running CoreDNS on a port of its own, for UDP and TCP.
#[derive(Debug)]
pub struct CoreDns {
    // Before the folder that it writes to, so that the process is dropped first.
    process: Process,
    address: SocketAddr,
    _folder: TempDir,
}

impl CoreDns {
    /// Starts CoreDNS on loopback, with a server block per pair of zone and plugins. Waits until it
    /// answers.
    pub async fn start(blocks: &[(&str, &str)]) -> Result<Self> {
        Self::start_with(&[], blocks).await
    }

    /// Starts CoreDNS on loopback, with environment variables.
    pub async fn start_with(env: &[(&str, &str)], blocks: &[(&str, &str)]) -> Result<Self> {
        Self::launch(SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?)), env, blocks).await
    }

    /// Starts CoreDNS at an address that other hosts and network namespaces reach, too.
    pub async fn start_at(address: SocketAddr, blocks: &[(&str, &str)]) -> Result<Self> {
        Self::launch(address, &[], blocks).await
    }

    async fn launch(address: SocketAddr, env: &[(&str, &str)], blocks: &[(&str, &str)]) -> Result<Self> {
        let folder = TempDir::with_prefix("multinet-coredns-")?;
        let mut corefile = String::new();
        let ready = (READY, "template ANY ANY {\n    rcode NXDOMAIN\n  }");
        for (zone, plugins) in blocks.iter().chain([&ready]) {
            writeln!(
                corefile,
                "{zone}:{} {{\n  bind {}\n  errors\n  {plugins}\n}}",
                address.port(),
                address.ip()
            )?;
        }
        let path = folder.path().join("Corefile");
        fs::write(&path, &corefile).context("cannot write the Corefile")?;

        let mut command = Command::new(tool("coredns")?);
        command.arg("-conf").arg(&path).current_dir(folder.path()).envs(env.iter().copied());
        let mut process = Process::spawn(&mut command, &folder.path().join("coredns.log"))?;
        process
            .until("answer", START, async || {
                let reply = ask_udp(address, READY, "A").await?;
                ensure!(reply.rcode() == "NXDOMAIN", "it answers {}", reply.text(""));
                Ok(())
            })
            .await
            .with_context(|| format!("with this Corefile:\n{corefile}"))?;
        Ok(Self { process, address, _folder: folder })
    }

    /// Returns the process ID.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Returns the address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}
