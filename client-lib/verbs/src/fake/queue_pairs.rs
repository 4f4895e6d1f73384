//! Queue pairs and the changes of their states.
#![allow(unsafe_code, reason = "stands in for verbs")]

use std::collections::VecDeque;
use std::ffi::c_int;
use std::net::Ipv6Addr;

use rdma_sys::{
    ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask as mask, ibv_qp_init_attr, ibv_qp_state, ibv_qp_type,
};

use super::objects::{QueuePair, Raw, Route};
use super::{State, Verb, World, fault, made, returned, state};

/// The changes of state, each with the attributes that it requires (InfiniBand Architecture, table
/// 91).
const STEPS: [(ibv_qp_state::Type, ibv_qp_state::Type, &[mask]); 3] = [
    (
        ibv_qp_state::IBV_QPS_RESET,
        ibv_qp_state::IBV_QPS_INIT,
        &[mask::IBV_QP_STATE, mask::IBV_QP_PKEY_INDEX, mask::IBV_QP_PORT, mask::IBV_QP_ACCESS_FLAGS],
    ),
    (
        ibv_qp_state::IBV_QPS_INIT,
        ibv_qp_state::IBV_QPS_RTR,
        &[
            mask::IBV_QP_STATE,
            mask::IBV_QP_AV,
            mask::IBV_QP_PATH_MTU,
            mask::IBV_QP_DEST_QPN,
            mask::IBV_QP_RQ_PSN,
            mask::IBV_QP_MAX_DEST_RD_ATOMIC,
            mask::IBV_QP_MIN_RNR_TIMER,
        ],
    ),
    (
        ibv_qp_state::IBV_QPS_RTR,
        ibv_qp_state::IBV_QPS_RTS,
        &[
            mask::IBV_QP_STATE,
            mask::IBV_QP_TIMEOUT,
            mask::IBV_QP_RETRY_CNT,
            mask::IBV_QP_RNR_RETRY,
            mask::IBV_QP_SQ_PSN,
            mask::IBV_QP_MAX_QP_RD_ATOMIC,
        ],
    ),
];

pub(super) extern "C" fn create_qp(domain: *mut ibv_pd, wanted: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    let mut state = state();
    // SAFETY: the caller's structure.
    let wanted = unsafe { &mut *wanted };
    made(state.create(domain, wanted))
}

pub(super) extern "C" fn modify_qp(pair: *mut ibv_qp, wanted: *mut ibv_qp_attr, also: c_int) -> c_int {
    let mut state = state();
    // SAFETY: the caller's structure.
    let wanted = unsafe { &*wanted };
    returned(state.modify(pair, wanted, also.cast_unsigned()))
}

pub(super) extern "C" fn destroy_qp(pair: *mut ibv_qp) -> c_int {
    let mut state = state();
    let destroy = |state: &mut State| {
        let pair = state.pairs.remove(pair)?;
        // Unpolled completions disappear with their queue pair.
        if let Some(queue) = state.queues.at(pair.queue) {
            queue.entries.retain(|entry| entry.pair != pair.raw.pointer().addr());
        }
        state.run(pair.world);
        Ok(())
    };
    returned(destroy(&mut state))
}

impl State {
    fn create(&mut self, domain: *mut ibv_pd, wanted: &mut ibv_qp_init_attr) -> Result<*mut ibv_qp, i32> {
        let found = self.domains.get(domain)?;
        let (world, context) = (found.world, found.context);
        self.call(world, Verb::CreateQp)?;
        for queue in [wanted.send_cq, wanted.recv_cq] {
            if self.queues.get(queue)?.context != context {
                fault(world, "a pair's queue is of another context than its domain");
            }
        }
        if wanted.qp_type != ibv_qp_type::IBV_QPT_RC || wanted.send_cq != wanted.recv_cq {
            fault(world, "a pair of a kind that is not known here");
        }
        let (most, least) = self.world(world).inline;
        if wanted.cap.max_inline_data > most {
            return Err(libc::EINVAL);
        }
        wanted.cap.max_inline_data = wanted.cap.max_inline_data.max(least);
        let number = self.number();
        let context = self.contexts.at(context).ok_or(libc::EBADF)?.raw.pointer();
        // SAFETY: a structure of numbers and pointers, for which zero means none.
        let mut raw: ibv_qp = unsafe { std::mem::zeroed() };
        (raw.context, raw.pd, raw.qp_num) = (context, domain, number);
        raw.qp_context = wanted.qp_context;
        (raw.send_cq, raw.recv_cq) = (wanted.send_cq, wanted.recv_cq);
        Ok(self.pairs.insert(QueuePair {
            world,
            raw: Raw::new(raw),
            number,
            domain: domain.addr(),
            queue: wanted.send_cq.addr(),
            state: ibv_qp_state::IBV_QPS_RESET,
            most_sends: wanted.cap.max_send_wr as usize,
            most_receives: wanted.cap.max_recv_wr as usize,
            most_parts: wanted.cap.max_send_sge as usize,
            inline: wanted.cap.max_inline_data,
            access: 0,
            route: Route::default(),
            sends: VecDeque::new(),
            receives: VecDeque::new(),
            taken: 0,
            unsignalled: 0,
        }))
    }

    fn modify(&mut self, pair: *mut ibv_qp, wanted: &ibv_qp_attr, also: u32) -> Result<(), i32> {
        let found = self.pairs.get(pair)?;
        let (world, now) = (found.world, found.state);
        self.call(world, Verb::Modify)?;
        let step = STEPS.iter().find(|(from, to, _)| (*from, *to) == (now, wanted.qp_state));
        let needs = step.map(|(_, _, needs)| needs.iter().fold(0, |needs, bit| needs | bit.0));
        if needs != Some(also) {
            fault(world, format!("a pair goes from state {now} to {} with {also:#x}", wanted.qp_state));
            return Err(libc::EINVAL);
        }
        match wanted.qp_state {
            ibv_qp_state::IBV_QPS_INIT => self.init(pair, wanted)?,
            ibv_qp_state::IBV_QPS_RTR => self.ready_to_receive(world, pair, wanted)?,
            _ => self.ready_to_send(pair, wanted)?,
        }
        self.pairs.get(pair)?.state = wanted.qp_state;
        Ok(())
    }

    fn init(&mut self, pair: *mut ibv_qp, wanted: &ibv_qp_attr) -> Result<(), i32> {
        self.pairs.get(pair)?.access = wanted.qp_access_flags;
        if wanted.port_num == 1 { Ok(()) } else { Err(libc::EINVAL) }
    }

    fn ready_to_receive(&mut self, world: u64, pair: *mut ibv_qp, wanted: &ibv_qp_attr) -> Result<(), i32> {
        let World { gids, mtu, needs_gids, .. } = self.world(world);
        let address = &wanted.ah_attr;
        // SAFETY: both fields of the union are numbers.
        let gid = unsafe { address.grh.dgid.raw };
        let is_global = address.is_global != 0;
        if wanted.path_mtu > *mtu || address.port_num != 1 || !is_24_bits(wanted.rq_psn) {
            return Err(libc::EINVAL);
        }
        if address.sl > 15 {
            return Err(libc::EINVAL);
        }
        if *needs_gids && !is_global {
            return Err(libc::EINVAL);
        }
        if is_global && gids.len() <= address.grh.sgid_index.into() {
            return Err(libc::EINVAL);
        }
        if is_global && !gids.contains(&Ipv6Addr::from(gid)) {
            return Err(libc::ENETUNREACH);
        }
        self.pairs.get(pair)?.route = Route {
            peer: wanted.dest_qp_num,
            global: is_global.then_some((address.grh.sgid_index, gid)),
            lid: address.dlid,
            class: (address.sl, if is_global { address.grh.traffic_class } else { 0 }),
            send_sequence: 0,
            receive_sequence: wanted.rq_psn,
        };
        Ok(())
    }

    fn ready_to_send(&mut self, pair: *mut ibv_qp, wanted: &ibv_qp_attr) -> Result<(), i32> {
        self.pairs.get(pair)?.route.send_sequence = wanted.sq_psn;
        if is_24_bits(wanted.sq_psn) { Ok(()) } else { Err(libc::EINVAL) }
    }
}

fn is_24_bits(psn: u32) -> bool {
    psn < 1 << 24
}
