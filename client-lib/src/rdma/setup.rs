//! Which device a connection goes by, and the making of its queue pair.
//!
//! ```text
//!   address of the second NIC ── gid::choose ──> Rails::prepare ──> Prepared ── its end, in the handshake
//!                                                                     │
//!                                   the other side's end ──> connect ─┴─> QueuePair ── ping (who connects)
//! ```
//!
//! The ping is a packet of the largest size, to the first slot, and its acknowledgement comes back: after that the way is known to work, before a frame
//! is trusted to it.

use std::io;
use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use multinet_verbs::{Depths, Domain, Endpoint, Fresh, Landing, LoadError, Path, Queue, Remote};
use thiserror::Error;

use super::accounts::Places;
use super::layout::{Layout, MOST_MEMORY};
use super::queue_pair::{QueuePair, RECEIVED};
use super::rail::{Rail, Rails};
use crate::gid::{self, LinkLayer, Local, Place, Rejection};
use crate::handshake::RdmaEnd;
use crate::nic;
use crate::stream::SHORT;
use crate::transport::Rdma;
use crate::way::Failure;
use crate::wire::{HEADER, MAX_KEY, MAX_METADATA};

/// How many writes a sender has under way at most.
const SENDS: u16 = 128;

/// So many immediates come beside frames: two halves of the ring that have been heard, and a ping.
const BESIDE: u16 = 3;

/// Frames are copied to at least so much memory, round and round, to be sent from.
const STAGING: usize = 1 << 20;

/// For so long an answer to the ping is waited for, at most: longer than a device repeats what is not acknowledged.
const PATIENCE: Duration = Duration::from_secs(3);

/// How long nothing is done between two looks at the queue.
const PAUSE: Duration = Duration::from_micros(50);

/// Why RDMA cannot be used.
#[derive(Debug, Error)]
pub(crate) enum Unusable {
    #[error("cannot look for RDMA devices: {0}")]
    Devices(io::Error),
    #[error("this machine has no RDMA device")]
    NoDevice,
    #[error("no RDMA device{wanted} has a GID of {address}{}", listed(.rejected))]
    NoRow { address: IpAddr, wanted: String, rejected: Vec<(Place, Rejection)> },
    #[error("{0}")]
    Library(#[from] LoadError),
    #[error("libibverbs does not show {0}")]
    NotShown(String),
    #[error("{0}")]
    Call(#[from] multinet_verbs::Error),
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    #[error("frames of {0} bytes are too large for RDMA")]
    TooLarge(u32),
    #[error("{0}")]
    Peer(&'static str),
    #[error("{0} cannot be named to verbs, which count ports and rows by 8 bits")]
    Place(Place),
    #[error("the way does not work {0}")]
    Ping(Failure),
    #[error("the way {names} does not work: nothing is heard of a write within {after:?}")]
    Silent { names: String, after: Duration },
}

impl Unusable {
    /// Whether it will be so the next time, too, as far as can be told.
    pub(crate) fn is_lasting(&self) -> bool {
        match self {
            Self::NoDevice | Self::Library(_) | Self::NotShown(_) | Self::Call(_) | Self::Place(_) => true,
            Self::NoRow { rejected, .. } => listed(rejected).is_empty(),
            _ => false,
        }
    }

    /// In words, with what to do.
    pub(crate) fn reason(&self) -> String {
        let hint = match self {
            Self::Library(error) => Some(error.hint()),
            Self::Call(error) => error.hint(),
            Self::NotShown(_) => Some("`multinet doctor` says what is missing"),
            Self::Silent { .. } => Some("soft-RoCE in a network namespace of its own behaves so"),
            _ => None,
        };
        match hint {
            Some(hint) => format!("{self}; {hint}"),
            None => self.to_string(),
        }
    }
}

/// Rows that might have been the one.
fn listed(rejected: &[(Place, Rejection)]) -> String {
    let near = rejected.iter().filter(|(_, reason)| *reason != Rejection::OtherAddress);
    near.map(|(place, reason)| format!("; {place} {reason}")).collect()
}

/// What the end is for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Role {
    /// It sends frames, and gets answers.
    Sender,
    /// It receives frames of so many bytes in so many slots.
    Receiver { slots: u32, frame_size: u32 },
}

/// Memory that has been registered for a peer to write to, and that no peer has been told of.
pub(crate) struct Spare {
    landing: Landing,
    domain: Domain,
    layout: Layout,
    // Closed after what is of it.
    rail: Arc<Rail>,
}

/// A queue pair that waits for the other side's.
pub(crate) struct Prepared {
    role: Role,
    fresh: Fresh,
    domain: Domain,
    landing: Landing,
    layout: Layout,
    depths: Depths,
    queue: Queue,
    number: u64,
    rail: Arc<Rail>,
    place: Place,
    port: u8,
    row: u8,
    end: RdmaEnd,
}

impl Rails {
    /// An end at this local address, with what there is to spare, if it fits. It waits for the kernel, most of all for memory: not for an async task.
    pub(crate) fn prepare(
        &self,
        address: IpAddr,
        role: Role,
        spare: Option<Spare>,
    ) -> Result<Prepared, Unusable> {
        let place = place(address, &self.options)?;
        let (Ok(port), Ok(row)) = (u8::try_from(place.port), u8::try_from(place.index)) else {
            return Err(Unusable::Place(place));
        };
        let rail = self.open(&place.device)?;
        let (layout, depths) = match role {
            Role::Sender => {
                // One more than there are entries: what has been read is said before its request is posted again.
                let layout = Layout::ring();
                (layout, Depths { send: SENDS, receive: layout.count + 1 })
            }
            Role::Receiver { slots, frame_size } => {
                let layout = Layout::slots(slots, frame_size);
                let ring = Layout::ring().count;
                (layout, Depths { send: ring, receive: layout.count + BESIDE })
            }
        };
        if let Role::Receiver { frame_size, .. } = role
            && layout.stride > MOST_MEMORY
        {
            return Err(Unusable::TooLarge(frame_size));
        }
        let state = rail.context().port(port)?;
        let fits = |spare: &Spare| Arc::ptr_eq(&spare.rail, &rail) && spare.layout == layout;
        let Spare { landing, domain, .. } = match spare.filter(fits) {
            Some(spare) => spare,
            None => Spare::new(&rail, layout)?,
        };
        let (queue, number) = rail.queue(depths.send + depths.receive)?;
        let fresh = Fresh::new(&domain, &queue, depths)?;
        let Endpoint { number: qpn, sequence: psn, gid, lid } = fresh.endpoint(place.gid, state.lid);
        let Remote { address, key: rkey } = landing.remote(0)?;
        let device = place.device.clone();
        let (mtu, places) = (state.mtu, layout.count);
        // Within MOST_MEMORY.
        let (stride, prefix) = (layout.stride as u32, layout.prefix as u32);
        let end = RdmaEnd { device, qpn, psn, gid, lid, mtu, address, rkey, places, stride, prefix };
        Ok(Prepared {
            role,
            fresh,
            domain,
            landing,
            layout,
            depths,
            queue,
            number,
            rail,
            place,
            port,
            row,
            end,
        })
    }
}

/// The row of the GID table that stands for an address.
fn place(address: IpAddr, Rdma { device, row, .. }: &Rdma) -> Result<Place, Unusable> {
    let mut ports = gid::local_ports().map_err(Unusable::Devices)?;
    if ports.is_empty() {
        return Err(Unusable::NoDevice);
    }
    ports.retain(|port| device.as_ref().is_none_or(|device| port.device == *device));
    ports.iter_mut().for_each(|port| port.rows.retain(|it| row.is_none_or(|row| it.index == row)));
    let interface = nic::interface_of(address).map_err(Unusable::Devices)?.unwrap_or_default();
    let port_gid = gid::port_gid(&interface);
    let choice = gid::choose(&ports, Local { address, interface: &interface, port_gid });
    choice.chosen.ok_or_else(|| {
        let device = device.as_ref().map(|device| format!(" named {device}"));
        let row = row.map(|row| format!(" with a row {row} that"));
        let wanted = [device, row].into_iter().flatten().collect();
        Unusable::NoRow { address, wanted, rejected: choice.rejected }
    })
}

impl Spare {
    fn new(rail: &Arc<Rail>, layout: Layout) -> Result<Self, Unusable> {
        let domain = Domain::new(rail.context())?;
        let landing = domain.landing(NonZeroUsize::MIN.saturating_add(layout.size() - 1))?;
        Ok(Self { landing, domain, layout, rail: Arc::clone(rail) })
    }
}

impl Prepared {
    /// For somebody else: it comes too late for whom it was made, who must not have been told of it.
    pub(crate) fn into_spare(self) -> Spare {
        let Self { landing, domain, layout, rail, .. } = self;
        Spare { landing, domain, layout, rail }
    }

    /// What the other side has to know.
    pub(crate) fn end(&self) -> &RdmaEnd {
        &self.end
    }

    /// Connects to the end of the other side, which is known by this address. A sender connects to slots for frames of this size, and not before a ping has
    /// come through, for which it waits so long at most: not for an async task.
    pub(crate) fn connect<E>(
        self,
        (peer, address): (&RdmaEnd, IpAddr),
        frame_size: u32,
        patience: Duration,
    ) -> Result<QueuePair<E>, Unusable> {
        let is_ethernet = self.place.link == LinkLayer::Ethernet;
        // Nobody can have us send to a third party.
        if is_ethernet && peer.gid != gid::gid_of(address.to_canonical()) {
            return Err(Unusable::Peer("the peer's GID is not that of its address"));
        }
        let theirs =
            Layout { count: peer.places, stride: peer.stride as usize, prefix: peer.prefix as usize };
        let (before, after, places, message) = match self.role {
            Role::Sender => {
                let after = frame_size as usize;
                let message = HEADER + MAX_KEY + MAX_METADATA + after;
                (HEADER + MAX_KEY + MAX_METADATA, after, Places::slots(peer.places), message)
            }
            Role::Receiver { .. } => (HEADER, SHORT, Places::ring(peer.places), HEADER + SHORT),
        };
        if theirs.prefix < before || theirs.stride - theirs.prefix < after {
            return Err(Unusable::Peer("the peer's memory for RDMA is less than it should be"));
        }
        if message > MOST_MEMORY {
            return Err(Unusable::TooLarge(frame_size));
        }
        let capacity = match self.role {
            // One is sent while the next is copied.
            Role::Sender => STAGING.max(2 * message),
            Role::Receiver { .. } => message * usize::from(Layout::ring().count),
        };
        let staging = self.domain.region(NonZeroUsize::MIN.saturating_add(capacity - 1))?;
        let path = Path {
            port: self.port,
            row: self.row,
            mtu: self.end.mtu.min(peer.mtu),
            is_global: is_ethernet || is_beyond_subnet(&self.end, peer),
        };
        let names = format!("from {} to {} ({})", self.place, peer.device, peer.gid);
        let endpoint = Endpoint { number: peer.qpn, sequence: peer.psn, gid: peer.gid, lid: peer.lid };
        let pair = self.fresh.connect(path, endpoint)?;
        for _ in 0..self.depths.receive {
            pair.receive(RECEIVED)?;
        }
        let remote = Remote { address: peer.address, key: peer.rkey };
        let pair = QueuePair::new(
            (pair, self.queue, self.number, self.rail),
            (self.landing, self.layout),
            (remote, theirs, places),
            (self.domain, staging, capacity),
            self.depths,
            names,
        );
        if let Role::Sender = self.role {
            ping(&pair, path.mtu as usize, patience.min(PATIENCE))?;
        }
        Ok(pair)
    }
}

/// Whether packets have to carry GIDs under InfiniBand: the first half of one is the subnet's.
fn is_beyond_subnet(ours: &RdmaEnd, theirs: &RdmaEnd) -> bool {
    ours.gid.octets()[..8] != theirs.gid.octets()[..8]
}

fn ping<E>(pair: &QueuePair<E>, length: usize, patience: Duration) -> Result<(), Unusable> {
    pair.ping(length)?;
    let begun = Instant::now();
    while !pair.pong()? {
        if begun.elapsed() > patience {
            return Err(Unusable::Silent { names: pair.names().to_owned(), after: patience });
        }
        sleep(PAUSE);
    }
    Ok(())
}
