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

/// A packet that is not acknowledged is sent again after 4.096 us x 2^14, 67 ms.
const TIMEOUT: u8 = 14;

/// So many times, half a second in all. Seven, the most, is for ever to soft-RoCE.
const RETRIES: u8 = 6;

/// For ever. Who writes only what the peer has said that it is ready for never needs it.
const RNR_RETRIES: u8 = 7;

/// For so long a sender waits when the peer has no receive request: 0.64 ms (InfiniBand Architecture, table 46).
const MIN_RNR_TIMER: u8 = 12;

const HOP_LIMIT: u8 = 64;

/// A packet sequence number has 24 bits.
const PSN_MASK: u32 = 0x00ff_ffff;

/// Writes of up to so many bytes go to the device with the request itself, which saves it a look at memory. More than that makes all
/// requests larger.
const MAX_INLINE_DATA: u32 = 192;

/// A write is from so many places: what is copied to be sent, and what is sent from where it lies.
const MAX_SGE: usize = 2;

/// The most writes that one [`QueuePair::write`] takes.
pub const MAX_WRITES: usize = 16;

/// A queue pair that is connected to nobody yet.
#[derive(Debug)]
pub struct UnconnectedQueuePair {
    inner: Inner,
    psn: u32,
}

/// A queue pair that is connected to a peer's.
#[derive(Debug)]
pub struct QueuePair(Inner);

/// A queue pair with what it needs.
struct Inner {
    raw: NonNull<ibv_qp>,
    // Only held, for the device reports to it.
    _queue: CompletionQueue,
    domain: ProtectionDomain,
    /// How long a write may be to go with its request.
    inline: u32,
}

// SAFETY: verbs may be called from all threads.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// What a peer has to know of a queue pair, beside its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairAddress {
    /// Its number, 24 bits.
    pub qpn: u32,
    /// The sequence number of its first packet, 24 bits.
    pub psn: u32,
    /// The GID that it sends from.
    pub gid: Ipv6Addr,
    /// The local identifier of its port; 0 under RoCE.
    pub lid: u16,
}

/// How many requests may be under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacities {
    /// Writes.
    pub send: u16,
    /// Immediates that the peer may send.
    pub receive: u16,
}

/// A write to the peer's memory. What is written must not change until its completion, or that of a later one, has come, or the
/// peer gets a mixture.
#[derive(Clone, Debug)]
pub struct Write<'a> {
    /// The completion bears this number.
    pub id: u64,
    /// What is written, 1 GiB at most; with none, the peer only gets the immediate.
    pub sge: Option<(&'a MemoryRegion, Range<usize>)>,
    /// What is written behind it, from where it lies. It has to be registered under the pair's domain.
    pub zero_copy: Option<(ZeroCopy<'a>, Range<usize>)>,
    /// Where it goes.
    pub remote: RemoteAddress,
    /// What the peer is told when it is there. It needs a receive request for it.
    pub immediate: Option<u32>,
    /// Whether there is a completion if it succeeds. There is one in any case if it fails.
    pub is_signalled: bool,
}

/// Memory that is sent from where it lies.
#[derive(Clone, Copy, Debug)]
pub enum ZeroCopy<'a> {
    /// The machine's.
    Pages(&'a Pages),
    /// A GPU's.
    Gpu(&'a GpuPages),
}

/// The way of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Our port, from 1.
    pub port: u8,
    /// The row of the GID that we send from.
    pub gid_index: u8,
    /// The largest packet that both ends carry, in bytes of payload: 256 to 4096, a power of two.
    pub mtu: u32,
    /// As what packets travel.
    pub class: Class,
    /// Whether packets carry GIDs: wherever both ends [have one](Self::has_gids), so always under RoCE.
    pub is_global: bool,
}

/// As what packets travel, where networks tell some from others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Class {
    /// InfiniBand's, 0 to 15. Devices of RoCE make a VLAN's priority of it.
    pub service_level: u8,
    /// The octet of IP under RoCE v2: DSCP above, and two bits of ECN. It travels beside GIDs only.
    pub traffic_class: u8,
}

impl Path {
    /// Whether both ends have a GID. Within a subnet of InfiniBand local identifiers would do, but there are ports that take no packet without GIDs
    /// (`IBV_QPF_GRH_REQUIRED`), those of virtual functions most of all; all others take both, for 40 octets a packet.
    pub fn has_gids(ours: Ipv6Addr, theirs: Ipv6Addr) -> bool {
        !ours.is_unspecified() && !theirs.is_unspecified()
    }
}

impl UnconnectedQueuePair {
    /// A queue pair for so many requests, or what more the device gives.
    ///
    /// # Errors
    ///
    /// [`Error`], if the queue is of another context than the domain, or the device has no pair that deep or none left.
    pub fn new(
        domain: &ProtectionDomain,
        queue: &CompletionQueue,
        capacities: Capacities,
    ) -> Result<Self, Error> {
        let context = domain.context();
        if !context.is_same(queue.context()) {
            return Err(Error::returned(Call::QueuePair, context.name(), libc::EINVAL));
        }
        // A device that has no room for small writes in its requests reads them from memory.
        let created = create(domain, queue, capacities, MAX_INLINE_DATA)
            .or_else(|_| create(domain, queue, capacities, 0));
        let (raw, inline) = created?;
        let inner = Inner { raw, _queue: queue.clone(), domain: domain.clone(), inline };
        Ok(Self { inner, psn: fastrand::u32(..) & PSN_MASK })
    }

    /// What the peer has to know, given the port's identifiers.
    pub fn address(&self, gid: Ipv6Addr, lid: u16) -> QueuePairAddress {
        QueuePairAddress { qpn: self.inner.qpn(), psn: self.psn, gid, lid }
    }

    /// Connects it to a peer, who has to do the same.
    ///
    /// # Errors
    ///
    /// [`Error`], most of all where the kernel finds no route to the peer's GID.
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
    /// Takes note that the peer may send one more immediate. The completion bears this number.
    ///
    /// # Errors
    ///
    /// [`Error`], if the receive queue is full.
    pub fn post_receive(&self, id: u64) -> Result<(), Error> {
        let mut request =
            ibv_recv_wr { wr_id: id, next: std::ptr::null_mut(), sg_list: std::ptr::null_mut(), num_sge: 0 };
        let mut bad = std::ptr::null_mut();
        // SAFETY: the pair is there; the request, which has no parts, is only read during the call.
        let errno = unsafe { ibv_post_recv(self.0.raw.as_ptr(), &raw mut request, &raw mut bad) };
        self.0.check(Call::Receive, errno)
    }

    /// Writes to the peer's memory, in this order.
    ///
    /// # Errors
    ///
    /// [`Error`], if the send queue is full, a part is not within its region or longer than 1 GiB, or there are more than [`MAX_WRITES`]. Some of the
    /// writes may have been posted then, and some not: nothing can be done with the pair but to let go of it.
    pub fn post_writes(&self, writes: &[Write<'_>]) -> Result<(), Error> {
        match writes.len() {
            // One by itself needs no room for all.
            ..=1 => self.post::<1>(writes),
            2..=MAX_WRITES => self.post::<MAX_WRITES>(writes),
            _ => Err(Error::returned(Call::Send, self.0.domain.context().name(), libc::E2BIG)),
        }
    }

    /// The same, of at most `N`.
    fn post<const N: usize>(&self, writes: &[Write<'_>]) -> Result<(), Error> {
        // SAFETY: structures of numbers and pointers, for which zero means none.
        let mut requests: [ibv_send_wr; N] = unsafe { std::mem::zeroed() };
        let mut sges = [[ibv_sge { addr: 0, length: 0, lkey: 0 }; MAX_SGE]; N];
        for (write, (request, places)) in writes.iter().zip(requests.iter_mut().zip(&mut sges)) {
            request.wr_id = write.id;
            let mut flags = ibv_send_flags(0);
            let sge = write.sge.as_ref().map(|(region, range)| region.sge(range));
            let zero_copy =
                write.zero_copy.as_ref().map(|(zero_copy, range)| zero_copy.sge(&self.0.domain, range));
            // The processor would read it, to put it into the request.
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
            // SAFETY: both are among the requests, and nothing else refers to them.
            unsafe { (*first.add(number)).next = first.add(number + 1) };
        }
        let mut bad = std::ptr::null_mut();
        // SAFETY: the pair is there; the requests and their parts are only read during the call. The memory that they name is registered: when
        // that ends before the device has read it, the request fails. What goes inline is copied during the call, by the provider as by
        // the device a mixture if it changes meanwhile.
        let errno = unsafe { ibv_post_send(self.0.raw.as_ptr(), first, &raw mut bad) };
        self.0.check(Call::Send, errno)
    }
}

/// A queue pair, and how long a write may be to go with its request.
fn create(
    domain: &ProtectionDomain,
    queue: &CompletionQueue,
    capacities: Capacities,
    inline: u32,
) -> Result<(NonNull<ibv_qp>, u32), Error> {
    let context = domain.context();
    // SAFETY: a structure of numbers and pointers, for which zero means none.
    let mut wanted: ibv_qp_init_attr = unsafe { std::mem::zeroed() };
    // By this the pair is known when the device gives it up.
    wanted.qp_context = queue.number();
    wanted.send_cq = queue.raw();
    wanted.recv_cq = queue.raw();
    wanted.qp_type = ibv_qp_type::IBV_QPT_RC;
    wanted.cap.max_send_wr = capacities.send.into();
    wanted.cap.max_recv_wr = capacities.receive.into();
    wanted.cap.max_send_sge = MAX_SGE as u32;
    wanted.cap.max_recv_sge = 1;
    wanted.cap.max_inline_data = inline;
    // SAFETY: the domain and the queue are of the same context, and there until the pair is destroyed.
    let raw = unsafe { (context.library().create_qp)(domain.raw(), &raw mut wanted) };
    let raw = NonNull::new(raw).ok_or_else(|| Error::last(Call::QueuePair, context.name()))?;
    Ok((raw, wanted.cap.max_inline_data))
}

impl Inner {
    fn qpn(&self) -> u32 {
        // SAFETY: the pair is there; its number does not change.
        unsafe { self.raw.as_ref() }.qp_num
    }

    fn init(&self, port: u8) -> Result<(), Error> {
        use ibv_qp_attr_mask as mask;
        let mut wanted = state(ibv_qp_state::IBV_QPS_INIT);
        wanted.port_num = port;
        wanted.qp_access_flags = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
        self.modify(
            Call::Init,
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
        // Nobody reads from us.
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
        self.modify(Call::ReadyToReceive, wanted, &also)
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
        self.modify(Call::ReadyToSend, wanted, &also)
    }

    fn modify(&self, call: Call, mut wanted: ibv_qp_attr, also: &[ibv_qp_attr_mask]) -> Result<(), Error> {
        let mask = also.iter().fold(ibv_qp_attr_mask::IBV_QP_STATE.0, |mask, bit| mask | bit.0);
        let modify = self.domain.context().library().modify_qp;
        // SAFETY: the pair is there; the attributes that the mask names are set.
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

/// The largest path MTU of not more than so many bytes.
fn mtu(bytes: u32) -> ibv_mtu::Type {
    match bytes {
        4096.. => ibv_mtu::IBV_MTU_4096,
        2048.. => ibv_mtu::IBV_MTU_2048,
        1024.. => ibv_mtu::IBV_MTU_1024,
        512.. => ibv_mtu::IBV_MTU_512,
        _ => ibv_mtu::IBV_MTU_256,
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: nobody else has it. From here on it sends nothing from its region any more.
        let _ = unsafe { (self.domain.context().library().destroy_qp)(self.raw.as_ptr()) };
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "queue pair {} of {}", self.qpn(), self.domain.context().name())
    }
}
