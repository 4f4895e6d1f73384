//! The pods of one namespace that have the same address.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use jiff::Timestamp;
use multinet_runtime::ObjectKey;

use super::{Holder, Rivals, Role, Standing};
use crate::few::{Few, NAMED};

/// How many pods are looked at one by one, at most.
pub(super) const LOOKS: usize = 64;

/// Class of a pod, which decides before anything else: a service selects it, it is ready, it stays.
type Class = (bool, bool, bool);

/// Pods in the order in which they come to hold the address: the last one first.
type Rank = (Class, Reverse<(Option<Timestamp>, Arc<Holder>)>);

/// The pods of one namespace that have the same address, and the one that holds it.
#[derive(Debug, Default)]
pub(super) struct Side {
    pods: BTreeMap<Arc<Holder>, Standing>,
    ranks: BTreeSet<Rank>,
    /// Those that are not being deleted.
    staying: BTreeSet<Arc<Holder>>,
    /// How many of these run each virtual machine.
    machines: HashMap<String, usize>,
    /// The services that publish the address for any of the pods, and for how many.
    services: BTreeMap<String, usize>,
    winner: Option<Arc<Holder>>,
    /// The state that services were last told of.
    shown: Option<Shown>,
}

/// Part of a side that shows in the status of services.
#[derive(Debug, PartialEq)]
struct Shown {
    winner: Arc<Holder>,
    is_answered: bool,
    machine: Option<String>,
    claim: Option<String>,
    left_out: usize,
    is_elsewhere: bool,
}

impl Standing {
    /// Whether a service publishes the pod's addresses on the network.
    fn is_selected(&self) -> bool {
        !self.services.is_empty()
    }

    fn class(&self) -> Class {
        (self.is_selected(), self.is_ready, !self.is_terminating)
    }

    /// Whether both run the same virtual machine.
    fn is_sibling(&self, other: &Self) -> bool {
        self.machine.is_some() && self.machine == other.machine
    }
}

fn rank(holder: &Arc<Holder>, standing: &Standing) -> Rank {
    (standing.class(), Reverse((standing.created, Arc::clone(holder))))
}

impl Side {
    /// Notes how a pod stands, old or new.
    pub(super) fn put(&mut self, holder: &Arc<Holder>, standing: Standing) {
        self.take(holder);
        self.ranks.insert(rank(holder, &standing));
        if !standing.is_terminating {
            self.staying.insert(Arc::clone(holder));
            if let Some(machine) = &standing.machine {
                *self.machines.entry(machine.clone()).or_default() += 1;
            }
        }
        for service in &*standing.services {
            *self.services.entry(service.clone()).or_default() += 1;
        }
        self.pods.insert(Arc::clone(holder), standing);
    }

    /// Forgets a pod. Who holds the address is to be [decided](Self::decide) afterwards.
    pub(super) fn take(&mut self, holder: &Holder) {
        let Some((holder, standing)) = self.pods.remove_entry(holder) else { return };
        self.ranks.remove(&rank(&holder, &standing));
        if self.staying.remove(&holder)
            && let Some(machine) = &standing.machine
            && let Some(count) = self.machines.get_mut(machine)
        {
            *count -= 1;
            if *count == 0 {
                self.machines.remove(machine);
            }
        }
        for service in &*standing.services {
            if let Some(count) = self.services.get_mut(service) {
                *count -= 1;
                if *count == 0 {
                    self.services.remove(service);
                }
            }
        }
    }

    /// Notes that the address is published for a pod.
    pub(super) fn published(&mut self, holder: &Arc<Holder>) {
        self.winner = Some(Arc::clone(holder));
    }

    /// Decides which pod holds the address.
    pub(super) fn decide(&mut self) {
        self.winner = self.best();
    }

    fn best(&self) -> Option<Arc<Holder>> {
        let (class, Reverse((_, first))) = self.ranks.last()?;
        let is_best = |standing: &Standing| standing.is_selected() && standing.class() == *class;
        let published = self.winner.as_ref().filter(|winner| self.pods.get(*winner).is_some_and(is_best));
        let best = published.unwrap_or(first);
        let standing = self.pods.get(best)?;
        if standing.machine.is_none() || standing.is_at_home && published.is_some() {
            return Some(Arc::clone(best));
        }
        let equals = self.ranks.iter().rev().take_while(|(other, _)| other == class).take(LOOKS);
        let mut equals = equals.map(|(_, Reverse((_, holder)))| holder);
        let at_home = equals.find(|holder| {
            self.pods.get(*holder).is_some_and(|other| other.is_sibling(standing) && other.is_at_home)
        });
        Some(Arc::clone(at_home.unwrap_or(best)))
    }

    /// Decides for a new leader: of the pods that slices publish, the best one is ahead; without one, none is if nothing was known
    /// before (`is_first`).
    pub(super) fn settle(&mut self, is_first: bool, is_published: impl Fn(&Holder) -> bool) {
        let mut published = self.ranks.iter().rev().map(|(_, Reverse((_, holder)))| holder);
        let published = published.find(|holder| is_published(holder)).cloned();
        if is_first || published.is_some() {
            self.winner = published;
        }
        self.decide();
    }

    /// Returns the role of a pod.
    pub(super) fn role(&self, pod: &ObjectKey) -> Option<Role> {
        let first = Holder { pod: pod.clone(), uid: String::new() };
        let (holder, standing) = self.pods.range(first..).next().filter(|(holder, _)| holder.pod == *pod)?;
        let (winner, other) = self.held()?;
        Some(if holder == winner {
            Role::Holds
        } else if standing.is_terminating || standing.is_sibling(other) {
            Role::HandsOver
        } else {
            Role::LeftOut { shares_claim: standing.claim.is_some() && standing.claim == other.claim }
        })
    }

    /// Returns how many pods are left out.
    pub(super) fn left_out(&self) -> usize {
        let Some((_, standing)) = self.held() else { return 0 };
        let siblings = standing.machine.as_ref().and_then(|machine| self.machines.get(machine)).copied();
        self.staying.len() - siblings.unwrap_or_else(|| usize::from(!standing.is_terminating))
    }

    /// Returns the pods between which the address is in conflict, if it is.
    pub(super) fn rivals(&self) -> Option<Rivals<'_>> {
        let (holder, standing) = self.held()?;
        let count = self.left_out();
        if count == 0 {
            return None;
        }
        let others = self.staying.iter().take(LOOKS).filter_map(|other| Some((other, self.pods.get(other)?)));
        let others = others.filter(|(other, facts)| *other != holder && !facts.is_sibling(standing));
        let names = others.clone().take(NAMED).map(|(other, _)| other.pod.to_string()).collect();
        let shares = |claim: &Option<String>| claim.is_some() && *claim == standing.claim;
        Some(Rivals {
            holder: &holder.pod,
            is_answered: standing.is_selected() && standing.is_ready,
            left_out: Few { names, count },
            share_claim: others.clone().all(|(_, facts)| shares(&facts.claim)),
        })
    }

    /// Returns whether the status of services is to show something else than when this was last asked. `is_elsewhere`: a pod of another
    /// namespace has the address, and stays.
    pub(super) fn shows_news(&mut self, is_elsewhere: bool) -> bool {
        let shown = self.held().map(|(winner, standing)| Shown {
            winner: Arc::clone(winner),
            is_answered: standing.is_selected() && standing.is_ready,
            machine: standing.machine.clone(),
            claim: standing.claim.clone(),
            left_out: self.left_out(),
            is_elsewhere,
        });
        let is_news = shown != self.shown;
        self.shown = shown;
        is_news
    }

    /// Returns the services that publish the address for any of the pods.
    pub(super) fn services(&self, namespace: &str) -> impl Iterator<Item = ObjectKey> {
        let key = move |name: &String| ObjectKey { namespace: namespace.to_owned(), name: name.clone() };
        self.services.keys().map(key)
    }

    /// Returns whether any of the pods stays.
    pub(super) fn is_staying(&self) -> bool {
        !self.staying.is_empty()
    }

    /// Returns whether there are no pods.
    pub(super) fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    /// Returns the one pod, if there are no others.
    pub(super) fn only(&self) -> Option<Arc<Holder>> {
        self.pods.keys().next().filter(|_| self.pods.len() == 1).cloned()
    }

    /// The pod that holds the address, and how it stands.
    fn held(&self) -> Option<(&Arc<Holder>, &Standing)> {
        self.pods.get_key_value(self.winner.as_ref()?)
    }
}
