//! The compared programs, each as a server and a client.

use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use multinet_testing::measure::{PipedProcess, output};
use multinet_testing::perftest::{rows, ucx_row};
use multinet_testing::process::workspace_binary;

/// Addresses of the device: the clients of other programs write from [`CLIENT`] to [`SERVER`].
/// `multinet bench` writes the other way round, because it uses the GID from which the kernel's
/// route to the server begins.
pub(crate) const SERVER: &str = "10.9.0.1";
pub(crate) const CLIENT: &str = "10.9.0.2";

const DEVICE: &str = "rxe0";

/// Time limit for a server to listen.
const PATIENCE: Duration = Duration::from_secs(30);

/// Largest memory for slots, unless a message is larger. All of it is locked for each connection,
/// and the guest has little memory.
const SLOTS: u32 = 64 << 20;

/// Smallest message size for which perftest prints the bandwidth with more digits than the message
/// rate.
const DIGITS: u32 = 4 << 10;

/// Largest message that UCX copies into the request itself.
const UCX_SHORT: u32 = 64;
/// Largest message that UCX copies to its own memory, and largest active message.
const UCX_COPIED: u32 = 8 << 10;

/// Smallest active message of UCX.
const UCX_HEADER: u32 = 8;

/// Messages to send.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) size: u32,
    pub(crate) pairs: u16,
    /// Number of messages on each queue pair.
    pub(crate) iterations: u64,
}

impl Load {
    fn options(self) -> [String; 4] {
        ["-s".to_owned(), self.size.to_string(), "-n".to_owned(), self.iterations.to_string()]
    }

    /// Returns the messages per second in the output of a program with perftest's columns.
    fn rate(self, said: &str) -> Result<f64> {
        let all = rows(said, self.size);
        let [row] = &all[..] else { bail!("no row of results for {} bytes: {said}", self.size) };
        let [_, _, bandwidth, rate] = row[..] else { bail!("an odd row of results: {row:?}") };
        let by_bandwidth = bandwidth * f64::from(1 << 20) / f64::from(self.size);
        let rate = if self.size >= DIGITS { by_bandwidth } else { rate * 1e6 };
        // perftest prints other numbers if the clock is too unsteady.
        ensure!(rate.is_finite() && rate > 0.0, "a rate of {rate}");
        Ok(rate)
    }
}

pub(crate) fn perftest_rate(load: Load) -> Result<f64> {
    load.rate(&perftest("ib_write_bw", load, &["-q", &load.pairs.to_string()])?)
}

pub(crate) fn perftest_latency(load: Load) -> Result<f64> {
    typical(&perftest("ib_write_lat", load, &[])?, load.size)
}

fn perftest(program: &str, load: Load, more: &[&str]) -> Result<String> {
    let port = port();
    let command = |row: &str| {
        let mut command = Command::new(program);
        command.args(["-F", "-d", DEVICE, "-p", &port.to_string(), "-x", &variable(row)?]);
        command.args(load.options()).args(more);
        anyhow::Ok(command)
    };
    pair(&mut command("SERVER_ROW")?, command("CLIENT_ROW")?.arg(SERVER), port)
}

pub(crate) fn multinet_rate(load: Load) -> Result<f64> {
    load.rate(&multinet(load, &["-q", &load.pairs.to_string()], 0)?)
}

/// Measures the latency. Both sides poll for `busy` microseconds before they sleep.
pub(crate) fn multinet_latency(load: Load, busy: u32) -> Result<f64> {
    typical(&multinet(load, &["--latency"], busy)?, load.size)
}

fn multinet(load: Load, more: &[&str], busy: u32) -> Result<String> {
    let (port, binary) = (port().to_string(), workspace_binary("multinet", "MULTINET_BIN")?);
    let slots = (SLOTS / load.size).clamp(8, 128).to_string();
    let command = |side: &str| {
        let mut command = Command::new(&binary);
        command.env_remove("RUST_LOG").args(["bench", side, "-d", DEVICE, "--transport", "rdma"]);
        command.args(["--busy-poll", &busy.to_string()]);
        command
    };
    let mut server = command("server");
    server.args(["--address", CLIENT, "--port", &port, "-s", &load.size.to_string(), "--slots", &slots]);
    let mut client = command("client");
    client.args([CLIENT, &port, "-x", &variable("SERVER_ROW")?]).args(load.options()).args(more);
    pair(&mut server, &mut client, port.parse()?)
}

/// Measures the transport layer of UCX with one queue pair. Its layer for applications cannot be
/// used here, because it connects by unreliable datagrams, which soft-RoCE loses.
pub(crate) fn ucx_rate(test: &str, load: Load) -> Result<f64> {
    let port = port().to_string();
    let command = |row: &str| {
        let mut command = Command::new("ucx_perftest");
        command.env("UCX_IB_GID_INDEX", variable(row)?).env("UCX_LOG_LEVEL", "error").args(["-p", &port]);
        anyhow::Ok(command)
    };
    let layout = match load.size {
        size if size <= UCX_SHORT => "short",
        size if size <= UCX_COPIED => "bcopy",
        _ => "zcopy",
    };
    let warm_up = (load.iterations / 10).max(1);
    let mut client = command("CLIENT_ROW")?;
    client.args([SERVER, "-t", test, "-d", &format!("{DEVICE}:1"), "-x", "rc_verbs", "-D", layout]);
    client.args(load.options()).args(["-w", &warm_up.to_string(), "-f", "-v"]);
    let said = pair(&mut command("SERVER_ROW")?, &mut client, port.parse()?)?;
    // This is "overall_mr".
    ucx_row(&said)?.get(7).copied().context("too few columns")
}

/// Returns the tests of UCX that send messages of this size. Which one is faster varies.
pub(crate) fn ucx_tests(size: u32) -> &'static [&'static str] {
    if (UCX_HEADER..=UCX_COPIED).contains(&size) { &["put_bw", "am_bw"] } else { &["put_bw"] }
}

fn typical(said: &str, size: u32) -> Result<f64> {
    let all = rows(said, size);
    // The columns are iterations, minimum, maximum and typical.
    let typical = all.first().and_then(|row| row.get(3)).copied();
    let typical = typical.with_context(|| format!("no row of results for {size} bytes: {said}"))?;
    ensure!(typical.is_finite() && typical > 0.0, "a latency of {typical}");
    Ok(typical)
}

/// Runs a server and a client. Returns the client's output.
fn pair(server: &mut Command, client: &mut Command, port: u16) -> Result<String> {
    let mut server = PipedProcess::start(server)?;
    let begun = Instant::now();
    while !listens(port)? {
        ensure!(begun.elapsed() < PATIENCE, "no process listens on port {port}");
        sleep(Duration::from_millis(10));
    }
    let said = output(client)?;
    server.kill()?;
    Ok(said)
}

/// Returns whether a process listens on the port, by the kernel's tables. These servers would take
/// a test connection for their client.
fn listens(port: u16) -> Result<bool> {
    let mut sockets = String::new();
    for file in ["/proc/net/tcp", "/proc/net/tcp6"] {
        sockets += &fs::read_to_string(file)?;
    }
    let is_it = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        matches!(words[..], [_, local, _, "0A", ..] if local.ends_with(&format!(":{port:04X}")))
    };
    Ok(sockets.lines().any(is_it))
}

/// Returns a port that no earlier program has used.
fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(18_600);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn variable(name: &str) -> Result<String> {
    std::env::var(name).with_context(|| format!("{name} is not set"))
}
