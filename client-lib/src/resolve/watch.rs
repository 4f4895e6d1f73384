//! Follows a service. [`Refresh`] decides; this module queries and waits.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use futures::{FutureExt as _, Stream};
use tokio::time::{Sleep, sleep_until};
use tracing::{debug, info, warn};

use super::refresh::Refresh;
use super::resolution::{self, Resolution, now};
use super::{Change, ResolveError, Resolved, Resolver};

/// Stream of the changes of a service's endpoints, from [`Resolver::watch`]. It never ends.
///
/// DNS is queried only while the stream is polled. A query in flight completes by itself, so that a
/// stream which is not polled does not hold up other resolutions. Its outcome is reported when the
/// stream is polled again. If that outcome is older than its time to live, DNS is queried again at
/// once. Changes in between are not reported.
///
/// # Examples
///
/// ```no_run
/// # async fn example(
/// #     resolver: &multinet_client::Resolver,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// use futures::StreamExt as _;
///
/// let mut changes = resolver.watch("infer.vision.svc.multinet", "rdma");
/// // The first one comes as soon as something is known.
/// println!("{:?}", changes.next().await);
/// # Ok(()) }
/// ```
#[must_use = "streams do nothing unless polled"]
pub struct Watch {
    resolver: Resolver,
    name: String,
    port: String,
    refresh: Refresh,
    /// Full name that answered last. Only this one is queried again, without the rest of the search
    /// path.
    full_name: Option<String>,
    resolution: Option<Resolution>,
    sleep: Option<Pin<Box<Sleep>>>,
    /// Changes that the stream has not returned yet.
    changes: VecDeque<Change>,
}

impl Watch {
    pub(super) fn new(resolver: Resolver, name: &str, port: &str) -> Self {
        let refresh = Refresh::new(now(), resolver.hold(), fastrand::Rng::new());
        Self {
            resolver,
            name: name.to_owned(),
            port: port.to_owned(),
            refresh,
            full_name: None,
            resolution: None,
            sleep: None,
            changes: VecDeque::new(),
        }
    }

    /// Queries DNS soon, not only at the end of the records' time to live. Call this if something
    /// indicates that the endpoints have changed: a peer is gone, or has been replaced. DNS is
    /// queried at most once a second, however often this is called.
    ///
    /// ```no_run
    /// # async fn example(
    /// #     changes: &mut multinet_client::Watch, endpoint: std::net::SocketAddr,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// use futures::StreamExt as _;
    ///
    /// if tokio::net::TcpStream::connect(endpoint).await.is_err() {
    ///     changes.ask_soon();
    /// }
    /// let change = changes.next().await;
    /// # Ok(()) }
    /// ```
    pub fn ask_soon(&mut self) {
        self.refresh.refresh_soon(now());
    }

    /// Takes the outcome of a resolution, which was known at the time `at`.
    fn on_outcome(&mut self, at: Instant, outcome: Result<Resolved, ResolveError>) {
        self.resolution = None;
        if let Ok(resolved) = &outcome {
            self.full_name = Some(resolved.name.clone());
        }
        for change in self.refresh.on_outcome(at, outcome) {
            self.push(change);
        }
    }

    fn push(&mut self, change: Change) {
        let (name, port) = (&self.name, &self.port);
        match &change {
            Change::Endpoints(Resolved { name: full_name, endpoints, .. }) => {
                debug!(
                    name,
                    port,
                    full_name,
                    endpoints = endpoints.len(),
                    "the service's endpoints have changed"
                );
            }
            Change::Held { error, .. } => {
                let hold = self.resolver.hold();
                warn!(name, port, %error, ?hold, "DNS fails; the service's last endpoints are kept");
            }
            Change::Recovered => info!(name, port, "DNS answers again"),
            Change::Lost { error } => warn!(name, port, %error, "no endpoints of the service are known"),
        }
        self.changes.push_back(change);
    }

    /// Returns whether the state machine has nothing to do until a timer, which then wakes the
    /// task.
    fn poll_sleep(&mut self, context: &mut Context<'_>) -> bool {
        let Some(wake_at) = self.refresh.wake_at() else { return true };
        let wake_at = tokio::time::Instant::from_std(wake_at);
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(wake_at)));
        if sleep.deadline() != wake_at {
            sleep.as_mut().reset(wake_at);
        }
        sleep.as_mut().poll(context).is_pending()
    }
}

impl Stream for Watch {
    type Item = Change;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Change>> {
        let this = self.get_mut();
        loop {
            if let Some(resolution) = &mut this.resolution
                && let Poll::Ready((at, outcome)) = resolution.poll_unpin(context)
            {
                this.on_outcome(at, outcome);
            }
            if let Some(change) = this.refresh.tick(now()) {
                this.push(change);
            }
            if let Some(change) = this.changes.pop_front() {
                return Poll::Ready(Some(change));
            }
            if this.refresh.is_due(now()) {
                this.refresh.on_asked(now());
                let (name, port, last) = (&this.name, &this.port, this.full_name.as_deref());
                this.resolution = Some(resolution::start(&this.resolver, name, port, last));
                continue;
            }
            if this.poll_sleep(context) {
                return Poll::Pending;
            }
        }
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("name", &self.name)
            .field("port", &self.port)
            .field("full_name", &self.full_name)
            .finish_non_exhaustive()
    }
}
