//! `multinet bench --verbs`: RDMA writes and nothing else, as `ib_write_bw` and `ib_write_lat` have them. What frames cost beside the device
//! is the difference to `multinet bench` without.
//!
//! The two sides tell each other what they have by a TCP connection, a line of JSON each. It stays as long as one size is measured.

mod bandwidth;
mod buffers;
pub(super) mod client;
mod latency;
pub(super) mod server;

use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroUsize;
use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use multinet_client::gid::{self, LinkLayer, Local};
use multinet_client::verbs::{
    Class, Completion, Depths, Domain, Endpoint, Fresh, Library, Pair, Path, Queue, Remote, Write,
};
use multinet_client::{Forced, Gpu, Method, nic};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use self::buffers::Buffers;
use super::DeviceArgs;
use super::memory::Memory;
use crate::common::TransportArgs;

/// Of what the two sides say.
const VERSION: u32 = 2;

/// The most queue pairs of one measurement.
const MOST_PAIRS: usize = 64;

/// The most writes under way on one of them.
const MOST_DEPTH: u16 = 512;

/// So many immediates may come before they are taken note of.
const RECEIVES: u16 = 4;

/// The longest line.
const MOST_LINE: u64 = 64 << 10;

/// Number of the completions that tell of the other side's writes.
const RECEIVED: u64 = u64::MAX;

/// What is used on this side.
#[derive(Clone)]
struct Setup {
    device: DeviceArgs,
    /// Where messages lie, if not in the machine's memory.
    gpu: Option<Arc<dyn Gpu>>,
    /// How the device is to reach its memory.
    forced: Forced,
    class: Class,
}

/// What a client wants measured.
#[derive(Debug, Deserialize, Serialize)]
struct Ask {
    multinet_verbs: u32,
    size: u32,
    is_latency: bool,
    side: Side,
}

#[derive(Debug, Deserialize, Serialize)]
enum Answer {
    Ready(Side),
    Refused(String),
}

/// What the other side has to know of one.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Side {
    /// The largest packet of its port, in bytes of payload.
    mtu: u32,
    gid: Ipv6Addr,
    lid: u16,
    /// Number and first sequence number of each queue pair.
    pairs: Vec<(u32, u32)>,
    /// The memory that it is written to.
    address: u64,
    key: u32,
    /// Whether that is the machine's, at which its processor looks by itself.
    is_machine: bool,
}

/// Queue pairs that wait for those of the other side.
struct Prepared {
    fresh: Vec<Fresh>,
    queue: Queue,
    buffers: Buffers,
    port: u8,
    row: u8,
    is_ethernet: bool,
    class: Class,
    side: Side,
}

/// Connected queue pairs, and what they write from.
struct Connected {
    pairs: Vec<Pair>,
    queue: Queue,
    buffers: Buffers,
    remote: Remote,
    size: u32,
    /// Whether the other side's memory is its machine's.
    is_theirs_machine: bool,
}

impl Setup {
    fn new(device: DeviceArgs, transport: TransportArgs) -> anyhow::Result<Self> {
        let forced = transport.gpu_method();
        ensure!(
            device.use_cuda.is_none() || forced != Forced::To(Method::Staging),
            "--verbs copies nothing: choose another --gpu-method than staging"
        );
        let gpu = Memory::of(device.use_cuda)?.gpu().cloned();
        Ok(Self { device, gpu, forced, class: transport.class() })
    }
}

impl Prepared {
    /// At this local address, for messages of this size. It waits for the kernel: not for an async task.
    fn new(address: IpAddr, setup: &Setup, size: u32, pairs: usize, depth: u16) -> anyhow::Result<Self> {
        let place = place(address, &setup.device)?;
        let (port, row) = (u8::try_from(place.port)?, u8::try_from(place.index)?);
        let devices = Library::load()?.devices()?;
        let device = devices.iter().find(|device| device.name() == place.device);
        let context = device.with_context(|| format!("libibverbs does not show {}", place.device))?.open()?;
        let state = context.port(port)?;
        let domain = Domain::new(&context)?;
        let length = NonZeroUsize::new(size as usize).context("no length")?;
        let buffers = match &setup.gpu {
            None => Buffers::of_the_machine(&domain, length)?,
            Some(gpu) => Buffers::of_a_gpu(&domain, length, &**gpu, (port, row, place.gid), setup.forced)?,
        };
        let depths = Depths { send: depth, receive: RECEIVES };
        let queue = Queue::new(&context, (depth + RECEIVES).saturating_mul(pairs as u16))?;
        let mut fresh = Vec::with_capacity(pairs);
        for _ in 0..pairs {
            fresh.push(Fresh::new(&domain, &queue, depths)?);
        }
        let endpoints = fresh.iter().map(|fresh| fresh.endpoint(place.gid, state.lid));
        let Remote { address, key } = buffers.remote()?;
        let side = Side {
            mtu: state.mtu,
            gid: place.gid,
            lid: state.lid,
            pairs: endpoints.map(|end| (end.number, end.sequence)).collect(),
            address,
            key,
            is_machine: buffers.machine().is_some(),
        };
        let is_ethernet = place.link == LinkLayer::Ethernet;
        Ok(Self { fresh, queue, buffers, port, row, is_ethernet, class: setup.class, side })
    }

    /// To the other side, which is known by this address. The same holds as for [`new`](Self::new).
    fn connect(self, theirs: &Side, peer: IpAddr, size: u32) -> anyhow::Result<Connected> {
        ensure!(
            theirs.pairs.len() == self.fresh.len(),
            "the other side has {} queue pairs",
            theirs.pairs.len()
        );
        // Nobody can have us send to a third party.
        let expected = match peer.to_canonical() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        ensure!(
            !self.is_ethernet || theirs.gid == expected,
            "the other side's GID is not that of its address"
        );
        let is_global = Path::has_gids(self.side.gid, theirs.gid);
        let mtu = self.side.mtu.min(theirs.mtu);
        let path = Path { port: self.port, row: self.row, mtu, class: self.class, is_global };
        let mut pairs = Vec::with_capacity(self.fresh.len());
        for (fresh, &(number, sequence)) in self.fresh.into_iter().zip(&theirs.pairs) {
            let end = Endpoint { number, sequence, gid: theirs.gid, lid: theirs.lid };
            let pair = fresh.connect(path, end)?;
            for _ in 0..RECEIVES {
                pair.receive(RECEIVED)?;
            }
            pairs.push(pair);
        }
        let remote = Remote { address: theirs.address, key: theirs.key };
        let is_theirs_machine = theirs.is_machine;
        let Self { queue, buffers, .. } = self;
        Ok(Connected { pairs, queue, buffers, remote, size, is_theirs_machine })
    }
}

impl Connected {
    /// A message, whose completion bears this number if it is signalled.
    fn message(&self, id: u64, immediate: Option<u32>, is_signalled: bool) -> Write<'_> {
        let (part, lent) = self.buffers.message(self.size as usize);
        Write { id, part, lent, remote: self.remote, immediate, is_signalled }
    }
}

/// The row of the GID table that stands for an address.
fn place(address: IpAddr, args: &DeviceArgs) -> anyhow::Result<gid::Place> {
    let mut ports = gid::local_ports().context("cannot look for RDMA devices")?;
    ports.retain(|port| args.device.as_ref().is_none_or(|device| port.device == *device));
    ports.iter_mut().for_each(|port| port.rows.retain(|it| args.row.is_none_or(|row| it.index == row)));
    let interfaces = nic::local_interfaces().context("cannot list interfaces")?;
    let interface = interfaces.iter().find(|it| it.addresses.contains(&address));
    let interface = interface.map(|it| it.name.as_str()).unwrap_or_default();
    let local = Local { address, interface, port_gid: gid::port_gid(interface) };
    let chosen = gid::choose(&ports, local).chosen;
    chosen.with_context(|| format!("no RDMA device has a GID of {address}; `multinet doctor` says why"))
}

/// A completion that is none of a failure.
fn succeeded(completion: Completion) -> anyhow::Result<Completion> {
    match &completion.status {
        Ok(()) => Ok(completion),
        Err(status) => match status.hint() {
            Some(hint) => bail!("{status}; {hint}"),
            None => bail!("{status}"),
        },
    }
}

async fn say(stream: &mut TcpStream, what: &impl Serialize) -> anyhow::Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    Ok(stream.write_all(&line).await?)
}

async fn hear<T: for<'d> Deserialize<'d>>(stream: &mut TcpStream) -> anyhow::Result<T> {
    let mut line = String::new();
    BufReader::new(stream.take(MOST_LINE)).read_line(&mut line).await?;
    serde_json::from_str(&line).context("that is not `multinet bench --verbs`")
}
