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
use crate::handshake::{RdmaEnd, Refusal, RefusalCode, TransportKind, sanitize_message};
use crate::rdma::{QueuePair, ReceiveMemory, Role};
use crate::transport::Transport;

/// Slots that a newcomer was granted, in the host's memory and in the GPU's, and registered memory
/// that is ready for it.
pub(super) struct Granted {
    pub(super) slots: Slots,
    pub(super) gpu: Option<Slots>,
    pub(super) spare: Option<ReceiveMemory>,
}

/// Our end, or why there is none.
type Made = Result<(QueuePair<Ended>, RdmaEnd), String>;

/// Makes our end at the first address for a sender at the second one, if it is to be RDMA.
pub(super) async fn agree(
    shared: &Shared,
    mut decision: Decision,
    granted: Granted,
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
        _ if transport == Transport::Auto && shared.config.tls.is_some() => Err(NO_ENCRYPTION.to_owned()),
        Some(theirs) if may_rdma => Ok(theirs.clone()),
        _ => Err("the sender does not offer it".to_owned()),
    };
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
        Ok((pair, end)) => {
            slots.lower(end.places.into());
            decision.accept.rdma_only = transport == Transport::Rdma;
            (decision.accept.transport, decision.accept.rdma) = (TransportKind::Rdma, Some(end));
            decision.pair = Some(pair);
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
            drop_blocking(spare).await;
        }
        return Ok((granted.slots, Err(format!("the device takes more than {patience:?} for others"))));
    };
    let making = try_rdma(until.saturating_duration_since(Instant::now()), move || {
        let extra_pairs = their_end.further.len();
        let Granted { slots, gpu: gpus, spare } = granted;
        let gpu = gpu.map(|gpu| (gpu, gpus.as_ref().unwrap_or(&slots).count()));
        let role = Role::Receiver { slots: slots.count(), frame_size, extra_pairs, gpu };
        let prepared = devices.prepare(ours, theirs, role, spare);
        drop(turn);
        // Those of the memory that it has become.
        let is_gpus = prepared.as_ref().is_ok_and(|own| own.end().payloads.is_some());
        let slots = gpus.filter(|_| is_gpus).unwrap_or(slots);
        let made = match prepared {
            Ok(own) if Instant::now() < until => {
                let end = own.end().clone();
                own.connect(&their_end, theirs, frame_size, patience).map(|pair| (pair, end))
            }
            Ok(own) => {
                late.keep(Instant::now(), slots, own.into_spare());
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
