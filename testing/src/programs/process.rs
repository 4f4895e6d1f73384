//! Child processes that never outlive the tests, and whose logs a failed test shows.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::wait::eventually;

/// Number of lines of a log that a failed test shows.
const TAIL: usize = 40;

/// Running program. It is killed when this value is dropped, and when the test binary dies.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    /// Offset in the log at which this run began. Earlier runs may have written to the same file.
    log_start: u64,
}

impl Process {
    /// Starts `command`, and appends both its output streams to the file `log`.
    pub fn spawn(command: &mut Command, log: &Path) -> Result<Self> {
        let name = Path::new(command.get_program())
            .file_name()
            .map_or_else(|| "process".to_owned(), |name| name.to_string_lossy().into_owned());
        let file = File::options()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("cannot open the log {}", log.display()))?;
        let log_start = file.metadata()?.len();
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().display()))?;
        Reaper::send("watch", child.id())?;
        Ok(Self { name, child, log: log.to_owned(), log_start })
    }

    /// Returns the name of the program.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the process ID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the log of this run so far.
    pub fn log(&self) -> String {
        read_from(&self.log, self.log_start)
    }

    /// Fails with the end of the log if the process has ended.
    pub fn check_running(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            Some(status) => bail!("{} ended: {status}\n{}", self.name, self.tail()),
            None => Ok(()),
        }
    }

    /// Runs `attempt` until it succeeds, like [`eventually`], but fails at once if the process has
    /// ended.
    pub async fn until<T>(
        &mut self,
        what: &str,
        bound: Duration,
        mut attempt: impl AsyncFnMut() -> Result<T>,
    ) -> Result<T> {
        let what = format!("{} to {what}", self.name);
        let found = eventually(&what, bound, async || match self.check_running() {
            Ok(()) => attempt().await.map(Ok),
            Err(ended) => Ok(Err(ended)),
        });
        found.await?
    }

    /// Waits for a line of the log that contains `needle`. Returns the word after it.
    pub async fn logged(&mut self, needle: &str, bound: Duration) -> Result<String> {
        let (path, start) = (self.log.clone(), self.log_start);
        self.until(&format!("log {needle:?}"), bound, async || {
            let log = read_from(&path, start);
            let (_, rest) = log.split_once(needle).with_context(|| format!("the log is\n{log}"))?;
            let (line, _) = rest.split_once('\n').context("the line is not complete")?;
            Ok(line.split_whitespace().next().unwrap_or_default().to_owned())
        })
        .await
    }

    /// Waits for the process to end by itself.
    pub async fn exited(&mut self, bound: Duration) -> Result<ExitStatus> {
        let what = format!("{} to exit", self.name);
        let status =
            eventually(&what, bound, async || self.child.try_wait()?.context("it is still running")).await?;
        Reaper::send("forget", self.pid())?;
        Ok(status)
    }

    /// Sends a signal by its name, such as `TERM`.
    pub fn signal(&self, name: &str) -> Result<()> {
        let status = Command::new("sh")
            .args(["-c", r#"kill -s "$0" "$1""#, name, &self.pid().to_string()])
            .status()
            .context("cannot start sh")?;
        if !status.success() {
            bail!("cannot send SIG{name} to {} ({})", self.name, self.pid());
        }
        Ok(())
    }

    /// Sends SIGTERM, and waits for the process to end.
    pub async fn terminate(&mut self, bound: Duration) -> Result<ExitStatus> {
        self.signal("TERM")?;
        self.exited(bound).await
    }

    /// Sends SIGKILL, and waits for the process to end.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill().with_context(|| format!("cannot kill {}", self.name))?;
        self.child.wait()?;
        Reaper::send("forget", self.pid())
    }

    /// Returns the last lines of the log.
    pub fn tail(&self) -> String {
        tail(&self.log())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The test harness captures this, and shows it if the test fails.
        eprintln!("--- end of the log of {} ({}):\n{}", self.name, self.pid(), self.tail());
        // A failure cannot be handled here, and the reaper will try again.
        let _ = self.kill();
    }
}

/// Prints the end of a log, for a test that uses a process which it does not own. The test harness
/// captures it, and shows it if the test fails.
pub fn print_tail(log: &Path) {
    eprintln!("--- end of {}:\n{}", log.display(), tail(&read_from(log, 0)));
}

fn tail(log: &str) -> String {
    let lines: Vec<_> = log.lines().collect();
    lines[lines.len().saturating_sub(TAIL)..].join("\n")
}

fn read_from(path: &Path, start: u64) -> String {
    let bytes = fs::read(path).unwrap_or_default();
    let start = usize::try_from(start).unwrap_or(usize::MAX).min(bytes.len());
    String::from_utf8_lossy(&bytes[start..]).into_owned()
}

/// Shell that kills the remaining processes once the test binary has ended. It notices the end,
/// also by SIGKILL, by a pipe that only the test binary holds open. Destructors would not do:
/// SIGKILL runs none, and statics are never dropped.
struct Reaper {
    commands: Mutex<ChildStdin>,
}

impl Reaper {
    const SCRIPT: &str = r#"
        trap '' HUP INT TERM
        pids=
        while read -r command arg; do
          case $command in
            watch) pids="$pids $arg" ;;
            forget)
              left=
              for pid in $pids; do [ "$pid" = "$arg" ] || left="$left $pid"; done
              pids=$left ;;
            remove) set -- "$@" "$arg" ;;
          esac
        done
        [ -z "$pids" ] || kill -9 $pids
        [ $# = 0 ] || rm -rf -- "$@" || { sleep 1; rm -rf -- "$@"; }
    "#;

    fn send(command: &str, arg: impl std::fmt::Display) -> Result<()> {
        static REAPER: OnceLock<Result<Reaper, String>> = OnceLock::new();
        let reaper = REAPER.get_or_init(|| Self::start().map_err(|error| format!("{error:#}")));
        let Self { commands } = reaper.as_ref().map_err(|error| anyhow::anyhow!("{error}"))?;
        let mut commands = commands.lock().unwrap_or_else(PoisonError::into_inner);
        writeln!(commands, "{command} {arg}").context("the reaper is gone")
    }

    fn start() -> Result<Self> {
        let mut shell = Command::new("sh")
            .args(["-c", Self::SCRIPT, "reaper"])
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start sh")?;
        let commands = shell.stdin.take().context("no pipe to sh")?;
        Ok(Self { commands: Mutex::new(commands) })
    }
}

/// Runs a command to its end. Returns its output; fails if its exit status is not 0.
pub fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!("{command:?}: {}\n{printed}{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(printed)
}

/// Removes `folder` once the test binary has ended. For folders in statics.
pub fn remove_at_exit(folder: &Path) -> Result<()> {
    Reaper::send("remove", folder.display())
}

/// Returns a port that is free in this network namespace, for UDP and TCP. The port is below the
/// range of ephemeral ports, so that a server that is restarted finds it free again.
///
/// The ports in use are read from the kernel's tables. Binding a socket to find out would not do: a
/// process that another test starts at that moment would inherit the socket, and with it the port.
pub fn free_port() -> Result<u16> {
    const FIRST: u16 = 16_000;
    const COUNT: u16 = 16_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Test binaries that run at the same time begin at different ports.
    let offset = (std::process::id().wrapping_mul(61) % u32::from(COUNT)) as u16;
    let taken = taken_ports()?;
    for _ in 0..COUNT {
        let step = NEXT.fetch_add(1, Ordering::Relaxed) % COUNT;
        let port = FIRST + (offset + step) % COUNT;
        if !taken.contains(&port) {
            return Ok(port);
        }
    }
    bail!("no free port between {FIRST} and {}", FIRST + COUNT)
}

/// Returns the local ports of this network namespace's sockets (proc_pid_net(5)).
fn taken_ports() -> Result<HashSet<u16>> {
    let mut taken = HashSet::new();
    for table in ["tcp", "udp", "tcp6", "udp6"] {
        let path = format!("/proc/thread-self/net/{table}");
        let lines = match fs::read_to_string(&path) {
            // The kernel may lack IPv6.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && table.ends_with('6') => continue,
            lines => lines.with_context(|| format!("cannot read {path}"))?,
        };
        for line in lines.lines().skip(1) {
            let port = line.split_whitespace().nth(1).and_then(|local| local.rsplit_once(':'));
            let (_, port) = port.with_context(|| format!("{path}: no local port in {line:?}"))?;
            taken.insert(u16::from_str_radix(port, 16).with_context(|| format!("{path}: {line:?}"))?);
        }
    }
    Ok(taken)
}

/// Returns the path of a binary of this workspace, which the Makefile has built: the file that the
/// environment variable names, or else `name` in the build folder of this test.
pub fn workspace_binary(name: &str, variable: &str) -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(variable) {
        let path = PathBuf::from(path);
        if !path.is_file() {
            bail!("{variable} names {}, which is not a file", path.display());
        }
        return Ok(path);
    }
    let path = build_folder()?.join(name);
    if !path.is_file() {
        bail!(
            "{} does not exist: run `cargo build --workspace --bins` first, or set {variable}",
            path.display()
        );
    }
    Ok(path)
}

/// Returns the path of an example program, which `make test` has built.
pub fn workspace_example(name: &str) -> Result<PathBuf> {
    let path = build_folder()?.join("examples").join(name);
    if !path.is_file() {
        bail!("{} does not exist: run `cargo build -p multinet-client --examples` first", path.display());
    }
    Ok(path)
}

/// Returns the path of a binary as built for images, which `make test` has built.
pub fn image_binary(name: &str) -> Result<PathBuf> {
    let path = build_folder()?.with_file_name("image").join(name);
    if !path.is_file() {
        bail!("{} does not exist: run tests/tools/image-programs.sh first", path.display());
    }
    Ok(path)
}

/// Returns the build folder of this test, such as `target/debug`.
fn build_folder() -> Result<PathBuf> {
    let test = std::env::current_exe().context("cannot find the test binary's path")?;
    // target/debug/deps/cluster-0123 -> target/debug
    let deps = test.ancestors().find(|folder| folder.file_name() == Some(OsStr::new("deps")));
    let folder = deps.and_then(Path::parent).context("the test binary is not in a cargo target folder")?;
    Ok(folder.to_owned())
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, UdpSocket};
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    /// Environment variable that makes a test play the test binary that dies.
    const DOOMED: &str = "MULTINET_TEST_DOOMED";

    #[tokio::test]
    async fn children_and_folders_are_removed_when_the_test_binary_dies() {
        if let Some(folder) = std::env::var_os(DOOMED) {
            let folder = PathBuf::from(folder);
            remove_at_exit(&folder).unwrap();
            let stray = Process::spawn(Command::new("sleep").arg("600"), &folder.join("log")).unwrap();
            println!("stray {}", stray.pid());
            std::process::abort();
        }
        let folder = tempfile::tempdir().unwrap();
        let output = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "--nocapture",
                "programs::process::tests::children_and_folders_are_removed_when_the_test_binary_dies",
            ])
            .env(DOOMED, folder.path())
            .output()
            .unwrap();
        assert_eq!(output.status.signal(), Some(6), "it did not abort: {output:?}");
        let said = String::from_utf8(output.stdout).unwrap();
        let (_, rest) = said.split_once("stray ").unwrap();
        let stray = rest.lines().next().unwrap();

        eventually("the stray process and the folder to be gone", Duration::from_secs(20), async || {
            // An orphan that no process has waited for remains as a zombie.
            let stat = fs::read_to_string(format!("/proc/{stray}/stat")).unwrap_or_default();
            if !stat.is_empty() && !stat.contains(") Z ") {
                bail!("process {stray} still runs: {stat}");
            }
            if folder.path().exists() {
                bail!("{} still exists", folder.path().display());
            }
            Ok(())
        })
        .await
        .unwrap();
    }

    #[tokio::test]
    async fn a_program_that_ends_too_early_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo because; exit 3"]);
        let mut process = Process::spawn(&mut command, &folder.path().join("log")).unwrap();
        let error = process.logged("listening", Duration::from_secs(60)).await.unwrap_err();
        let error = format!("{error:#}");
        assert!(error.contains("exit status: 3") && error.contains("because"), "{error}");
    }

    #[tokio::test]
    async fn a_signal_ends_a_program() {
        let folder = tempfile::tempdir().unwrap();
        let mut process =
            Process::spawn(Command::new("sleep").arg("600"), &folder.path().join("log")).unwrap();
        let status = process.terminate(Duration::from_secs(20)).await.unwrap();
        assert_eq!(status.signal(), Some(15));
    }

    #[test]
    fn a_port_is_not_returned_twice() {
        assert_ne!(free_port().unwrap(), free_port().unwrap());
    }

    #[test]
    fn a_port_stays_free_while_processes_start() {
        let spawner = std::thread::spawn(|| {
            for _ in 0..500 {
                Command::new("true").status().unwrap();
            }
        });
        // With more rounds, other tests would run out of ports.
        for _ in (0..2000).take_while(|_| !spawner.is_finished()) {
            let address = (Ipv4Addr::LOCALHOST, free_port().unwrap());
            TcpListener::bind(address).unwrap();
            UdpSocket::bind(address).unwrap();
        }
        spawner.join().unwrap();
    }
}
