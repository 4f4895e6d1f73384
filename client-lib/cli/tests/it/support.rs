//! Starts the binary, and reads its output.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use multinet_client::gid::local_ports;
use nix::unistd::geteuid;

/// Capabilities that are taken away.
const RIGHTS: &str = "-dac_override,-dac_read_search";

/// Bound of each wait.
const BOUND: Duration = Duration::from_secs(60);

/// Returns a command for the binary, without the environment's settings.
pub(crate) fn multinet() -> Command {
    prepare(Command::new(env!("CARGO_BIN_EXE_multinet")))
}

/// Returns the same, without root's right to read and write any file.
pub(crate) fn without_rights() -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set", RIGHTS, "--inh-caps", RIGHTS, env!("CARGO_BIN_EXE_multinet")]);
    prepare(if geteuid().is_root() { command } else { Command::new(env!("CARGO_BIN_EXE_multinet")) })
}

/// Returns the same, with an error instead of larger files than this.
pub(crate) fn with_small_files(kibibytes: u32) -> Command {
    let script = format!("trap '' XFSZ; ulimit -f {kibibytes}; exec \"$0\" \"$@\"");
    let mut command = Command::new("bash");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_multinet")]);
    prepare(command)
}

fn prepare(mut command: Command) -> Command {
    let ours = std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("MULTINET_"));
    for (name, _) in ours {
        command.env_remove(name);
    }
    command.env_remove("RUST_LOG");
    // On a machine with RDMA devices, frames that go by TCP cause a warning, unless that was asked
    // for.
    if local_ports().is_ok_and(|ports| !ports.is_empty()) {
        command.env("MULTINET_TRANSPORT", "tcp");
    }
    command.stdin(Stdio::null());
    command
}

/// A process that listens; killed when it is dropped.
pub(crate) struct Server {
    child: Guard,
    pub(crate) address: SocketAddr,
    stdout: Option<JoinHandle<Vec<u8>>>,
    stderr: Option<JoinHandle<Vec<u8>>>,
}

/// A process that is killed when it is dropped.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The stream on which a server prints its address.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Says {
    Stdout,
    Stderr,
    /// The same, and its standard output has no reader.
    StderrAlone,
}

impl Server {
    /// Starts `multinet` with these arguments on a port of 127.0.0.1, which the kernel chooses if
    /// it is 0.
    pub(crate) fn start(arguments: &[&str], port: u16, says: Says) -> Self {
        let mut command = multinet();
        command.args(arguments);
        Self::start_command(command, port, says)
    }

    /// Does the same with a command that has its arguments.
    pub(crate) fn start_command(mut command: Command, port: u16, says: Says) -> Self {
        command.args(["--address", "127.0.0.1", "--port", &port.to_string()]);
        let mut child = Guard(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
        let stdout = BufReader::new(child.0.stdout.take().unwrap());
        let stderr = BufReader::new(child.0.stderr.take().unwrap());
        let (line, stdout, stderr) = match says {
            Says::Stdout => {
                let (line, stdout) = first_line(stdout);
                (line, Some(collect(stdout)), collect(stderr))
            }
            Says::Stderr => {
                let (line, stderr) = first_line(stderr);
                (line, Some(collect(stdout)), collect(stderr))
            }
            Says::StderrAlone => {
                let (line, stderr) = first_line(stderr);
                drop(stdout);
                (line, None, collect(stderr))
            }
        };
        let address = line.trim().strip_prefix("listening on ").unwrap_or_else(|| panic!("{line}"));
        Self { child, address: address.parse().unwrap(), stdout, stderr: Some(stderr) }
    }

    pub(crate) fn kill(mut self) {
        self.child.0.kill().unwrap();
        self.child.0.wait().unwrap();
    }

    pub(crate) fn interrupt(&self) {
        let pid = self.child.0.id().to_string();
        assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    }

    /// Waits for its end, and returns standard error without the address.
    pub(crate) fn stderr(mut self) -> String {
        wait(&mut self.child.0);
        String::from_utf8(self.stderr.take().unwrap().join().unwrap()).unwrap()
    }

    /// Waits for its end, and returns its output without the address and the warning about TLS.
    pub(crate) fn output(mut self) -> Output {
        let status = wait(&mut self.child.0);
        let stdout = self.stdout.take().map(|stdout| stdout.join().unwrap()).unwrap_or_default();
        let stderr = self.stderr.take().unwrap().join().unwrap();
        Output { status, stdout, stderr: without_warning(&stderr) }
    }
}

fn without_warning(stderr: &[u8]) -> Vec<u8> {
    let lines = stderr.split_inclusive(|&byte| byte == b'\n');
    lines.filter(|line| !text(line).contains("without TLS")).flatten().copied().collect()
}

/// Runs the binary to its end, with `stdin` as its input.
pub(crate) fn run(arguments: &[&str], stdin: &[u8]) -> Output {
    finish(spawn(arguments), stdin)
}

pub(crate) fn spawn(arguments: &[&str]) -> Child {
    let mut command = multinet();
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

pub(crate) fn finish(mut child: Child, stdin: &[u8]) -> Output {
    let stdout = collect(child.stdout.take().unwrap());
    let stderr = child.stderr.take().map(collect);
    // A program that ends early reads no more, and its output says why.
    let _ = child.stdin.take().unwrap().write_all(stdin);
    let status = wait(&mut child);
    let stderr = stderr.map(|stderr| stderr.join().unwrap()).unwrap_or_default();
    Output { status, stdout: stdout.join().unwrap(), stderr }
}

pub(crate) fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn wait(child: &mut Child) -> std::process::ExitStatus {
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if begin.elapsed() > BOUND {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{} has not ended within {} s", child.id(), BOUND.as_secs());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until a condition holds.
pub(crate) fn until(mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < BOUND, "not within {} s", BOUND.as_secs());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Reads the first line, and returns the reader of the others.
fn first_line<R: BufRead + Send + 'static>(mut from: R) -> (String, R) {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        let read = from.read_line(&mut line);
        let _ = tell.send((read.map(|_| line), from));
    });
    let (line, from) = told.recv_timeout(BOUND).unwrap();
    (line.unwrap(), from)
}

/// Reads all, so that the writer never waits for a full pipe.
fn collect(mut from: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut all = Vec::new();
        from.read_to_end(&mut all).unwrap();
        all
    })
}

/// Returns the reference of a file that this host has on offer.
pub(crate) fn reference(id: &str) -> String {
    format!("{}/{id}", host())
}

/// Returns the host name in references.
pub(crate) fn host() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_ascii_lowercase()
}
