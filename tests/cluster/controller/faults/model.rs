//! Model of the slices and of DNS: their contents in the end, and the answers that DNS must give
//! all the time.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The services, each with the pods of its own name in the label `app`, and one with all pods. The
/// hands are on the slices of [`TOUCHED`] only, others write for [`SHARED`], and [`MIRRORED`] is
/// mirrored.
pub(super) const APPS: [&str; 3] = ["mirrored", "shared", "touched"];
pub(super) const ALL: &str = "all";
pub(super) const MIRRORED: &str = APPS[0];
pub(super) const SHARED: &str = APPS[1];
pub(super) const TOUCHED: &str = APPS[2];

/// All services.
pub(super) fn services() -> impl Iterator<Item = &'static str> {
    APPS.into_iter().chain([ALL])
}

/// How far a pod has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Pending,
    Running,
    Succeeded,
}

/// A pod.
#[derive(Debug, Clone)]
pub(super) struct Pod {
    pub(super) app: &'static str,
    /// The number that its addresses are made of.
    pub(super) number: u16,
    pub(super) phase: Phase,
    pub(super) ready: bool,
    pub(super) leaving: bool,
    /// Its addresses were never ready before, with it or another pod. Then an answer that has them
    /// knows what it is now; of others an answer may be late.
    pub(super) fresh: bool,
}

impl Pod {
    /// Its addresses on the second network.
    pub(super) fn addresses(&self) -> [IpAddr; 2] {
        let [high, low] = self.number.to_be_bytes();
        let v6 = Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, self.number);
        [Ipv4Addr::new(10, 1, high, low).into(), v6.into()]
    }

    fn is_published(&self) -> bool {
        // Before it runs it has no sandbox.
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

/// A pod, and when it was last touched.
#[derive(Debug, Clone)]
struct Entry {
    pod: Pod,
    /// The number of the change that made it what it is; `None` while one is under way.
    since: Option<u64>,
}

/// Addresses of pods that do not change, with the number of each pod's last change.
pub(super) type Steady = BTreeSet<(IpAddr, u64)>;

#[derive(Debug, Default)]
struct State {
    pods: BTreeMap<String, Entry>,
    changes: u64,
}

/// The pods as the test has made them. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(super) struct Model(Arc<Mutex<State>>);

impl Model {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All pods.
    pub(super) fn pods(&self) -> Vec<(String, Pod)> {
        self.lock().pods.iter().map(|(name, entry)| (name.clone(), entry.pod.clone())).collect()
    }

    /// A change of a pod begins: nothing is certain of it any more.
    pub(super) fn touch(&self, name: &str) {
        if let Some(entry) = self.lock().pods.get_mut(name) {
            entry.since = None;
        }
    }

    /// A change of a pod is done: this is what it is now. `None`: gone.
    pub(super) fn set(&self, name: &str, pod: Option<Pod>) {
        let mut state = self.lock();
        state.changes += 1;
        let since = Some(state.changes);
        match pod {
            Some(pod) => drop(state.pods.insert(name.to_owned(), Entry { pod, since })),
            None => drop(state.pods.remove(name)),
        }
    }

    /// The lines of a service's slices, as [`multinet_testing::slices`] writes them.
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

    /// The lines of the mirror of a service.
    pub(super) fn mirror_lines(&self, service: &str) -> Vec<String> {
        let lines = self.lines(service).into_iter();
        lines.filter(|line| line.ends_with(" rs-")).map(|line| line.replacen("rail0 ", "", 1)).collect()
    }

    /// The addresses of a service that are ready.
    pub(super) fn ready(&self, service: &str) -> Vec<IpAddr> {
        let state = self.lock();
        let ready =
            state.pods.values().filter(|entry| entry.pod.is_ready() && entry.pod.is_selected(service));
        ready.flat_map(|entry| entry.pod.addresses()).collect()
    }

    /// Those that have been ready since a change that is over, and were not before.
    pub(super) fn steady(&self, service: &str) -> Steady {
        let state = self.lock();
        let ready =
            state.pods.values().filter(|entry| entry.pod.is_ready() && entry.pod.is_selected(service));
        let fresh = ready.filter(|entry| entry.pod.fresh);
        let steady = fresh.filter_map(|entry| Some((entry.pod.addresses(), entry.since?)));
        steady.flat_map(|(addresses, since)| addresses.map(|address| (address, since))).collect()
    }
}
