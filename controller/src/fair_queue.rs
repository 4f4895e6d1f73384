//! Queue that serves namespaces in turn, so that no tenant has to wait for all the work of another
//! (pure).
//!
//! ```text
//!            push                     begin                 end
//!   item ────────> queue of a service ──────> under way ──────────> over
//! ```
//!
//! - Namespaces take turns, and so do the services in a namespace. Items of one service keep their
//!   order.
//! - The number of items under way is limited per namespace and per service, even if the total has
//!   room. Other tenants thus find an API server that is not busy.
//! - The next item is found without a search, however many are waiting.

use std::collections::{HashMap, VecDeque};

use multinet_runtime::ObjectKey;

/// Maximum numbers of items that may be under way at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of items under way in all namespaces together.
    pub total: usize,
    /// Maximum number of items under way in one namespace.
    pub namespace: usize,
    /// Maximum number of items under way of one service.
    pub service: usize,
}

impl Limits {
    /// No limits on the items under way.
    pub const NONE: Self = Self { total: usize::MAX, namespace: usize::MAX, service: usize::MAX };

    /// Limit of one item under way, over all namespaces.
    pub const ONE: Self = Self { total: 1, namespace: 1, service: 1 };

    /// Returns limits for requests to the API server. A namespace gets a sixteenth of `total`, and
    /// at least one. With the default of 32 these are two. Two keep an API server with two cores
    /// busy half of the time; a request of another tenant then takes about three times as long as
    /// on an idle server.
    pub fn of_requests(total: usize) -> Self {
        let namespace = (total / 16).max(1);
        Self { total, namespace, service: namespace }
    }

    /// Returns limits for services in progress, where `requests` is the limit of requests. A
    /// namespace may have twice as many services as requests, so that some are planned while others
    /// are written. The total has no limit, so that a tenant with few changes never waits for those
    /// with many.
    pub fn of_services(requests: usize) -> Self {
        Self { total: usize::MAX, namespace: 2 * Self::of_requests(requests).namespace, service: 1 }
    }
}

/// Queue of services' items that serves namespaces in turn, and the services of each in turn.
#[derive(Debug)]
pub struct FairQueue<T> {
    limits: Limits,
    under_way: usize,
    namespaces: HashMap<String, NamespaceQueue<T>>,
    /// Namespaces that may begin an item, in the order of their turns.
    order: VecDeque<String>,
}

#[derive(Debug)]
struct NamespaceQueue<T> {
    waiting: usize,
    under_way: usize,
    is_in_order: bool,
    services: HashMap<String, ServiceQueue<T>>,
    /// Services with waiting items that are below the limit per service, in the order of their
    /// turns.
    order: VecDeque<String>,
}

/// Waiting items of one service, and the number of its items under way.
#[derive(Debug)]
struct ServiceQueue<T> {
    waiting: VecDeque<T>,
    under_way: usize,
    is_in_order: bool,
}

impl<T> FairQueue<T> {
    /// Creates an empty queue.
    pub fn new(limits: Limits) -> Self {
        Self { limits, under_way: 0, namespaces: HashMap::new(), order: VecDeque::new() }
    }

    /// Adds an item to the end of a service's queue.
    pub fn push(&mut self, service: &ObjectKey, thing: T) {
        let namespace = self.namespaces.entry(service.namespace.clone()).or_default();
        namespace.waiting += 1;
        namespace.services.entry(service.name.clone()).or_default().waiting.push_back(thing);
        self.reschedule(service);
    }

    /// Begins the next item, if the limits allow one. The caller must [`end`](Self::end) it.
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

    /// Records that an item of a service, which [`begin`](Self::begin) returned, is over.
    pub fn end(&mut self, service: &ObjectKey) {
        let Some(namespace) = self.namespaces.get_mut(&service.namespace) else { return };
        let Some(queue) = namespace.services.get_mut(&service.name) else { return };
        queue.under_way = queue.under_way.saturating_sub(1);
        namespace.under_way = namespace.under_way.saturating_sub(1);
        self.under_way = self.under_way.saturating_sub(1);
        self.reschedule(service);
    }

    /// Removes all waiting items. Items under way are not affected.
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

    /// Returns the number of waiting items.
    pub fn waiting(&self) -> usize {
        self.namespaces.values().map(|namespace| namespace.waiting).sum()
    }

    /// Returns the number of waiting items of a namespace.
    pub fn waiting_of(&self, namespace: &str) -> usize {
        self.namespaces.get(namespace).map_or(0, |namespace| namespace.waiting)
    }

    /// Updates the orders after a change of a service. If the service and its namespace may begin
    /// another item, they go to the end of their orders. If nothing is left of them, they are
    /// removed.
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

impl<T> Default for NamespaceQueue<T> {
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
