//! Fetches payloads by reference, from the pods that offer them.
//!
//! The connections are those of a [`Listener`] without a port: this process connects, but the pod
//! is the sender, and its frames land in this listener's slots.

mod link;
mod pending;
mod search;
mod service;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::link::Parts;
use self::pending::Pending;
use self::search::PayloadSearch;
pub(crate) use self::service::{Service, Source};
use crate::error::{BindError, FetchError};
use crate::listener::{ListenerBuilder, Received};
use crate::peers::dial::Dialer;
use crate::reference::Reference;

/// Time after the last fetch after which a service without connections is dropped.
const REST: Duration = Duration::from_secs(60);

/// Most services. The one without connections that rests for longest is dropped for another one.
const MAX_SERVICES: usize = 1024;

impl std::fmt::Debug for Fetcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fetcher").finish_non_exhaustive()
    }
}

/// Fetches of one connector.
pub(crate) struct Fetcher {
    parts: Parts,
    services: Arc<Services>,
    /// Largest payload that is taken, in bytes.
    frame_size: u32,
    tasks: TaskTracker,
}

/// Services that payloads are fetched from, by name and port.
#[derive(Default)]
struct Services(Mutex<HashMap<(String, String), Arc<Service>>>);

impl Services {
    /// Returns the service with this name and port, which `make` makes if there is none.
    fn get(&self, name: &str, port: &str, make: impl FnOnce() -> Service) -> Arc<Service> {
        let (mut services, key) = (self.0.lock(), (name.to_owned(), port.to_owned()));
        if services.len() >= MAX_SERVICES && !services.contains_key(&key) {
            let resting = services.iter().filter_map(|(key, service)| Some((rests_since(service)?, key)));
            let longest = resting.min_by_key(|&(since, _)| since).map(|(_, key)| key.clone());
            longest.and_then(|key| services.remove(&key));
        }
        let service = Arc::clone(services.entry(key).or_insert_with(|| Arc::new(make())));
        service.begin();
        service
    }

    /// Drops the services that have rested long enough, for ever.
    async fn tidy(&self) {
        loop {
            sleep(REST).await;
            self.0
                .lock()
                .retain(|_, service| rests_since(service).is_none_or(|since| since.elapsed() < REST));
        }
    }
}

/// Returns the time of the last fetch from a service that has no connections, and that no fetch
/// uses. `None` for another one.
fn rests_since(service: &Arc<Service>) -> Option<Instant> {
    // Whoever makes another handle holds the lock of the map.
    if Arc::strong_count(service) == 1 { service.rests_since() } else { None }
}

impl Fetcher {
    /// Creates the listener for the payloads. No connection is made yet.
    pub(crate) fn new(listener: ListenerBuilder, frame_size: u32) -> Result<Self, BindError> {
        let (pending, tasks, end) = (Arc::<Pending>::default(), TaskTracker::new(), CancellationToken::new());
        let answers = Arc::clone(&pending);
        let listener = listener.frame_size(frame_size).without_port(move |frame| answers.answer(frame))?;
        let parts =
            Parts { listener, pending, numbers: Arc::new(AtomicU64::new(1)), links: Arc::default(), end };
        let services = Arc::<Services>::default();
        let tidying = Arc::clone(&services);
        tasks.spawn(parts.end.clone().run_until_cancelled_owned(async move { tidying.tidy().await }));
        Ok(Self { parts, services, frame_size, tasks })
    }

    /// Fetches a payload from a pod of a service. Fails if no byte of it comes within `wait`.
    pub(crate) async fn fetch(
        &self,
        service: &Arc<Service>,
        name: &str,
        reference: &Reference,
        wait: Duration,
    ) -> Result<Received, FetchError> {
        let search = PayloadSearch::new(service, (name, reference), self.frame_size, wait);
        let found = self.parts.end.run_until_cancelled(search.run()).await;
        found.unwrap_or(Err(FetchError::Closed))
    }

    /// Closes all connections, after the pods have been told of the payloads that are acknowledged.
    pub(crate) async fn close(&self) {
        self.end();
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn end(&self) {
        self.parts.end.cancel();
        self.parts.listener.end();
    }

    /// Returns the service with this name and port, whose settings and source of endpoints `open`
    /// returns for the first fetch.
    pub(crate) fn service(
        &self,
        name: &str,
        port: &str,
        open: impl FnOnce() -> (Dialer, Source),
    ) -> Arc<Service> {
        self.services.get(name, port, || {
            let (dialer, source) = open();
            Service::new(dialer, source, self.parts.clone(), self.tasks.clone())
        })
    }
}

impl Drop for Fetcher {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use futures::poll;
    use tokio::time::advance;

    use super::*;
    use crate::endpoint::Endpoint;
    use crate::listener::Listener;
    use crate::resolve::Resolver;

    fn fetcher() -> Fetcher {
        Fetcher::new(Listener::builder().patience(Duration::from_secs(3600)), 1 << 10).unwrap()
    }

    fn service(fetcher: &Fetcher, name: &str, source: Source) -> Arc<Service> {
        let dialer = fetcher.parts.listener.dialer(name.to_owned(), 0);
        fetcher.service(name, "", || (dialer, source))
    }

    fn names(fetcher: &Fetcher) -> Vec<String> {
        let mut names: Vec<_> = fetcher.services.0.lock().keys().map(|(name, _)| name.clone()).collect();
        names.sort();
        names
    }

    #[tokio::test(start_paused = true)]
    async fn a_service_that_rests_is_dropped_and_not_followed_any_more() {
        let fetcher = fetcher();
        let resolver = Resolver::builder().servers(["127.0.0.1:9".parse().unwrap()]).build().unwrap();
        let watch = || Source::Dns(Box::new(resolver.watch("infer.vision", "1")));
        let used = service(&fetcher, "used", watch());
        drop(service(&fetcher, "resting", watch()));
        sleep(REST / 2).await;
        assert_eq!((names(&fetcher).len(), fetcher.tasks.len()), (2, 3));
        sleep(3 * REST).await;
        assert_eq!((names(&fetcher), fetcher.tasks.len()), (vec!["used".to_owned()], 2));
        drop(used);
        sleep(3 * REST).await;
        assert_eq!((names(&fetcher).len(), fetcher.tasks.len()), (0, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_service_with_a_connection_does_not_rest() {
        let fetcher = fetcher();
        // It accepts no connection, and the fetcher is patient.
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = Arc::new(Endpoint::at(socket.local_addr().unwrap()));
        let service = service(&fetcher, "connecting", Source::Caller);
        let mut asking = Box::pin(async move { service.ask(endpoint, "a".parse().unwrap()).await });
        assert!(poll!(asking.as_mut()).is_pending());
        drop(asking);
        sleep(3 * REST).await;
        assert_eq!(names(&fetcher), ["connecting"]);
    }

    #[tokio::test(start_paused = true)]
    async fn of_too_many_services_the_one_that_rests_for_longest_is_dropped() {
        let fetcher = fetcher();
        let used = service(&fetcher, "used", Source::Caller);
        for number in 0..=MAX_SERVICES {
            advance(Duration::from_millis(1)).await;
            drop(service(&fetcher, &number.to_string(), Source::Caller));
        }
        let names = names(&fetcher);
        assert_eq!(names.len(), MAX_SERVICES);
        for (name, is_there) in [("used", true), ("0", false), ("1", false), ("2", true)] {
            assert_eq!(names.iter().any(|other| other == name), is_there, "{name}");
        }
        drop(used);
    }
}
