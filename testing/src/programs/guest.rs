//! QEMU guest with soft-RoCE, for tests that need an RDMA device. The host needs neither such a
//! device, nor kernel modules, root or a network.
//!
//! // The guest sees the host's files, so that programs built or installed on the host run there at
//! the same paths, including the test binary. A test binary has one guest, whose scripts run one
//! after the other. Each script finds the guest as if it had just booted: its files, mounts,
//! processes and devices vanish with it. The CPU is emulated, because KVM may not work inside a
//! virtual machine. So the guest is slow, and no test may measure speed there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use tempfile::TempDir;
use tokio::sync::Mutex;

use crate::process::{Process, remove_at_exit};
use crate::tools::repository;

/// Name of QEMU's program, which `tests/tools/packages.sh` installs.
const QEMU: &str = "qemu-system-x86_64";

/// Time limit of a test in the guest.
const BOUND: Duration = Duration::from_secs(1200);

/// Environment variable that tells a test that it runs in the guest.
const VARIABLE: &str = "MULTINET_TEST_GUEST";

/// Number of attempts to boot a guest. In QEMU's emulation, while the kernel patches itself early
/// on, one processor may run into the breakpoint by which another one patches code.
const BOOTS: usize = 3;

/// Memory of the guest. Half of it is for files that it writes.
const MEMORY: &str = "1500M";

/// Kernel parameters. With them, any fault of the kernel ends the guest at once, instead of
/// blocking a test until its time limit.
const KERNEL: &str = "console=ttyS0 quiet panic=-1 oops=panic mitigations=off";

/// Beginning of a script that needs an RDMA device. Creates `rxe0` on a network device of its own,
/// with the addresses 10.9.0.1, 10.9.0.2, fd09::1 and fd09::2. Processes with different ones of
/// these behave like peers on different machines.
///
/// // `gid_row ADDRESS` prints the index of an address in the device's GID table, whose order is up
/// to the kernel. IPv6 addresses are written in full, as the kernel does. `wait_for COMMAND` waits
/// until a command succeeds.
pub const LINK: &str = r#"
    gids=/sys/class/infiniband/rxe0/ports/1/gids
    gid_row() {
      gid=$1
      case $gid in
        *.*) gid=$(printf 0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x $(echo "$gid" | tr . ' ')) ;;
      esac
      # Of a thousand rows, the first are taken first.
      row=$(cd $gids && grep -slx "$gid" -- ? ??) && echo "$row"
    }
    # With rows for the four addresses; those of the link itself begin with fe80. No program is started: that takes long here.
    has_link() {
      read -r state 2>/dev/null <$gids/../state || return 1
      rows=0
      for row in 0 1 2 3 4 5 6 7; do
        read -r gid 2>/dev/null <$gids/$row || continue
        case $gid in
          0000:*:ffff:* | fd09:*) rows=$((rows + 1)) ;;
        esac
      done
      [ "$state $rows" = '4: ACTIVE 4' ]
    }

    # Until the command that follows succeeds.
    wait_for() {
      attempts=0
      until "$@"; do
        attempts=$((attempts + 1))
        [ $attempts -lt 1200 ] || { echo "waited in vain for $*: $(rdma link show)" >&2; exit 1; }
        busybox sleep 0.1
      done
    }

    # With room for the largest MTU of RDMA, 4096, and the headers of RoCE.
    ip -batch - <<'LINK'
link add rdma0 mtu 4200 type dummy
address add 10.9.0.1/24 dev rdma0
address add 10.9.0.2/24 dev rdma0
address add fd09::1/64 dev rdma0 nodad
address add fd09::2/64 dev rdma0 nodad
link set rdma0 up
LINK
    rdma link add rxe0 type rxe netdev rdma0
    wait_for has_link
"#;

/// Runs the rest of the test in the guest with the [link](LINK). Put it first in the body of a test
/// that returns a `Result`.
#[macro_export]
macro_rules! in_guest {
    () => {
        if !$crate::guest::is_inside() {
            return $crate::guest::run_again($crate::sandbox::test_name(&|| ())).await;
        }
    };
}

/// Returns whether this process runs in a guest that [`in_guest!`](crate::in_guest) booted.
pub fn is_inside() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// Runs a test by its name in the guest, and fails if it fails.
pub async fn run_again(test: &str) -> Result<()> {
    run_test(test, "").await
}

/// Runs a test in the guest, after a script of `preparations`.
pub async fn run_test(test: &str, preparations: &str) -> Result<()> {
    let binary = std::env::current_exe()?;
    let binary = binary.to_str().context("the path of the test binary is not UTF-8")?.replace('\'', r"'\''");
    let script = format!("{LINK}\n{preparations}\n{VARIABLE}=1 '{binary}' --exact {test} --nocapture");
    let Said { status, output } = run(&script, BOUND).await?;
    eprintln!("{output}");
    ensure!(status == 0, "{test} failed in the guest: exit status {status}");
    ensure!(output.contains("test result: ok. 1 passed"), "there is no test {test} in the guest");
    Ok(())
}

/// Runs `script` in the guest of this process. The first call boots it, and so does one after a
/// script that crashed the guest. Scripts wait for each other; the wait does not count towards
/// `bound`.
pub async fn run(script: &str, bound: Duration) -> Result<Said> {
    static SHARED: Mutex<Option<Guest>> = Mutex::const_new(None);
    let mut shared = SHARED.lock().await;
    let mut guest = match shared.take() {
        Some(guest) => guest,
        None => Guest::boot(bound).await?,
    };
    let said = guest.run(script, bound).await?;
    *shared = Some(guest);
    Ok(said)
}

/// Result of a script.
#[derive(Debug)]
pub struct Said {
    /// Exit status, as in a shell's `$?`.
    pub status: i32,
    /// Standard output and standard error, interleaved.
    pub output: String,
}

/// Running guest, which is shut down when this value is dropped.
#[derive(Debug)]
pub struct Guest {
    qemu: Process,
    /// Folder that host and guest share.
    shared: PathBuf,
    scripts: u32,
    _folder: TempDir,
}

impl Guest {
    /// Boots a guest. If that takes longer than `bound`, the error has the end of the guest's
    /// console.
    pub async fn boot(bound: Duration) -> Result<Self> {
        let mut boots = 1;
        loop {
            let folder = TempDir::with_prefix("multinet-guest-")?;
            remove_at_exit(folder.path())?;
            let shared = folder.path().join("shared");
            fs::create_dir(&shared)?;
            let qemu = Process::spawn(&mut command(&shared)?, &folder.path().join("console"));
            let qemu = qemu.context("no guest: tests/tools/packages.sh installs QEMU")?;
            let mut guest = Self { qemu, shared, scripts: 0, _folder: folder };
            match guest.has("booted", bound).await {
                Ok(()) => return Ok(guest),
                Err(_) if boots < BOOTS && guest.qemu.check_running().is_err() => boots += 1,
                Err(error) => return Err(error.context("the guest")),
            }
            eprintln!("the guest's kernel did not boot; trying again");
        }
    }

    /// Runs `script` as root by `/bin/sh -e`. If that takes longer than `bound`, or the guest ends
    /// before the script, the error has the end of the guest's console and the script's output.
    pub async fn run(&mut self, script: &str, bound: Duration) -> Result<Said> {
        self.scripts += 1;
        let name = self.scripts.to_string();
        let folder = self.shared.join(&name);
        fs::create_dir(&folder)?;
        fs::write(folder.join("new"), script)?;
        fs::rename(folder.join("new"), folder.join("script"))?;
        let ended = self.has(&format!("{name}/status"), bound).await;
        let output = fs::read(folder.join("output")).unwrap_or_default();
        let output = String::from_utf8_lossy(&output).into_owned();
        ended.with_context(|| format!("the guest, whose script printed:\n{output}"))?;
        let status = fs::read_to_string(folder.join("status"))?;
        let status = status.trim().parse().with_context(|| format!("{status:?} is not an exit status"))?;
        Ok(Said { status, output })
    }

    /// Waits until the guest has created this file in the shared folder.
    async fn has(&mut self, name: &str, bound: Duration) -> Result<()> {
        let (file, what) = (self.shared.join(name), format!("create {name}"));
        let created = self.qemu.until(&what, bound, async || {
            ensure!(file.exists(), "it does not exist");
            Ok(())
        });
        created.await.with_context(|| format!("its console ends with:\n{}", self.qemu.tail()))
    }
}

/// Returns the command of QEMU, with the guest's console on standard output.
fn command(shared: &Path) -> Result<Command> {
    let built = built()?;
    let mut qemu = Command::new(QEMU);
    qemu.args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", MEMORY])
        .args(["-nodefaults", "-display", "none", "-serial", "stdio", "-monitor", "none", "-no-reboot"])
        .arg("-kernel")
        .arg(built.join("kernel"))
        .arg("-initrd")
        .arg(built.join("initramfs"))
        .args(["-append", KERNEL]);
    for (tag, folder, more) in [("machine", Path::new("/"), ",readonly=on"), ("guest", shared, "")] {
        let folder = folder.to_str().context("the path of a temporary folder is not UTF-8")?;
        // QEMU splits at commas that are not doubled.
        let folder = folder.replace(',', ",,");
        let options = "security_model=none,multidevs=remap";
        qemu.args(["-fsdev", &format!("local,id={tag},path={folder},{options}{more}")])
            .args(["-device", &format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}")]);
    }
    Ok(qemu)
}

/// Returns the folder that the guest boots from. The first call builds it if it does not exist, in
/// half a minute.
fn built() -> Result<&'static Path> {
    static FOLDER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| build().map_err(|error| format!("{error:#}")));
    folder.as_deref().map_err(|error| anyhow!("{error}"))
}

fn build() -> Result<PathBuf> {
    let script = repository().join("tests/tools/guest.sh");
    let output = Command::new(&script).output();
    let output = output.with_context(|| format!("cannot run {}", script.display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{} failed:\n{}", script.display(), said.trim());
    Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim()))
}
