//! The pods of one namespace that have the same address.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use jiff::Timestamp;
use multinet_runtime::ObjectKey;

use super::{Conflict, Holder, HolderState, Role};
use crate::limits::pods::MAX_SCANNED;
use crate::name_summary::{MAX_NAMED, NameSummary};

/// Main sort key of a pod: whether a service selects it, whether it is ready, and whether it is not
/// being deleted.
type Class = (bool, bool, bool);

/// Sort key of a pod. The pod with the greatest rank comes first.
type Rank = (Class, Reverse<(Option<Timestamp>, Arc<Holder>)>);

/// The pods of one namespace that have the same address, and the one that holds it.
#[derive(Debug, Default)]
pub(super) struct Side {
    pods: BTreeMap<Arc<Holder>, HolderState>,
    ranks: BTreeSet<Rank>,
    /// The pods that have the address and are not being deleted.
    staying: BTreeSet<Arc<Holder>>,
    /// Number of pods that are not being deleted, by the uid of their virtual machine.
    machines: HashMap<String, usize>,
    /// Services that publish the address, with the number of pods that each selects.
    services: BTreeMap<String, usize>,
    winner: Option<Arc<Holder>>,
    /// State at the last call of [`update_reported`](Self::update_reported); `None` without a
    /// holder.
    reported: Option<Reported>,
}

/// Facts about the holder and its rivals that the status of services reports.
#[derive(Debug, PartialEq)]
struct Reported {
    winner: Arc<Holder>,
    is_answered: bool,
    machine: Option<String>,
    claim: Option<String>,
    left_out: usize,
    is_elsewhere: bool,
}

impl HolderState {
    /// Returns whether any service publishes the pod's addresses on the network.
    fn is_selected(&self) -> bool {
        !self.services.is_empty()
    }

    fn class(&self) -> Class {
        (self.is_selected(), self.is_ready, !self.is_terminating)
    }

    /// Returns whether this pod and `other` run the same virtual machine.
    fn is_sibling(&self, other: &Self) -> bool {
        self.machine.is_some() && self.machine == other.machine
    }
}

fn rank(holder: &Arc<Holder>, state: &HolderState) -> Rank {
    (state.class(), Reverse((state.created, Arc::clone(holder))))
}

impl Side {
    /// Adds a pod that has the address, or updates its state.
    pub(super) fn put(&mut self, holder: &Arc<Holder>, state: HolderState) {
        self.take(holder);
        self.ranks.insert(rank(holder, &state));
        if !state.is_terminating {
            self.staying.insert(Arc::clone(holder));
            if let Some(machine) = &state.machine {
                *self.machines.entry(machine.clone()).or_default() += 1;
            }
        }
        for service in &*state.services {
            *self.services.entry(service.clone()).or_default() += 1;
        }
        self.pods.insert(Arc::clone(holder), state);
    }

    /// Removes a pod that no longer has the address. The caller must call [`decide`](Self::decide)
    /// afterwards.
    pub(super) fn take(&mut self, holder: &Holder) {
        let Some((holder, state)) = self.pods.remove_entry(holder) else { return };
        self.ranks.remove(&rank(&holder, &state));
        if self.staying.remove(&holder)
            && let Some(machine) = &state.machine
            && let Some(count) = self.machines.get_mut(machine)
        {
            *count -= 1;
            if *count == 0 {
                self.machines.remove(machine);
            }
        }
        for service in &*state.services {
            if let Some(count) = self.services.get_mut(service) {
                *count -= 1;
                if *count == 0 {
                    self.services.remove(service);
                }
            }
        }
    }

    /// Makes a pod the holder, since the address is published for it already.
    pub(super) fn published(&mut self, holder: &Arc<Holder>) {
        self.winner = Some(Arc::clone(holder));
    }

    /// Decides which pod of the namespace holds the address.
    pub(super) fn decide(&mut self) {
        self.winner = self.best();
    }

    fn best(&self) -> Option<Arc<Holder>> {
        let (class, Reverse((_, first))) = self.ranks.last()?;
        let is_best = |state: &HolderState| state.is_selected() && state.class() == *class;
        let published = self.winner.as_ref().filter(|winner| self.pods.get(*winner).is_some_and(is_best));
        let best = published.unwrap_or(first);
        let state = self.pods.get(best)?;
        if state.machine.is_none() || state.is_on_machine_node && published.is_some() {
            return Some(Arc::clone(best));
        }
        let equals = self.ranks.iter().rev().take_while(|(other, _)| other == class).take(MAX_SCANNED);
        let mut equals = equals.map(|(_, Reverse((_, holder)))| holder);
        let at_home = equals.find(|holder| {
            self.pods.get(*holder).is_some_and(|other| other.is_sibling(state) && other.is_on_machine_node)
        });
        Some(Arc::clone(at_home.unwrap_or(best)))
    }

    /// Decides for a new leader. The best pod that slices contain takes precedence. If slices
    /// contain none, the current winner keeps precedence, unless `is_first` is set.
    pub(super) fn adopt_published(&mut self, is_first: bool, is_published: impl Fn(&Holder) -> bool) {
        let mut published = self.ranks.iter().rev().map(|(_, Reverse((_, holder)))| holder);
        let published = published.find(|holder| is_published(holder)).cloned();
        if is_first || published.is_some() {
            self.winner = published;
        }
        self.decide();
    }

    /// Returns the role of a pod; `None` if the pod does not have the address.
    pub(super) fn role(&self, pod: &ObjectKey) -> Option<Role> {
        let first = Holder { pod: pod.clone(), uid: String::new() };
        let (holder, state) = self.pods.range(first..).next().filter(|(holder, _)| holder.pod == *pod)?;
        let (winner, other) = self.held()?;
        Some(if holder == winner {
            Role::Holds
        } else if state.is_terminating || state.is_sibling(other) {
            Role::HandsOver
        } else {
            Role::LeftOut { shares_claim: state.claim.is_some() && state.claim == other.claim }
        })
    }

    /// Returns the number of pods in conflict with the holder.
    pub(super) fn left_out(&self) -> usize {
        let Some((_, state)) = self.held() else { return 0 };
        let siblings = state.machine.as_ref().and_then(|machine| self.machines.get(machine)).copied();
        self.staying.len() - siblings.unwrap_or_else(|| usize::from(!state.is_terminating))
    }

    /// Returns the conflict over the address, if there is one.
    pub(super) fn conflict(&self) -> Option<Conflict> {
        let (holder, state) = self.held()?;
        let count = self.left_out();
        if count == 0 {
            return None;
        }
        let others =
            self.staying.iter().take(MAX_SCANNED).filter_map(|other| Some((other, self.pods.get(other)?)));
        let others = others.filter(|(other, facts)| *other != holder && !facts.is_sibling(state));
        let names = others.clone().take(MAX_NAMED).map(|(other, _)| other.pod.to_string()).collect();
        let share_claim = others.clone().all(|(_, facts)| facts.claim == state.claim);
        Some(Conflict {
            holder: holder.pod.clone(),
            is_answered: state.is_selected() && state.is_ready,
            left_out: NameSummary { names, count },
            claim: state.claim.clone().filter(|_| share_claim),
        })
    }

    /// Returns whether the state that affects the status of services has changed since the last
    /// call. `is_elsewhere` tells whether a pod of another namespace has the address and is not
    /// being deleted.
    pub(super) fn update_reported(&mut self, is_elsewhere: bool) -> bool {
        let reported = self.held().map(|(winner, state)| Reported {
            winner: Arc::clone(winner),
            is_answered: state.is_selected() && state.is_ready,
            machine: state.machine.clone(),
            claim: state.claim.clone(),
            left_out: self.left_out(),
            is_elsewhere,
        });
        let is_news = reported != self.reported;
        self.reported = reported;
        is_news
    }

    /// Returns the services that publish the address for any pod of the namespace.
    pub(super) fn services(&self, namespace: &str) -> impl Iterator<Item = ObjectKey> {
        let key = move |name: &String| ObjectKey { namespace: namespace.to_owned(), name: name.clone() };
        self.services.keys().map(key)
    }

    /// Returns whether any pod that has the address is not being deleted.
    pub(super) fn is_staying(&self) -> bool {
        !self.staying.is_empty()
    }

    /// Returns whether no pod of the namespace has the address any more.
    pub(super) fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    /// Returns the only pod that has the address; `None` if there are several.
    pub(super) fn only(&self) -> Option<Arc<Holder>> {
        self.pods.keys().next().filter(|_| self.pods.len() == 1).cloned()
    }

    /// Returns the pod that holds the address, with its state; `None` before
    /// [`decide`](Self::decide).
    fn held(&self) -> Option<(&Arc<Holder>, &HolderState)> {
        self.pods.get_key_value(self.winner.as_ref()?)
    }
}
