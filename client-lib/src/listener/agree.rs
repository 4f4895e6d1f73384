//! Choice of the transport that a sender is offered: RDMA if both sides have and allow it, or else
//! TCP if both allow that.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use super::ListenerState;
use super::control::Connection;
use super::decision::Decision;
use super::ended::Ended;
use super::slots::{Newcomer, Slots};
use super::spares::{KEPT, Spares};
use crate::blocking::drop_blocking;
use crate::fallback::{NO_ENCRYPTION, NoRdma, try_rdma};
use crate::handshake::{Hello, RdmaEnd, Refusal, RefusalCode, TransportKind, sanitize_message};
use crate::rdma::{QueuePair, ReceiveMemory, Role};
use crate::transport::Transport;

/// Slots that a newcomer was granted, and registered memory that is ready for it.
pub(super) struct Granted {
    /// Slots in the machine's memory, where frames by TCP come.
    pub(super) slots: Slots<Connection>,
    /// Slots in the GPU's memory for payloads by RDMA; `None` if payloads come to the machine's
    /// memory.
    pub(super) gpu: Option<Slots<Connection>>,
    /// Memory registered for an earlier sender, accounted for by `gpu`, if that is there, or by
    /// `slots`.
    pub(super) spare: Option<ReceiveMemory>,
}

/// A sender that may come in, with its slots and all that the answer to its hello says.
pub(super) struct Agreed {
    pub(super) decision: Decision,
    /// The connected queue pair, if the answer offers RDMA, which the sender may still decline.
    pub(super) offer: Option<RdmaOffer>,
    /// Slots in the machine's memory, for frames by TCP or RDMA.
    pub(super) slots: Slots<Connection>,
}

/// This end of an RDMA connection that a sender is offered, and may decline.
pub(super) struct RdmaOffer {
    /// Queue pair that is connected to the sender's already.
    pub(super) pair: QueuePair<Ended>,
    /// Slots for payloads in the GPU, if they come there. Dropped after `pair`, which lets the
    /// sender write there.
    pub(super) gpu: Option<Slots<Connection>>,
}

/// This end of an RDMA connection and its description for the sender, or why there is none.
type Made = Result<(RdmaOffer, RdmaEnd), String>;

/// Returns the sender's end of RDMA if frames may go by it, or else why they may not.
pub(super) fn offered(shared: &ListenerState, hello: &Hello) -> Result<Result<RdmaEnd, String>, Refusal> {
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

/// Agrees on a transport with a sender. For RDMA, makes an end at the first address, for the
/// sender's at the second one.
pub(super) async fn agree(
    shared: &ListenerState,
    mut decision: Decision,
    granted: Granted,
    (addresses, theirs): ((IpAddr, IpAddr), Result<RdmaEnd, String>),
) -> Result<Agreed, Refusal> {
    let transport = shared.config.transport;
    let offers = |kind| decision.hello.transports.contains(&kind);
    let (may_rdma, may_tcp) = (offers(TransportKind::Rdma), offers(TransportKind::Tcp));
    let (slots, made) = match theirs {
        Ok(theirs) => connect(shared, granted, addresses, theirs).await?,
        Err(reason) => {
            // The sender needs the slots only, not the memory that is registered for them.
            if let Some(spare) = granted.spare {
                drop_blocking(spare).await;
            }
            (granted.slots, Err(reason))
        }
    };
    let accept = &mut decision.accept;
    let offer = match made {
        Ok((offer, end)) => {
            // As many by either transport, for the sender has not chosen yet.
            for slots in [Some(&slots), offer.gpu.as_ref()].into_iter().flatten() {
                slots.lower(end.places.into());
            }
            accept.rdma_only = transport == Transport::Rdma;
            (accept.transport, accept.rdma) = (TransportKind::Rdma, Some(end));
            Some(offer)
        }
        Err(reason) if may_tcp && transport != Transport::Rdma => {
            accept.reason = may_rdma.then(|| sanitize_message(reason));
            None
        }
        Err(reason) => {
            return Err(Refusal::new(RefusalCode::Transport, format!("RDMA cannot be used: {reason}")));
        }
    };
    accept.slots = slots.count();
    Ok(Agreed { decision, offer, slots })
}

/// Returns how many payloads may lie in the GPU: as many as have slots there. There are no more
/// than slots in the machine's memory, as the sender may still choose TCP.
fn gpu_count(slots: u32, gpu: Option<&Slots<Connection>>) -> Option<u32> {
    gpu.map(|gpu| gpu.count().min(slots))
}

/// Makes this end of RDMA and connects it. The device may take longer than this waits; its memory
/// stays accounted for meanwhile.
async fn connect(
    shared: &ListenerState,
    granted: Granted,
    (ours, theirs): (IpAddr, IpAddr),
    their_end: RdmaEnd,
) -> Result<(Slots<Connection>, Made), Refusal> {
    let limits = &shared.config.limits;
    let (frame_size, patience) = (limits.frame_size, limits.patience / 2);
    let gpu = shared.config.gpu.clone();
    let (devices, spares) = (Arc::clone(&shared.rdma_devices), Arc::clone(&shared.spares));
    // The sender's patience for the whole handshake is usually the same as the listener's.
    let until = Instant::now() + patience;
    let permit = Arc::clone(&shared.preparing).acquire_owned();
    let Ok(Ok(permit)) = tokio::time::timeout_at(until.into(), permit).await else {
        if let Some(spare) = granted.spare {
            drop_blocking((spare, granted.gpu)).await;
        }
        return Ok((
            granted.slots,
            Err(format!("the device takes more than {patience:?} to set up RDMA for others")),
        ));
    };
    let making = try_rdma(until.saturating_duration_since(Instant::now()), move || {
        let extra_pairs = their_end.further.len();
        let Granted { slots, gpu: gpu_slots, spare } = granted;
        let gpu = gpu.zip(gpu_count(slots.count(), gpu_slots.as_ref()));
        let role = Role::Receiver { slots: slots.count(), frame_size, extra_pairs, gpu };
        let prepared = devices.prepare(ours, theirs, role, spare);
        drop(permit);
        // Payloads may come to the machine's memory after all.
        let gpu = gpu_slots.filter(|_| prepared.as_ref().is_ok_and(|own| own.end().payloads.is_some()));
        let made = match prepared {
            Ok(own) if Instant::now() < until => {
                let end = own.end().clone();
                let pair = own.connect(&their_end, theirs, frame_size, patience);
                pair.map(|pair| (RdmaOffer { pair, gpu }, end))
            }
            Ok(own) => {
                spares.keep(Instant::now(), gpu.unwrap_or(slots), own.into_spare());
                expire(&spares);
                return Ok(None);
            }
            Err(error) => Err(error),
        };
        Ok(Some((slots, made.map_err(|error| error.reason()))))
    });
    let reason = match making.await {
        Ok(Some(made)) => return Ok(made),
        Err(NoRdma { reason, .. }) if Instant::now() < until => reason,
        // Other senders may have had a part of the time.
        Ok(None) | Err(_) => format!("the device takes more than {patience:?} to set up RDMA"),
    };
    let newcomer = Newcomer { address: theirs, wanted: limits.slots, is_lasting: false };
    Ok((shared.memory.grant(newcomer)?, Err(reason)))
}

/// Frees spare memory when its time is over. The listener may end before.
fn expire(spares: &Arc<Spares>) {
    let spares = Arc::downgrade(spares);
    tokio::spawn(async move {
        tokio::time::sleep(KEPT).await;
        if let Some(spares) = spares.upgrade() {
            drop_blocking(spares.overdue(Instant::now())).await;
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
        let memory = Arc::new(Memory::new(Budget::given(1000), 10, 2));
        let granted = |wanted| {
            let newcomer = Newcomer { address: Ipv4Addr::LOCALHOST.into(), wanted, is_lasting: false };
            memory.grant(newcomer).unwrap()
        };
        assert_eq!(gpu_count(4, None), None);
        assert_eq!(gpu_count(4, Some(&granted(3))), Some(3));
        assert_eq!(gpu_count(4, Some(&granted(8))), Some(4));
    }
}
