//! Programs of this workspace, run by tests on ports that the kernel picks, with admin endpoints.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use reqwest::StatusCode;
use tempfile::TempDir;

use crate::http;
use crate::process::{Process, remove_at_exit, workspace_binary};
use crate::wait::{eventually, eventually_blocking};

/// Time limit for a program to start, to sync, to react to a change, or to end. Each usually takes
/// a fraction of a second, but the machine may be busy, and a dead connection is closed after 35 s.
pub const BOUND: Duration = Duration::from_secs(60);

/// Running program, which is killed when this value is dropped.
#[derive(Debug)]
pub struct Program {
    // Before the folder that it writes to, so that the process is dropped first.
    process: Process,
    /// Addresses by scheme, `admin` among them.
    bound: HashMap<String, SocketAddr>,
    folder: TempDir,
}

impl Program {
    /// Starts the binary `name` with admin endpoints, and with the arguments that `configure` adds.
    pub(crate) fn spawn(name: &str, configure: impl FnOnce(&mut Command)) -> Result<Self> {
        let folder = TempDir::with_prefix(format!("{name}-"))?;
        // A program in a static is never dropped, so that its folder would remain.
        remove_at_exit(folder.path())?;
        let mut command = program(name, &format!("{}_BIN", name.to_uppercase().replace('-', "_")))?;
        command.args(["--admin", "127.0.0.1:0"]).env("MULTINET_LAMEDUCK", "0s");
        configure(&mut command);
        let process = Process::spawn(&mut command, &log_in(&folder, name))?;
        Ok(Self { process, bound: HashMap::new(), folder })
    }

    /// Returns whether the log names the addresses of this many schemes and of the admin endpoints.
    /// Fails if the program has ended.
    pub(crate) fn is_bound(&mut self, schemes: usize) -> Result<bool> {
        self.process.check_running()?;
        self.bound = bound(&self.process.log());
        Ok(self.bound.len() > schemes)
    }

    /// Returns the process ID.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Returns the process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Returns the address of a scheme: `dns`, `tls`, `https`, `quic` or `admin`.
    pub fn address(&self, scheme: &str) -> Result<SocketAddr> {
        let address = self.bound.get(scheme).copied();
        address.with_context(|| format!("{} has not logged its address for {scheme}", self.process.name()))
    }

    /// Returns the address of plain DNS over UDP and TCP, with loopback in place of a wildcard.
    ///
    /// # Panics
    ///
    /// If it serves no plain DNS.
    pub fn dns(&self) -> SocketAddr {
        match self.bound["dns"] {
            address if address.ip().is_unspecified() => (Ipv4Addr::LOCALHOST, address.port()).into(),
            address => address,
        }
    }

    /// Waits until the program is ready.
    pub async fn ready(&self) -> Result<()> {
        eventually(&format!("{} to be ready", self.process.name()), BOUND, async || {
            let (status, body) = self.readyz().await?;
            ensure!(status.is_success(), "/readyz: {status}: {body}\n{}", self.process.tail());
            Ok(())
        })
        .await
    }

    /// Returns status and body of `/readyz`.
    pub async fn readyz(&self) -> Result<(StatusCode, String)> {
        self.get("readyz").await
    }

    /// Returns status and body of an admin endpoint.
    pub async fn get(&self, path: &str) -> Result<(StatusCode, String)> {
        http::get_any(&format!("http://{}/{path}", self.address("admin")?)).await
    }

    /// Returns the sum of a metric's samples whose names and labels begin with `prefix`; zero if
    /// there is no sample yet. Fails if the metric does not exist.
    pub async fn metric(&self, prefix: &str) -> Result<u64> {
        http::metric(self.address("admin")?, prefix).await
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

    /// Sends SIGKILL, and waits for the program to end.
    pub fn kill(&mut self) -> Result<()> {
        self.process.kill()
    }

    /// Sends SIGTERM, and waits for the program to end.
    pub async fn terminate(&mut self) -> Result<ExitStatus> {
        self.process.terminate(BOUND).await
    }

    /// Returns the log so far.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Returns the last lines of the log.
    pub fn tail(&self) -> String {
        self.process.tail()
    }

    /// Returns the path of the log.
    pub fn log_file(&self) -> PathBuf {
        log_in(&self.folder, self.process.name())
    }
}

fn log_in(folder: &TempDir, name: &str) -> PathBuf {
    folder.path().join(format!("{name}.log"))
}

/// Options of a program that follows an API server.
#[derive(Debug, Clone)]
pub struct Options {
    name: &'static str,
    kubeconfig: PathBuf,
    /// Address for plain DNS, if the program serves it.
    pub(crate) listen: Option<String>,
    flags: Vec<String>,
}

impl Options {
    pub(crate) fn of(name: &'static str, kubeconfig: &Path) -> Self {
        Self { name, kubeconfig: kubeconfig.to_owned(), listen: None, flags: Vec::new() }
    }

    /// Adds a flag with its value.
    #[must_use]
    pub fn flag(mut self, name: &str, value: impl AsRef<Path>) -> Self {
        self.flags.extend([name.to_owned(), value.as_ref().display().to_string()]);
        self
    }

    /// Adds a flag without a value.
    #[must_use]
    pub fn switch(mut self, name: &str) -> Self {
        self.flags.push(name.to_owned());
        self
    }

    /// Starts the program, and waits until it listens. It need not be ready by then.
    pub async fn start(&self) -> Result<Program> {
        let mut program = Program::spawn(self.name, |command| {
            command.env("KUBECONFIG", &self.kubeconfig);
            command.args(["--log-format", "plain"]);
            command.args(self.listen.iter().flat_map(|url| ["--listen", url])).args(&self.flags);
        })?;
        let schemes =
            self.listen.iter().count() + self.flags.iter().filter(|flag| *flag == "--listen").count();
        let what = format!("{} to listen", self.name);
        let found = eventually(&what, BOUND, async || match program.is_bound(schemes) {
            Ok(true) => Ok(Ok(())),
            Ok(false) => bail!("the log is\n{}", program.log()),
            Err(ended) => Ok(Err(ended)),
        });
        found.await??;
        Ok(program)
    }

    /// Starts the program, and waits until it is ready.
    pub async fn start_ready(&self) -> Result<Program> {
        let program = self.start().await?;
        program.ready().await?;
        Ok(program)
    }
}

/// Parses the addresses in the lines `listening on SCHEME://ADDRESS` and `admin on http://ADDRESS`
/// of a log.
fn bound(log: &str) -> HashMap<String, SocketAddr> {
    let complete = log.rsplit_once('\n').map_or("", |(lines, _)| lines);
    let words = |line: &str, after: &str| {
        let (_, rest) = line.split_once(after)?;
        let url = rest.split(|c: char| c == '"' || c.is_whitespace()).next()?; // a quote ends it in JSON
        let (scheme, address) = url.split_once("://")?;
        Some((scheme.to_owned(), address.trim_end_matches('/').parse().ok()?))
    };
    let listeners = complete.lines().filter_map(|line| words(line, "listening on "));
    let admin = complete.lines().filter_map(|line| words(line, "admin on "));
    listeners.chain(admin.map(|(_, address)| ("admin".to_owned(), address))).collect()
}

/// Returns the command of a [binary of this workspace](workspace_binary), without any `MULTINET_`
/// variable in its environment.
pub fn program(name: &str, variable: &str) -> Result<Command> {
    let mut command = Command::new(workspace_binary(name, variable)?);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("MULTINET_")) {
        command.env_remove(name);
    }
    command.env_remove("RUST_LOG").env_remove("RUST_BACKTRACE");
    Ok(command)
}

/// Runs a program until it ends by itself. Fails if that takes long.
pub fn run_to_end(command: &mut Command) -> Result<Output> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let ended = eventually_blocking("the program to end by itself", || {
        child.try_wait()?.context("it is still running")
    });
    if ended.is_err() {
        child.kill()?;
    }
    let output = child.wait_with_output()?;
    ended.with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
    Ok(output)
}
