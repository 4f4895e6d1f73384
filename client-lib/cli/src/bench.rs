//! `multinet bench`: measures the network between two pods, and prints the columns of perftest's
//! `ib_write_bw` and `ib_write_lat`.

mod back;
mod bandwidth;
mod client;
mod figures;
mod latency;
mod members;
mod memory;
mod on_request;
mod report;
pub(crate) mod request;
mod server;
mod table;
pub(crate) mod target;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use multinet_client::Rdma;

use self::table::{Test, Unit};
use crate::common::{ConnectArgs, DnsArgs, ListenArgs, TransportArgs};
use crate::output::ReportFormat;
use crate::signals::until_signal;

/// Size in bytes of the largest message of `bench client -a`, as in perftest; the default of `bench
/// server --size`.
const MAX_SIZE: u32 = 8 << 20;

/// Flags of `multinet bench`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    side: Side,
}

const EXAMPLES: &str = "\
Examples:
  multinet bench server
  multinet bench server --matrix infer.vision.svc.multinet
  multinet bench client infer.vision.svc.multinet -a
  multinet bench client 192.168.100.7:18515 -s 1048576 -q 4 -D 10 --report_gbits
  multinet bench client 192.168.100.7 --latency -s 64

The options and columns are those of perftest's ib_write_bw and ib_write_lat, so that the outputs can be laid side by side.";

#[derive(Debug, Subcommand)]
enum Side {
    /// Receive messages of clients, until Ctrl-C
    Server(ServerArgs),
    /// Send messages to servers, and measure how fast they take them
    Client(ClientArgs),
}

/// Flags of `multinet bench server`.
#[derive(Args, Debug)]
struct ServerArgs {
    /// Port to listen on
    #[arg(short, long, default_value_t = 18515)]
    port: u16,

    /// Largest message that is accepted, in bytes
    #[arg(short = 's', long = "size", value_name = "BYTES", default_value_t = MAX_SIZE,
          value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    size: u32,

    /// Messages under way on each connection, at most; fewer, if --memory is not enough for those
    /// of all
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=65535))]
    slots: u32,

    /// Take part in `multinet matrix SERVICE`: measure towards other pods of this service when one
    /// of them asks for it. Only current addresses of the service may then connect at all
    #[arg(long, value_name = "SERVICE", env = "MULTINET_MATRIX")]
    matrix: Option<String>,

    #[command(flatten)]
    device: DeviceArgs,

    #[command(flatten)]
    listen: ListenArgs,

    #[command(flatten)]
    dns: DnsArgs,
}

/// Flags that choose the RDMA device, with perftest's names. Without them, the library finds the
/// device and the GID by the local address.
#[derive(Args, Clone, Debug)]
struct DeviceArgs {
    /// RDMA device to use, and no other
    #[arg(short = 'd', long = "ib-dev", value_name = "DEVICE")]
    device: Option<String>,

    /// GID of this index to use, and no other
    #[arg(short = 'x', long = "gid-index", value_name = "INDEX")]
    gid_index: Option<u32>,

    /// Use messages in the memory of this GPU, by CUDA's number, from 0
    #[arg(long = "use_cuda", visible_alias = "use-cuda", value_name = "GPU")]
    use_cuda: Option<u32>,
}

/// Flags of `multinet bench client`.
#[derive(Args, Debug)]
struct ClientArgs {
    /// Service whose endpoints run the server, or the address of one, with or without a port
    name: String,

    /// Port: the name of a service port, or a number [default: 18515]
    port: Option<String>,

    /// Run all sizes from 2 to 8388608 bytes, in powers of two
    #[arg(short, long, conflicts_with_all = ["size", "duration"])]
    all: bool,

    /// Size of a message in bytes [default: 65536; with --latency 2]
    #[arg(short, long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    size: Option<u32>,

    /// Messages of each size, on each connection [default: 5000; with --latency 1000]
    #[arg(short = 'n', long = "iters", value_name = "COUNT", conflicts_with = "duration",
          value_parser = clap::value_parser!(u64).range(5..=100_000_000))]
    iterations: Option<u64>,

    /// Connections to each server
    #[arg(short = 'q', long = "qp", value_name = "COUNT", default_value_t = 1, conflicts_with = "latency",
          value_parser = clap::value_parser!(u16).range(1..=64))]
    connections: u16,

    /// Run for this time, instead of a number of messages
    #[arg(short = 'D', long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    duration: Option<u64>,

    /// Messages under way on each connection, at most; the server's --slots bound it, too
    #[arg(short, long = "tx-depth", value_name = "COUNT", default_value_t = 128, conflicts_with = "latency",
          value_parser = clap::value_parser!(u64).range(1..=65535))]
    tx_depth: u64,

    /// Bandwidth in Gb/sec instead of MiB/sec
    #[arg(long = "report_gbits", visible_alias = "report-gbits")]
    report_gbits: bool,

    /// Measure the time there and back with one message under way, and print half of it, as
    /// ib_write_lat does. The server connects back to this host for it, on a port that the kernel
    /// chooses
    #[arg(long)]
    latency: bool,

    /// How results are written: in perftest's columns, or with perftest's keys in one document at
    /// the end
    #[arg(short, long, value_enum, default_value_t = ReportFormat::Text)]
    output: ReportFormat,

    #[command(flatten)]
    device: DeviceArgs,

    #[command(flatten)]
    connect: ConnectArgs,
}

/// Length of the measurement of one message size. It ends with what is reached first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    /// Number of messages on each connection.
    count: u64,
    time: Duration,
}

/// Runs `multinet bench server` or `multinet bench client`.
pub(crate) async fn run(args: BenchArgs) -> anyhow::Result<ExitCode> {
    // On a worker thread, where frames are read, too: the main thread would have to be woken for
    // each frame.
    let running = match args.side {
        Side::Server(args) => tokio::spawn(server::run(args)),
        Side::Client(args) => tokio::spawn(until_signal(client::run(args))),
    };
    running.await?
}

impl DeviceArgs {
    fn rdma(&self, transport: TransportArgs) -> Rdma {
        let rdma = match &self.device {
            Some(device) => transport.rdma().device(device),
            None => transport.rdma(),
        };
        match self.gid_index {
            Some(index) => rdma.gid_index(index),
            None => rdma,
        }
    }
}

impl ClientArgs {
    /// Returns how many messages may be under way at a time on each connection.
    fn depth(&self) -> u64 {
        if self.latency { 1 } else { self.tx_depth }
    }

    fn test(&self) -> Test {
        match (self.latency, self.report_gbits) {
            (true, _) => Test::Latency,
            (false, true) => Test::Bandwidth(Unit::Gigabits),
            (false, false) => Test::Bandwidth(Unit::Mebibytes),
        }
    }

    fn extent(&self) -> Extent {
        let default = if self.latency { 1000 } else { 5000 };
        match self.duration {
            Some(seconds) => Extent { count: u64::MAX, time: Duration::from_secs(seconds) },
            None => Extent { count: self.iterations.unwrap_or(default), time: Duration::MAX },
        }
    }

    fn sizes(&self) -> Vec<u32> {
        match (self.all, self.size) {
            (true, _) => (1..=MAX_SIZE.ilog2()).map(|power| 1 << power).collect(),
            (false, Some(size)) => vec![size],
            (false, None) => vec![if self.latency { 2 } else { 65_536 }],
        }
    }
}
