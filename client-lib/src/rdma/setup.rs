//! The set-up of a connection: prepares an end, and connects it to the peer's.
//!
//! ```text
//!   local address ── gid::choose ──> RdmaDevices::prepare ──> Prepared ── end, in the handshake
//!                                                                │
//!                            the peer's end ──> connect ──> QueuePair ── ping, by a sender
//! ```
//!
//! The ping is a write of the size of the largest packet to the first slot. Its acknowledgement
//! shows that the path works, before a frame depends on it.

use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::time::Duration;

use multinet_memory::Method;
use multinet_verbs::{
    self as verbs, Class, CompletionQueue, Path, QueuePairAddress, RemoteAddress, SourceGid,
    UnconnectedQueuePair,
};

use super::device::RdmaDevices;
use super::layout::{Layout, MAX_MEMORY};
use super::ledger::RemoteSlots;
use super::local_gid::{LocalGids, is_of_other_interface, is_third_party, source_gid};
use super::queue_pair::{Local, QueuePair, RemoteMemory, RemotePayloads};
use super::receive_memory::{ReceiveMemory, check_memlock};
use super::role::Role;
use super::stripes::WorkRequestId;
use super::unusable::Unusable;
use crate::gid::DeviceGid;
use crate::handshake::{PairEnd, PayloadEnd, RdmaEnd};
use crate::stream::SHORT;
use crate::wire::{HEADER, MAX_KEY, MAX_METADATA};

/// The least memory in bytes to which a sender copies frames, and from which it sends them.
const SENDER_STAGING: usize = 1 << 20;

/// The length of a receiver's message, and the least length of a sender's.
const SHORTEST_MESSAGE: usize = HEADER + SHORT;

/// An end of a connection whose memory and queue pairs are ready, not connected to the peer's yet.
pub(crate) struct Prepared {
    role: Role,
    /// The first queue pair, and then the extra ones for stripes.
    pairs: Vec<UnconnectedQueuePair>,
    completions: CompletionQueue,
    queue_number: u64,
    memory: ReceiveMemory,
    gid: DeviceGid,
    source: SourceGid,
    class: Class,
    end: RdmaEnd,
}

impl RdmaDevices {
    /// Prepares an end at a local address for a peer, with the spare memory if it fits. It blocks,
    /// mostly for memory: not for an async task.
    pub(crate) fn prepare(
        &self,
        address: IpAddr,
        peer: IpAddr,
        role: Role,
        mut spare: Option<ReceiveMemory>,
    ) -> Result<Prepared, Unusable> {
        let LocalGids { candidates, interface } = LocalGids::find(address, peer, &self.options)?;
        let prepare = |gid: &DeviceGid| self.prepare_at(gid, interface, role.clone(), &mut spare);
        LocalGids::first_usable(candidates, prepare, |gid, error| self.log_skipped(gid, error))
    }

    fn prepare_at(
        &self,
        gid: &DeviceGid,
        interface: Option<u32>,
        role: Role,
        spare: &mut Option<ReceiveMemory>,
    ) -> Result<Prepared, Unusable> {
        let source = source_gid(gid)?;
        let device = self.open(&gid.device)?;
        let context = device.context();
        // Second NICs have the same name in all pods, and networks may use the same addresses. Only
        // the interface's index tells our NIC from one in another network namespace.
        let of_gid = context.interface_index(source.port, source.gid_index);
        if is_of_other_interface(gid.link, interface, of_gid) {
            return Err(Unusable::Foreign(gid.clone()));
        }
        let method = role.gpu().map(|gpu| device.gpu_methods.get(gpu, source)).transpose()?;
        let port = context.query_port(source.port)?;
        // The staging memory is locked in `connect`. A shortage is to be found now, while the other
        // side can still be told.
        let staging = staging_size(role.is_sender(), SHORTEST_MESSAGE);
        let method = (&role, method.unwrap_or(Method::Staging));
        let memory = ReceiveMemory::obtain(&device, method, spare, staging)?;
        let extra_pairs = role.extra_pairs(self.options.stripes);
        let completions = role.completions(memory.layout, extra_pairs);
        let (completions, queue_number) = device.completion_queue(completions)?;
        let pair = |pair| {
            UnconnectedQueuePair::new(&memory.domain, &completions, role.capacities(memory.layout, pair))
        };
        let pairs = (0..=extra_pairs).map(pair).collect::<Result<Vec<_>, _>>()?;
        let addresses = pairs.iter().map(|pair| pair.address(gid.gid, port.lid));
        let end = end_of(gid, port.mtu, &memory, addresses)?;
        let (gid, class) = (gid.clone(), self.options.class());
        Ok(Prepared { role, pairs, completions, queue_number, memory, gid, source, class, end })
    }
}

/// Describes our prepared end for the handshake: queue pairs, memory and its key.
fn end_of(
    gid: &DeviceGid,
    mtu: u32,
    memory: &ReceiveMemory,
    mut pairs: impl Iterator<Item = QueuePairAddress>,
) -> Result<RdmaEnd, Unusable> {
    // There is always a first queue pair.
    let Some(first) = pairs.next() else { return Err(Unusable::NoDevice) };
    let RemoteAddress { address, key: rkey } = memory.buffer.remote(0)?;
    // All lengths are within MAX_MEMORY.
    let payloads = memory.gpu.as_ref().map(|gpu| {
        let RemoteAddress { address, key: rkey } = gpu.buffer.remote();
        PayloadEnd { address, rkey, stride: gpu.stride as u32 }
    });
    Ok(RdmaEnd {
        device: gid.device.clone(),
        qpn: first.qpn,
        psn: first.psn,
        gid: first.gid,
        lid: first.lid,
        mtu,
        address,
        rkey,
        places: memory.layout.count,
        stride: memory.layout.stride as u32,
        prefix: memory.layout.prefix as u32,
        payloads,
        further: pairs.map(|QueuePairAddress { qpn, psn, .. }| PairEnd { qpn, psn }).collect(),
    })
}

impl Prepared {
    /// Returns the memory for another connection. The peer of this one must not have been told of
    /// it.
    pub(crate) fn into_spare(self) -> ReceiveMemory {
        self.memory
    }

    /// Returns the description of our end that the peer gets in the handshake.
    pub(crate) fn end(&self) -> &RdmaEnd {
        &self.end
    }

    /// Connects to the end of the peer at this address. A sender connects to slots for frames of up
    /// to `frame_size` bytes, and waits up to `patience` until its ping has arrived. It blocks: not
    /// for an async task.
    pub(crate) fn connect<E>(
        self,
        end: &RdmaEnd,
        address: IpAddr,
        frame_size: u32,
        patience: Duration,
    ) -> Result<QueuePair<E>, Unusable> {
        if is_third_party(self.gid.link, end.gid, address) {
            return Err(Unusable::Peer("the peer's GID is not that of its address"));
        }
        let is_sender = self.role.is_sender();
        let message = longest_message(is_sender, end, frame_size)?;
        let staging_size = staging_size(is_sender, message);
        check_memlock(staging_size)?;
        let staging = self.memory.domain.memory_region(NonZeroUsize::MIN.saturating_add(staging_size - 1))?;
        let path = Path {
            port: self.source.port,
            gid_index: self.source.gid_index,
            mtu: self.end.mtu.min(end.mtu),
            class: self.class,
            is_global: Path::has_gids(self.end.gid, end.gid),
        };
        let names = format!("from {} to {} ({})", self.gid, end.device, end.gid);
        let receives = |pair| self.role.capacities(self.memory.layout, pair).receive;
        let pairs = connect_pairs(self.pairs, receives, path, end)?;
        let capacities = self.role.capacities(self.memory.layout, 0);
        let local = Local {
            completions: self.completions,
            queue_number: self.queue_number,
            capacities,
            max_completions: pairs.len() * (usize::from(capacities.send) + usize::from(capacities.receive)),
            memory: self.memory,
            staging,
            staging_size,
            source: self.source,
        };
        let slots = if is_sender { RemoteSlots::slots(end.places) } else { RemoteSlots::ring(end.places) };
        let pair = QueuePair::new(pairs, local, memory_of(end, is_sender), slots, names);
        if is_sender {
            pair.ping(path.mtu as usize, patience)?;
        }
        Ok(pair)
    }
}

/// Returns the memory that a peer offers. Only a sender writes payloads apart.
fn memory_of(end: &RdmaEnd, is_sender: bool) -> RemoteMemory {
    let layout = Layout { count: end.places, stride: end.stride as usize, prefix: end.prefix as usize };
    let payloads = end.payloads.filter(|_| is_sender).map(|PayloadEnd { address, rkey: key, stride }| {
        RemotePayloads { address: RemoteAddress { address, key }, stride: stride as usize }
    });
    RemoteMemory { address: RemoteAddress { address: end.address, key: end.rkey }, layout, payloads }
}

/// Returns the length of the longest message that we write to a peer, if the peer has room for it.
fn longest_message(is_sender: bool, end: &RdmaEnd, frame_size: u32) -> Result<usize, Unusable> {
    let (prefix, payload) =
        if is_sender { (MAX_KEY + MAX_METADATA, frame_size as usize) } else { (0, SHORT) };
    let RemoteMemory { layout, payloads, .. } = memory_of(end, is_sender);
    let split = payloads.map(|payloads| payloads.stride);
    if layout.message(0, split, (prefix, payload)).is_none() {
        return Err(Unusable::Peer("the peer offers too little memory for RDMA"));
    }
    let length = prefix + HEADER + payload;
    if length > MAX_MEMORY { Err(Unusable::TooLarge(frame_size)) } else { Ok(length) }
}

/// Connects as many queue pairs as both sides have, and posts their receive requests.
fn connect_pairs(
    unconnected: Vec<UnconnectedQueuePair>,
    receives: impl Fn(usize) -> u16,
    path: Path,
    end: &RdmaEnd,
) -> Result<Vec<verbs::QueuePair>, Unusable> {
    let first = PairEnd { qpn: end.qpn, psn: end.psn };
    let ends = [first].into_iter().chain(end.further.iter().copied());
    let mut pairs = Vec::new();
    for (number, (pair, PairEnd { qpn, psn })) in (0_u8..).zip(unconnected.into_iter().zip(ends)) {
        let address = QueuePairAddress { qpn, psn, gid: end.gid, lid: end.lid };
        let pair = pair.connect(path, address)?;
        for _ in 0..receives(number.into()) {
            pair.post_receive(WorkRequestId::Receive(number).encode())?;
        }
        pairs.push(pair);
    }
    Ok(pairs)
}

/// Returns the size of the memory from which messages of this length are sent.
fn staging_size(is_sender: bool, message: usize) -> usize {
    if is_sender {
        // Room for two messages: one is sent while the next is copied.
        SENDER_STAGING.max(2 * message)
    } else {
        message * usize::from(Layout::ring().count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staging_memory_holds_two_messages_of_a_sender_or_a_ring_of_a_receivers() {
        let sender = [1, SENDER_STAGING].map(|message| staging_size(true, message));
        assert_eq!(sender, [SENDER_STAGING, 2 * SENDER_STAGING]);
        assert_eq!(staging_size(false, SHORTEST_MESSAGE), 64 * SHORTEST_MESSAGE);
    }
}
