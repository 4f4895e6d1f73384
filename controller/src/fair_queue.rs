//! FairQueue of the many things that wait, so that no tenant waits for all that another one has to be done (pure).
//!
//! ```text
//!            push                     begin                 end
//!   thing ────────> line of a service ──────> under way ──────────> over
//! ```
//!
//! - Namespaces take turns, and so do the services of each. What one service has waiting keeps its order.
//! - Of one namespace, and of one service, only so many things are under way at a time, whatever
//!   room is left: another tenant then finds an API server that is not busy.
//! - The next turn is found without a search, however much waits.

use std::collections::{HashMap, VecDeque};

use multinet_runtime::ObjectKey;

/// How many things may be under way at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Of all namespaces together.
    pub total: usize,
    /// Of one namespace.
    pub namespace: usize,
    /// Of one service.
    pub service: usize,
}

impl Limits {
    /// As many as there are.
    pub const NONE: Self = Self { total: usize::MAX, namespace: usize::MAX, service: usize::MAX };

    /// One at a time.
    pub const ONE: Self = Self { total: 1, namespace: 1, service: 1 };

    /// Requests to the API server: so many, of which a namespace has a sixteenth at most. Two of
    /// the 32 that there are by default are enough to keep an API server of two cores busy half of
    /// the time, and another tenant's request then takes some three times as long as on a quiet
    /// one.
    pub fn of_requests(total: usize) -> Self {
        let namespace = (total / 16).max(1);
        Self { total, namespace, service: namespace }
    }

    /// Services in work while there may be so many requests: of a namespace twice as many as
    /// requests, so that some are planned while others are written. No limit of all: a tenant with
    /// few changes is never made to wait for those with many.
    pub fn of_services(requests: usize) -> Self {
        Self { total: usize::MAX, namespace: 2 * Self::of_requests(requests).namespace, service: 1 }
    }
}

/// Things that wait for their turns, and how many have them.
#[derive(Debug)]
pub struct FairQueue<T> {
    limits: Limits,
    under_way: usize,
    namespaces: HashMap<String, Namespace<T>>,
    /// The namespaces that may have a turn.
    order: VecDeque<String>,
}

#[derive(Debug)]
struct Namespace<T> {
    waiting: usize,
    under_way: usize,
    is_in_order: bool,
    services: HashMap<String, ServiceQueue<T>>,
    /// The services that may have a turn, as far as the namespace may.
    order: VecDeque<String>,
}

/// Line of the things of one service.
#[derive(Debug)]
struct ServiceQueue<T> {
    waiting: VecDeque<T>,
    under_way: usize,
    is_in_order: bool,
}

impl<T> FairQueue<T> {
    /// Nothing waits yet.
    pub fn new(limits: Limits) -> Self {
        Self { limits, under_way: 0, namespaces: HashMap::new(), order: VecDeque::new() }
    }

    /// Has a thing of a service wait for its turn.
    pub fn push(&mut self, service: &ObjectKey, thing: T) {
        let namespace = self.namespaces.entry(service.namespace.clone()).or_default();
        namespace.waiting += 1;
        namespace.services.entry(service.name.clone()).or_default().waiting.push_back(thing);
        self.reschedule(service);
    }

    /// Begins the next turn, if one may begin. It lasts until its [`end`](Self::end).
    pub fn begin(&mut self) -> Option<(ObjectKey, T)> {
        if self.under_way >= self.limits.total {
            return None;
        }
        let name = self.order.pop_front()?;
        let namespace = self.namespaces.get_mut(&name)?;
        namespace.is_in_order = false;
        let service = namespace.order.pop_front()?;
        let queue = namespace.services.get_mut(&service)?;
        queue.is_in_order = false;
        let thing = queue.waiting.pop_front()?;
        namespace.waiting -= 1;
        queue.under_way += 1;
        namespace.under_way += 1;
        self.under_way += 1;
        let service = ObjectKey { namespace: name, name: service };
        self.reschedule(&service);
        Some((service, thing))
    }

    /// Ends a turn of a service.
    pub fn end(&mut self, service: &ObjectKey) {
        let Some(namespace) = self.namespaces.get_mut(&service.namespace) else { return };
        let Some(queue) = namespace.services.get_mut(&service.name) else { return };
        queue.under_way = queue.under_way.saturating_sub(1);
        namespace.under_way = namespace.under_way.saturating_sub(1);
        self.under_way = self.under_way.saturating_sub(1);
        self.reschedule(service);
    }

    /// Forgets all that waits. FairQueue that have begun go on.
    pub fn clear(&mut self) {
        self.order.clear();
        self.namespaces.retain(|_, namespace| {
            (namespace.waiting, namespace.is_in_order) = (0, false);
            namespace.order.clear();
            namespace.services.retain(|_, queue| {
                queue.is_in_order = false;
                queue.waiting.clear();
                queue.under_way > 0
            });
            namespace.under_way > 0
        });
    }

    /// How many things wait.
    pub fn waiting(&self) -> usize {
        self.namespaces.values().map(|namespace| namespace.waiting).sum()
    }

    /// How many things of a namespace wait.
    pub fn waiting_of(&self, namespace: &str) -> usize {
        self.namespaces.get(namespace).map_or(0, |namespace| namespace.waiting)
    }

    /// Brings the orders in step with what has changed of a service: it and its namespace go to the
    /// end if they may have a turn, and are forgotten if they have nothing any more.
    fn reschedule(&mut self, service: &ObjectKey) {
        let Some(namespace) = self.namespaces.get_mut(&service.namespace) else { return };
        if let Some(queue) = namespace.services.get_mut(&service.name) {
            if !queue.is_in_order && !queue.waiting.is_empty() && queue.under_way < self.limits.service {
                queue.is_in_order = true;
                namespace.order.push_back(service.name.clone());
            }
            if queue.waiting.is_empty() && queue.under_way == 0 {
                namespace.services.remove(&service.name);
            }
        }
        if !namespace.is_in_order
            && !namespace.order.is_empty()
            && namespace.under_way < self.limits.namespace
        {
            namespace.is_in_order = true;
            self.order.push_back(service.namespace.clone());
        }
        if namespace.services.is_empty() {
            self.namespaces.remove(&service.namespace);
        }
    }
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self::new(Limits::NONE)
    }
}

impl<T> Default for Namespace<T> {
    fn default() -> Self {
        Self {
            waiting: 0,
            under_way: 0,
            is_in_order: false,
            services: HashMap::new(),
            order: VecDeque::new(),
        }
    }
}

impl<T> Default for ServiceQueue<T> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), under_way: 0, is_in_order: false }
    }
}

#[cfg(test)]
mod tests;
