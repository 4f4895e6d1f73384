//! The memory that this process may lock. Registering memory locks it: the kernel counts each
//! registered page against the limit, unless the process is exempt from it (Linux, `ib_umem_get`).

use std::fmt;
use std::fs;

use nix::sys::resource::{Resource, getrlimit};

/// The number of the capability CAP_IPC_LOCK, a bit in the sets of `/proc/self/status`.
const CAP_IPC_LOCK: u32 = 14;

/// The size of the initial user namespace in `/proc/self/uid_map` (`user_namespaces(7)`).
const INITIAL_NAMESPACE_SIZE: &str = "4294967295";

/// The limit of locked memory, and how much of it is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockedMemory {
    /// The limit of locked memory in bytes (`RLIMIT_MEMLOCK`).
    pub soft: u64,
    /// The hard limit in bytes, to which the process may raise `soft` by itself.
    pub hard: u64,
    /// The memory that is registered with devices now, in bytes (`VmPin`).
    pub pinned: u64,
    /// Whether the process is root or has CAP_IPC_LOCK, which may exempt it from the limit.
    pub privileges: Privileges,
}

/// The privileges of a process that matter for locked memory (`proc(5)`, `capabilities(7)`,
/// `user_namespaces(7)`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Privileges {
    /// Whether the process runs as root, by its effective user.
    pub is_root: bool,
    /// Whether the process has CAP_IPC_LOCK in its effective set.
    pub has_ipc_lock: bool,
    /// Whether the container was given CAP_IPC_LOCK, which is then in the bounding set.
    pub was_given_ipc_lock: bool,
    /// Whether the process is in a user namespace of its own. Capabilities there do not exempt it
    /// from the limit.
    pub is_in_user_namespace: bool,
}

/// The error that the limit of locked memory is too low for a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockedMemoryShortage {
    wanted: u64,
    locked: LockedMemory,
}

impl LockedMemory {
    /// Reads the state of this process. Returns `None` if its limit cannot be read.
    pub fn read() -> Option<Self> {
        let (soft, hard) = getrlimit(Resource::RLIMIT_MEMLOCK).ok()?;
        let status = status();
        Some(Self { soft, hard, pinned: pinned(&status), privileges: Privileges::parse(&status, &users()) })
    }

    /// Checks that `wanted` bytes more may be locked.
    ///
    /// # Errors
    ///
    /// [`LockedMemoryShortage`], with the remedy.
    pub fn check(&self, wanted: u64) -> Result<(), LockedMemoryShortage> {
        let fits = self.pinned.checked_add(wanted).is_some_and(|all| all <= self.soft);
        match fits || self.privileges.is_exempt() {
            true => Ok(()),
            false => Err(LockedMemoryShortage { wanted, locked: *self }),
        }
    }
}

impl Privileges {
    /// Reads the privileges of this process. One that cannot be read counts as missing.
    pub fn read() -> Self {
        Self::parse(&status(), &users())
    }

    fn parse(status: &str, users: &str) -> Self {
        let has = |set: &str| {
            let bits = field(status, set).and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
            bits.is_some_and(|bits| bits >> CAP_IPC_LOCK & 1 == 1)
        };
        Self {
            // The line has the real, effective, saved and file-system user.
            is_root: field(status, "Uid").and_then(|users| users.split_whitespace().nth(1)) == Some("0"),
            has_ipc_lock: has("CapEff"),
            was_given_ipc_lock: has("CapBnd"),
            is_in_user_namespace: !users.is_empty()
                && !users.split_whitespace().eq(["0", "0", INITIAL_NAMESPACE_SIZE]),
        }
    }

    /// Returns whether the process is exempt from the limit of locked memory.
    pub fn is_exempt(&self) -> bool {
        self.has_ipc_lock && !self.is_in_user_namespace
    }

    /// Returns why the capability IPC_LOCK does not help a process that is not exempt, and the
    /// remedy beside a higher limit.
    pub fn why_not(&self) -> (&'static str, &'static str) {
        match self {
            Self { is_in_user_namespace: true, .. } => (
                "in a user namespace, where CAP_IPC_LOCK does not count",
                "or set hostUsers: true, run as root, and add the capability IPC_LOCK",
            ),
            Self { is_root: true, .. } => (
                "as root without CAP_IPC_LOCK",
                "or add the capability IPC_LOCK (securityContext.capabilities.add)",
            ),
            Self { was_given_ipc_lock: true, .. } => (
                "not as root, for which IPC_LOCK of the container does nothing",
                "or run as root: capabilities of a container are effective for root only",
            ),
            _ => ("not as root", "the capability IPC_LOCK only helps containers that run as root"),
        }
    }
}

impl LockedMemoryShortage {
    /// Returns whether the next attempt will fail too. If memory that is in use now is enough, it
    /// may be free by then.
    pub fn is_lasting(&self) -> bool {
        self.wanted > self.locked.soft
    }

    /// Returns the remedy: how to raise the limit. It is not part of the message.
    pub fn hint(&self) -> String {
        let Self { wanted, locked: LockedMemory { hard, pinned, privileges, .. } } = self;
        if pinned.checked_add(*wanted).is_some_and(|all| all <= *hard) {
            return "raise memlock: `ulimit -l unlimited` before the program starts".to_owned();
        }
        let (_, also) = privileges.why_not();
        format!("raise memlock (LimitMEMLOCK=infinity in containerd's systemd unit on the node); {also}")
    }
}

impl fmt::Display for LockedMemoryShortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { wanted, locked: LockedMemory { soft, pinned, privileges, .. } } = self;
        let [wanted, soft, pinned] = [*wanted, *soft, *pinned].map(|bytes| bytes.div_ceil(1024));
        let (why, _) = privileges.why_not();
        write!(
            f,
            "too little memory may be locked: {wanted} KiB are needed, {soft} KiB is the limit (memlock), of which {pinned} KiB are in use, {why}"
        )
    }
}

impl std::error::Error for LockedMemoryShortage {}

fn status() -> String {
    fs::read_to_string("/proc/self/status").unwrap_or_default()
}

fn users() -> String {
    fs::read_to_string("/proc/self/uid_map").unwrap_or_default()
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

/// Returns the pinned memory in bytes, which the kernel reports in KiB; 0 if it does not.
fn pinned(status: &str) -> u64 {
    let number = field(status, "VmPin").and_then(|size| size.trim().strip_suffix("kB")?.trim().parse().ok());
    number.map_or(0, |size: u64| size.saturating_mul(1024))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    const ROOT: &str = "Name:\tmultinet\nUid:\t0\t0\t0\t0\nCapPrm:\t00000000ffffffff\nCapEff:\t0000000000004000\nCapBnd:\t0000000000004000\n";
    const NOBODY: &str = "Uid:\t0\t65534\t0\t0\nCapEff:\t0000000000000000\nCapBnd:\t0000000000004000\n";

    #[test]
    fn privileges_are_read_from_the_status() {
        let root = Privileges::parse(ROOT, "         0          0 4294967295\n");
        assert!(root.is_root && root.has_ipc_lock && root.was_given_ipc_lock, "{root:?}");
        assert!(!root.is_in_user_namespace, "{root:?}");
        let nobody = Privileges::parse(NOBODY, "         0     231072      65536\n");
        assert!(!nobody.is_root && !nobody.has_ipc_lock && nobody.was_given_ipc_lock, "{nobody:?}");
        assert!(nobody.is_in_user_namespace, "{nobody:?}");
        // The neighbouring bit, and a map of two ranges.
        let other = Privileges::parse("CapEff:\t0000000000002000\n", "0 0 1000\n1000 1000 4294966295\n");
        assert!(!other.has_ipc_lock && other.is_in_user_namespace, "{other:?}");
        for nonsense in ["", "CapEff:\tnonsense\nUid:\n", "CapEff\nUid", "CapEff:ffffffffffffffffff"] {
            let process = Privileges::parse(nonsense, "");
            assert!(!process.is_root && !process.has_ipc_lock && !process.is_in_user_namespace, "{nonsense}");
        }
    }

    #[test]
    fn pinned_memory_is_read_in_bytes() {
        assert_eq!(pinned("VmLck:\t       4 kB\nVmPin:\t    1040 kB\n"), 1040 << 10);
        for nonsense in ["", "VmPin:\t kB\n", "VmPin: 3 MB", "VmPin:\t-4 kB"] {
            assert_eq!(pinned(nonsense), 0, "{nonsense}");
        }
    }

    #[test]
    fn a_shortage_is_found_from_the_limit_and_the_privileges() {
        let nobody = Privileges::default();
        let root = Privileges { is_root: true, ..nobody };
        let exempt = Privileges { has_ipc_lock: true, ..root };
        let contained = Privileges { is_in_user_namespace: true, ..exempt };
        // Limit, hard limit, memory in use, memory wanted, privileges; the expected message and
        // remedy.
        type Case = (u64, u64, u64, u64, Privileges, Option<(&'static str, &'static str)>);
        let cases: [Case; 9] = [
            (8192, 8192, 0, 8192, nobody, None),
            (u64::MAX, u64::MAX, 1 << 40, 1 << 40, nobody, None),
            (8192, 8192, 0, 1 << 40, exempt, None),
            (
                8192,
                8192,
                4096,
                4097,
                root,
                Some((
                    "5 KiB are needed, 8 KiB is the limit (memlock), of which 4 KiB are in use, as root without",
                    "LimitMEMLOCK=infinity in containerd's systemd unit on the node); or add the capability IPC_LOCK",
                )),
            ),
            (8192, 8192, 0, 8193, contained, Some(("CAP_IPC_LOCK does not count", "hostUsers: true"))),
            (8192, 8192, 0, 8193, nobody, Some(("not as root", "only helps containers that run as root"))),
            (8192, 16384, 0, 8193, nobody, Some(("8 KiB is the limit", "`ulimit -l unlimited`"))),
            (8192, 16384, 8192, 8193, nobody, Some(("in use", "LimitMEMLOCK=infinity"))),
            (8192, 8192, u64::MAX, 1, nobody, Some(("1 KiB are needed", "LimitMEMLOCK=infinity"))),
        ];
        for (soft, hard, pinned, wanted, privileges, expected) in cases {
            let found = LockedMemory { soft, hard, pinned, privileges }.check(wanted);
            match (found, expected) {
                (Ok(()), None) => {}
                (Err(shortage), Some((what, fix))) => {
                    let (said, hint) = (shortage.to_string(), shortage.hint());
                    assert!(said.contains(what) && hint.contains(fix), "{said}; {hint}");
                }
                (found, expected) => panic!("{found:?}, not {expected:?}"),
            }
        }
    }

    #[test]
    fn a_shortage_lasts_if_the_whole_limit_is_too_low() {
        let shortage = |pinned, wanted| {
            let locked = LockedMemory { soft: 8192, hard: 8192, pinned, privileges: Privileges::default() };
            locked.check(wanted).expect_err("there is too little")
        };
        let cases = [shortage(4096, 4097), shortage(8192, 8192), shortage(0, 8193), shortage(4096, 8193)];
        assert_eq!(cases.map(|shortage| shortage.is_lasting()), [false, false, true, true]);
    }

    #[test]
    fn this_process_is_read_as_the_kernel_reports_it() {
        let locked = LockedMemory::read().expect("a limit");
        let limits = fs::read_to_string("/proc/self/limits").expect("limits");
        let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory")).expect("this one");
        let bytes =
            |limit: &str| if limit == "unlimited" { u64::MAX } else { limit.parse().expect("a number") };
        let limits: Vec<u64> = line.split_whitespace().take(2).map(bytes).collect();
        assert_eq!([locked.soft, locked.hard], limits[..]);
        let user = fs::metadata("/proc/self").expect("this process").uid();
        assert_eq!(locked.privileges.is_root, user == 0);
    }
}
