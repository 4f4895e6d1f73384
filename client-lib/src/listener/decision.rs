//! Decision whether a sender is let in, before it is known whether there is memory for it.

use std::sync::Arc;

use super::control::Connection;
use super::session::{SessionKey, SessionState};
use super::{ListenerBuilder, ListenerState};
use crate::handshake::{Accept, Hello, Refusal, RefusalCode, TransportKind};
use crate::resolve::{List, service_of};

/// A sender that may come in, and the answer to it, as far as it is known.
pub(super) struct Decision {
    pub(super) hello: Hello,
    pub(super) membership: Membership,
    pub(super) accept: Accept,
}

/// A connection's place in its session, which it leaves when this is dropped.
pub(super) struct Membership {
    shared: Arc<ListenerState>,
    pub(super) key: SessionKey,
    pub(super) state: Arc<SessionState<Connection>>,
}

impl Drop for Membership {
    fn drop(&mut self) {
        let now = tokio::time::Instant::now().into_std();
        self.shared.sessions.lock().leave(now, &self.key, |state| state.shrink());
    }
}

/// Decides whether a sender, whose certificate is for the names in `owner`, may come in. An earlier
/// connection of its lane ends then.
pub(super) fn decide(
    shared: &Arc<ListenerState>,
    mut hello: Hello,
    owner: Vec<String>,
) -> Result<Decision, Refusal> {
    let config = &shared.config;
    let me = &config.identity;
    check_asked(config, hello.uid.as_deref(), &hello.service)?;
    let now = tokio::time::Instant::now().into_std();
    let lane = (hello.peer, hello.lane);
    let key = SessionKey { id: hello.session, owner: owner.into() };
    let (state, lane) = shared.sessions.lock().admit(now, &key, lane, hello.epoch)?;
    // From here on, the lane has this listener's number for it.
    hello.lane = lane;
    state.supersede(lane, hello.epoch);
    let membership = Membership { shared: Arc::clone(shared), key, state };
    let accept = Accept {
        uid: me.uid.clone(),
        name: me.name.clone(),
        frame_size: config.limits.frame_size,
        // Set when they have been granted.
        slots: 0,
        transport: TransportKind::Tcp,
        rdma: None,
        rdma_only: false,
        reason: None,
    };
    Ok(Decision { hello, membership, accept })
}

/// Checks that a peer has asked for this pod, and for a service of which it is an endpoint.
pub(super) fn check_asked(config: &ListenerBuilder, uid: Option<&str>, service: &str) -> Result<(), Refusal> {
    let me = &config.identity;
    if let (Some(expected), Some(mine)) = (uid, &me.uid)
        && expected != mine
    {
        let message =
            format!("this is pod {} with uid {mine}, not {expected}: the address has a new owner", me.name);
        return Err(Refusal::new(RefusalCode::Pod, message));
    }
    if !config.services.is_empty() && !config.services.iter().any(|name| is_asked_for(name, service)) {
        let message = format!("{} is no endpoint of {service}, but of {}", me.name, List(&config.services));
        return Err(Refusal::new(RefusalCode::Service, message));
    }
    Ok(())
}

/// Returns whether a sender has asked for a service, of which the first labels are enough, by any
/// of its networks or hosts.
fn is_asked_for(service: &str, asked: &str) -> bool {
    let (service, asked) = (service_of(service), service_of(asked));
    let is_it = |asked: &str| {
        asked.strip_prefix(&service).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    is_it(&asked) || asked.split_once('.').is_some_and(|(_host, service)| is_it(service))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_asked_for_by_its_own_name_or_that_of_a_network_or_host() {
        let cases = [
            ("infer.vision", "infer.vision.svc.multinet", true),
            ("infer.vision", "Infer.Vision", true),
            ("infer.vision", "rail0._net.infer.vision.svc.multinet", true),
            ("infer.vision", "infer-0.infer.vision.svc.multinet", true),
            ("infer.vision", "infer-0.rail0._net.infer.vision.svc.multinet", true),
            ("infer.vision", "a.infer-0.infer.vision.svc.multinet", false),
            ("infer.vision", "infer.visionary", false),
            ("track.vision", "infer.vision.svc.multinet", false),
        ];
        for (service, asked, expected) in cases {
            assert_eq!(is_asked_for(service, asked), expected, "{asked}");
        }
    }
}
