//! Bandwidth and round trips, by `multinet bench` and by its peers.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use multinet_testing::measure::{Process, cpu_of_children, middle, output};
use multinet_testing::perftest::ucx_row;
use multinet_testing::process::free_port;
use serde_json::Value;

use crate::echo;
use crate::roles::Role;

/// iperf3 takes no longer blocks.
const IPERF_MAX: u32 = 1 << 20;

/// How long a server may take to listen.
const PATIENCE: Duration = Duration::from_secs(10);

const GIB: f64 = (1_u64 << 30) as f64;

/// What one program got done.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bandwidth {
    /// Bytes a second.
    pub(crate) bandwidth: f64,
    /// User and system time of both sides, in seconds per GiB.
    pub(crate) cpu: f64,
}

/// Medians of one size.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bandwidths {
    pub(crate) multinet: Bandwidth,
    pub(crate) iperf: Bandwidth,
    pub(crate) ucx: Bandwidth,
}

/// Medians of 64 bytes there and back, in microseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RoundTrips {
    /// A frame back.
    pub(crate) multinet: f64,
    /// An acknowledgement back.
    pub(crate) acknowledged: f64,
    pub(crate) ucx: f64,
    pub(crate) echo: f64,
}

pub(crate) fn bandwidths(size: u32, seconds: u64, rounds: usize) -> Result<Bandwidths> {
    let [mut ours, mut iperfs, mut ucxs] = [const { Vec::new() }; 3];
    for _ in 0..rounds {
        ours.push(multinet(size, seconds)?);
        iperfs.push(iperf(size.min(IPERF_MAX), seconds)?);
        // UCX has several interfaces, of which now one is faster, now another.
        let [tags, stream] = [ucx("tag_bw", size, seconds)?, ucx("stream_bw", size, seconds)?];
        ucxs.push(if tags.bandwidth > stream.bandwidth { tags } else { stream });
    }
    Ok(Bandwidths { multinet: median(ours)?, iperf: median(iperfs)?, ucx: median(ucxs)? })
}

pub(crate) fn round_trips(trips: usize, rounds: usize) -> Result<RoundTrips> {
    let [mut ours, mut acknowledged, mut ucxs, mut echoes] = [const { Vec::new() }; 4];
    for _ in 0..rounds {
        ours.push(multinet_trip(trips)?);
        let (_server, address) = Role::Acknowledger.start()?;
        let client = Role::Asker { server: address.parse()?, trips };
        acknowledged.push(client.start()?.1.parse()?);
        ucxs.push(ucx_trip(trips)?);
        let (_server, address) = Role::EchoServer.start()?;
        let client = Role::EchoClient { server: address.parse()?, trips };
        echoes.push(client.start()?.1.parse()?);
    }
    let acknowledged = middle(acknowledged)?;
    Ok(RoundTrips { multinet: middle(ours)?, acknowledged, ucx: middle(ucxs)?, echo: middle(echoes)? })
}

/// What a client and its server, which ends with it or is killed, cost together.
fn costed(server: &mut Command, client: impl FnOnce() -> Result<(f64, f64)>) -> Result<Bandwidth> {
    let before = cpu_of_children()?;
    let mut server = Process::start(server)?;
    let (bandwidth, bytes) = client()?;
    server.kill()?;
    Ok(Bandwidth { bandwidth, cpu: (cpu_of_children()? - before) / (bytes / GIB) })
}

fn multinet(size: u32, seconds: u64) -> Result<Bandwidth> {
    let port = free_port()?;
    let mut server = multinet_command()?;
    server.args(["bench", "server", "--address", "127.0.0.1", "--port", &port.to_string()]);
    costed(&mut server, || {
        until_listening(port)?;
        let mut client = multinet_command()?;
        client.args(["bench", "client", &format!("127.0.0.1:{port}"), "--output", "json"]);
        let document: Value = serde_json::from_str(&output(client.args([
            "-s",
            &size.to_string(),
            "-D",
            &seconds.to_string(),
        ]))?)?;
        let result = &document["results"][0];
        let number = |key: &str| result[key].as_f64().with_context(|| format!("no {key} in {document}"));
        Ok((number("BW_average")? * f64::from(1 << 20), number("n_iterations")? * f64::from(size)))
    })
}

fn iperf(size: u32, seconds: u64) -> Result<Bandwidth> {
    let port = free_port()?.to_string();
    let mut server = Command::new("iperf3");
    // Its server serves one client and ends; a connection that only looks whether it listens would be that client.
    costed(server.args(["-s", "-1", "-B", "127.0.0.1", "-p", &port]), || {
        std::thread::sleep(Duration::from_millis(300));
        let mut client = Command::new("iperf3");
        client.args([
            "-c",
            "127.0.0.1",
            "-p",
            &port,
            "-l",
            &size.to_string(),
            "-t",
            &seconds.to_string(),
            "-J",
        ]);
        let document: Value = serde_json::from_str(&output(&mut client)?)?;
        let sum = &document["end"]["sum_received"];
        let number = |key: &str| sum[key].as_f64().with_context(|| format!("no {key} in {sum}"));
        Ok((number("bits_per_second")? / 8.0, number("bytes")?))
    })
}

fn ucx(test: &str, size: u32, seconds: u64) -> Result<Bandwidth> {
    // It wants a number of messages; a short run tells how many are sent in that time.
    let few = (32_u64 << 20) / u64::from(size);
    let (bandwidth, _) = ucx_client(test, size, few.max(10))?;
    let many = bandwidth * seconds as f64 / f64::from(size);
    let before = cpu_of_children()?;
    let messages = (many as u64).clamp(20, 10_000_000);
    let (bandwidth, _) = ucx_client(test, size, messages)?;
    // What it sends to warm up costs as much.
    let bytes = (messages + warm_up(messages)) as f64 * f64::from(size);
    Ok(Bandwidth { bandwidth, cpu: (cpu_of_children()? - before) / (bytes / GIB) })
}

/// Bandwidth and bytes. Both processes have ended.
fn ucx_client(test: &str, size: u32, messages: u64) -> Result<(f64, f64)> {
    let figures = ucx_figures(test, size, messages)?;
    // "overall_bw", in units of 2^20 bytes a second.
    let bandwidth = figures.get(5).context("too few columns")? * f64::from(1 << 20);
    Ok((bandwidth, messages as f64 * f64::from(size)))
}

fn ucx_trip(trips: usize) -> Result<f64> {
    let figures = ucx_figures("tag_lat", echo::SIZE as u32, trips as u64)?;
    // The median, of one way.
    Ok(figures.get(1).context("too few columns")? * 2.0)
}

fn ucx_figures(test: &str, size: u32, messages: u64) -> Result<Vec<f64>> {
    let port = free_port()?.to_string();
    let mut server = Process::start(ucx_command().args(["-p", &port]))?;
    std::thread::sleep(Duration::from_millis(300));
    let warm_up = warm_up(messages).to_string();
    let mut client = ucx_command();
    client.args(["127.0.0.1", "-p", &port, "-t", test, "-s", &size.to_string()]);
    let text = output(client.args(["-n", &messages.to_string(), "-w", &warm_up, "-f", "-v"]))?;
    server.kill()?;
    ucx_row(&text)
}

fn warm_up(messages: u64) -> u64 {
    (messages / 10).clamp(5, 1000)
}

fn ucx_command() -> Command {
    let mut command = Command::new("ucx_perftest");
    // Without the device it leaves the loopback interface alone.
    command.envs([("UCX_TLS", "tcp"), ("UCX_NET_DEVICES", "lo"), ("UCX_LOG_LEVEL", "error")]);
    command
}

fn multinet_trip(trips: usize) -> Result<f64> {
    let port = free_port()?;
    let mut server = multinet_command()?;
    let _server = Process::start(server.args([
        "bench",
        "server",
        "--address",
        "127.0.0.1",
        "--port",
        &port.to_string(),
    ]))?;
    until_listening(port)?;
    let mut client = multinet_command()?;
    client.args(["bench", "client", &format!("127.0.0.1:{port}"), "--latency", "--output", "json"]);
    let text = output(client.args(["-s", &echo::SIZE.to_string(), "-n", &trips.to_string()]))?;
    let document: Value = serde_json::from_str(&text)?;
    let half = document["results"][0]["t_typical"].as_f64();
    Ok(half.with_context(|| format!("no t_typical in {document}"))? * 2.0)
}

fn multinet_command() -> Result<Command> {
    let path = std::env::var("MULTINET_BIN").context("MULTINET_BIN has to name the multinet binary")?;
    let mut command = Command::new(path);
    command.env_remove("RUST_LOG");
    Ok(command)
}

fn until_listening(port: u16) -> Result<()> {
    let (address, begin) = (SocketAddr::from((Ipv4Addr::LOCALHOST, port)), Instant::now());
    while TcpStream::connect(address).is_err() {
        if begin.elapsed() > PATIENCE {
            bail!("nothing listens on {address}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// The run with the median bandwidth.
fn median(mut runs: Vec<Bandwidth>) -> Result<Bandwidth> {
    runs.sort_by(|a, b| a.bandwidth.total_cmp(&b.bandwidth));
    runs.get(runs.len() / 2).copied().context("nothing was measured")
}
