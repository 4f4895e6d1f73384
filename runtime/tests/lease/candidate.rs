//! A process that takes part in an election, and everything that can be seen of it.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

use multinet_runtime::{Leadership, LeaseConfig, LeaseMetrics, lease};
use prometheus_client::registry::Registry;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tracing::subscriber::DefaultGuard;

use crate::server::{Link, Server};

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// The duration of every lease here; 10 s and 2 s follow from it.
pub(crate) const DURATION: Duration = Duration::from_secs(15);

pub(crate) struct Candidate {
    pub(crate) leadership: Leadership,
    /// Asks it to end.
    pub(crate) shutdown: CancellationToken,
    /// Its writers have ended.
    pub(crate) stopped: CancellationToken,
    pub(crate) task: JoinHandle<()>,
    registry: Registry,
}

impl Candidate {
    /// A process that begins to ask for the lease, over `link`.
    pub(crate) fn start(server: &Server, identity: &str, link: Link) -> Self {
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
        let (leadership, run) =
            lease(server.client(link), config, metrics, shutdown.clone(), released).unwrap();
        Self { leadership, shutdown, stopped, task: tokio::spawn(run), registry }
    }

    /// One that leads, over `link`.
    pub(crate) async fn leading(server: &Server, identity: &str, link: Link) -> Self {
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
            .expect("nothing has changed within an hour");
        assert_eq!(self.leadership.is_leader(), !was);
        start.elapsed().as_secs_f64()
    }

    /// The value of a metric, as it is scraped.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no {name} in:\n{text}")).parse().unwrap()
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What is logged on this thread from now on.
#[derive(Clone, Default)]
pub(crate) struct Logs(Arc<Mutex<Vec<u8>>>);

impl Logs {
    pub(crate) fn start() -> (Self, DefaultGuard) {
        // Else whether a line is made at all would depend on the subscribers that other tests come and go with.
        static ALL: Once = Once::new();
        ALL.call_once(|| drop(tracing::subscriber::set_global_default(tracing_subscriber::registry())));
        let logs = Self::default();
        let writer = logs.clone();
        let logger = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        (logs, tracing::subscriber::set_default(logger))
    }

    /// The lines that contain `text`.
    pub(crate) fn with(&self, text: &str) -> Vec<String> {
        let logged = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        logged.lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
    }
}

impl Write for Logs {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
