//! Reliable queue pairs (RC), which write into the memory of one peer.
#![allow(unsafe_code, reason = "talks to verbs")]

use std::net::Ipv6Addr;
use std::ops::Range;
use std::ptr::NonNull;

use rdma_sys::{
    ibv_access_flags, ibv_gid, ibv_mtu, ibv_post_recv, ibv_post_send, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask,
    ibv_qp_init_attr, ibv_qp_state, ibv_qp_type, ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_sge,
    ibv_wr_opcode,
};

use crate::completion_queue::CompletionQueue;
use crate::error::{Call, Error};
use crate::gpu::GpuPages;
use crate::library::bits;
use crate::memory::{MemoryRegion, ProtectionDomain, RemoteAddress};
use crate::pages::Pages;

/// The acknowledgement timeout: 4.096 µs × 2^14 = 67 ms. After it, the device sends a packet again.
const TIMEOUT: u8 = 14;

/// How often an unacknowledged packet is sent again: for half a second in all. Soft-RoCE takes 7,
/// the maximum, for "without end".
const RETRIES: u8 = 6;

/// How often a packet is sent again after the peer was not ready: without end. It never happens to
/// a sender that keeps to the peer's credits.
const RNR_RETRIES: u8 = 7;

/// How long the peer's device waits after it was found without a receive request: 0.64 ms
/// (InfiniBand Architecture, table 46).
const MIN_RNR_TIMER: u8 = 12;

const HOP_LIMIT: u8 = 64;

/// The 24 bits of a packet sequence number in InfiniBand.
const PSN_MASK: u32 = 0x00ff_ffff;

/// The longest write, in bytes, that is copied into its request (`IBV_SEND_INLINE`). The device
/// then need not read memory for it. A higher limit makes all requests larger.
const MAX_INLINE_DATA: u32 = 192;

/// The scatter/gather entries of a write: one that was copied to a memory region, and one that is
/// sent without a copy.
const MAX_SGE: usize = 2;

/// The most writes that one call of [`QueuePair::post_writes`] takes.
pub const MAX_WRITES: usize = 16;

/// A reliable queue pair that is not connected to a peer yet.
#[derive(Debug)]
pub struct UnconnectedQueuePair {
    inner: QueuePairInner,
    psn: u32,
}

/// A reliable queue pair that is connected to one of a peer.
#[derive(Debug)]
pub struct QueuePair(QueuePairInner);

/// A queue pair with the objects that it depends on.
#[derive(Debug)]
struct QueuePairInner {
    raw: NonNull<ibv_qp>,
    // Held, since the device reports to it.
    _queue: CompletionQueue,
    domain: ProtectionDomain,
    /// The longest write that may be copied into its request (`IBV_SEND_INLINE`), in bytes.
    inline: u32,
}

// SAFETY: verbs may be called from any thread.
unsafe impl Send for QueuePairInner {}
// SAFETY: as above.
unsafe impl Sync for QueuePairInner {}

/// The address of a queue pair, which its peer needs in order to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairAddress {
    /// The number of the queue pair, 24 bits.
    pub qpn: u32,
    /// The sequence number of the first packet that the queue pair sends, 24 bits.
    pub psn: u32,
    /// The GID that the queue pair's packets are sent from.
    pub gid: Ipv6Addr,
    /// The local identifier of the queue pair's port; 0 under RoCE.
    pub lid: u16,
}

/// The most requests of each kind that a queue pair has in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacities {
    /// The most send requests, which are writes.
    pub send: u16,
    /// The most receive requests, one for each immediate of the peer.
    pub receive: u16,
}

/// A write to the peer's memory.
///
/// The bytes must not change until the write, or a later one, has completed. Otherwise the peer
/// gets a mixture of old and new bytes.
#[derive(Clone, Debug)]
pub struct Write<'a> {
    /// The identifier that the completion of the write carries (`wr_id`).
    pub id: u64,
    /// The first bytes to write, at most 1 GiB of a region. Without any bytes, the peer only gets
    /// the immediate.
    pub sge: Option<(&'a MemoryRegion, Range<usize>)>,
    /// Bytes to write after the first ones without a copy. They are registered under the protection
    /// domain of the queue pair.
    pub zero_copy: Option<(ZeroCopy<'a>, Range<usize>)>,
    /// The destination in the peer's registered memory.
    pub remote: RemoteAddress,
    /// The number that the peer receives once the bytes have arrived. It takes one of the peer's
    /// receive requests.
    pub immediate: Option<u32>,
    /// Whether the write completes if it succeeds. A write that fails always completes.
    pub is_signalled: bool,
}

/// Memory that is sent without a copy, registered under the queue pair's domain.
#[derive(Clone, Copy, Debug)]
pub enum ZeroCopy<'a> {
    /// Memory of this process.
    Pages(&'a Pages),
    /// Memory of a GPU.
    Gpu(&'a GpuPages),
}

/// The path of a connection: the local port and GID, and how packets are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The number of the local port, from 1.
    pub port: u8,
    /// The index of the local GID in the port's table.
    pub gid_index: u8,
    /// The path MTU that both ends support, in bytes of payload: a power of two from 256 to 4096.
    pub mtu: u32,
    /// The quality of service of the connection's packets.
    pub class: Class,
    /// Whether packets carry a global route header with GIDs. They do wherever both ends [have a
    /// GID](Self::has_gids), so always under RoCE.
    pub is_global: bool,
}

/// The quality of service of packets, in networks that distinguish classes of traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Class {
    /// The service level of InfiniBand, 0 to 15. RoCE devices derive the priority of a VLAN from
    /// it.
    pub service_level: u8,
    /// The traffic class: under RoCE v2 the octet in the IP header, DSCP in the upper six bits and
    /// ECN in the lower two. Only packets with GIDs carry it.
    pub traffic_class: u8,
}

impl Path {
    /// Returns whether both ends have a GID. Within an InfiniBand subnet local identifiers would be
    /// enough, but some ports refuse packets without GIDs (`IBV_QPF_GRH_REQUIRED`), mostly those of
    /// virtual functions. All ports accept both, at the price of 40 bytes a packet.
    pub fn has_gids(ours: Ipv6Addr, theirs: Ipv6Addr) -> bool {
        !ours.is_unspecified() && !theirs.is_unspecified()
    }
}

impl UnconnectedQueuePair {
    /// Creates a queue pair with at least these capacities.
    ///
    /// # Errors
    ///
    /// [`Error`], if the queue belongs to another context than the domain, or if the device has no
    /// queue pair left or none with such capacities.
    pub fn new(
        domain: &ProtectionDomain,
        queue: &CompletionQueue,
        capacities: Capacities,
    ) -> Result<Self, Error> {
        let context = domain.context();
        if !context.is_same(queue.context()) {
            return Err(Error::returned(Call::QUEUE_PAIR, context.name(), libc::EINVAL));
        }
        // Some devices do not support inline data; they then read small writes from memory.
        let created = create(domain, queue, capacities, MAX_INLINE_DATA)
            .or_else(|_| create(domain, queue, capacities, 0));
        let (raw, inline) = created?;
        let inner = QueuePairInner { raw, _queue: queue.clone(), domain: domain.clone(), inline };
        Ok(Self { inner, psn: fastrand::u32(..) & PSN_MASK })
    }

    /// Returns the address of the queue pair on a port with this GID and local identifier.
    pub fn address(&self, gid: Ipv6Addr, lid: u16) -> QueuePairAddress {
        QueuePairAddress { qpn: self.inner.qpn(), psn: self.psn, gid, lid }
    }

    /// Connects the queue pair to that of a peer, which connects to this one in turn.
    ///
    /// # Errors
    ///
    /// [`Error`], for example if the kernel finds no route to the peer's GID.
    pub fn connect(self, path: Path, peer: QueuePairAddress) -> Result<QueuePair, Error> {
        self.inner.init(path.port)?;
        self.inner.ready_to_receive(path, peer)?;
        self.inner.ready_to_send(self.psn)?;
        Ok(QueuePair(self.inner))
    }
}

impl ZeroCopy<'_> {
    fn sge(self, domain: &ProtectionDomain, range: &Range<usize>) -> Result<ibv_sge, Error> {
        match self {
            Self::Pages(pages) => pages.sge(domain, range),
            Self::Gpu(pages) => pages.sge(domain, range),
        }
    }
}

impl QueuePair {
    /// Posts a receive request, so that the peer may send one more immediate. Its completion
    /// carries `id`.
    ///
    /// # Errors
    ///
    /// [`Error`], if the receive queue is full.
    pub fn post_receive(&self, id: u64) -> Result<(), Error> {
        let mut request =
            ibv_recv_wr { wr_id: id, next: std::ptr::null_mut(), sg_list: std::ptr::null_mut(), num_sge: 0 };
        let mut bad = std::ptr::null_mut();
        // SAFETY: the queue pair is alive; the request, which has no entries, is only read during
        // the call.
        let errno = unsafe { ibv_post_recv(self.0.raw.as_ptr(), &raw mut request, &raw mut bad) };
        self.0.check(Call::RECEIVE, errno)
    }

    /// Posts writes to the peer's memory, which are executed in this order.
    ///
    /// # Errors
    ///
    /// [`Error`], if the send queue is full, a range is outside its memory or longer than 1 GiB, or
    /// there are more than [`MAX_WRITES`]. Some of the writes may have been posted nevertheless, so
    /// the queue pair can only be dropped.
    pub fn post_writes(&self, writes: &[Write<'_>]) -> Result<(), Error> {
        match writes.len() {
            // A single write needs no array of the full length.
            ..=1 => self.post::<1>(writes),
            2..=MAX_WRITES => self.post::<MAX_WRITES>(writes),
            _ => Err(Error::returned(Call::SEND, self.0.domain.context().name(), libc::E2BIG)),
        }
    }

    /// Posts at most `N` writes, by one call of verbs.
    fn post<const N: usize>(&self, writes: &[Write<'_>]) -> Result<(), Error> {
        // SAFETY: a structure of numbers and pointers, for which zero means none.
        let mut requests: [ibv_send_wr; N] = unsafe { std::mem::zeroed() };
        let mut sges = [[ibv_sge { addr: 0, length: 0, lkey: 0 }; MAX_SGE]; N];
        for (write, (request, places)) in writes.iter().zip(requests.iter_mut().zip(&mut sges)) {
            request.wr_id = write.id;
            let mut flags = ibv_send_flags(0);
            let sge = write.sge.as_ref().map(|(region, range)| region.sge(range));
            let zero_copy =
                write.zero_copy.as_ref().map(|(zero_copy, range)| zero_copy.sge(&self.0.domain, range));
            // The processor copies inline data, and cannot read the memory of a GPU.
            let is_readable = !matches!(write.zero_copy, Some((ZeroCopy::Gpu(_), _)));
            let (mut count, mut length) = (0, 0_u64);
            for (place, sge) in places.iter_mut().zip([sge, zero_copy].into_iter().flatten()) {
                *place = sge?;
                count += 1;
                length += u64::from(place.length);
            }
            if count > 0 {
                request.sg_list = places.as_mut_ptr();
                request.num_sge = count;
                if is_readable && length <= u64::from(self.0.inline) {
                    flags |= ibv_send_flags::IBV_SEND_INLINE;
                }
            }
            if write.is_signalled {
                flags |= ibv_send_flags::IBV_SEND_SIGNALED;
            }
            request.send_flags = flags.0;
            request.opcode = match write.immediate {
                Some(_) => ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM,
                None => ibv_wr_opcode::IBV_WR_RDMA_WRITE,
            };
            request.imm_data_invalidated_rkey_union.imm_data = write.immediate.unwrap_or_default().to_be();
            request.wr.rdma = rdma_sys::rdma_t { remote_addr: write.remote.address, rkey: write.remote.key };
        }
        let Some(count) = writes.len().min(N).checked_sub(1) else { return Ok(()) };
        let first = requests.as_mut_ptr();
        for number in 0..count {
            // SAFETY: both indexes are within the array, and no reference to it exists.
            unsafe { (*first.add(number)).next = first.add(number + 1) };
        }
        let mut bad = std::ptr::null_mut();
        // SAFETY: the queue pair is alive; the requests and their entries are only read during the
        // call. The memory that they name is registered. If that registration ends before the
        // device has read the memory, the request fails. Inline data is copied during the call; if
        // it changes meanwhile, the peer gets a mixture, as it would from the device.
        let errno = unsafe { ibv_post_send(self.0.raw.as_ptr(), first, &raw mut bad) };
        self.0.check(Call::SEND, errno)
    }
}

/// Creates a queue pair. Returns it with the longest write that may be sent inline.
fn create(
    domain: &ProtectionDomain,
    queue: &CompletionQueue,
    capacities: Capacities,
    inline: u32,
) -> Result<(NonNull<ibv_qp>, u32), Error> {
    let context = domain.context();
    // SAFETY: a structure of numbers and pointers, for which zero means none.
    let mut wanted: ibv_qp_init_attr = unsafe { std::mem::zeroed() };
    // Asynchronous events of the queue pair carry this number.
    wanted.qp_context = queue.number();
    wanted.send_cq = queue.raw();
    wanted.recv_cq = queue.raw();
    wanted.qp_type = ibv_qp_type::IBV_QPT_RC;
    wanted.cap.max_send_wr = capacities.send.into();
    wanted.cap.max_recv_wr = capacities.receive.into();
    wanted.cap.max_send_sge = MAX_SGE as u32;
    wanted.cap.max_recv_sge = 1;
    wanted.cap.max_inline_data = inline;
    // SAFETY: the domain and the queue belong to the same context, and outlive the queue pair.
    let raw = unsafe { (context.library().create_qp)(domain.raw(), &raw mut wanted) };
    let raw = NonNull::new(raw).ok_or_else(|| Error::last(Call::QUEUE_PAIR, context.name()))?;
    Ok((raw, wanted.cap.max_inline_data))
}

impl QueuePairInner {
    fn qpn(&self) -> u32 {
        // SAFETY: the queue pair is alive, and its number never changes.
        unsafe { self.raw.as_ref() }.qp_num
    }

    fn init(&self, port: u8) -> Result<(), Error> {
        use ibv_qp_attr_mask as mask;
        let mut wanted = state(ibv_qp_state::IBV_QPS_INIT);
        wanted.port_num = port;
        wanted.qp_access_flags = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
        self.modify(
            Call::INIT,
            wanted,
            &[mask::IBV_QP_PKEY_INDEX, mask::IBV_QP_PORT, mask::IBV_QP_ACCESS_FLAGS],
        )
    }

    fn ready_to_receive(&self, path: Path, peer: QueuePairAddress) -> Result<(), Error> {
        use ibv_qp_attr_mask as mask;
        let mut wanted = state(ibv_qp_state::IBV_QPS_RTR);
        wanted.path_mtu = mtu(path.mtu);
        wanted.dest_qp_num = peer.qpn;
        wanted.rq_psn = peer.psn & PSN_MASK;
        wanted.min_rnr_timer = MIN_RNR_TIMER;
        // No peer reads from us, so no resources for reads are needed.
        wanted.max_dest_rd_atomic = 0;
        wanted.ah_attr.port_num = path.port;
        wanted.ah_attr.dlid = peer.lid;
        wanted.ah_attr.sl = path.class.service_level;
        if path.is_global {
            wanted.ah_attr.is_global = 1;
            wanted.ah_attr.grh.dgid = ibv_gid { raw: peer.gid.octets() };
            wanted.ah_attr.grh.sgid_index = path.gid_index;
            wanted.ah_attr.grh.hop_limit = HOP_LIMIT;
            wanted.ah_attr.grh.traffic_class = path.class.traffic_class;
        }
        let also = [
            mask::IBV_QP_AV,
            mask::IBV_QP_PATH_MTU,
            mask::IBV_QP_DEST_QPN,
            mask::IBV_QP_RQ_PSN,
            mask::IBV_QP_MAX_DEST_RD_ATOMIC,
            mask::IBV_QP_MIN_RNR_TIMER,
        ];
        self.modify(Call::READY_TO_RECEIVE, wanted, &also)
    }

    fn ready_to_send(&self, psn: u32) -> Result<(), Error> {
        use ibv_qp_attr_mask as mask;
        let mut wanted = state(ibv_qp_state::IBV_QPS_RTS);
        wanted.sq_psn = psn;
        wanted.timeout = TIMEOUT;
        wanted.retry_cnt = RETRIES;
        wanted.rnr_retry = RNR_RETRIES;
        wanted.max_rd_atomic = 0;
        let also = [
            mask::IBV_QP_TIMEOUT,
            mask::IBV_QP_RETRY_CNT,
            mask::IBV_QP_RNR_RETRY,
            mask::IBV_QP_SQ_PSN,
            mask::IBV_QP_MAX_QP_RD_ATOMIC,
        ];
        self.modify(Call::READY_TO_SEND, wanted, &also)
    }

    fn modify(&self, call: Call, mut wanted: ibv_qp_attr, also: &[ibv_qp_attr_mask]) -> Result<(), Error> {
        let mask = also.iter().fold(ibv_qp_attr_mask::IBV_QP_STATE.0, |mask, bit| mask | bit.0);
        let modify = self.domain.context().library().modify_qp;
        // SAFETY: the queue pair is alive, and the attributes that the mask names are set.
        let errno = unsafe { modify(self.raw.as_ptr(), &raw mut wanted, bits(mask)) };
        self.check(call, errno)
    }

    fn check(&self, call: Call, errno: i32) -> Result<(), Error> {
        match errno {
            0 => Ok(()),
            errno => Err(Error::returned(call, self.domain.context().name(), errno)),
        }
    }
}

fn state(state: ibv_qp_state::Type) -> ibv_qp_attr {
    // SAFETY: a structure of numbers.
    let mut attributes: ibv_qp_attr = unsafe { std::mem::zeroed() };
    attributes.qp_state = state;
    attributes
}

/// Converts bytes to a path MTU of verbs: the largest of at most `bytes`, but at least 256.
fn mtu(bytes: u32) -> ibv_mtu::Type {
    match bytes {
        4096.. => ibv_mtu::IBV_MTU_4096,
        2048.. => ibv_mtu::IBV_MTU_2048,
        1024.. => ibv_mtu::IBV_MTU_1024,
        512.. => ibv_mtu::IBV_MTU_512,
        _ => ibv_mtu::IBV_MTU_256,
    }
}

impl Drop for QueuePairInner {
    fn drop(&mut self) {
        // SAFETY: this is the only handle. After the call, the device does not read the region any
        // more.
        let _ = unsafe { (self.domain.context().library().destroy_qp)(self.raw.as_ptr()) };
    }
}
