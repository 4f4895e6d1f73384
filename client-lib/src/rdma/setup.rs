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

use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use multinet_memory::Method;
use multinet_verbs::{Class, Depths, Domain, Endpoint, Fresh, GpuLanding, Landing, Path, Queue, Remote};
use nix::net::if_::if_nametoindex;

use super::accounts::Places;
use super::layout::{Layout, MOST_MEMORY};
use super::queue_pair::{Payloads, QueuePair};
use super::rail::{Rail, Rails};
use super::role::{Role, completions};
use super::slots::{Spare, may_lock};
use super::stripes::Ticket;
use super::unusable::Unusable;
use crate::gid::{self, LinkLayer, Local, Place};
use crate::handshake::{PairEnd, PayloadEnd, RdmaEnd};
use crate::nic;
use crate::stream::SHORT;
use crate::transport::Rdma;
use crate::wire::{HEADER, MAX_KEY, MAX_METADATA};

/// Frames are copied to at least so much memory, round and round, to be sent from.
const STAGING: usize = 1 << 20;

/// The shortest message that is to be expected: a header, and an answer.
const LEAST: usize = HEADER + SHORT;

/// For so long an answer to the ping is waited for, at most: longer than a device repeats what is not acknowledged.
const PATIENCE: Duration = Duration::from_secs(3);

/// How long nothing is done between two looks at the queue.
const PAUSE: Duration = Duration::from_micros(50);

/// A queue pair that waits for the other side's.
pub(crate) struct Prepared {
    role: Role,
    /// The first one, and those for parts of large frames.
    fresh: Vec<Fresh>,
    domain: Domain,
    landing: Landing,
    gpu: Option<(GpuLanding, usize)>,
    layout: Layout,
    /// Of the first pair, and of a further one.
    depths: [Depths; 2],
    queue: Queue,
    number: u64,
    rail: Arc<Rail>,
    place: Place,
    port: u8,
    row: u8,
    class: Class,
    end: RdmaEnd,
}

impl Rails {
    /// An end at the first address, which is ours, for the peer at the second one, with what there is to spare, if it fits. It waits for the kernel, most of all for memory: not for an async task.
    pub(crate) fn prepare(
        &self,
        addresses: (IpAddr, IpAddr),
        role: Role,
        mut spare: Option<Spare>,
    ) -> Result<Prepared, Unusable> {
        let (places, interface) = places(addresses, &self.options)?;
        let make = |place: &Place| self.prepare_at((place.clone(), interface), role.clone(), &mut spare);
        first(places, make, |place, error| self.skip(place, error))
    }

    fn prepare_at(
        &self,
        (place, interface): (Place, Option<u32>),
        role: Role,
        spare: &mut Option<Spare>,
    ) -> Result<Prepared, Unusable> {
        let (Ok(port), Ok(row)) = (u8::try_from(place.port), u8::try_from(place.index)) else {
            return Err(Unusable::Place(place));
        };
        let rail = self.open(&place.device)?;
        // Second NICs have the same name in all pods, and networks may use the same addresses.
        if is_foreign(place.link, interface, rail.context().interface(port, row)) {
            return Err(Unusable::Foreign(place));
        }
        let method = role.gpu().map(|gpu| rail.method(gpu, (port, row, place.gid))).transpose()?;
        let method = method.unwrap_or(Method::Staging);
        let state = rail.context().port(port)?;
        // What is sent from is locked later, and is to be found wanting now.
        let staging = staging(matches!(role, Role::Sender), LEAST);
        let Spare { landing, gpu, domain, layout, .. } = Spare::get(&rail, (&role, method), spare, staging)?;
        let further = role.further(self.options.stripes);
        let depths = role.depths(layout);
        let depths_of = |pair: usize| depths[pair.min(1)];
        let (queue, number) = rail.queue(completions(depths, further))?;
        let fresh = (0..=further).map(|pair| Fresh::new(&domain, &queue, depths_of(pair)));
        let fresh = fresh.collect::<Result<Vec<_>, _>>()?;
        let mut endpoints = fresh.iter().map(|fresh| fresh.endpoint(place.gid, state.lid));
        // There is one.
        let Some(Endpoint { number: qpn, sequence: psn, gid, lid }) = endpoints.next() else {
            return Err(Unusable::NoDevice);
        };
        let further = endpoints.map(|it| PairEnd { qpn: it.number, psn: it.sequence }).collect();
        let Remote { address, key: rkey } = landing.remote(0)?;
        let device = place.device.clone();
        let (mtu, places) = (state.mtu, layout.count);
        // Within MOST_MEMORY.
        let (stride, prefix) = (layout.stride as u32, layout.prefix as u32);
        let payloads = gpu.as_ref().map(|(landing, stride)| {
            let Remote { address, key: rkey } = landing.remote();
            PayloadEnd { address, rkey, stride: *stride as u32 }
        });
        let end = RdmaEnd {
            device,
            qpn,
            psn,
            gid,
            lid,
            mtu,
            address,
            rkey,
            places,
            stride,
            prefix,
            payloads,
            further,
        };
        Ok(Prepared {
            role,
            fresh,
            domain,
            landing,
            gpu,
            layout,
            depths,
            queue,
            number,
            rail,
            place,
            port,
            row,
            class: self.options.class(),
            end,
        })
    }
}

/// What can be made at the first row at which it can be. Those before it are told of, with the reason.
fn first<T>(
    places: Vec<Place>,
    mut make: impl FnMut(&Place) -> Result<T, Unusable>,
    skip: impl Fn(&Place, &Unusable),
) -> Result<T, Unusable> {
    let mut failures = Vec::new();
    for place in places {
        match make(&place) {
            Err(error) if error.is_of_the_place() => failures.push((place, error)),
            made => {
                failures.iter().for_each(|(place, error)| skip(place, error));
                return made;
            }
        }
    }
    match failures.pop() {
        Some((_, error)) if failures.is_empty() => Err(error),
        Some(last) => Err(Unusable::All(failures.into_iter().chain([last]).collect())),
        None => Err(Unusable::NoDevice),
    }
}

/// Whether a row is not of our interface, by the kernel's numbers of the two: where one is not known, nothing is said.
fn is_foreign(link: LinkLayer, ours: Option<u32>, of_row: Option<u32>) -> bool {
    link == LinkLayer::Ethernet && ours.zip(of_row).is_some_and(|(ours, of_row)| ours != of_row)
}

/// Whether we would send to another than who has this address, which no peer can have us do. An InfiniBand port has no address of its own.
fn is_third_party(link: LinkLayer, gid: Ipv6Addr, address: IpAddr) -> bool {
    link == LinkLayer::Ethernet && gid != gid::gid_of(address.to_canonical())
}

/// The rows of GID tables that stand for the first address, one at least, in the order in which they are tried; and the number of the interface that has it, or of
/// that one of several that leads to the second address.
fn places((address, peer): (IpAddr, IpAddr), options: &Rdma) -> Result<(Vec<Place>, Option<u32>), Unusable> {
    let mut ports = gid::local_ports().map_err(Unusable::Devices)?;
    if ports.is_empty() {
        return Err(if gid::kernel_has_rdma() { Unusable::NoDevice } else { Unusable::NoKernel });
    }
    options.retain(&mut ports);
    let interface = nic::interface_for(address, peer).map_err(Unusable::Devices)?.unwrap_or_default();
    let port_gid = gid::port_gid(&interface);
    let choice = gid::choose(&ports, Local { address, interface: &interface, port_gid });
    let places: Vec<_> = choice.usable().cloned().collect();
    if places.is_empty() {
        let Rdma { device, row, .. } = options;
        let device = device.as_ref().map(|device| format!(" named {device}"));
        let row = row.map(|row| format!(" with a row {row} that"));
        let wanted = [device, row].into_iter().flatten().collect();
        return Err(Unusable::NoRow { address, wanted, rejected: choice.rejected });
    }
    Ok((places, if_nametoindex(interface.as_str()).ok()))
}

impl Prepared {
    /// For somebody else: it comes too late for whom it was made, who must not have been told of it.
    pub(crate) fn into_spare(self) -> Spare {
        let Self { landing, gpu, domain, layout, rail, .. } = self;
        Spare { landing, gpu, domain, layout, rail }
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
        if is_third_party(self.place.link, peer.gid, address) {
            return Err(Unusable::Peer("the peer's GID is not that of its address"));
        }
        let theirs =
            Layout { count: peer.places, stride: peer.stride as usize, prefix: peer.prefix as usize };
        let is_sender = matches!(self.role, Role::Sender);
        let payloads =
            peer.payloads.filter(|_| is_sender).map(|PayloadEnd { address, rkey: key, stride }| Payloads {
                remote: Remote { address, key },
                stride: stride as usize,
            });
        let (before, after, places) = if is_sender {
            (MAX_KEY + MAX_METADATA, frame_size as usize, Places::slots(peer.places))
        } else {
            (0, SHORT, Places::ring(peer.places))
        };
        let message = before + HEADER + after;
        let split = payloads.as_ref().map(|payloads| payloads.stride);
        if theirs.message(0, split, (before, after)).is_none() {
            return Err(Unusable::Peer("the peer's memory for RDMA is less than it should be"));
        }
        if message > MOST_MEMORY {
            return Err(Unusable::TooLarge(frame_size));
        }
        let capacity = staging(is_sender, message);
        may_lock(capacity)?;
        let staging = self.domain.region(NonZeroUsize::MIN.saturating_add(capacity - 1))?;
        let path = Path {
            port: self.port,
            row: self.row,
            mtu: self.end.mtu.min(peer.mtu),
            class: self.class,
            is_global: Path::has_gids(self.end.gid, peer.gid),
        };
        let names = format!("from {} to {} ({})", self.place, peer.device, peer.gid);
        let first = PairEnd { qpn: peer.qpn, psn: peer.psn };
        let mut pairs = Vec::new();
        // As many as both have.
        for (number, (fresh, end)) in
            (0..).zip(self.fresh.into_iter().zip([first].iter().chain(&peer.further)))
        {
            let endpoint = Endpoint { number: end.qpn, sequence: end.psn, gid: peer.gid, lid: peer.lid };
            let pair = fresh.connect(path, endpoint)?;
            let depth = self.depths[usize::from(number).min(1)].receive;
            for _ in 0..depth {
                pair.receive(Ticket::Received(number).encode())?;
            }
            pairs.push(pair);
        }
        let remote = Remote { address: peer.address, key: peer.rkey };
        let pair = QueuePair::new(
            (pairs, self.queue, self.number, self.rail),
            (self.landing, self.layout, self.gpu),
            (remote, theirs, places, payloads),
            (self.domain, staging, capacity),
            self.depths[0],
            (names, (self.port, self.row, self.place.gid)),
        );
        if is_sender {
            ping(&pair, path.mtu as usize, patience.min(PATIENCE))?;
        }
        Ok(pair)
    }
}

/// How much memory messages of this length are sent from.
fn staging(is_sender: bool, message: usize) -> usize {
    if is_sender {
        // One is sent while the next is copied.
        STAGING.max(2 * message)
    } else {
        message * usize::from(Layout::ring().count)
    }
}

fn ping<E>(pair: &QueuePair<E>, length: usize, patience: Duration) -> Result<(), Unusable> {
    pair.ping(length)?;
    let begun = Instant::now();
    let mut awaited = 1 + pair.further();
    while awaited > 0 {
        if pair.pong()? {
            awaited -= 1;
        } else if begun.elapsed() > patience {
            return Err(Unusable::Silent { names: pair.names().to_owned(), after: patience });
        } else {
            sleep(PAUSE);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::net::Ipv4Addr;

    use super::*;

    fn place(device: &str) -> Place {
        let (link, gid) = (LinkLayer::Ethernet, Ipv6Addr::LOCALHOST);
        Place { device: device.to_owned(), port: 1, link, index: 3, gid }
    }

    /// What came of these devices, and which were told of as skipped.
    fn tried(
        devices: &[&str],
        error: impl Fn(&Place) -> Option<Unusable>,
    ) -> (Result<String, Unusable>, String) {
        let skipped = RefCell::new(String::new());
        let make = |place: &Place| error(place).map_or_else(|| Ok(place.device.clone()), Err);
        let skip = |place: &Place, error: &Unusable| {
            *skipped.borrow_mut() += &format!("{}: {error}\n", place.device);
        };
        let made = first(devices.iter().map(|device| place(device)).collect(), make, skip);
        (made, skipped.into_inner())
    }

    #[test]
    fn a_device_that_cannot_be_used_is_passed_over_with_the_reason() {
        let bad =
            |place: &Place| place.device.starts_with("bad").then(|| Unusable::NotShown(place.device.clone()));
        let (made, skipped) = tried(&["bad_0", "bad_1", "good_0", "bad_2"], bad);
        assert_eq!(made.unwrap(), "good_0");
        assert_eq!(skipped, "bad_0: libibverbs does not show bad_0\nbad_1: libibverbs does not show bad_1\n");
        // Its own error where it is the only one, and all of them where there are more.
        let (made, skipped) = tried(&["bad_0"], bad);
        assert!(matches!(made, Err(Unusable::NotShown(name)) if name == "bad_0"));
        assert_eq!(skipped, "");
        let error = tried(&["bad_0", "bad_1"], bad).0.unwrap_err();
        let said = error.reason();
        assert!(error.is_lasting());
        for device in ["bad_0", "bad_1"] {
            let reason = format!("{device} port 1 GID 3 (::1): libibverbs does not show {device}; `multinet");
            assert!(said.contains(&reason), "{said}");
        }
    }

    #[test]
    fn an_interface_is_ours_by_its_number_too() {
        let (roce, infiniband) = (LinkLayer::Ethernet, LinkLayer::InfiniBand);
        assert!(is_foreign(roce, Some(3), Some(4)));
        assert!(!is_foreign(roce, Some(3), Some(3)) && !is_foreign(infiniband, Some(3), Some(4)));
        assert!(!is_foreign(roce, None, Some(4)) && !is_foreign(roce, Some(3), None));
    }

    #[test]
    fn a_gid_is_that_of_the_peers_address() {
        let own = IpAddr::from([10, 9, 0, 1]);
        let mapped = Ipv4Addr::new(10, 9, 0, 1).to_ipv6_mapped();
        let other = Ipv4Addr::new(10, 9, 0, 77).to_ipv6_mapped();
        let cases = [
            (LinkLayer::Ethernet, mapped, own, false),
            (LinkLayer::Ethernet, mapped, mapped.into(), false),
            (LinkLayer::Ethernet, other, own, true),
            (LinkLayer::InfiniBand, other, own, false),
        ];
        for (link, gid, address, expected) in cases {
            assert_eq!(is_third_party(link, gid, address), expected, "{link:?} {gid} {address}");
        }
    }

    #[test]
    fn two_messages_of_a_sender_and_a_ring_of_a_receivers_are_staged() {
        assert_eq!([staging(true, 1), staging(true, STAGING)], [STAGING, 2 * STAGING]);
        assert_eq!(staging(false, LEAST), 64 * LEAST);
    }

    /// Another device would have the same, or is not what was asked for.
    #[test]
    fn what_is_no_fault_of_a_device_ends_the_search() {
        let (made, skipped) =
            tried(&["one", "other"], |place| (place.device == "one").then_some(Unusable::TooLarge(1)));
        assert!(matches!(made, Err(Unusable::TooLarge(1))));
        assert_eq!(skipped, "");
    }
}
