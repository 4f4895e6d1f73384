//! Runs processes, and tells what they said and what they cost.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;

use crate::roles::Role;

/// Nothing takes longer; what does is killed.
const BOUND: Duration = Duration::from_secs(60);

/// A process that runs beside the measurement. It is killed when this is dropped.
pub(crate) struct Process {
    child: Child,
    _stdin: Option<ChildStdin>,
    stdout: Option<BufReader<ChildStdout>>,
}

impl Process {
    pub(crate) fn start(command: &mut Command) -> Result<Self> {
        let name = format!("{command:?}");
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn();
        let mut child = child.with_context(|| format!("cannot start {name}"))?;
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().context("standard output is piped")?);
        Ok(Self { child, _stdin: stdin, stdout: Some(stdout) })
    }

    /// This program in another role, and the line that it says when it is ready.
    pub(crate) fn play(role: &Role) -> Result<(Self, String)> {
        let mut process = Self::start(Command::new(std::env::current_exe()?).args(role.arguments()))?;
        let line = process.line()?;
        Ok((process, line))
    }

    pub(crate) fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.stdout.as_mut().context("somebody else reads")?.read_line(&mut line)?;
        ensure!(!line.is_empty(), "a process that was started has ended");
        Ok(line.trim_end().to_owned())
    }

    /// What it says from now on.
    pub(crate) fn take_stdout(&mut self) -> Result<BufReader<ChildStdout>> {
        self.stdout.take().context("somebody else reads")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// As by `kill -9`; waits until it has ended.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// Runs a command to its end, and gives what it printed.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let name = format!("{command:?}");
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.with_context(|| format!("cannot start {name}"))?;
    let mut stdout = child.stdout.take().context("standard output is piped")?;
    let reading = std::thread::spawn(move || {
        let mut text = String::new();
        stdout.read_to_string(&mut text).map(|_| text)
    });
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if begin.elapsed() > BOUND {
            child.kill()?;
            child.wait()?;
            bail!("{name} did not end within {} s", BOUND.as_secs());
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let text = reading.join().ok().context("the reading thread panicked")??;
    let mut errors = String::new();
    child.stderr.take().context("standard error is piped")?.read_to_string(&mut errors)?;
    ensure!(status.success(), "{name}: {status}: {errors}{text}");
    Ok(text)
}

/// User and system time of all children that have ended, in seconds.
pub(crate) fn cpu_of_children() -> Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    Ok((usage.user_time().num_microseconds() + usage.system_time().num_microseconds()) as f64 / 1e6)
}
