//! Tests of `multinet exec` and `multinet env` without a second NIC: the program that is started,
//! and mistakes on the command line. `client-lib/e2e/client/frameworks.rs` has those with one.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};

use super::support::{multinet, run, text};

/// Returns `multinet` in a network namespace of its own, where there is no NIC; as root only.
fn without_nics(arguments: &[&str]) -> Option<Command> {
    if !nix::unistd::geteuid().is_root() {
        return None;
    }
    let mut command = Command::new("unshare");
    command.args(["--net", "--", env!("CARGO_BIN_EXE_multinet")]).args(arguments).stdin(Stdio::null());
    Some(command)
}

#[test]
fn the_program_keeps_the_pid_and_its_exit_status_is_its_own() {
    // The shell prints its own process ID, and is replaced by multinet, and that by another shell.
    let script = format!("echo $$; exec {} exec -- sh -c 'echo $$; exit 7'", env!("CARGO_BIN_EXE_multinet"));
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    let pids: Vec<&str> = text(&output.stdout).lines().collect();
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert!(pids.len() == 2 && pids[0] == pids[1], "{output:?}");
    assert_eq!(text(&output.stderr).lines().count(), 1, "{output:?}");
}

#[test]
fn the_program_gets_signals_as_if_it_had_been_started_alone() {
    // SIGTERM ends it, SIGHUP stays ignored, nothing is blocked.
    let signals = "grep -E '^(SigBlk|SigIgn):' /proc/self/status";
    let script = format!(
        "trap '' HUP; {signals}; exec {} exec -- sh -c \"{signals}; kill -TERM \\$\\$; sleep 60\"",
        env!("CARGO_BIN_EXE_multinet")
    );
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert_eq!(output.status.signal(), Some(15), "{output:?}");
    let said: Vec<&str> = text(&output.stdout).lines().collect();
    let (before, after) = said.split_at(said.len() / 2);
    // SIGPIPE is at its default afterwards, however it was before. The C library has signals from
    // 32 for itself.
    let others = |lines: &[&str]| {
        let number = |line: &str| u64::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16).unwrap();
        lines.iter().map(|line| number(line) & 0x7fff_ffff & !(1 << 12)).collect::<Vec<_>>()
    };
    assert_eq!((before.len(), others(after)), (2, others(before)), "{output:?}");
}

#[test]
fn a_program_that_cannot_be_started_is_named_as_env_does() {
    for (program, status) in [("/nonexistent/program", 127), ("/etc/passwd", 126)] {
        let output = multinet().args(["exec", "--", program]).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{output:?}");
        assert!(text(&output.stderr).contains(&format!("cannot start {program}: ")), "{output:?}");
    }
}

#[test]
fn without_a_nic_the_program_starts_unchanged_unless_strict() {
    let Some(mut command) = without_nics(&["exec", "--", "sh", "-c", "env | grep -c _SOCKET_IFNAME"]) else {
        return;
    };
    let output = command.env_remove("NCCL_SOCKET_IFNAME").env_remove("GLOO_SOCKET_IFNAME").output().unwrap();
    assert_eq!(text(&output.stdout), "0\n", "{output:?}");
    let line = "multinet: no variable is set; this pod has no second NIC with an address\n";
    assert_eq!(text(&output.stderr), line);

    let mut command = without_nics(&["exec", "--strict", "--wait", "0s", "--", "echo", "started"]).unwrap();
    let output = command.output().unwrap();
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), ""), "{output:?}");
    let line = "multinet: --strict after 0 s: this pod has no second NIC with an address\n";
    assert_eq!(text(&output.stderr), line);

    // Also if all that is asked for is set already.
    let mut command = without_nics(&["exec", "--strict", "--for", "mpi", "--", "echo", "started"]).unwrap();
    let output = command.env("OMPI_MCA_btl_tcp_if_include", "192.168.111.0/24").output().unwrap();
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), ""), "{output:?}");
    assert_eq!(text(&output.stderr), "multinet: --strict: this pod has no second NIC with an address\n");

    // As in a manifest that sets the variable to nothing.
    let mut command = without_nics(&["env", "--for", "gloo"]).unwrap();
    let output = command.env("MULTINET_NETWORK_STATUS", "").output().unwrap();
    assert!(output.status.success(), "{output:?}");

    let mut command = without_nics(&["env", "--strict", "--for", "gloo"]).unwrap();
    let output = command.output().unwrap();
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), ""), "{output:?}");
    assert!(
        text(&output.stderr)
            .starts_with("multinet: --strict: GLOO_SOCKET_IFNAME: this pod has no second NIC")
    );
}

#[test]
fn mistakes_are_named_with_what_would_be_right() {
    let cases: [(&[&str], i32, &str); 6] = [
        (
            &["env", "--for", "nccl,ncl"],
            2,
            "\"ncl\" is no framework that variables are known for: nccl, ucx, gloo, mpi",
        ),
        (&["env", "--value", "ip", "--format", "json"], 2, "cannot be used with"),
        (&["env", "--gpu", "999"], 1, "--gpu 999: this process sees "),
        (&["env", "--network-status", "/nonexistent"], 1, "cannot read /nonexistent: No such file"),
        (&["exec", "--wait", "soon", "--", "true"], 2, "write a time as 90s, 5m or 1h"),
        (&["exec"], 2, "<COMMAND>"),
    ];
    for (arguments, status, needle) in cases {
        let output = run(arguments, b"");
        let stderr = text(&output.stderr);
        assert_eq!(
            (output.status.code(), stderr.lines().count()),
            (Some(status), 1),
            "{arguments:?}: {stderr}"
        );
        assert!(stderr.contains(needle) && output.stdout.is_empty(), "{arguments:?}: {stderr}");
    }
}
