//! Model of slices and DNS: their final contents, and the answers that DNS must give at any time.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Values of the label `app`. Each is also the name of a service that selects these pods; the
/// service [`ALL`] selects all pods. Only the slices of [`TOUCHED`] are spoilt, another writer adds
/// slices to [`SHARED`], and [`MIRRORED`] is mirrored.
pub(super) const APPS: [&str; 3] = ["mirrored", "shared", "touched"];
pub(super) const ALL: &str = "all";
pub(super) const MIRRORED: &str = APPS[0];
pub(super) const SHARED: &str = APPS[1];
pub(super) const TOUCHED: &str = APPS[2];

/// Returns the names of all services.
pub(super) fn services() -> impl Iterator<Item = &'static str> {
    APPS.into_iter().chain([ALL])
}

/// Phase of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Pending,
    Running,
    Succeeded,
}

/// Pod in the model.
#[derive(Debug, Clone)]
pub(super) struct Pod {
    pub(super) app: &'static str,
    /// Number from which its addresses are made.
    pub(super) number: u16,
    pub(super) phase: Phase,
    pub(super) ready: bool,
    pub(super) leaving: bool,
    /// Whether its addresses were never ready before, with this pod or another. Then an answer that
    /// contains them reflects the pod's current state; any other answer may be outdated.
    pub(super) fresh: bool,
}

impl Pod {
    /// Returns its addresses on the second network.
    pub(super) fn addresses(&self) -> [IpAddr; 2] {
        let [high, low] = self.number.to_be_bytes();
        let v6 = Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, self.number);
        [Ipv4Addr::new(10, 1, high, low).into(), v6.into()]
    }

    fn is_published(&self) -> bool {
        // A pod that does not run yet has no sandbox.
        self.phase == Phase::Running
    }

    fn is_ready(&self) -> bool {
        self.phase == Phase::Running && self.ready && !self.leaving
    }

    fn is_selected(&self, service: &str) -> bool {
        service == ALL || self.app == service
    }

    fn flags(&self) -> &'static str {
        match (self.ready, self.leaving) {
            (true, false) => "rs-",
            (false, false) => "---",
            (true, true) => "-st",
            (false, true) => "--t",
        }
    }
}

/// Pod with its last change.
#[derive(Debug, Clone)]
struct Entry {
    pod: Pod,
    /// Number of the last change; `None` while a change is in progress.
    since: Option<u64>,
}

/// Addresses of pods that do not change, with the number of each pod's last change.
pub(super) type Steady = BTreeSet<(IpAddr, u64)>;

#[derive(Debug, Default)]
struct State {
    pods: BTreeMap<String, Entry>,
    changes: u64,
}

/// Pods as the test has created and changed them. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Model(Arc<Mutex<State>>);

impl Model {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns all pods.
    pub(super) fn pods(&self) -> Vec<(String, Pod)> {
        self.lock().pods.iter().map(|(name, entry)| (name.clone(), entry.pod.clone())).collect()
    }

    /// Records that a change of a pod begins. Until it ends, the pod's state is unknown.
    pub(super) fn touch(&self, name: &str) {
        if let Some(entry) = self.lock().pods.get_mut(name) {
            entry.since = None;
        }
    }

    /// Records the result of a change of a pod; `None` if the pod is gone.
    pub(super) fn set(&self, name: &str, pod: Option<Pod>) {
        let mut state = self.lock();
        state.changes += 1;
        let since = Some(state.changes);
        match pod {
            Some(pod) => drop(state.pods.insert(name.to_owned(), Entry { pod, since })),
            None => drop(state.pods.remove(name)),
        }
    }

    /// Returns the expected lines of a service's slices, in the format of
    /// [`multinet_testing::slices`].
    pub(super) fn lines(&self, service: &str) -> Vec<String> {
        let state = self.lock();
        let published =
            state.pods.iter().filter(|(_, entry)| entry.pod.is_published() && entry.pod.is_selected(service));
        let lines = published.flat_map(|(name, entry)| {
            let flags = entry.pod.flags();
            entry.pod.addresses().map(|address| format!("rail0 {address} {name} {flags}"))
        });
        lines.collect()
    }

    /// Returns the expected lines of the mirror of a service.
    pub(super) fn mirror_lines(&self, service: &str) -> Vec<String> {
        let lines = self.lines(service).into_iter();
        lines.filter(|line| line.ends_with(" rs-")).map(|line| line.replacen("rail0 ", "", 1)).collect()
    }

    /// Returns the ready addresses of a service.
    pub(super) fn ready(&self, service: &str) -> Vec<IpAddr> {
        let state = self.lock();
        let ready =
            state.pods.values().filter(|entry| entry.pod.is_ready() && entry.pod.is_selected(service));
        ready.flat_map(|entry| entry.pod.addresses()).collect()
    }

    /// Returns the addresses that are ready for the first time, of pods without a change in
    /// progress.
    pub(super) fn steady(&self, service: &str) -> Steady {
        let state = self.lock();
        let ready =
            state.pods.values().filter(|entry| entry.pod.is_ready() && entry.pod.is_selected(service));
        let fresh = ready.filter(|entry| entry.pod.fresh);
        let steady = fresh.filter_map(|entry| Some((entry.pod.addresses(), entry.since?)));
        steady.flat_map(|(addresses, since)| addresses.map(|address| (address, since))).collect()
    }
}
