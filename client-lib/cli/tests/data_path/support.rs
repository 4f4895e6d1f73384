//! Starts the binary, and reads what it says.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStderr, ChildStdout, Command, Output, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Nothing in these tests takes longer.
const BOUND: Duration = Duration::from_secs(60);

/// The binary, deaf to the environment of whoever runs the tests.
pub(crate) fn multinet() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_multinet"));
    let ours = std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("MULTINET_"));
    for (name, _) in ours {
        command.env_remove(name);
    }
    command.env_remove("RUST_LOG");
    command.stdin(Stdio::null());
    command
}

/// A process that listens; killed when it is dropped.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
    stdout: Option<JoinHandle<Vec<u8>>>,
    stderr: Option<JoinHandle<Vec<u8>>>,
}

/// Where it says on which address it listens.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Says {
    Stdout,
    Stderr,
}

impl Server {
    /// Starts `multinet` with these arguments on a port of 127.0.0.1; 0 is one that the kernel chooses.
    pub(crate) fn start(arguments: &[&str], port: u16, says: Says) -> Self {
        let mut command = multinet();
        command.args(arguments).args(["--address", "127.0.0.1", "--port", &port.to_string()]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        match says {
            Says::Stdout => stdout.read_line(&mut line).unwrap(),
            Says::Stderr => stderr.read_line(&mut line).unwrap(),
        };
        let address = line.trim().strip_prefix("listening on ").unwrap_or_else(|| panic!("{line}"));
        let address = address.parse().unwrap();
        let (stdout, stderr) = (Some(collect_stdout(stdout)), Some(collect_stderr(stderr)));
        Self { child, address, stdout, stderr }
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn interrupt(&self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    }

    /// Waits for its end.
    pub(crate) fn output(mut self) -> Output {
        let status = wait(&mut self.child);
        let stdout = self.stdout.take().unwrap().join().unwrap();
        let stderr = self.stderr.take().unwrap().join().unwrap();
        Output { status, stdout, stderr }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs to the end, with this on standard input.
pub(crate) fn run(arguments: &[&str], stdin: &[u8]) -> Output {
    finish(spawn(arguments), stdin)
}

pub(crate) fn spawn(arguments: &[&str]) -> Child {
    let mut command = multinet();
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

pub(crate) fn finish(mut child: Child, stdin: &[u8]) -> Output {
    let stdout = collect_stdout(BufReader::new(child.stdout.take().unwrap()));
    let stderr = collect_stderr(BufReader::new(child.stderr.take().unwrap()));
    // Whoever does not read ends early, and says why itself.
    let _ = child.stdin.take().unwrap().write_all(stdin);
    let status = wait(&mut child);
    Output { status, stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap() }
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

fn collect_stdout(mut from: BufReader<ChildStdout>) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || read_all(&mut from))
}

fn collect_stderr(mut from: BufReader<ChildStderr>) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || read_all(&mut from))
}

fn read_all(from: &mut impl Read) -> Vec<u8> {
    let mut all = Vec::new();
    from.read_to_end(&mut all).unwrap();
    all
}
