//! The start and the end that all programs share.
//!
//! Everything is bound and checked before anything runs. A start therefore fails with one line, or
//! the program keeps running.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use clap::builder::FalseyValueParser;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::select;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::log::{self, LogArgs, LogLevel};
use crate::{Admin, Page, Readiness, ReadyGuard, drain, register_process_metrics};

/// Command-line flags that all programs have.
#[derive(clap::Args, Clone, Debug)]
pub struct ProgramArgs {
    /// Address for /metrics, /livez, /readyz, /logging and /debug/state [default: none]
    #[arg(long, value_name = "ADDR:PORT", env = "MULTINET_ADMIN", help_heading = "Operation")]
    pub admin: Option<SocketAddr>,

    /// Allow clients on other hosts to set the log filter by PUT /logging
    #[arg(long, env = "MULTINET_ADMIN_ALLOW_LOGGING", value_parser = FalseyValueParser::new(),
          help_heading = "Operation")]
    pub admin_allow_logging: bool,

    #[command(flatten)]
    log: LogArgs,
}

/// Facts about a program.
#[derive(Clone, Copy, Debug)]
pub struct ProgramSettings {
    /// Version, for the metrics.
    pub version: &'static str,
    /// Number of threads that run tasks; `None` for as many as there are cores.
    pub threads: Option<usize>,
    /// Time for which it goes on serving after a signal, while it is not ready.
    pub lameduck: Duration,
    /// Time that the rest of a shutdown may take.
    pub deadline: Duration,
}

/// Parts of a running program.
pub struct Program {
    /// Readiness of the process, which is not ready before [`run_until`](Self::run_until).
    pub readiness: Readiness,
    /// Token that ends all tasks.
    pub shutdown: CancellationToken,
    /// Metrics.
    pub registry: Registry,
    /// Tasks to wait for at the end.
    pub tasks: TaskTracker,
    starting: ReadyGuard,
    deadline: Duration,
    admin: Option<TcpListener>,
    log_level: LogLevel,
    allow_logging: bool,
}

impl Program {
    /// Runs `serve` until it ends. Logging, signals and the address of the admin endpoints are set
    /// up before.
    ///
    /// # Errors
    ///
    /// One line if the start fails, or the error of `serve`.
    pub fn run<F: Future<Output = Result<()>>>(
        args: &ProgramArgs,
        settings: ProgramSettings,
        serve: impl FnOnce(Self) -> F,
    ) -> Result<()> {
        let log_level = log::init(&args.log)?;
        if let Err(error) = rlimit::increase_nofile_limit(u64::MAX) {
            tracing::warn!(%error, "cannot raise the limit of open files; it stays as it is");
        }
        let mut builder = Builder::new_multi_thread();
        if let Some(threads) = settings.threads {
            builder.worker_threads(threads);
        }
        let runtime = builder.enable_all().build()?;
        let outcome = runtime.block_on(async { serve(Self::start(args, settings, log_level).await?).await });
        // A thread may be blocked in a read from a hanging file system. Do not wait for it.
        runtime.shutdown_background();
        outcome
    }

    async fn start(args: &ProgramArgs, settings: ProgramSettings, log_level: LogLevel) -> Result<Self> {
        let readiness = Readiness::default();
        let starting = readiness.register("start");
        let shutdown = drain::on_signal(readiness.clone(), settings.lameduck, settings.deadline);
        let mut registry = Registry::default();
        register_process_metrics(&mut registry, settings.version);
        let admin = match args.admin {
            Some(address) => Some(Admin::bind(address).await?),
            None => None,
        };
        Ok(Self {
            readiness,
            shutdown,
            registry,
            tasks: TaskTracker::new(),
            starting,
            deadline: settings.deadline,
            admin,
            log_level,
            allow_logging: args.admin_allow_logging,
        })
    }

    /// Serves the admin endpoints and these pages, if the flag `--admin` asks for them. No metric
    /// can be registered after that.
    ///
    /// # Errors
    ///
    /// That of the operating system.
    pub fn serve_admin(&mut self, pages: Vec<(&'static str, Page)>) -> Result<()> {
        let Some(listener) = self.admin.take() else { return Ok(()) };
        tracing::info!("admin on http://{}", listener.local_addr()?);
        let admin = Admin {
            readiness: self.readiness.clone(),
            registry: Arc::new(std::mem::take(&mut self.registry)),
            log_level: self.log_level.clone(),
            allow_logging: self.allow_logging,
            pages,
        };
        self.tasks.spawn(admin.serve(listener, self.shutdown.clone()));
        Ok(())
    }

    /// Ends the start, and waits for a signal or for `failure`: tasks that end only with the
    /// shutdown, unless they fail. Then has all tasks end.
    ///
    /// # Errors
    ///
    /// That of `failure`, if it completes first.
    pub async fn run_until(self, failure: impl Future<Output = Result<()>>) -> Result<()> {
        self.starting.ready();
        let outcome = select! {
            biased; // everything ends with the shutdown too
            () = self.shutdown.cancelled() => Ok(()),
            outcome = failure => outcome,
        };
        self.shutdown.cancel();
        if let Err(unfinished) = drain::finish(&self.tasks, self.deadline).await {
            tracing::warn!("{unfinished}");
        }
        tracing::info!("stopped");
        outcome
    }
}
