//! Bandwidth and round trips of `multinet bench` and of comparable programs.

use std::fs;
use std::process::Command;
use std::slice::from_ref;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use multinet_testing::bench::{Table, at_least, at_most, figure, text};
use multinet_testing::measure::{Log, PipedProcess, cpu_of_children, median, output};
use multinet_testing::perftest::ucx_row;
use multinet_testing::process::free_port;
use serde_json::Value;

use super::fetches::AT_ONCE;
use super::roles::Role;
use super::trips;

/// Smallest message size with a target relative to iperf3.
const IPERF_FROM: u32 = 64 << 10;

/// Smallest share of iperf3's bandwidth.
const IPERF_TARGET: f64 = 0.95;

/// Largest ratio to the round trip of a bare echo.
const ECHO_TARGET: f64 = 1.15;

/// Largest block size of iperf3.
const IPERF_MAX: u32 = 1 << 20;

/// Test of UCX that reads the other side's memory.
const GET: &str = "ucp_get";

/// Time limit for a server to listen.
const PATIENCE: Duration = Duration::from_secs(10);

const GIB: f64 = (1_u64 << 30) as f64;

/// Bandwidth and CPU of one program.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bandwidth {
    /// Bytes a second.
    pub(crate) bandwidth: f64,
    /// User and system time of both sides, in seconds per GiB.
    pub(crate) cpu: f64,
}

/// Measures bandwidth and CPU for messages of each size, in rounds in which the programs take
/// turns.
pub(crate) fn bandwidths(sizes: &[u32], seconds: u64, rounds: usize, log: &Log) -> Result<Table> {
    let columns =
        "bytes | multinet | iperf3 | UCX | / iperf3 | target | / UCX | target | CPU: multinet | iperf3 | UCX";
    let note = format!("In GiB a second, and in seconds per GiB; medians of {rounds} rounds.");
    let mut table = Table::new("Bandwidth", note, columns);
    for &size in sizes {
        log.print(&format!("bandwidth, {size} bytes"));
        let [mut ours, mut iperfs, mut ucxs] = [const { Vec::new() }; 3];
        for _ in 0..rounds {
            ours.push(multinet(size, seconds)?);
            iperfs.push(iperf(size.min(IPERF_MAX), seconds)?);
            // UCX has several interfaces. Which one is faster varies.
            let [tags, stream] = [ucx("tag_bw", size, seconds)?, ucx("stream_bw", size, seconds)?];
            ucxs.push(if tags.bandwidth > stream.bandwidth { tags } else { stream });
        }
        let all = [ours, iperfs, ucxs];
        let rates = all.each_ref().map(|runs| runs.iter().map(|run| run.bandwidth / GIB).collect::<Vec<_>>());
        let (of_iperf, of_ucx) = (over(&rates[0], &rates[1])?, over(&rates[0], &rates[2])?);
        let above = if of_ucx > 1.0 { "above 1: met" } else { "above 1: **missed**" };
        let of_iperf = figure([of_iperf], 3);
        let target = at_least((size >= IPERF_FROM).then_some(IPERF_TARGET), from_ref(&of_iperf));
        let ratios = [of_iperf, target, figure([of_ucx], 3), text(above)];
        let cpu = all.map(|runs| figure(runs.iter().map(|run| run.cpu), 2));
        table.row(
            [text(size)].into_iter().chain(rates.map(|rates| figure(rates, 2))).chain(ratios).chain(cpu),
        );
    }
    Ok(table)
}

/// Measures round trips of 64 bytes.
pub(crate) fn round_trips(trips: usize, rounds: usize) -> Result<Table> {
    let [mut ours, mut acknowledged, mut ucxs, mut echoes] = [const { Vec::new() }; 4];
    for _ in 0..rounds {
        ours.push(multinet_trip(trips::SIZE as u32, trips)?);
        let (_server, address) = Role::Receiver { kept: 0 }.start()?;
        let client = Role::Asker { server: address.parse()?, trips };
        acknowledged.push(client.start()?.1.parse()?);
        ucxs.push(ucx_trip(trips)?);
        let (_server, address) = Role::EchoServer.start()?;
        let client = Role::EchoClient { server: address.parse()?, trips };
        echoes.push(client.start()?.1.parse()?);
    }
    let note = format!("In microseconds; medians of {rounds} rounds.");
    let columns = " | time | / UCX | / echo | target";
    let mut table = Table::new("Round trip of 64 bytes", note, columns);
    for (what, times) in [
        (
            "a frame there, a frame back (`multinet bench client --latency -s 64`, whose columns show half of it)",
            &ours,
        ),
        ("a frame there, the acknowledgement of the receiver's code back (at least once)", &acknowledged),
    ] {
        let of_echo = figure([over(times, &echoes)?], 2);
        let verdict = at_most(Some(ECHO_TARGET), from_ref(&of_echo));
        let cells = [figure(times.clone(), 1), figure([over(times, &ucxs)?], 2), of_echo, verdict];
        table.row([text(what)].into_iter().chain(cells));
    }
    for (what, times) in [("UCX", ucxs), ("a bare tokio echo", echoes)] {
        table.row([text(what), figure(times, 1), text(""), text(""), text("")]);
    }
    Ok(table)
}

/// Returns the ratio of the medians.
pub(crate) fn over(ours: &[f64], theirs: &[f64]) -> Result<f64> {
    Ok(median(ours.to_vec())? / median(theirs.to_vec())?)
}

/// Runs a client and its server, which return bandwidth and number of bytes. Returns the bandwidth
/// and the CPU of both.
fn costed(run: impl FnOnce() -> Result<(f64, f64)>) -> Result<Bandwidth> {
    let before = cpu_of_children()?;
    let (bandwidth, bytes) = run()?;
    Ok(Bandwidth { bandwidth, cpu: (cpu_of_children()? - before) / (bytes / GIB) })
}

pub(crate) fn multinet(size: u32, seconds: u64) -> Result<Bandwidth> {
    costed(|| {
        let result = multinet_bench(&["-s", &size.to_string(), "-D", &seconds.to_string()])?;
        let bandwidth = number(&result, "BW_average")? * f64::from(1 << 20);
        Ok((bandwidth, number(&result, "n_iterations")? * f64::from(size)))
    })
}

/// Returns the median time of a frame there and a frame back, in microseconds.
pub(crate) fn multinet_trip(size: u32, trips: usize) -> Result<f64> {
    let (size, count) = (size.to_string(), trips.to_string());
    Ok(number(&multinet_bench(&["--latency", "-s", &size, "-n", &count])?, "t_typical")? * 2.0)
}

/// Runs `multinet bench`. Returns its result.
fn multinet_bench(options: &[&str]) -> Result<Value> {
    let program = std::env::var("MULTINET_BIN").context("MULTINET_BIN does not name the multinet binary")?;
    let command = || {
        let mut command = Command::new(&program);
        command.env_remove("RUST_LOG").arg("bench");
        command
    };
    let port = free_port()?;
    let mut server = command();
    server.args(["server", "--address", "127.0.0.1", "--port", &port.to_string()]);
    let mut server = PipedProcess::start(&mut server)?;
    until_listening(port)?;
    let mut client = command();
    client.args(["client", &format!("127.0.0.1:{port}"), "--output", "json"]).args(options);
    let mut document: Value = serde_json::from_str(&output(&mut client)?)?;
    server.kill()?;
    Ok(document["results"][0].take())
}

fn number(document: &Value, key: &str) -> Result<f64> {
    document[key].as_f64().with_context(|| format!("no {key} in {document}"))
}

fn iperf(size: u32, seconds: u64) -> Result<Bandwidth> {
    costed(|| {
        let port = free_port()?;
        let mut server = Command::new("iperf3");
        let mut server =
            PipedProcess::start(server.args(["-s", "-1", "-B", "127.0.0.1", "-p", &port.to_string()]))?;
        until_listening(port)?;
        let mut client = Command::new("iperf3");
        client.args(["-c", "127.0.0.1", "-p", &port.to_string(), "-J"]);
        client.args(["-l", &size.to_string(), "-t", &seconds.to_string()]);
        let document: Value = serde_json::from_str(&output(&mut client)?)?;
        server.kill()?;
        let sum = &document["end"]["sum_received"];
        Ok((number(sum, "bits_per_second")? / 8.0, number(sum, "bytes")?))
    })
}

fn ucx(test: &str, size: u32, seconds: u64) -> Result<Bandwidth> {
    let messages = ucx_messages(test, size, seconds)?;
    // The messages of its warm-up cost as much.
    let bytes = (messages + warm_up(messages)) as f64 * f64::from(size);
    costed(|| Ok((ucx_bandwidth(test, size, messages)?, bytes)))
}

/// Returns the bytes per second by which UCX reads the other side's memory, as a fetch does.
pub(crate) fn ucx_get(size: u32, seconds: u64) -> Result<f64> {
    ucx_bandwidth(GET, size, ucx_messages(GET, size, seconds)?)
}

/// Returns the median time in which UCX reads from the other side's memory, in microseconds.
pub(crate) fn ucx_get_time(size: u32, count: usize) -> Result<f64> {
    Ok(*ucx_figures(GET, size, count as u64, Some(1))?.get(1).context("too few columns")?)
}

/// Returns the number of messages that UCX, which needs one, moves in the given time. A short run
/// tells it.
fn ucx_messages(test: &str, size: u32, seconds: u64) -> Result<u64> {
    let few = (32_u64 << 20) / u64::from(size);
    let many = ucx_bandwidth(test, size, few.max(10))? * seconds as f64 / f64::from(size);
    Ok((many as u64).clamp(20, 10_000_000))
}

/// Returns the bytes per second, after both processes have ended.
fn ucx_bandwidth(test: &str, size: u32, messages: u64) -> Result<f64> {
    // This is "overall_bw", in units of 2^20 bytes per second.
    let outstanding = (test == GET).then_some(AT_ONCE);
    Ok(ucx_figures(test, size, messages, outstanding)?.get(5).context("too few columns")?
        * f64::from(1 << 20))
}

fn ucx_trip(trips: usize) -> Result<f64> {
    let figures = ucx_figures("tag_lat", trips::SIZE as u32, trips as u64, None)?;
    // This is the median of one direction.
    Ok(figures.get(1).context("too few columns")? * 2.0)
}

fn ucx_figures(test: &str, size: u32, messages: u64, outstanding: Option<usize>) -> Result<Vec<f64>> {
    let port = free_port()?;
    let mut server = PipedProcess::start(ucx_command().args(["-p", &port.to_string()]))?;
    until_listening(port)?;
    let warm_up = warm_up(messages).to_string();
    let mut client = ucx_command();
    client.args(["127.0.0.1", "-p", &port.to_string(), "-t", test, "-s", &size.to_string()]);
    if let Some(count) = outstanding {
        client.args(["-O", &count.to_string()]);
    }
    let text = output(client.args(["-n", &messages.to_string(), "-w", &warm_up, "-f", "-v"]))?;
    server.kill()?;
    ucx_row(&text)
}

fn warm_up(messages: u64) -> u64 {
    (messages / 10).clamp(5, 1000)
}

fn ucx_command() -> Command {
    let mut command = Command::new("ucx_perftest");
    // UCX uses the loopback interface only if it is named.
    command.envs([("UCX_TLS", "tcp"), ("UCX_NET_DEVICES", "lo"), ("UCX_LOG_LEVEL", "error")]);
    command
}

/// Waits until a process listens on the port, by the kernel's table. A test connection would be
/// taken for a client.
fn until_listening(port: u16) -> Result<()> {
    let (local, begin) = (format!(":{port:04X}"), Instant::now());
    let listens = |line: &str| {
        // The fields are a number, the local and the remote address, and the state; 0A is LISTEN.
        let fields: Vec<&str> = line.split_whitespace().take(4).collect();
        matches!(fields[..], [_, ours, _, "0A"] if ours.ends_with(&local))
    };
    while !fs::read_to_string("/proc/net/tcp")?.lines().any(listens) {
        ensure!(begin.elapsed() < PATIENCE, "no process listens on port {port}");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
