//! A file or a stream from one pod to another, over the same path as any frame: `multinet send`
//! pushes it to `multinet recv`; `multinet get` fetches it from `multinet put` ([`mod@get`]).
//!
//! ```text
//!   source ──> send ── frames, one key, at least once ──> recv ──> sink
//!   a thread: reads, hashes                               a thread: puts in order, writes, hashes,
//!                                                         then acknowledges
//! ```
//!
//! Each frame says where in the transfer it belongs ([`header`]). The receiver acknowledges a frame
//! when it has been written; what it refuses, the library reports to the sender, which is how the
//! sender learns that something is wrong. A transfer is known by the sender's session and
//! certificate ([`share`]). At its end ([`ending`]) the sender asks whether size and SHA-256 are
//! right; the receiver has everything on the disk before it says yes, and gives the file its name
//! when it has heard that the sender knows.
//!
//! A receiver that writes to a file and dies leaves what it has written in `FILE.ID.part`, or, if
//! that is all, in `FILE.ID.done` ([`partial`]). One that is started in its place, in the same
//! folder, goes on from there, as the sender keeps everything that has not been acknowledged. A
//! file that is complete has a receipt ([`receipt`]), which stays until the sender knows that the
//! file has been placed. So it is placed once, though it is moved away and the receiver dies.
//!
//! Any number of senders may try ([`transfers`]): each has a partial file of its own, and the first
//! whose transfer is complete has sent it.

mod assembly;
mod destination;
mod ending;
mod files;
mod from;
mod get;
mod header;
mod incoming;
mod line_limit;
mod manifest;
mod own_file;
mod partial;
mod progress;
mod put;
mod receipt;
mod recv;
mod reorder;
mod send;
mod share;
mod sink;
mod source;
mod stall;
mod stream;
mod transfers;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use ring::digest::Digest;

use self::from::FromArgs;
pub(crate) use self::get::{GetArgs, run as get};
pub(crate) use self::put::{PutArgs, run as put};
pub(crate) use self::recv::run as recv;
pub(crate) use self::send::run as send;
use crate::common::{ConnectArgs, DnsArgs, ListenArgs};

/// Longest time that `--wait` may ask for, in seconds: a year.
const MAX_WAIT: u64 = 365 * 24 * 60 * 60;

/// Exit status if the other side has had everything, or this side has, and the other one has not
/// confirmed it or cannot be told.
const NOT_CONFIRMED: u8 = 3;

/// Flags of `multinet send`.
#[derive(Args, Debug)]
#[command(after_help = SEND_EXAMPLES)]
pub(crate) struct SendArgs {
    /// Service whose endpoint receives, or the address of one, with or without a port. Of several
    /// endpoints the first that is connected gets everything
    name: String,

    /// Port: the name of a service port, or a number [default: 18515]. Where it is left out, a file
    /// is named by --file
    port: Option<String>,

    /// File to send; - is standard input
    #[arg(value_name = "FILE", default_value = "-")]
    source: PathBuf,

    /// File to send, where no port is given
    #[arg(short, long, value_name = "FILE", conflicts_with = "source")]
    file: Option<PathBuf>,

    /// Bytes in a frame; no more than the receiver's --frame-size
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20, value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    frame_size: u32,

    /// How long to wait for a receiver, at the beginning and when it has gone; and for one that is
    /// there to take anything, a second more for each MiB of a frame
    #[arg(long, value_name = "SECONDS", default_value_t = 30,
          value_parser = clap::value_parser!(u64).range(..=MAX_WAIT))]
    wait: u64,

    #[command(flatten)]
    connect: ConnectArgs,
}

const SEND_EXAMPLES: &str = "\
Examples:
  multinet send infer.vision.svc.multinet rdma model.safetensors
  multinet send 192.168.100.7:18515 --file model.safetensors
  tar -c data | multinet send 192.168.100.7

Both sides print the size and the SHA-256 of what they have seen. The exit status is 0 only if the receiver has \
written all of it, the two agree, and the file has its name; 3 if the receiver has had all of it, but did not confirm \
that the file has its name; 1 if it failed, also because the file has changed while it was read.";

/// Flags of `multinet recv`.
#[derive(Args, Debug)]
#[command(after_help = RECV_EXAMPLES)]
pub(crate) struct RecvArgs {
    /// Port to listen on
    #[arg(short, long, default_value_t = 18515)]
    port: u16,

    /// File to write; it appears when it is complete. A device, a named pipe or a socket is written
    /// as it comes, and so is -, standard output
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    output: PathBuf,

    /// Replace FILE if it exists
    #[arg(long)]
    force: bool,

    /// Go on with the next transfer, until Ctrl-C. The files are FILE, FILE.1, FILE.2 and so on,
    /// without those that exist
    #[arg(long)]
    keep: bool,

    #[command(flatten)]
    from: FromArgs,

    /// Largest frame that is accepted, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 8 << 20, value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    frame_size: u32,

    /// How long to wait for a sender that has gone in the middle of a transfer, before what it has
    /// sent is removed
    #[arg(long, value_name = "SECONDS", default_value_t = 30,
          value_parser = clap::value_parser!(u64).range(..=MAX_WAIT))]
    wait: u64,

    #[command(flatten)]
    dns: DnsArgs,

    #[command(flatten)]
    listen: ListenArgs,
}

const RECV_EXAMPLES: &str = "\
Examples:
  multinet recv -o model.safetensors
  multinet recv | tar -x
  multinet recv -o model.safetensors --from train.vision.svc.multinet

Several senders may try at once; the first whose transfer is complete has sent the file. A receiver that dies and is \
started again in the same folder goes on with FILE.*.part where it was, and finishes FILE.*.done, which is complete. \
FILE.*.placed without one of these says that a file has got its name; it goes when the sender knows.";

/// Size and checksum of all bytes of a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Summary {
    bytes: u64,
    sha256: String,
}

impl Summary {
    fn new(bytes: u64, digest: &Digest) -> Self {
        let sha256 = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        Self { bytes, sha256 }
    }

    /// Returns the line that both sides print, equal but for the first word and the rate. `moved`
    /// is the number of bytes that this process has sent or received: bytes of an earlier receiver
    /// took none of its time.
    fn line(&self, did: &str, moved: u64, took: Duration) -> String {
        let mebibytes = moved as f64 / f64::from(1 << 20) / took.as_secs_f64().max(1e-9);
        let Self { bytes, sha256 } = self;
        format!("{did} {bytes} bytes, SHA-256 {sha256}, {mebibytes:.1} MiB/s\n")
    }
}
