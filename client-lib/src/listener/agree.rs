//! Which transport a sender gets: RDMA if both sides can and may, else TCP if both may.

use std::net::IpAddr;
use std::sync::Arc;

use super::Shared;
use super::accept::Decision;
use super::receive::Ended;
use crate::connector::Transport;
use crate::handshake::{RdmaEnd, Refusal, RefusalCode, TransportKind};
use crate::rdma::{QueuePair, Role};
use crate::way::{NOT_WITH_TLS, blocking};

/// Makes our end at this address, if it is to be RDMA.
pub(super) async fn agree(
    shared: &Shared,
    mut decision: Decision,
    address: IpAddr,
) -> Result<Decision, Refusal> {
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
    let made = match theirs {
        Ok(theirs) => connect(shared, &decision, address, theirs).await,
        Err(reason) => Err(reason),
    };
    match made {
        Ok((pair, end)) => {
            // Of more slots than a queue pair has, the rest is not used.
            decision.accept.slots = decision.accept.slots.min(end.places.into());
            (decision.accept.transport, decision.accept.rdma) = (TransportKind::Rdma, Some(end));
            decision.pair = Some(pair);
            Ok(decision)
        }
        Err(reason) if may_tcp && transport != Transport::Rdma => {
            decision.accept.reason = may_rdma.then_some(reason);
            Ok(decision)
        }
        Err(reason) => Err(Refusal::new(RefusalCode::Transport, format!("RDMA cannot be used: {reason}"))),
    }
}

async fn connect(
    shared: &Shared,
    decision: &Decision,
    address: IpAddr,
    theirs: RdmaEnd,
) -> Result<(QueuePair<Ended>, RdmaEnd), String> {
    let (slots, frame_size) = (decision.slots.count(), decision.accept.frame_size);
    let rails = Arc::clone(&shared.rails);
    blocking(move || {
        let own = rails.prepare(address, Role::Receiver { slots, frame_size })?;
        let end = own.end().clone();
        Ok((own.connect(&theirs, frame_size)?, end))
    })
    .await
}
