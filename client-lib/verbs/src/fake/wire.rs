//! The data path: posted requests, their execution and completion.
#![allow(unsafe_code, reason = "stands in for verbs")]

use std::ffi::c_int;
use std::net::Ipv6Addr;

use rdma_sys::{
    ibv_access_flags, ibv_qp, ibv_qp_state, ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wc,
    ibv_wc_flags, ibv_wc_opcode, ibv_wc_status, ibv_wr_opcode,
};

use super::objects::{Entry, Payload, PostedWrite, QueuePair};
use super::{State, Verb, fault, returned, state};

pub(super) unsafe extern "C" fn post_send(
    pair: *mut ibv_qp,
    first: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    let mut state = state();
    let post = |state: &mut State| {
        let world = state.pairs.get(pair)?.world;
        state.call(world, Verb::PostSend)?;
        let mut next = first;
        while !next.is_null() {
            // SAFETY: one of the caller's requests.
            let request = unsafe { &*next };
            if let Err(errno) = state.pairs.get(pair)?.post(request) {
                // SAFETY: the caller's pointer.
                unsafe { *bad = next };
                state.after_post(world, pair);
                return Err(errno);
            }
            next = request.next;
        }
        state.after_post(world, pair);
        Ok(())
    };
    returned(post(&mut state))
}

pub(super) unsafe extern "C" fn post_recv(
    pair: *mut ibv_qp,
    request: *mut ibv_recv_wr,
    _bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let mut state = state();
    let post = |state: &mut State| {
        let world = state.pairs.get(pair)?.world;
        state.call(world, Verb::PostReceive)?;
        // SAFETY: the caller's request.
        let request = unsafe { &*request };
        let found = state.pairs.get(pair)?;
        if !request.next.is_null() || request.num_sge != 0 {
            fault(world, "a receive request of a kind that is not known here");
        }
        if found.receives.len() == found.most_receives {
            return Err(libc::ENOMEM);
        }
        found.receives.push_back(request.wr_id);
        state.after_post(world, pair);
        Ok(())
    };
    returned(post(&mut state))
}

impl QueuePair {
    fn post(&mut self, request: &ibv_send_wr) -> Result<(), i32> {
        if !matches!(self.state, ibv_qp_state::IBV_QPS_RTS | ibv_qp_state::IBV_QPS_ERR) {
            return Err(libc::EINVAL);
        }
        if self.taken == self.most_sends {
            return Err(libc::ENOMEM);
        }
        let count = usize::try_from(request.num_sge).unwrap_or(usize::MAX);
        if count > self.most_parts {
            return Err(libc::EINVAL);
        }
        let mut sges = Vec::new();
        for index in 0..count {
            // SAFETY: the caller's list has `num_sge` entries.
            sges.push(unsafe { *request.sg_list.add(index) });
        }
        let payload = match request.send_flags & ibv_send_flags::IBV_SEND_INLINE.0 {
            0 => Payload::ScatterGather(sges),
            _ if sges.iter().map(|sge| u64::from(sge.length)).sum::<u64>() > self.inline.into() => {
                return Err(libc::EINVAL);
            }
            _ => Payload::Inline(sges.iter().flat_map(|sge| read(sge.addr, sge.length)).collect()),
        };
        // SAFETY: the fields of the unions that these operations use, all of them numbers.
        let (immediate, remote) =
            unsafe { (request.imm_data_invalidated_rkey_union.imm_data, request.wr.rdma) };
        let immediate = match request.opcode {
            ibv_wr_opcode::IBV_WR_RDMA_WRITE => None,
            ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM => Some(immediate),
            _ => return Err(libc::EINVAL),
        };
        let is_signalled = request.send_flags & ibv_send_flags::IBV_SEND_SIGNALED.0 != 0;
        let (address, key) = (remote.remote_addr, remote.rkey);
        self.sends.push_back(PostedWrite {
            id: request.wr_id,
            payload,
            address,
            key,
            immediate,
            is_signalled,
        });
        self.taken += 1;
        Ok(())
    }
}

/// Reads memory of this process as the device does, by its address.
fn read(address: u64, length: u32) -> Vec<u8> {
    let from = std::ptr::with_exposed_provenance::<u8>(address as usize);
    let mut bytes = vec![0; length as usize];
    // SAFETY: the caller has posted or registered this memory.
    unsafe { from.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
    bytes
}

impl State {
    /// Executes what a post has made possible: writes, or the flush of a failed queue pair.
    fn after_post(&mut self, world: u64, pair: *mut ibv_qp) {
        if self.pairs.at(pair.addr()).is_some_and(|pair| pair.state == ibv_qp_state::IBV_QPS_ERR) {
            self.flush(pair.addr());
        }
        self.run(world);
    }

    /// Executes posted writes of all queue pairs until no more can be executed.
    pub(super) fn run(&mut self, world: u64) {
        if self.world(world).is_held {
            return;
        }
        let mut has_moved = true;
        while has_moved {
            let all: Vec<_> = self.pairs.all(world).map(|pair| pair.raw.pointer().addr()).collect();
            has_moved = all.into_iter().filter(|&pair| self.execute_next(pair)).count() > 0;
        }
    }

    /// Executes the first write of a send queue. Returns whether there was one, and the peer was
    /// ready for it.
    fn execute_next(&mut self, sender: usize) -> bool {
        let Some(pair) = self.pairs.at(sender) else { return false };
        let Some(send) = pair.sends.front().cloned() else { return false };
        let Some(outcome) = self.transfer(sender, &send) else { return false };
        let Some(pair) = self.pairs.at(sender) else { return false };
        pair.sends.pop_front();
        if outcome == ibv_wc_status::IBV_WC_SUCCESS {
            pair.unsignalled += 1;
            if send.is_signalled {
                self.sent(sender, &send, outcome);
            }
            return true;
        }
        pair.state = ibv_qp_state::IBV_QPS_ERR;
        pair.unsignalled += 1;
        self.sent(sender, &send, outcome);
        self.flush(sender);
        true
    }

    /// Copies the bytes of a write, and returns its status. Returns `None` if the peer has posted
    /// no receive request for its immediate.
    fn transfer(&mut self, sender: usize, send: &PostedWrite) -> Option<ibv_wc_status::Type> {
        let (world, domain) = self.pairs.at(sender).map(|pair| (pair.world, pair.domain))?;
        let mut bytes = match &send.payload {
            Payload::Inline(bytes) => bytes.clone(),
            Payload::ScatterGather(sges) => {
                if !sges.iter().all(|sge| self.is_readable(world, domain, sge)) {
                    return Some(ibv_wc_status::IBV_WC_LOC_PROT_ERR);
                }
                sges.iter().flat_map(|sge| read(sge.addr, sge.length)).collect()
            }
        };
        if self.world(world).corrupts_bytes {
            bytes.iter_mut().for_each(|byte| *byte = !*byte);
        }
        let Some(receiver) = self.peer(sender) else { return Some(ibv_wc_status::IBV_WC_RETRY_EXC_ERR) };
        let to = match self.writable(receiver, send, bytes.len()) {
            Ok(to) => to,
            Err(status) => {
                self.pairs.at(receiver)?.state = ibv_qp_state::IBV_QPS_ERR;
                self.flush(receiver);
                return Some(status);
            }
        };
        let pair = self.pairs.at(receiver)?;
        let id = match send.immediate {
            Some(_) => Some(pair.receives.pop_front()?),
            None => None,
        };
        // SAFETY: the range was found to be registered, which ends before the memory does. It does
        // not overlap `bytes`.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        if let Some((id, immediate)) = id.zip(send.immediate) {
            let mut found = completion(id, ibv_wc_status::IBV_WC_SUCCESS);
            found.opcode = ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM;
            found.wc_flags = ibv_wc_flags::IBV_WC_WITH_IMM.0;
            found.imm_data_invalidated_rkey_union.imm_data = immediate;
            let queue = pair.queue;
            self.complete(queue, Entry { found, pair: receiver, frees: 0 });
        }
        Some(ibv_wc_status::IBV_WC_SUCCESS)
    }

    fn is_readable(&self, world: u64, domain: usize, sge: &ibv_sge) -> bool {
        let mut all = self.regions.all(world);
        // SAFETY: registered regions are alive.
        let known = all.find(|region| unsafe { (*region.raw.pointer()).lkey } == sge.lkey);
        known.is_some_and(|it| it.domain == domain && it.has(sge.addr, sge.length as usize))
    }

    /// Returns the queue pair at the other end, if both ends agree about the path.
    fn peer(&mut self, sender: usize) -> Option<usize> {
        let pair = self.pairs.at(sender)?;
        let (world, number, route) = (pair.world, pair.number, pair.route);
        let lid = self.world(world).lid;
        let gids = self.world(world).gids.clone();
        let gid_index = |gid_index: u8| gids.get(usize::from(gid_index)).map(Ipv6Addr::octets);
        let peer = self.pairs.all(world).find(|pair| pair.number == route.peer)?;
        let is_there = match (route.global, peer.route.global) {
            (Some((ours, to)), Some((theirs, back))) => {
                gid_index(theirs) == Some(to) && gid_index(ours) == Some(back)
            }
            (None, None) => route.lid == lid && peer.route.lid == lid,
            _ => false,
        };
        let is_ready = matches!(peer.state, ibv_qp_state::IBV_QPS_RTR | ibv_qp_state::IBV_QPS_RTS);
        let agrees = peer.route.peer == number && peer.route.receive_sequence == route.send_sequence;
        (is_there && is_ready && agrees).then(|| peer.raw.pointer().addr())
    }

    /// Returns the destination of a write in the receiver's memory, or the status if it is not
    /// allowed.
    fn writable(
        &mut self,
        receiver: usize,
        send: &PostedWrite,
        length: usize,
    ) -> Result<*mut u8, ibv_wc_status::Type> {
        let refused = ibv_wc_status::IBV_WC_REM_ACCESS_ERR;
        let pair = self.pairs.at(receiver).ok_or(refused)?;
        let (world, domain, access) = (pair.world, pair.domain, pair.access);
        let to = std::ptr::with_exposed_provenance_mut(send.address as usize);
        if length == 0 {
            return Ok(to);
        }
        let remote = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
        let mut all = self.regions.all(world);
        // SAFETY: registered regions are alive.
        let known = all.find(|region| unsafe { (*region.raw.pointer()).rkey } == send.key);
        let allows = known.is_some_and(|it| {
            it.domain == domain && it.access & access & remote != 0 && it.has(send.address, length)
        });
        if allows { Ok(to) } else { Err(refused) }
    }

    /// Adds the completion of a write, which frees the entries of unsignalled ones before it.
    fn sent(&mut self, sender: usize, send: &PostedWrite, status: ibv_wc_status::Type) {
        let mut found = completion(send.id, status);
        if status == ibv_wc_status::IBV_WC_SUCCESS {
            found.opcode = ibv_wc_opcode::IBV_WC_RDMA_WRITE;
        }
        let Some(pair) = self.pairs.at(sender) else { return };
        let (queue, frees) = (pair.queue, std::mem::take(&mut pair.unsignalled));
        self.complete(queue, Entry { found, pair: sender, frees });
    }

    /// Completes all requests of a queue pair that has failed as flushed.
    fn flush(&mut self, pair: usize) {
        let flushed = ibv_wc_status::IBV_WC_WR_FLUSH_ERR;
        while let Some(found) = self.pairs.at(pair) {
            if let Some(send) = found.sends.pop_front() {
                found.unsignalled += 1;
                self.sent(pair, &send, flushed);
            } else if let Some(id) = found.receives.pop_front() {
                let queue = found.queue;
                self.complete(queue, Entry { found: completion(id, flushed), pair, frees: 0 });
            } else {
                return;
            }
        }
    }
}

/// Makes a completion whose undefined fields are misleading: they look like an immediate of the
/// peer, as soft-RoCE reports for our own writes.
fn completion(id: u64, status: ibv_wc_status::Type) -> ibv_wc {
    // SAFETY: a structure of numbers.
    let mut found: ibv_wc = unsafe { std::mem::zeroed() };
    (found.wr_id, found.status, found.vendor_err) = (id, status, 0xbad);
    found.opcode = ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM;
    found.wc_flags = ibv_wc_flags::IBV_WC_WITH_IMM.0;
    found.imm_data_invalidated_rkey_union.imm_data = 0xdead_beef;
    found
}

impl super::MemoryRegion {
    /// Returns whether the registered region contains this whole range of addresses.
    fn has(&self, address: u64, length: usize) -> bool {
        let end = (address as usize).checked_add(length);
        address as usize >= self.start && end.is_some_and(|end| end <= self.start + self.length)
    }
}
