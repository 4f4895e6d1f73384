//! Common parts of benchmarks: they run processes, read their output, and measure their cost.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;

/// Time limit of a process, which is killed then.
const BOUND: Duration = Duration::from_secs(60);

/// Process that runs beside the measurement. It is killed when this value is dropped.
#[derive(Debug)]
pub struct PipedProcess {
    child: Child,
    _stdin: Option<ChildStdin>,
    stdout: Option<BufReader<ChildStdout>>,
}

impl PipedProcess {
    /// Starts the process. Its standard error is that of the benchmark.
    pub fn start(command: &mut Command) -> Result<Self> {
        let name = format!("{command:?}");
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn();
        let mut child = child.with_context(|| format!("cannot start {name}"))?;
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().context("standard output is piped")?);
        Ok(Self { child, _stdin: stdin, stdout: Some(stdout) })
    }

    /// Returns the next line of its output.
    pub fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.stdout.as_mut().context("standard output was taken")?.read_line(&mut line)?;
        ensure!(!line.is_empty(), "a process that was started has ended");
        Ok(line.trim_end().to_owned())
    }

    /// Returns its output from now on.
    pub fn take_stdout(&mut self) -> Result<BufReader<ChildStdout>> {
        self.stdout.take().context("standard output was taken")
    }

    /// Returns the process ID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGKILL, and waits until the process has ended.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for PipedProcess {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// Runs a command to its end. Returns its output.
pub fn output(command: &mut Command) -> Result<String> {
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

/// Returns user and system time of all children that have ended, in seconds.
pub fn cpu_of_children() -> Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    Ok((usage.user_time().num_microseconds() + usage.system_time().num_microseconds()) as f64 / 1e6)
}

/// Returns the median.
pub fn median(mut values: Vec<f64>) -> Result<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().context("nothing was measured")
}

/// Returns a percentile by nearest rank, in milliseconds; NaN if there are no values.
pub fn percentile(times: &[Duration], percent: usize) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
}

/// Progress messages for the user, with the elapsed time.
#[derive(Debug)]
pub struct Log(Instant);

impl Log {
    /// Starts the clock.
    pub fn begin() -> Self {
        Self(Instant::now())
    }

    /// Prints a message to standard error.
    pub fn print(&self, message: &str) {
        eprintln!("[{:4} s] {message}", self.0.elapsed().as_secs());
    }
}
