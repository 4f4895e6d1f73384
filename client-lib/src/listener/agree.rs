//! Which transport a sender gets: RDMA if both sides can and may, else TCP if both may.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::Shared;
use super::accept::Decision;
use super::receive::Ended;
use super::slots::Slots;
use crate::handshake::{RdmaEnd, Refusal, RefusalCode, TransportKind};
use crate::rdma::{QueuePair, Role, Spare};
use crate::transport::Transport;
use crate::way::{NOT_WITH_TLS, NoRdma, blocking};

/// Our end, or why there is none.
type Made = Result<(QueuePair<Ended>, RdmaEnd), String>;

/// Memory that a slow device had ready when its sender was not waiting any more: the next one gets it, so that some get on however slow the device is.
#[derive(Default)]
pub(super) struct Late(Mutex<Vec<(Slots, Spare)>>);

/// Of so many, at most; it is locked, and accounted for, as long as nobody comes.
const LATE: usize = 4;

impl Late {
    fn take(&self) -> Option<(Slots, Spare)> {
        self.lock().pop()
    }

    fn keep(&self, slots: Slots, spare: Spare) {
        let mut kept = self.lock();
        if kept.len() < LATE {
            kept.push((slots, spare));
        }
    }

    /// No code panics while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, Vec<(Slots, Spare)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes our end at the first address for a sender at the second one, if it is to be RDMA.
pub(super) async fn agree(
    shared: &Shared,
    mut decision: Decision,
    slots: Slots,
    addresses: (IpAddr, IpAddr),
) -> Result<(Decision, Slots), Refusal> {
    let transport = shared.config.transport;
    let offers = |kind| decision.hello.transports.contains(&kind);
    let (may_rdma, may_tcp) = (offers(TransportKind::Rdma), offers(TransportKind::Tcp));
    if !may_rdma && !may_tcp {
        let message = "the sender offers no transport that this listener knows";
        return Err(Refusal::new(RefusalCode::Transport, message));
    }
    let theirs = match &decision.hello.rdma {
        _ if transport == Transport::Tcp => Err("this listener does not allow it".to_owned()),
        _ if transport == Transport::Auto && shared.config.tls.is_some() => Err(NOT_WITH_TLS.to_owned()),
        Some(theirs) if may_rdma => Ok(theirs.clone()),
        _ => Err("the sender does not offer it".to_owned()),
    };
    let (mut slots, made) = match theirs {
        Ok(theirs) => connect(shared, slots, addresses, theirs).await?,
        Err(reason) => (slots, Err(reason)),
    };
    match made {
        Ok((pair, end)) => {
            slots.shrink(end.places.into());
            decision.accept.rdma_only = transport == Transport::Rdma;
            (decision.accept.transport, decision.accept.rdma) = (TransportKind::Rdma, Some(end));
            decision.pair = Some(pair);
        }
        Err(reason) if may_tcp && transport != Transport::Rdma => {
            decision.accept.reason = may_rdma.then_some(reason);
        }
        Err(reason) => {
            return Err(Refusal::new(RefusalCode::Transport, format!("RDMA cannot be used: {reason}")));
        }
    }
    // Others than were granted at first, perhaps.
    decision.accept.slots = slots.count();
    Ok((decision, slots))
}

/// Has the device make our end. The memory is accounted for until it has, whoever still waits for it.
async fn connect(
    shared: &Shared,
    slots: Slots,
    (ours, theirs): (IpAddr, IpAddr),
    their_end: RdmaEnd,
) -> Result<(Slots, Made), Refusal> {
    let limits = &shared.config.limits;
    let (frame_size, patience) = (limits.frame_size, limits.patience / 2);
    let gpu = shared.config.gpu.clone();
    let (rails, late) = (Arc::clone(&shared.rails), Arc::clone(&shared.late));
    let (slots, spare) = match late.take() {
        Some((slots, spare)) => (slots, Some(spare)),
        None => (slots, None),
    };
    // The sender waits for the answer as long as it may take for the whole, as a rule.
    let until = Instant::now() + patience;
    let making = blocking(patience, move || {
        let role = Role::Receiver { slots: slots.count(), frame_size, gpu };
        let made = match rails.prepare(ours, role, spare) {
            Ok(own) if Instant::now() < until => {
                let end = own.end().clone();
                own.connect((&their_end, theirs), frame_size, patience).map(|pair| (pair, end))
            }
            Ok(own) => {
                late.keep(slots, own.into_spare());
                return Ok(None);
            }
            Err(error) => Err(error),
        };
        Ok(Some((slots, made.map_err(|error| error.reason()))))
    });
    let reason = match making.await {
        Ok(Some(made)) => return Ok(made),
        Ok(None) => format!("the device takes {patience:?}"),
        Err(NoRdma { reason, .. }) => reason,
    };
    Ok((shared.memory.grant(limits.slots)?, Err(reason)))
}
