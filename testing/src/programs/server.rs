//! The `multinet-dns` binary serving YAML files, on ports that the kernel picks.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::dns::{Query, Reply, Transport};
use crate::metrics::sum;
use crate::program::Program;
use crate::wait::block_on;

pub use crate::program::{program, run_to_end};
pub use crate::wait::eventually_blocking as eventually;

/// Time limit for the server to start, and to end by itself.
const PATIENCE: Duration = Duration::from_secs(20);

/// Pause between two checks of a condition.
const PAUSE: Duration = Duration::from_millis(5);

/// Flags of a server to start.
#[derive(Debug, Clone, Default)]
pub struct Flags {
    flags: Vec<String>,
    listen: Vec<String>,
    without_loopback: bool,
    env: Vec<(String, String)>,
}

impl Flags {
    /// Creates flags that add nothing: the server gets its manifests, a listener for plain DNS and
    /// the admin endpoints, all on loopback.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a flag with its value.
    #[must_use]
    pub fn flag(mut self, flag: &str, value: impl AsRef<Path>) -> Self {
        self.flags.extend([flag.to_owned(), value.as_ref().display().to_string()]);
        self
    }

    /// Adds flags, split like the words of a shell command.
    #[must_use]
    pub fn words(mut self, words: &str) -> Self {
        self.flags.extend(words.split_whitespace().map(ToOwned::to_owned));
        self
    }

    /// Adds a listener to the one for plain DNS.
    #[must_use]
    pub fn listen(mut self, url: &str) -> Self {
        self.listen.push(url.to_owned());
        self
    }

    /// Replaces the listener for plain DNS.
    #[must_use]
    pub fn listen_instead(mut self, url: &str) -> Self {
        self.without_loopback = true;
        self.listen(url)
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts a server with these manifests, and waits until it is ready.
    pub fn start(mut self, manifests: &Path) -> Result<Server> {
        if !self.without_loopback {
            self.listen.push("dns://127.0.0.1:0".to_owned());
        }
        let mut program = Program::spawn("multinet-dns", |command| {
            command.arg("--manifests").arg(manifests);
            command.args(self.listen.iter().flat_map(|url| ["--listen", url]));
            command.args(&self.flags).envs(self.env);
        })?;
        let deadline = Instant::now() + PATIENCE;
        while !program.is_bound(self.listen.len())? {
            ensure!(Instant::now() < deadline, "multinet-dns does not listen:\n{}", program.tail());
            thread::sleep(PAUSE);
        }
        let mut server = Server(program);
        while !server.get("/readyz").is_ok_and(|(status, _)| status == 200) {
            server.process().check_running()?;
            ensure!(Instant::now() < deadline, "multinet-dns is not ready:\n{}", server.tail());
            thread::sleep(PAUSE);
        }
        Ok(server)
    }
}

/// Running server, which is killed when this value is dropped. Queries block the thread.
#[derive(Debug)]
pub struct Server(Program);

impl Deref for Server {
    type Target = Program;

    fn deref(&self) -> &Program {
        &self.0
    }
}

impl DerefMut for Server {
    fn deref_mut(&mut self) -> &mut Program {
        &mut self.0
    }
}

impl Server {
    /// Sends a query over UDP.
    pub fn ask(&self, query: &Query) -> Result<Reply> {
        Transport::Udp.ask(self.dns(), query)
    }

    /// Sends a query for this name and type over UDP.
    pub fn query(&self, name: &str, qtype: &str) -> Result<Reply> {
        self.ask(&Query::new(name, qtype))
    }

    /// Sends a query over TCP.
    pub fn ask_tcp(&self, query: &Query) -> Result<Reply> {
        Transport::Tcp.ask(self.dns(), query)
    }

    /// Returns status and body of an admin endpoint.
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

    /// Returns the sum of a metric's samples whose names and labels begin with `prefix`; zero if
    /// there is no sample yet. Fails if the metric does not exist.
    pub fn metric(&self, prefix: &str) -> Result<f64> {
        let (status, metrics) = self.get("/metrics")?;
        ensure!(status == 200, "/metrics answers {status}");
        sum(&metrics, prefix)
    }

    /// Sends SIGTERM, and waits for the end, whose exit status has to be 0. Returns the log.
    pub fn stop(mut self) -> Result<String> {
        self.process().signal("TERM")?;
        let status = self.exited()?;
        ensure!(status.success(), "multinet-dns ended with {status}\n{}", self.tail());
        Ok(self.log())
    }

    /// Waits for the server to end.
    pub fn exited(&mut self) -> Result<ExitStatus> {
        block_on(self.process().exited(PATIENCE))
    }
}

/// Returns the command of the server, not yet started.
pub fn command() -> Result<Command> {
    program("multinet-dns", "MULTINET_DNS_BIN")
}

/// Folder of manifests, which a test changes while a server follows it.
#[derive(Debug)]
pub struct Manifests(TempDir);

impl Manifests {
    /// Creates an empty folder.
    pub fn new() -> Result<Self> {
        Ok(Self(tempfile::tempdir()?))
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Returns the path of a file in the folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Writes a file in place.
    pub fn write(&self, name: &str, contents: &str) -> Result<()> {
        let path = self.file(name);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(path, contents)?;
        Ok(())
    }

    /// Writes a file outside the folder and moves it in, so that readers see the old file or the
    /// new one, never a part.
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
