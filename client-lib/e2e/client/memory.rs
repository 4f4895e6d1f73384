//! Receiver with a memory limit on its control group or on the parent of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use multinet_testing::process::Process;
use multinet_testing::skip;
use tempfile::TempDir;

use crate::multinet::{Outcome, multinet};

const PATIENCE: Duration = Duration::from_secs(20);

/// Control group with a memory limit, and a child group without one. Dropping this value removes
/// both.
struct Group(PathBuf);

impl Group {
    /// Creates the groups; `None` if this process may not create any.
    fn new(limit: u64) -> Option<Self> {
        let name = format!("multinet-test-{}", std::process::id());
        let mounts = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
        mounts.into_iter().find_map(|mount| {
            let outer = mount.join(&name);
            fs::create_dir_all(outer.join("inner")).ok()?;
            let group = Self(outer);
            let files = ["memory.limit_in_bytes", "memory.max"].map(|file| group.0.join(file));
            let file = files.iter().find(|file| file.exists())?;
            fs::write(file, limit.to_string()).ok().map(|()| group)
        })
    }

    /// Returns a command that runs a program in the child group.
    fn around(&self, program: &Command) -> Command {
        let mut command = Command::new("sh");
        let enter = format!("echo $$ > '{}/inner/cgroup.procs' && exec \"$0\" \"$@\"", self.0.display());
        command.arg("-c").arg(enter).arg(program.get_program()).args(program.get_args());
        command
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A program that was just killed may stay in the group for a moment.
        for folder in [self.0.join("inner"), self.0.clone()] {
            (0..100).any(|_| {
                let is_gone = fs::remove_dir(&folder).is_ok() || !folder.exists();
                if !is_gone {
                    std::thread::sleep(Duration::from_millis(10));
                }
                is_gone
            });
        }
    }
}

/// Returns the command of a receiver for frames of this size.
fn receiver_of(frame_size: u32) -> Result<Command> {
    let mut command = multinet()?;
    command.args(["--log-level", "info", "recv", "--address", "127.0.0.1", "--port", "0"]);
    command.args(["--frame-size", &frame_size.to_string()]);
    Ok(command)
}

#[tokio::test]
async fn frames_take_a_quarter_of_the_memory_limit() -> Result<()> {
    let Some(group) = Group::new(64 << 20) else {
        skip!("this process cannot create a control group for memory")
    };
    let folder = TempDir::new()?;
    let receive = |frame_size| -> Result<Command> { Ok(group.around(&receiver_of(frame_size)?)) };
    let mut receiver = Process::spawn(&mut receive(1 << 20)?, &folder.path().join("recv.log"))?;
    receiver.logged("listening on ", PATIENCE).await?;
    let log = receiver.log();
    let told = "with 15 slots of 1052992 bytes (16777216 bytes, a quarter of the 67108864 bytes of ";
    let (_, file) = log.split_once(told).with_context(|| log.clone())?;
    ensure!(file.starts_with(group.0.to_str().context("a path")?), "{file}");
    drop(receiver);

    // The limit is also found if /sys was mounted again without the control groups, as `ip netns
    // exec` does.
    let mut hidden = Command::new("unshare");
    let script = "umount -l /sys && mount -t sysfs sysfs /sys && exec \"$0\" \"$@\"";
    let program = receiver_of(1 << 20)?;
    hidden.args(["-m", "sh", "-c", script]).arg(program.get_program()).args(program.get_args());
    let mut hidden = group.around(&hidden);
    let mut receiver = Process::spawn(&mut hidden, &folder.path().join("hidden.log"))?;
    receiver.logged("listening on ", PATIENCE).await?;
    ensure!(receiver.log().contains(told), "{}", receiver.log());
    drop(receiver);

    let Outcome { status, stderr, .. } = Outcome::of(&mut receive(32 << 20)?)?;
    let told = "a frame of --frame-size (33554432 bytes) does not fit in the memory for frames (16777216 bytes, a quarter";
    ensure!(
        status == Some(1) && stderr.contains(told) && stderr.contains("raise --memory"),
        "{status:?}: {stderr}"
    );
    Ok(())
}
