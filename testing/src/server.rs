//! The real `multinet-dns` binary over YAML files, on ports that the kernel picks.

use std::collections::HashMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::dns::{Query, Reply, Transport};
use crate::process::{Process, remove_at_exit, workspace_binary};

/// How long the server may take to start, and to end by itself.
const PATIENCE: Duration = Duration::from_secs(20);

/// How often a condition is looked at.
const PAUSE: Duration = Duration::from_millis(5);

/// The flags of a server that is to be started.
#[derive(Debug, Clone, Default)]
pub struct Flags {
    flags: Vec<String>,
    listen: Vec<String>,
    without_loopback: bool,
    env: Vec<(String, String)>,
}

impl Flags {
    /// None: the server has its manifests, a plain listener and the admin endpoints, all on loopback.
    pub fn new() -> Self {
        Self::default()
    }

    /// A flag with its value.
    #[must_use]
    pub fn flag(mut self, flag: &str, value: impl AsRef<Path>) -> Self {
        self.flags.extend([flag.to_owned(), value.as_ref().display().to_string()]);
        self
    }

    /// Flags as a shell's words.
    #[must_use]
    pub fn words(mut self, words: &str) -> Self {
        self.flags.extend(words.split_whitespace().map(ToOwned::to_owned));
        self
    }

    /// One more listener, beside the plain one.
    #[must_use]
    pub fn listen(mut self, url: &str) -> Self {
        self.listen.push(url.to_owned());
        self
    }

    /// This listener for plain DNS instead of the one on loopback.
    #[must_use]
    pub fn listen_instead(mut self, url: &str) -> Self {
        self.without_loopback = true;
        self.listen(url)
    }

    /// An environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts a server with these manifests and waits until it is ready.
    pub fn start(mut self, manifests: &Path) -> Result<Server> {
        let folder = tempfile::tempdir()?;
        remove_at_exit(folder.path())?;
        let log = folder.path().join("multinet-dns.log");
        let mut command = command()?;
        command
            .arg("--manifests")
            .arg(manifests)
            .args(["--admin", "127.0.0.1:0"])
            .env("MULTINET_LAMEDUCK", "0s");
        if !self.without_loopback {
            self.listen.push("dns://127.0.0.1:0".to_owned());
        }
        command.args(self.listen.iter().flat_map(|url| ["--listen", url]));
        command.args(&self.flags).envs(self.env);
        let process = Process::spawn(&mut command, &log)?;
        let mut server = Server { process, bound: HashMap::new(), _folder: folder };
        server.wait_until_ready(self.listen.len())?;
        Ok(server)
    }
}

/// A running server; it is ended when this is dropped.
#[derive(Debug)]
pub struct Server {
    process: Process,
    /// The address per scheme, `admin` among them.
    bound: HashMap<String, SocketAddr>,
    _folder: TempDir,
}

impl Server {
    fn wait_until_ready(&mut self, listeners: usize) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.process.check_running()?;
            self.bound = bound(&self.process.log());
            if self.bound.len() > listeners && self.get("/readyz").is_ok_and(|(status, _)| status == 200) {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "multinet-dns is not ready:\n{}", self.process.tail());
            std::thread::sleep(PAUSE);
        }
    }

    /// Where plain DNS is served, over UDP and TCP; loopback, if it is served everywhere.
    pub fn dns(&self) -> SocketAddr {
        match self.bound["dns"] {
            address if address.ip().is_unspecified() => (Ipv4Addr::LOCALHOST, address.port()).into(),
            address => address,
        }
    }

    /// Where a scheme is served: `dns`, `tls`, `https`, `quic` or `admin`.
    pub fn address(&self, scheme: &str) -> Result<SocketAddr> {
        self.bound
            .get(scheme)
            .copied()
            .with_context(|| format!("the server has not said where it serves {scheme}"))
    }

    /// Asks over UDP.
    pub fn ask(&self, query: &Query) -> Result<Reply> {
        Transport::Udp.ask(self.dns(), query)
    }

    /// Asks a plain question over UDP.
    pub fn query(&self, name: &str, qtype: &str) -> Result<Reply> {
        self.ask(&Query::new(name, qtype))
    }

    /// Asks over TCP.
    pub fn ask_tcp(&self, query: &Query) -> Result<Reply> {
        Transport::Tcp.ask(self.dns(), query)
    }

    /// A GET of the admin endpoints: status and body.
    pub fn get(&self, path: &str) -> Result<(u16, String)> {
        let mut stream = TcpStream::connect_timeout(&self.address("admin")?, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut response = String::new();
        stream.read_to_string(&mut response)?;
        let (head, body) = response.split_once("\r\n\r\n").context("no HTTP response")?;
        let status = head.split(' ').nth(1).context("no HTTP status")?.parse()?;
        Ok((status, body.to_owned()))
    }

    /// The sum of a metric's samples whose name and labels begin with `prefix`.
    pub fn metric(&self, prefix: &str) -> Result<f64> {
        let (status, body) = self.get("/metrics")?;
        ensure!(status == 200, "/metrics answers {status}");
        let mut samples = body.lines().filter(|line| line.starts_with(prefix)).peekable();
        ensure!(samples.peek().is_some(), "there is no metric {prefix}");
        samples.map(|line| Ok(line.rsplit(' ').next().unwrap_or_default().parse::<f64>()?)).sum()
    }

    /// Everything that the server has logged.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// The running program.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Asks to end by SIGTERM, and waits for it; the exit status has to be 0. Returns the log.
    pub fn stop(mut self) -> Result<String> {
        self.process.signal("TERM")?;
        let status = self.exited()?;
        ensure!(status.success(), "multinet-dns ended with {status}\n{}", self.process.tail());
        Ok(self.log())
    }

    /// Waits for the end.
    pub fn exited(&mut self) -> Result<ExitStatus> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.process.exited(PATIENCE))
    }
}

/// The addresses in the lines `listening on SCHEME://ADDRESS` and `admin on http://ADDRESS` of a log.
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

/// Runs `attempt` until it succeeds, and returns what it found.
pub fn eventually<T>(what: &str, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match attempt() {
            Ok(found) => return Ok(found),
            Err(error) if Instant::now() > deadline => {
                return Err(error).with_context(|| format!("waited {PATIENCE:?} for {what}"));
            }
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

/// The program, not yet started.
pub fn command() -> Result<Command> {
    program("multinet-dns", "MULTINET_DNS_BIN")
}

/// A [binary of this workspace](workspace_binary), not yet started, in an environment without any `MULTINET_` variable.
pub fn program(name: &str, variable: &str) -> Result<Command> {
    let mut command = Command::new(workspace_binary(name, variable)?);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("MULTINET_")) {
        command.env_remove(name);
    }
    command.env_remove("RUST_LOG").env_remove("RUST_BACKTRACE");
    Ok(command)
}

/// Runs the program until it ends by itself, which it has to do soon.
pub fn run_to_end(command: &mut Command) -> Result<Output> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let ended =
        eventually("multinet-dns to end by itself", || child.try_wait()?.context("it is still running"));
    if ended.is_err() {
        child.kill()?;
    }
    let output = child.wait_with_output()?;
    ended.with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
    Ok(output)
}

/// A folder of manifests that a test changes while a server follows it.
#[derive(Debug)]
pub struct Manifests(TempDir);

impl Manifests {
    /// An empty folder.
    pub fn new() -> Result<Self> {
        Ok(Self(tempfile::tempdir()?))
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// A file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Writes a file where it stands.
    pub fn write(&self, name: &str, contents: &str) -> Result<()> {
        let path = self.file(name);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(path, contents)?;
        Ok(())
    }

    /// Writes a file beside the folder and moves it in: readers see the old or the new one, never a part.
    pub fn replace(&self, name: &str, contents: &str) -> Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(self.path().parent().context("a folder above")?)?;
        file.write_all(contents.as_bytes())?;
        file.persist(self.file(name))?;
        Ok(())
    }

    /// Deletes a file.
    pub fn remove(&self, name: &str) -> Result<()> {
        fs::remove_file(self.file(name))?;
        Ok(())
    }
}
