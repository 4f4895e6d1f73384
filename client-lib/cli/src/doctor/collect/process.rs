//! Reads from `/proc/self` what this process is allowed (`proc(5)`, `capabilities(7)`, `user_namespaces(7)`).

use std::fs;

use super::super::facts::Process;

/// CAP_IPC_LOCK
const IPC_LOCK: u32 = 14;

/// How many users there are where none is another one's (`user_namespaces(7)`).
const ALL: &str = "4294967295";

/// What cannot be read is not allowed.
pub(super) fn process() -> Process {
    let text = |file: &str| fs::read_to_string(file).unwrap_or_default();
    parse(&text("/proc/self/status"), &text("/proc/self/uid_map"))
}

fn parse(status: &str, users: &str) -> Process {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let has = |set: &str| {
        let bits = field(set).and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
        bits.is_some_and(|bits| bits >> IPC_LOCK & 1 == 1)
    };
    Process {
        // Real, effective, saved, and of files.
        is_root: field("Uid").and_then(|users| users.split_whitespace().nth(1)) == Some("0"),
        has_ipc_lock: has("CapEff"),
        was_given_ipc_lock: has("CapBnd"),
        is_in_user_namespace: !users.is_empty() && !users.split_whitespace().eq(["0", "0", ALL]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "Name:\tmultinet\nUid:\t0\t0\t0\t0\nCapPrm:\t00000000ffffffff\nCapEff:\t0000000000004000\nCapBnd:\t0000000000004000\n";
    const NOBODY: &str = "Uid:\t0\t65534\t0\t0\nCapEff:\t0000000000000000\nCapBnd:\t0000000000004000\n";

    #[test]
    fn privileges_are_read_from_the_status() {
        let root = parse(ROOT, "         0          0 4294967295\n");
        assert!(root.is_root && root.has_ipc_lock && root.was_given_ipc_lock, "{root:?}");
        assert!(!root.is_in_user_namespace, "{root:?}");
        let nobody = parse(NOBODY, "         0     231072      65536\n");
        assert!(!nobody.is_root && !nobody.has_ipc_lock && nobody.was_given_ipc_lock, "{nobody:?}");
        assert!(nobody.is_in_user_namespace, "{nobody:?}");
        // The next bit, and several parts of a map.
        let other = parse("CapEff:\t0000000000002000\n", "0 0 1000\n1000 1000 4294966295\n");
        assert!(!other.has_ipc_lock && other.is_in_user_namespace, "{other:?}");
        for nonsense in ["", "CapEff:\tnonsense\nUid:\n", "CapEff\nUid", "CapEff:ffffffffffffffffff"] {
            let process = parse(nonsense, "");
            assert!(!process.is_root && !process.has_ipc_lock && !process.is_in_user_namespace, "{nonsense}");
        }
    }
}
