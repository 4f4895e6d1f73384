//! Load by dnsperf, and what it costs the server.

use std::io::Write as _;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use multinet_testing::usage::cpu_seconds;
use tempfile::NamedTempFile;

use crate::data::{Kind, SMALL};

/// How long each load lasts, in seconds.
const SECONDS: u32 = 5;

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Question {
    A,
    Nxdomain,
    Srv,
}

impl Question {
    /// For the table.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::A => "A, 3 addresses",
            Self::Nxdomain => "NXDOMAIN",
            Self::Srv => "SRV, 3 targets with addresses",
        }
    }

    fn line(self, kind: Kind, service: usize) -> String {
        let name = kind.name(SMALL, service);
        match self {
            Self::A => format!("{name} A"),
            Self::Nxdomain => format!("no-{name} A"),
            Self::Srv => format!("_rdma._tcp.{name} SRV"),
        }
    }

    /// What dnsperf prints beside the queries that were answered as expected.
    fn rcode(self) -> &'static str {
        if self == Self::Nxdomain { "NXDOMAIN" } else { "NOERROR" }
    }
}

/// Microseconds of user and system time that the process spends per query.
pub(crate) fn cpu_per_query(pid: u32, server: SocketAddr, kind: Kind, question: Question) -> Result<f64> {
    pin(pid, 0)?;
    let file = query_file(kind, question)?;
    let before = cpu_seconds(pid)?;
    let output = dnsperf(server, &file, &["-l", &SECONDS.to_string(), "-q", "100"])
        .output()
        .context("cannot start dnsperf; run tests/tools/packages.sh")?;
    let spent = cpu_seconds(pid)? - before;
    let text = String::from_utf8(output.stdout)?;
    let completed: f64 = field(&text, "Queries completed:")?.parse()?;
    ensure!(completed > 1000.0, "dnsperf got hardly an answer:\n{text}");
    let codes = text.lines().find(|line| line.contains("Response codes:")).unwrap_or_default();
    ensure!(codes.contains(&format!("{} ", question.rcode())) && codes.contains("(100.00%)"), "{codes}");
    Ok(spent * 1e6 / completed)
}

/// A load of 10,000 queries a second that lasts until it is dropped, and for two minutes at most.
pub(crate) struct Background(Child, #[expect(dead_code, reason = "dnsperf reads it")] NamedTempFile);

impl Background {
    /// Begins to ask for addresses.
    pub(crate) fn start(server: SocketAddr, kind: Kind) -> Result<Self> {
        let file = query_file(kind, Question::A)?;
        let child = dnsperf(server, &file, &["-l", "120", "-Q", "10000", "-q", "100"]).spawn()?;
        Ok(Self(child, file))
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn query_file(kind: Kind, question: Question) -> Result<NamedTempFile> {
    let mut file = NamedTempFile::new()?;
    for service in 0..SMALL.services {
        writeln!(file, "{}", question.line(kind, service))?;
    }
    file.flush()?;
    Ok(file)
}

fn dnsperf(server: SocketAddr, file: &NamedTempFile, flags: &[&str]) -> Command {
    let mut command = Command::new("taskset");
    command
        .args(["-c", "1", "dnsperf", "-s", &server.ip().to_string(), "-p", &server.port().to_string()])
        .args(["-e", "-d"])
        .arg(file.path())
        .args(flags)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    command
}

/// Keeps all threads of a process on one core.
fn pin(pid: u32, core: u32) -> Result<()> {
    let output =
        Command::new("taskset").args(["-a", "-c", "-p", &core.to_string(), &pid.to_string()]).output()?;
    ensure!(output.status.success(), "taskset: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// The first word behind `label`.
fn field<'t>(text: &'t str, label: &str) -> Result<&'t str> {
    let (_, rest) = text.split_once(label).with_context(|| format!("no {label:?} in\n{text}"))?;
    rest.split_whitespace().next().context("nothing follows")
}
