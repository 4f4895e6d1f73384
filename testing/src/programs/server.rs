//! The real `multinet-dns` binary over YAML files, on ports that the kernel picks.

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

/// A running server; it is ended when this is dropped. Asking it blocks the thread.
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

    /// The sum of a metric's samples whose name and labels begin with `prefix`; zero while there is none, but
    /// an error if there is no such metric.
    pub fn metric(&self, prefix: &str) -> Result<f64> {
        let (status, metrics) = self.get("/metrics")?;
        ensure!(status == 200, "/metrics answers {status}");
        sum(&metrics, prefix)
    }

    /// Asks to end by SIGTERM, and waits for it; the exit status has to be 0. Returns the log.
    pub fn stop(mut self) -> Result<String> {
        self.process().signal("TERM")?;
        let status = self.exited()?;
        ensure!(status.success(), "multinet-dns ended with {status}\n{}", self.tail());
        Ok(self.log())
    }

    /// Waits for the end.
    pub fn exited(&mut self) -> Result<ExitStatus> {
        block_on(self.process().exited(PATIENCE))
    }
}

/// The program, not yet started.
pub fn command() -> Result<Command> {
    program("multinet-dns", "MULTINET_DNS_BIN")
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
