//! Which transport a sender gets: RDMA if both sides can and may, else TCP if both may.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use super::Shared;
use super::accept::Decision;
use super::late::{KEPT, Late};
use super::receive::Ended;
use super::slots::Slots;
use crate::blocking::drop_blocking;
use crate::fallback::{NO_ENCRYPTION, NoRdma, try_rdma};
use crate::handshake::{Hello, RdmaEnd, Refusal, RefusalCode, TransportKind, sanitize_message};
use crate::rdma::{QueuePair, ReceiveMemory, Role};
use crate::transport::Transport;

/// Slots that a newcomer was granted, and registered memory that is ready for it.
pub(super) struct Granted {
    /// Of the machine's memory: by TCP, frames come there.
    pub(super) slots: Slots,
    /// Of the GPU's, for payloads by RDMA.
    pub(super) gpu: Option<Slots>,
    /// It is accounted for by `gpu`, if that is there, or else by `slots`.
    pub(super) spare: Option<ReceiveMemory>,
}

/// RDMA as it is offered to a sender.
pub(super) struct Offer {
    /// Connected already.
    pub(super) pair: QueuePair<Ended>,
    /// The slots, if payloads come to the GPU. Given back after what the sender may write to.
    pub(super) gpu: Option<Slots>,
}

/// Our end, or why there is none.
type Made = Result<(Offer, RdmaEnd), String>;

/// Returns the sender's end if frames may go by RDMA, or why they may not.
pub(super) fn offered(shared: &Shared, hello: &Hello) -> Result<Result<RdmaEnd, String>, Refusal> {
    let config = &shared.config;
    let offers = |kind| hello.transports.contains(&kind);
    let may_rdma = offers(TransportKind::Rdma);
    if !may_rdma && !offers(TransportKind::Tcp) {
        let message = "the sender offers no transport that this listener knows";
        return Err(Refusal::new(RefusalCode::Transport, message));
    }
    Ok(match &hello.rdma {
        _ if config.transport == Transport::Tcp => Err("this listener does not allow it".to_owned()),
        _ if config.transport == Transport::Auto && config.tls.is_some() => Err(NO_ENCRYPTION.to_owned()),
        Some(theirs) if may_rdma => Ok(theirs.clone()),
        _ => Err("the sender does not offer it".to_owned()),
    })
}

/// Makes our end at the first address for a sender at the second one, if it is to be RDMA.
pub(super) async fn agree(
    shared: &Shared,
    mut decision: Decision,
    granted: Granted,
    (addresses, theirs): ((IpAddr, IpAddr), Result<RdmaEnd, String>),
) -> Result<(Decision, Slots), Refusal> {
    let transport = shared.config.transport;
    let offers = |kind| decision.hello.transports.contains(&kind);
    let (may_rdma, may_tcp) = (offers(TransportKind::Rdma), offers(TransportKind::Tcp));
    let (slots, made) = match theirs {
        Ok(theirs) => connect(shared, granted, addresses, theirs).await?,
        Err(reason) => {
            // It had slots, and does not use the memory.
            if let Some(spare) = granted.spare {
                drop_blocking(spare).await;
            }
            (granted.slots, Err(reason))
        }
    };
    match made {
        Ok((offer, end)) => {
            // As many by either transport, for the sender has not chosen yet.
            [Some(&slots), offer.gpu.as_ref()].into_iter().flatten().for_each(|slots| {
                slots.lower(end.places.into());
            });
            decision.accept.rdma_only = transport == Transport::Rdma;
            (decision.accept.transport, decision.accept.rdma) = (TransportKind::Rdma, Some(end));
            decision.offer = Some(offer);
        }
        Err(reason) if may_tcp && transport != Transport::Rdma => {
            decision.accept.reason = may_rdma.then(|| sanitize_message(reason));
        }
        Err(reason) => {
            return Err(Refusal::new(RefusalCode::Transport, format!("RDMA cannot be used: {reason}")));
        }
    }
    // Others than were granted at first, perhaps.
    decision.accept.slots = slots.count();
    Ok((decision, slots))
}

/// Returns how many payloads may lie in the GPU: as many as have slots there, and none without. More
/// than the machine's memory has would be too many, should the sender choose TCP.
fn gpu_count(slots: &Slots, gpu: Option<&Slots>) -> Option<u32> {
    gpu.map(|gpu| gpu.count().min(slots.count()))
}

/// Has the device make our end. The memory is accounted for until it has, whoever still waits for it.
async fn connect(
    shared: &Shared,
    granted: Granted,
    (ours, theirs): (IpAddr, IpAddr),
    their_end: RdmaEnd,
) -> Result<(Slots, Made), Refusal> {
    let limits = &shared.config.limits;
    let (frame_size, patience) = (limits.frame_size, limits.patience / 2);
    let gpu = shared.config.gpu.clone();
    let (devices, late) = (Arc::clone(&shared.rdma_devices), Arc::clone(&shared.late));
    // The sender waits for the answer as long as it may take for the whole, as a rule.
    let until = Instant::now() + patience;
    let turn = Arc::clone(&shared.turns).acquire_owned();
    let Ok(Ok(turn)) = tokio::time::timeout_at(until.into(), turn).await else {
        if let Some(spare) = granted.spare {
            drop_blocking((spare, granted.gpu)).await;
        }
        return Ok((granted.slots, Err(format!("the device takes more than {patience:?} for others"))));
    };
    let making = try_rdma(until.saturating_duration_since(Instant::now()), move || {
        let extra_pairs = their_end.further.len();
        let Granted { slots, gpu: gpu_slots, spare } = granted;
        let gpu = gpu.zip(gpu_count(&slots, gpu_slots.as_ref()));
        let role = Role::Receiver { slots: slots.count(), frame_size, extra_pairs, gpu };
        let prepared = devices.prepare(ours, theirs, role, spare);
        drop(turn);
        // Payloads may have to come to the machine's memory all the same.
        let gpu = gpu_slots.filter(|_| prepared.as_ref().is_ok_and(|own| own.end().payloads.is_some()));
        let made = match prepared {
            Ok(own) if Instant::now() < until => {
                let end = own.end().clone();
                let pair = own.connect(&their_end, theirs, frame_size, patience);
                pair.map(|pair| (Offer { pair, gpu }, end))
            }
            Ok(own) => {
                late.keep(Instant::now(), gpu.unwrap_or(slots), own.into_spare());
                expire(&late);
                return Ok(None);
            }
            Err(error) => Err(error),
        };
        Ok(Some((slots, made.map_err(|error| error.reason()))))
    });
    let reason = match making.await {
        Ok(Some(made)) => return Ok(made),
        Err(NoRdma { reason, .. }) if Instant::now() < until => reason,
        // Part of the time may have been somebody else's turn.
        Ok(None) | Err(_) => format!("the device takes more than {patience:?}"),
    };
    Ok((shared.memory.grant(theirs, limits.slots, false)?, Err(reason)))
}

/// Has what is kept let go of, if nobody comes for it. The listener may end before.
fn expire(late: &Arc<Late>) {
    let late = Arc::downgrade(late);
    tokio::spawn(async move {
        tokio::time::sleep(KEPT).await;
        if let Some(late) = late.upgrade() {
            drop_blocking(late.overdue(Instant::now())).await;
        }
    });
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::super::budget::Budget;
    use super::super::slots::Memory;
    use super::*;

    #[test]
    fn payloads_lie_in_a_gpu_only_with_slots_there() {
        let granted = |count| {
            let memory = Arc::new(Memory::new(Budget::given(1000), 10, 1));
            memory.grant(Ipv4Addr::LOCALHOST.into(), count, false).unwrap()
        };
        assert_eq!(gpu_count(&granted(4), None), None);
        assert_eq!(gpu_count(&granted(4), Some(&granted(3))), Some(3));
        assert_eq!(gpu_count(&granted(4), Some(&granted(8))), Some(4));
    }
}
