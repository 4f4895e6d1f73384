//! The servers, each with one thread per transport, on a loopback port of its own.

use std::any::Any;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use multinet_testing::cluster::Cluster;
use multinet_testing::coredns::CoreDns;
use multinet_testing::measure;
use multinet_testing::process::{Process, free_port, remove_at_exit};
use multinet_testing::server::Flags;
use multinet_testing::usage::family;
use tempfile::TempDir;

use super::data::{LONG, NAMESPACE, SMALL, manifests, zone_file};
use super::echo;
use crate::side::{Side, kubernetes_plugin, until_known};

/// Server under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Who {
    Ours,
    Knot,
    Nsd,
    Core,
    Echo,
}

impl Who {
    pub(crate) const ALL: [Self; 5] = [Self::Ours, Self::Knot, Self::Nsd, Self::Core, Self::Echo];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ours => "multinet-dns",
            Self::Knot => "Knot",
            Self::Nsd => "NSD",
            Self::Core => "CoreDNS",
            Self::Echo => "echo",
        }
    }

    pub(crate) fn zone(self) -> &'static str {
        if self == Self::Core { Side::Core.zone() } else { Side::Ours.zone() }
    }
}

/// A running server.
pub(crate) struct Server {
    pub(crate) who: Who,
    pub(crate) pid: u32,
    pub(crate) address: SocketAddr,
    /// The process and its files, which end with this.
    _held: Box<dyn Any + Send + Sync>,
}

impl Server {
    /// Starts multinet-dns with the manifests of all services.
    pub(crate) fn ours(workers: usize) -> Result<Self> {
        let folder = folder()?;
        fs::write(folder.path().join("objects.yaml"), manifests(&[SMALL, LONG])?)?;
        let flags = Flags::new().flag("--udp-workers", workers.to_string());
        let mut server = flags.start(folder.path())?;
        let (pid, address) = (server.process().pid(), server.dns());
        Ok(Self { who: Who::Ours, pid, address, _held: Box::new((server, folder)) })
    }

    pub(crate) async fn knot() -> Result<Self> {
        let folder = folder()?;
        let (zone, path, port) = (Side::Ours.zone(), folder.path().display(), free_port()?);
        fs::write(folder.path().join("zone"), zone_file(&[SMALL, LONG])?)?;
        let configuration = format!(
            "server:\n  rundir: {path}\n  listen: 127.0.0.1@{port}\n  udp-workers: 1\n  tcp-workers: 1\n  background-workers: 1\n\
             database:\n  storage: {path}/db\n\
             zone:\n  - domain: {zone}\n    file: {path}/zone\n    zonefile-sync: -1\n    journal-content: none\n"
        );
        fs::write(folder.path().join("knot.conf"), configuration)?;
        let mut command = Command::new("knotd");
        command.arg("-c").arg(folder.path().join("knot.conf"));
        Self::daemon(Who::Knot, command, port, folder).await
    }

    /// Starts NSD. Minimal responses, without authority and the name server's address, match the
    /// answers of the other servers. But they also lack the addresses of SRV targets, so SRV is
    /// measured without `is_minimal`.
    pub(crate) async fn nsd(is_minimal: bool) -> Result<Self> {
        let folder = folder()?;
        let (zone, path, port) = (Side::Ours.zone(), folder.path().display(), free_port()?);
        let minimal = if is_minimal { "yes" } else { "no" };
        fs::write(folder.path().join("zone"), zone_file(&[SMALL, LONG])?)?;
        let configuration = format!(
            "server:\n  server-count: 1\n  ip-address: 127.0.0.1@{port}\n  username: \"\"\n  zonesdir: {path}\n  database: \"\"\n\
             \x20 pidfile: {path}/nsd.pid\n  xfrdfile: {path}/xfrd.state\n  zonelistfile: {path}/zone.list\n  xfrdir: {path}\n\
             \x20 minimal-responses: {minimal}\n  rrl-ratelimit: 0\n  rrl-whitelist-ratelimit: 0\n\
             remote-control:\n  control-enable: no\n\
             zone:\n  name: {zone}\n  zonefile: zone\n"
        );
        fs::write(folder.path().join("nsd.conf"), configuration)?;
        let mut command = Command::new("nsd");
        command.arg("-d").arg("-c").arg(folder.path().join("nsd.conf"));
        Self::daemon(Who::Nsd, command, port, folder).await
    }

    /// Starts CoreDNS with its `kubernetes` plugin alone.
    pub(crate) async fn core(cluster: &Cluster) -> Result<Self> {
        let core = CoreDns::start_with(&[("GOMAXPROCS", "1")], &[(".", &kubernetes_plugin(cluster))]).await?;
        let server = Self { who: Who::Core, pid: core.pid(), address: core.address(), _held: Box::new(core) };
        server.knows_all().await?;
        Ok(server)
    }

    pub(crate) fn echo() -> Result<Self> {
        let mut process =
            measure::PipedProcess::start(Command::new(std::env::current_exe()?).arg(echo::ROLE))?;
        let address = process.line()?.parse()?;
        Ok(Self { who: Who::Echo, pid: process.pid(), address, _held: Box::new(process) })
    }

    async fn daemon(who: Who, mut command: Command, port: u16, folder: TempDir) -> Result<Self> {
        // Debian installs daemons in sbin, which an ordinary user's PATH lacks.
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
        let process = Process::spawn(&mut command, &folder.path().join("log"))?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let server = Self { who, pid: process.pid(), address, _held: Box::new((process, folder)) };
        server.knows_all().await?;
        Ok(server)
    }

    /// Waits until the server answers for the last service.
    async fn knows_all(&self) -> Result<()> {
        let name = format!("{}.{NAMESPACE}.svc.{}", LONG.service(0), self.who.zone());
        until_known(self.address, &name).await.context(self.who.name())
    }
}

/// Creates a folder that is removed on drop, and when this program is killed.
fn folder() -> Result<TempDir> {
    let folder = TempDir::with_prefix("multinet-bench-")?;
    remove_at_exit(folder.path())?;
    Ok(folder)
}

/// Pins all threads of a server and of its child processes to these cores.
pub(crate) fn pin(server: &Server, cores: &[usize]) -> Result<()> {
    let cores = cores.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    for pid in family(server.pid)? {
        let output = Command::new("taskset").args(["-a", "-c", "-p", &cores, &pid.to_string()]).output();
        let output = output.context("cannot start taskset")?;
        ensure!(output.status.success(), "taskset: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}
