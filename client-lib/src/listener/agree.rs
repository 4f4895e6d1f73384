//! Which transport a sender gets: RDMA if both sides can and may, else TCP if both may.

use std::net::IpAddr;
use std::sync::Arc;

use super::Shared;
use super::accept::Decision;
use super::receive::Ended;
use super::slots::Slots;
use crate::handshake::{RdmaEnd, Refusal, RefusalCode, TransportKind};
use crate::rdma::{QueuePair, Role};
use crate::transport::Transport;
use crate::way::{NOT_WITH_TLS, NoRdma, blocking};

/// Our end, or why there is none.
type Made = Result<(QueuePair<Ended>, RdmaEnd), String>;

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
    let rails = Arc::clone(&shared.rails);
    // The sender waits for the answer as long as it may take for the whole, as a rule.
    let making = blocking(patience, move || {
        let role = Role::Receiver { slots: slots.count(), frame_size };
        let made = rails.prepare(ours, role).and_then(|own| {
            let end = own.end().clone();
            Ok((own.connect((&their_end, theirs), frame_size, patience)?, end))
        });
        Ok((slots, made.map_err(|error| error.reason())))
    });
    match making.await {
        Ok(made) => Ok(made),
        Err(NoRdma { reason, .. }) => Ok((shared.memory.grant(limits.slots)?, Err(reason))),
    }
}
