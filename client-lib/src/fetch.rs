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
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::link::Parts;
use self::pending::Pending;
use self::search::Search;
pub(crate) use self::service::{Service, Source};
use crate::error::{BindError, FetchError};
use crate::listener::{ListenerBuilder, Received};
use crate::peers::dial::Dialer;
use crate::reference::Reference;

impl std::fmt::Debug for Fetcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fetcher").finish_non_exhaustive()
    }
}

/// Fetches of one connector.
pub(crate) struct Fetcher {
    parts: Parts,
    services: Mutex<HashMap<(String, String), Arc<Service>>>,
    /// Largest payload that is taken, in bytes.
    frame_size: u32,
    tasks: TaskTracker,
}

impl Fetcher {
    /// Creates the listener for the payloads. No connection is made yet.
    pub(crate) fn new(listener: ListenerBuilder, frame_size: u32) -> Result<Self, BindError> {
        let (pending, tasks, end) = (Arc::<Pending>::default(), TaskTracker::new(), CancellationToken::new());
        let answers = Arc::clone(&pending);
        let listener = listener.frame_size(frame_size).without_port(move |frame| answers.answer(frame))?;
        let parts =
            Parts { listener, pending, numbers: Arc::new(AtomicU64::new(1)), links: Arc::default(), end };
        Ok(Self { parts, services: Mutex::default(), frame_size, tasks })
    }

    /// Fetches a payload from a pod of a service. Fails if no byte of it comes within `wait`.
    pub(crate) async fn fetch(
        &self,
        service: &Arc<Service>,
        name: &str,
        reference: &Reference,
        wait: Duration,
    ) -> Result<Received, FetchError> {
        let search = Search::new(service, (name, reference), self.frame_size, wait);
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
        let mut services = self.services.lock();
        let make = || {
            let (dialer, source) = open();
            Arc::new(Service::new(dialer, source, self.parts.clone(), self.tasks.clone()))
        };
        Arc::clone(services.entry((name.to_owned(), port.to_owned())).or_insert_with(make))
    }
}

impl Drop for Fetcher {
    fn drop(&mut self) {
        self.end();
    }
}
