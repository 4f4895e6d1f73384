//! The task of a PeerSet: follows DNS, and carries out the actions of the state machine.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{info, warn};

use super::dial::Dialer;
use super::location::Location;
use super::serve::serve;
use super::shared::{Link, PeerSetState, SendState};
use crate::endpoint::Endpoint;
use crate::near::{self, Attached};
use crate::nic;
use crate::outbound::{Action, LinkId, PeerId, PeerInfo};
use crate::resolve::{Change, Resolved, Watch};
use crate::transport::Rdma;

/// Source of a PeerSet's endpoints: DNS, or the caller.
pub(crate) enum EndpointSource {
    Dns(Box<Watch>),
    /// Sets of endpoints from the caller. After the end of the stream, the last set stays.
    Given(BoxStream<'static, Vec<Endpoint>>),
}

pub(crate) struct Manager {
    pub(crate) shared: Arc<PeerSetState>,
    pub(crate) dialer: Arc<Dialer>,
    pub(crate) source: EndpointSource,
    /// Location of this process. `None` if the choice of peers ignores distances.
    pub(crate) location: Option<Location>,
    pub(crate) rdma: Rdma,
}

/// Computes distances to peers. `None` if the choice of peers ignores distances.
struct Distances(Option<(Location, Vec<Attached>)>);

impl Manager {
    /// Runs until the PeerSet is closed or dropped. Then ends all tasks that it has started.
    pub(crate) async fn run(mut self) {
        let distances = Distances::new(self.location.take(), self.rdma.clone(), self.dialer.patience).await;
        let mut tasks = JoinSet::new();
        loop {
            let due = self.run_actions(&mut tasks);
            let due = async {
                match due {
                    Some(due) => sleep_until(due.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.shared.shutdown.cancelled() => break,
                () = self.source.update(&self.shared, &self.dialer, &distances) => {}
                () = self.shared.wake.notified() => {}
                () = due => {}
                Some(_) = tasks.join_next() => {}
            }
        }
        for link in self.shared.state().links.values() {
            link.end.cancel();
        }
        while tasks.join_next().await.is_some() {}
        self.shared.progress.notify_waiters();
    }

    /// Carries out the actions that are due. Returns when the next one will be.
    fn run_actions(&mut self, tasks: &mut JoinSet<()>) -> Option<std::time::Instant> {
        let mut state = self.shared.state();
        state.outbound.tick(Instant::now().into_std());
        let mut writes = Vec::new();
        while let Some(action) = state.outbound.next_action() {
            match action {
                Action::Connect(id) => self.connect(&mut state, id, tasks),
                Action::Close(id) => {
                    if let Some(link) = state.links.get(&id) {
                        link.end.cancel();
                    }
                }
                Action::Resolve => self.source.ask_soon(),
                Action::Write(id) => writes.extend(state.links.get(&id).cloned()),
            }
        }
        forget_gone_peers(&mut state);
        let due = state.outbound.due();
        drop(state);
        writes.iter().for_each(|link| link.try_flush());
        if !writes.is_empty() {
            // Frames behind these may be sent now.
            self.shared.progress.notify_waiters();
        }
        due
    }

    fn connect(&self, state: &mut SendState, id: LinkId, tasks: &mut JoinSet<()>) {
        let Some(endpoint) = state.endpoints.get(&id.peer).cloned() else { return };
        let end = self.shared.shutdown.child_token();
        let link = Arc::new(Link { id, shared: Arc::clone(&self.shared), channel: OnceLock::new(), end });
        state.links.insert(id, Arc::clone(&link));
        tasks.spawn(serve(link, Arc::clone(&self.dialer), endpoint));
    }
}

impl EndpointSource {
    /// Waits for the next set of endpoints from DNS or the caller, and applies it.
    async fn update(&mut self, shared: &PeerSetState, dialer: &Dialer, distances: &Distances) {
        let endpoints = match self {
            Self::Dns(watch) => match watch.next().await {
                Some(change) => apply_change(&mut shared.state(), change),
                None => std::future::pending().await,
            },
            Self::Given(given) => match given.next().await {
                Some(endpoints) => Some(endpoints),
                None => std::future::pending().await,
            },
        };
        if let Some(endpoints) = endpoints {
            // Addresses are read before the lock is taken, so that senders do not wait for it.
            let mine = own_addresses();
            set_endpoints(&mut shared.state(), endpoints, &mine, dialer, distances);
        }
        shared.progress.notify_waiters();
    }

    /// Queries DNS soon, because a lost peer may have been replaced.
    fn ask_soon(&mut self) {
        if let Self::Dns(watch) = self {
            watch.ask_soon();
        }
    }
}

/// Records a change in DNS, and returns the new endpoints. `None` if they stay as they are.
fn apply_change(state: &mut SendState, change: Change) -> Option<Vec<Endpoint>> {
    match change {
        Change::Endpoints(Resolved { endpoints, .. }) => {
            (state.unresolved, state.lost) = (None, None);
            Some(endpoints)
        }
        Change::Recovered => {
            state.unresolved = None;
            None
        }
        Change::Held { error, .. } => {
            state.unresolved = Some(error.to_string());
            None
        }
        Change::Lost { error } => {
            state.unresolved = Some(error.to_string());
            state.lost = Some(error);
            Some(Vec::new())
        }
    }
}

fn own_addresses() -> HashSet<IpAddr> {
    match nic::local_interfaces() {
        Ok(interfaces) => {
            let addresses = interfaces.into_iter().flat_map(|interface| interface.addresses);
            addresses.map(|address| address.ip).collect()
        }
        Err(error) => {
            warn!("cannot tell this instance from its peers by their addresses: {error}");
            HashSet::new()
        }
    }
}

/// Sets the endpoints. This process itself may be among them, and is left out.
fn set_endpoints(
    state: &mut SendState,
    endpoints: Vec<Endpoint>,
    mine: &HashSet<IpAddr>,
    dialer: &Dialer,
    distances: &Distances,
) {
    let is_me = |endpoint: &Endpoint| match (&dialer.identity.uid, endpoint.uid()) {
        (Some(mine), Some(uid)) => mine == uid,
        _ => {
            dialer.own_port == Some(endpoint.port)
                && endpoint.addresses.iter().any(|address| mine.contains(&address.ip))
        }
    };
    let count = endpoints.len();
    let others: Vec<Arc<Endpoint>> =
        endpoints.into_iter().filter(|endpoint| !is_me(endpoint)).map(Arc::new).collect();
    if others.is_empty() && count > 0 {
        state.unresolved = Some("this pod itself is its only endpoint so far".to_owned());
    }
    let info = |endpoint: &Arc<Endpoint>| PeerInfo {
        target: format!("{}:{}", endpoint.target, endpoint.port),
        uid: endpoint.uid().map(ToOwned::to_owned),
        distance: distances.of(endpoint),
    };
    let infos = others.iter().map(info).collect();
    let ids = state.outbound.set_endpoints(Instant::now().into_std(), infos);
    info!(service = %dialer.service, peers = ids.len(), "endpoints resolved");
    state.endpoints.extend(ids.into_iter().zip(others));
}

impl Distances {
    async fn new(location: Option<Location>, rdma: Rdma, patience: Duration) -> Self {
        let Some(location) = location else { return Self(None) };
        // A pod's NICs do not change. If a device does not respond, distances depend on nodes and
        // zones only.
        let finding = tokio::task::spawn_blocking(move || near::attached(&rdma));
        let attached = timeout(patience, finding).await.ok().and_then(Result::ok).unwrap_or_default();
        Self(Some((location, attached)))
    }

    fn of(&self, endpoint: &Endpoint) -> u8 {
        self.0.as_ref().map_or(0, |(location, attached)| location.distance(endpoint, attached))
    }
}

/// Drops the records of peers that the sending state machine no longer has.
fn forget_gone_peers(state: &mut SendState) {
    let SendState { outbound, endpoints, failures, breaks, instead_of_rdma, .. } = state;
    let is_known = |peer: &PeerId| outbound.knows(*peer);
    endpoints.retain(|peer, _| is_known(peer));
    failures.retain(|peer, _| is_known(peer));
    breaks.retain(|peer, _| is_known(peer));
    instead_of_rdma.retain(|(peer, _), _| is_known(peer));
}
