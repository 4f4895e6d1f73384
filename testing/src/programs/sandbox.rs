//! Sandbox for tests that need root: namespaces for network, mounts and processes, of which no
//! trace remains, however the test ends.
//!
//! // [`sandboxed!`](crate::sandboxed) at its beginning makes a test run itself again inside a
//! sandbox. When the test inside ends, the kernel kills all processes that it started, and with
//! them go their networks and mounts. The test outside removes the rest: control groups and files.

use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use tempfile::TempDir;

use crate::process::{Process, remove_at_exit};

/// Time limit of a test inside.
const BOUND: Duration = Duration::from_secs(600);

/// Longest time that a control group stays busy after its last process was killed.
const EMPTY: Duration = Duration::from_secs(20);

/// Environment variable with the sandbox's name, for the test inside.
const VARIABLE: &str = "MULTINET_TEST_SANDBOX";

/// Prefix of sandboxes' names, before the process ID of the test outside and a number.
const PREFIX: &str = "multinet-test-";

/// Options of `unshare`. When it ends, the kernel kills the processes inside.
const UNSHARE: [&str; 7] = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"];

/// Script that sets up the sandbox and then runs its arguments. It is the first process inside, so
/// that it also reaps orphans.
///
/// // Writes below `/etc` and `/var/lib` go to memory. `/run` is empty, because it holds the
/// sockets of the real machine's daemons.
const SCRIPT: &str = r#"
    set -e
    mount --make-rshared /
    mount -t tmpfs -o mode=755 tmpfs /run
    mkdir /run/netns /run/lock /run/upper
    for folder in /etc /var/lib; do
      upper=/run/upper$folder
      mkdir -p "$upper" "$upper.work"
      mount -t overlay -o "lowerdir=$folder,upperdir=$upper,workdir=$upper.work" overlay "$folder"
    done
    ip link set lo up
    ip link add name try0 type veth peer name try1
    ip link add link try0 name try2 type macvlan mode bridge
    ip link add name try3 type bridge
    ip link del try0
    ip link del try3
    "$@" &
    wait $!
"#;

/// Runs the rest of the test in a sandbox. Put it first in the body of a test that returns a
/// `Result`. The test is skipped where no sandbox can be created.
#[macro_export]
macro_rules! sandboxed {
    () => {
        if !$crate::sandbox::is_inside() {
            if let Err(reason) = $crate::sandbox::possible() {
                $crate::skip!("{reason:#}");
            }
            return $crate::sandbox::run_again($crate::sandbox::test_name(&|| ())).await;
        }
    };
}

/// Returns whether this process is inside a sandbox.
pub fn is_inside() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// Returns the name of the sandbox around this process, which is also that of its control groups.
pub fn name() -> Result<String> {
    std::env::var(VARIABLE).context("not in a sandbox")
}

/// Fails with the reason if no sandbox can be created.
pub fn possible() -> Result<()> {
    let id = Command::new("id").arg("-u").output().context("cannot start id")?;
    ensure!(id.stdout == b"0\n", "not root, which namespaces and real pod networks need");
    let output = unshare().arg("true").output().context("cannot start unshare")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "the kernel lacks what pod networks need: {}", said.trim());
    Ok(())
}

/// Returns the name of the test that contains the closure `here`.
pub fn test_name<T>(here: &T) -> &'static str {
    let path = std::any::type_name_of_val(here);
    let path = path.split_once("::{{closure}}").map_or(path, |(path, _)| path);
    path.split_once("::").map_or(path, |(_, path)| path)
}

/// Runs a test by its name in a new sandbox, and fails if it fails.
pub async fn run_again(test: &str) -> Result<()> {
    let sandbox = Sandbox::new()?;
    let mut command = unshare();
    command
        .arg(std::env::current_exe()?)
        .args(["--exact", test, "--nocapture", "--include-ignored"])
        .env(VARIABLE, &sandbox.name)
        .env("TMPDIR", sandbox.folder.path())
        // The cluster of that kubeconfig cannot be reached from inside.
        .env_remove("KUBECONFIG");
    let mut process = Process::spawn(&mut command, &sandbox.folder.path().join("log"))?;
    let status = process.exited(BOUND).await?;
    let log = process.log();
    eprintln!("{log}");
    ensure!(status.success(), "{test} failed inside its sandbox: {status}");
    ensure!(log.contains("test result: ok. 1 passed"), "there is no test {test} inside the sandbox");
    Ok(())
}

fn unshare() -> Command {
    let mut command = Command::new("unshare");
    command.args(UNSHARE).args(["sh", "-c", SCRIPT, "sandbox"]);
    command
}

/// Parts of a sandbox outside of its namespaces.
struct Sandbox {
    name: String,
    folder: TempDir,
}

impl Sandbox {
    fn new() -> Result<Self> {
        remove_leftovers()?;
        let folder = TempDir::with_prefix(PREFIX)?;
        remove_at_exit(folder.path())?;
        let unique = folder.path().file_name().context("a folder without a name")?.to_string_lossy();
        let unique = unique.trim_start_matches(PREFIX);
        Ok(Self { name: format!("{PREFIX}{}-{unique}", std::process::id()), folder })
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        if let Err(error) = remove_groups(&self.name) {
            eprintln!("control groups of {} remain: {error:#}", self.name);
        }
    }
}

/// Returns the folders of the control groups of this name, one per hierarchy, whether they exist or
/// not.
pub fn groups(name: &str) -> Result<Vec<PathBuf>> {
    Ok(hierarchies()?.into_iter().map(|hierarchy| hierarchy.join(name)).collect())
}

/// Returns the roots of the control groups' hierarchies: one with version 2, several with version
/// 1.
fn hierarchies() -> Result<Vec<PathBuf>> {
    let mounts = fs::read_to_string("/proc/self/mounts").context("cannot find the control groups")?;
    let mut roots: Vec<_> = mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (target, kind) = (fields.next()?, fields.next()?);
            matches!(kind, "cgroup" | "cgroup2").then(|| PathBuf::from(target))
        })
        .collect();
    roots.sort();
    roots.dedup();
    Ok(roots)
}

/// Removes control groups of test runs that died without removing them.
fn remove_leftovers() -> Result<()> {
    let mut names: Vec<OsString> = Vec::new();
    for hierarchy in hierarchies()? {
        for entry in fs::read_dir(&hierarchy)?.flatten() {
            let name = entry.file_name();
            if owner(&name.to_string_lossy()).is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
                names.push(name);
            }
        }
    }
    names.iter().try_for_each(|name| remove_groups(&name.to_string_lossy()))
}

/// Returns the process ID in the name of a sandbox.
fn owner(name: &str) -> Option<&str> {
    let (pid, _) = name.strip_prefix(PREFIX)?.split_once('-')?;
    Some(pid)
}

fn remove_groups(name: &str) -> Result<()> {
    groups(name)?.iter().filter(|group| group.is_dir()).try_for_each(|group| remove_group(group))
}

/// Removes a control group and those below it. Its processes may still be ending.
fn remove_group(group: &Path) -> Result<()> {
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type()?.is_dir() {
            remove_group(&entry.path())?;
        }
    }
    let deadline = Instant::now() + EMPTY;
    loop {
        match fs::remove_dir(group) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) if Instant::now() > deadline => bail!("cannot remove {}: {error}", group.display()),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait::eventually;

    /// Script that leaves a mess behind: a process in a control group and a network of its own, a
    /// mount, and a file where daemons keep theirs.
    const MESS: &str = r#"
        ip netns add mess
        mkdir /var/lib/multinet-test-mess /run/mess
        mount -t tmpfs mess /run/mess
        setsid ip netns exec mess sleep "$1" &
        for hierarchy in $(awk '$3 ~ /^cgroup/ { print $2 }' /proc/mounts); do
          mkdir -p "$hierarchy/$0/below" && echo $! >"$hierarchy/$0/below/cgroup.procs"
        done 2>/dev/null
        true
    "#;

    /// Environment variable with the time that the stray process sleeps, by which it is found.
    const MARK: &str = "MULTINET_TEST_MARK";

    /// Makes the mess, and prints the name of the sandbox.
    async fn make_mess() -> Result<()> {
        let mark = std::env::var(MARK)?;
        let status = Command::new("sh").args(["-c", MESS, &name()?, &mark]).status()?;
        ensure!(status.success(), "the shell cannot make the mess");
        // The shell ends before its background process executes `sleep`.
        eventually("the stray process to start", Duration::from_secs(20), async || {
            ensure!(stray(&mark)?.is_some(), "it does not run");
            Ok(())
        })
        .await?;
        println!("mess in {}.", name()?);
        Ok(())
    }

    /// Returns the folder in `/proc` of the process that sleeps for `mark`.
    fn stray(mark: &str) -> Result<Option<PathBuf>> {
        let wanted = format!("sleep\0{mark}\0");
        let mut processes = fs::read_dir("/proc")?.flatten().map(|process| process.path());
        Ok(processes.find(|path| fs::read_to_string(path.join("cmdline")).is_ok_and(|line| line == wanted)))
    }

    /// Waits until no part of the mess is left.
    async fn is_tidy(mark: &str, sandbox: &str) -> Result<()> {
        let mut places = groups(sandbox)?;
        places.extend(["/var/lib/multinet-test-mess", "/run/mess", "/run/netns/mess"].map(PathBuf::from));
        let unique = sandbox.rsplit('-').next().context("no name")?;
        places.push(std::env::temp_dir().join(format!("{PREFIX}{unique}")));
        eventually("everything to be tidy", Duration::from_secs(20), async || {
            ensure!(stray(mark)?.is_none(), "the stray process still runs");
            let left = places.iter().find(|place| place.exists());
            ensure!(left.is_none(), "{left:?} is left");
            let mounts = fs::read_to_string("/proc/self/mounts")?;
            ensure!(!mounts.contains("/run/mess"), "it is still mounted");
            Ok(())
        })
        .await
    }

    /// Returns a command that runs a test of this name in another process, to make a mess.
    fn messy(test: &str, mark: &str) -> Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["--exact", &format!("programs::sandbox::tests::{test}"), "--nocapture"])
            .env(MARK, mark);
        Ok(command)
    }

    /// Returns a mark that no other process has.
    fn mark(number: u32) -> String {
        format!("{number}.{}", std::process::id())
    }

    fn sandbox_of(said: &str) -> Result<&str> {
        let (_, rest) = said.split_once("mess in ").with_context(|| format!("no mess was made: {said}"))?;
        rest.split('.').next().context("no name")
    }

    #[tokio::test]
    async fn a_sandbox_leaves_nothing_when_the_test_inside_dies() -> Result<()> {
        if std::env::var_os(MARK).is_some() {
            crate::sandboxed!();
            make_mess().await?;
            std::process::abort();
        }
        if let Err(reason) = possible() {
            crate::skip!("{reason:#}");
        }
        let mark = mark(1_000_001);
        let output = messy("a_sandbox_leaves_nothing_when_the_test_inside_dies", &mark)?.output()?;
        ensure!(!output.status.success(), "a test that died inside the sandbox has passed");
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        is_tidy(&mark, sandbox_of(&said)?).await
    }

    #[tokio::test]
    async fn a_sandbox_leaves_nothing_when_the_test_outside_is_killed() -> Result<()> {
        if std::env::var_os(MARK).is_some() {
            crate::sandboxed!();
            make_mess().await?;
            std::future::pending::<()>().await;
        }
        if let Err(reason) = possible() {
            crate::skip!("{reason:#}");
        }
        let mark = mark(1_000_002);
        let folder = TempDir::new()?;
        let mut doomed = messy("a_sandbox_leaves_nothing_when_the_test_outside_is_killed", &mark)?;
        let mut doomed = Process::spawn(&mut doomed, &folder.path().join("log"))?;
        let sandbox = doomed
            .until("make a mess", Duration::from_secs(60), async || {
                let stray = stray(&mark)?.context("no stray process")?;
                let groups = fs::read_to_string(stray.join("cgroup"))?;
                let (_, rest) = groups.split_once(PREFIX).context("it is in no control group of ours")?;
                let (unique, _) = rest.split_once('/').context("nor below one")?;
                Ok(format!("{PREFIX}{unique}"))
            })
            .await?;
        doomed.kill()?;
        eventually("the stray process to be gone", Duration::from_secs(20), async || {
            ensure!(stray(&mark)?.is_none(), "it still runs");
            Ok(())
        })
        .await?;
        // The next sandbox would remove the remaining control groups.
        remove_leftovers()?;
        is_tidy(&mark, &sandbox).await
    }
}
