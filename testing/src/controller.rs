//! `multinet-controller` as it runs in a cluster: with the ServiceAccount and the roles that we ship.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use anyhow::{Context as _, Result, ensure};
use reqwest::StatusCode;
use tempfile::TempDir;

use crate::http;
use crate::process::{Process, remove_at_exit};
use crate::replica::BOUND;
use crate::server::program;
use crate::wait::eventually;

/// A running `multinet-controller`.
#[derive(Debug)]
pub struct Controller {
    // Before the folder that it writes to, so that it is dropped first.
    process: Process,
    admin: SocketAddr,
    folder: TempDir,
}

/// What a controller is started with.
#[derive(Debug, Clone)]
pub struct ControllerOptions {
    kubeconfig: PathBuf,
    flags: Vec<String>,
}

impl ControllerOptions {
    /// A controller with the cluster and user of a kubeconfig file.
    pub fn new(kubeconfig: &Path) -> Self {
        Self { kubeconfig: kubeconfig.to_owned(), flags: Vec::new() }
    }

    /// With one more flag and its value.
    #[must_use]
    pub fn flag(mut self, name: &str, value: impl AsRef<Path>) -> Self {
        self.flags.extend([name.to_owned(), value.as_ref().display().to_string()]);
        self
    }

    /// Starts the controller, and waits until its admin endpoints answer. It need not be ready by then.
    pub async fn start(&self) -> Result<Controller> {
        let folder = TempDir::with_prefix("multinet-controller-")?;
        // One that all tests share is never dropped.
        remove_at_exit(folder.path())?;
        let mut command = program("multinet-controller", "MULTINET_CONTROLLER_BIN")?;
        command
            .env("KUBECONFIG", &self.kubeconfig)
            .args(["--admin", "127.0.0.1:0", "--log-format", "plain"])
            .args(&self.flags);
        let mut process = Process::spawn(&mut command, &log(&folder))?;
        let admin = process.logged("admin on http://", BOUND).await?;
        let admin = admin.trim_end_matches('/').parse().with_context(|| format!("admin on {admin}"))?;
        Ok(Controller { process, admin, folder })
    }

    /// Starts the controller, and waits until it is ready.
    pub async fn start_ready(&self) -> Result<Controller> {
        let controller = self.start().await?;
        controller.ready().await?;
        Ok(controller)
    }
}

impl Controller {
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The running program.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Waits until it is ready. Whether it is the leader is another question.
    pub async fn ready(&self) -> Result<()> {
        eventually("multinet-controller to be ready", BOUND, async || {
            let (status, body) = self.readyz().await?;
            ensure!(status.is_success(), "/readyz: {status}: {body}\n{}", self.process.tail());
            Ok(())
        })
        .await
    }

    /// What `/readyz` says.
    pub async fn readyz(&self) -> Result<(StatusCode, String)> {
        self.get("readyz").await
    }

    /// Status and body of one of the admin endpoints.
    pub async fn get(&self, path: &str) -> Result<(StatusCode, String)> {
        http::get_any(&format!("http://{}/{path}", self.admin)).await
    }

    /// The sum of a metric's samples whose names and labels begin with `prefix`; an error if there is no such metric.
    pub async fn metric(&self, prefix: &str) -> Result<u64> {
        http::metric(self.admin, prefix).await
    }

    /// Waits until a metric has this value.
    pub async fn shows(&self, prefix: &str, value: u64) -> Result<()> {
        eventually(&format!("{prefix} to be {value}"), BOUND, async || {
            let found = self.metric(prefix).await?;
            ensure!(found == value, "it is {found}");
            Ok(())
        })
        .await
    }

    /// Whether it is the leader, by its own account.
    pub async fn is_leader(&self) -> Result<bool> {
        let (_, metrics) = self.get("metrics").await?;
        let told = metrics.lines().find_map(|line| line.strip_prefix("multinet_leader "));
        Ok(told.context("there is no metric multinet_leader")? == "1")
    }

    /// Waits until it is the leader, or until it is not.
    pub async fn leads(&self, expected: bool) -> Result<()> {
        eventually(&format!("the controller to lead: {expected}"), BOUND, async || {
            ensure!(self.is_leader().await? == expected, "not yet\n{}", self.process.tail());
            Ok(())
        })
        .await
    }

    /// SIGKILL.
    pub fn kill(&mut self) -> Result<()> {
        self.process.kill()
    }

    /// SIGTERM, and waits for the end.
    pub async fn terminate(&mut self) -> Result<ExitStatus> {
        self.process.terminate(BOUND).await
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// The file that it logs to.
    pub fn log_file(&self) -> PathBuf {
        log(&self.folder)
    }
}

fn log(folder: &TempDir) -> PathBuf {
    folder.path().join("multinet-controller.log")
}
