//! A candidate of an election, with its leadership, metrics and logs.

use std::time::Duration;

use multinet_runtime::{Leadership, LeaseConfig, LeaseMetrics, lease};
use multinet_testing::fake_api::{LeaseLink, LeaseServer};
use multinet_testing::logs::Logs;
use multinet_testing::metrics::sample;
use prometheus_client::registry::Registry;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tracing::Level;
use tracing::subscriber::DefaultGuard;

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// Duration of every lease in these tests. The renew deadline of 10 s and the retry period of 2 s
/// follow from it.
pub(crate) const DURATION: Duration = Duration::from_secs(15);

pub(crate) struct Candidate {
    pub(crate) leadership: Leadership,
    /// Ends the candidate.
    pub(crate) shutdown: CancellationToken,
    /// Reports to the candidate that its writers have ended.
    pub(crate) stopped: CancellationToken,
    pub(crate) task: JoinHandle<()>,
    registry: Registry,
}

impl Candidate {
    /// Starts a candidate that reaches the API server over `link`.
    pub(crate) fn start(server: &LeaseServer, identity: &str, link: LeaseLink) -> Self {
        let config = LeaseConfig {
            namespace: "ns".to_owned(),
            name: "leader".to_owned(),
            identity: identity.to_owned(),
            duration: DURATION,
        };
        let mut registry = Registry::default();
        let metrics = LeaseMetrics::register(&mut registry);
        let (shutdown, stopped) = (CancellationToken::new(), CancellationToken::new());
        let released = stopped.clone().cancelled_owned();
        let (leadership, run) = lease(server.client(link), config, metrics, shutdown.clone(), released);
        Self { leadership, shutdown, stopped, task: tokio::spawn(run), registry }
    }

    /// Starts a candidate and waits until it leads.
    pub(crate) async fn leading(server: &LeaseServer, identity: &str, link: LeaseLink) -> Self {
        let mut candidate = Self::start(server, identity, link);
        candidate.gains().await;
        candidate
    }

    /// Waits until it leads. Returns how long that took, in seconds.
    pub(crate) async fn gains(&mut self) -> f64 {
        self.changes(false).await
    }

    /// Waits until it does not lead. Returns how long that took, in seconds.
    pub(crate) async fn loses(&mut self) -> f64 {
        self.changes(true).await
    }

    async fn changes(&mut self, was: bool) -> f64 {
        let start = Instant::now();
        timeout(3600 * SECOND, self.leadership.changed(was))
            .await
            .expect("leadership has not changed within an hour");
        assert_eq!(self.leadership.is_leader(), !was);
        start.elapsed().as_secs_f64()
    }

    /// Returns the value of a metric, as scraped.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        sample(&self.registry, name).unwrap_or_else(|| panic!("no {name}"))
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Returns an API server without a lease.
pub(crate) fn server() -> LeaseServer {
    LeaseServer::new("ns", "leader")
}

/// Captures the log of this thread from now on.
pub(crate) fn logs() -> (Logs, DefaultGuard) {
    Logs::capture(Level::INFO)
}
