//! Tests of help, mistakes, completions and manual pages.

use std::path::PathBuf;
use std::process::{Command, Output};

use super::support::run;

/// Every subcommand.
const SUBCOMMANDS: [&str; 14] = [
    "resolve",
    "doctor",
    "env",
    "exec",
    "bench",
    "send",
    "recv",
    "put",
    "get",
    "hostfile",
    "matrix",
    "torchrun",
    "completions",
    "man",
];

fn multinet(arguments: &[&str]) -> Output {
    run(arguments, b"")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Checks that a command line was refused: status 2, and one line that holds `needle`.
fn check_refused(arguments: &[&str], needle: &str) {
    let output = multinet(arguments);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    assert_eq!(stderr.lines().count(), 1, "{arguments:?}: {stderr}");
    assert!(stderr.starts_with("multinet: ") && stderr.contains(needle), "{arguments:?}: {stderr}");
}

#[test]
fn help_names_every_subcommand_and_fits_a_terminal() {
    let help = text(&multinet(&["--help"]).stdout);
    for subcommand in SUBCOMMANDS {
        assert!(help.contains(&format!("\n  {subcommand} ")), "{subcommand} is not in\n{help}");
        let output = multinet(&[subcommand, "--help"]);
        assert!(output.status.success() && output.stderr.is_empty(), "{subcommand}");
        let help = text(&output.stdout);
        let wide = help.lines().find(|line| line.chars().count() > 120);
        assert_eq!(wide, None, "{subcommand}");
    }
    let version = text(&multinet(&["--version"]).stdout);
    assert_eq!(version, concat!("multinet ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn a_mistake_is_named_in_one_line() {
    let cases: [(&[&str], &str); 30] = [
        (&["frob"], "unrecognized subcommand 'frob'"),
        (&["resolve"], "<NAME>"),
        (&["resolve", "a", "--frob"], "--frob"),
        (&["resolve", "a", "--server", "dns.example"], "write an address as 10.96.0.10"),
        (&["resolve", "a b", "--server", "127.0.0.1"], "\"a b\" is not the name of a service"),
        (&["resolve", "a", "--resolv-conf", "/nonexistent"], "cannot use /nonexistent"),
        // No file is read, and no server asked.
        (&["doctor", "a", "70000", "--resolv-conf", "/nonexistent"], "\"70000\" is not a port"),
        (&["resolve", "https://infer.vision.svc.multinet/"], "is a URL: give the name alone, infer.vision"),
        (&["bench", "client", "10.0.0.0/24"], "is a network: give an address alone, such as 10.0.0.0"),
        (&["bench", "client", "10.0.0.1", "--network", "rail0"], "leave out --network rail0"),
        (&["send", "10.0.0.1", "model.bin"], "\"model.bin\" is not a port"),
        (
            &["send", "infer.vision.svc.multinet", "model.bin"],
            "write --file model.bin, or put a port before it",
        ),
        (&["hostfile", "10.0.0.1"], "10.0.0.1 is an address: give the name of a service"),
        (&["hostfile", "train:rdma"], "a host file has no ports: leave out :rdma"),
        (&["hostfile", "train", "--wait", "5m"], "--count <N>"),
        (&["hostfile", "train", "--count", "2", "--wait", "5 minutes"], "write a time as 90s, 5m or 1h"),
        (&["hostfile", "train", "--format", "torchrun"], "give --count"),
        (&["hostfile", "train:rdma", "--format", "torchrun", "--count", "2"], "\"rdma\" is not a port"),
        (&["hostfile", "a._net.train", "--network", "b"], "is one network already: leave out --network b"),
        (&["matrix", "train", "--expect", "fast"], "give a number of gigabits per second"),
        (&["matrix", "train", "-D", "11"], "11 is not in 1..=10"),
        (&["torchrun", "train", "--", "train.py"], "--count <N>"),
        (&["torchrun", "train", "--count", "2"], "<ARGS>"),
        (&["torchrun", "train:rdma", "--count", "2", "--", "train.py"], "\"rdma\" is not a port"),
        (&["put"], "<FILE>"),
        (&["put", "infer.vision.svc.multinet", "model.bin"], "multinet put takes a file alone"),
        (&["get", "infer-0/a"], "multinet get SERVICE infer-0/a"),
        (
            &["get", "infer-0/a", "infer.vision"],
            "the service comes first: multinet get infer.vision infer-0/a",
        ),
        (
            &["resolve", "10.0.0.1", "--server", "127.0.0.1"],
            "multinet: 10.0.0.1: an address has no named ports; give",
        ),
        (
            &["resolve", "10.0.0.1", "--watch", "--server", "127.0.0.1"],
            "multinet: 10.0.0.1: an address has no named",
        ),
    ];
    for (arguments, needle) in cases {
        check_refused(arguments, needle);
    }
    let nothing = multinet(&[]);
    assert!(nothing.status.code() == Some(2) && text(&nothing.stderr).contains("Usage: multinet"));
}

#[test]
fn a_log_level_that_does_not_exist_is_refused() {
    check_refused(&["resolve", "a", "--log-level", "a=b=c"], "--log-level");
    check_refused(&["resolve", "a", "--log-level", "loud"], "`loud` is not a level (error, warn,");
    check_refused(&["man", "/nonexistent", "--log-level", "warn,verbose"], "`verbose` is not a level");
    for (inherited, status) in [("loud", 2), ("", 0), ("warn", 0), ("multinet_client=debug", 0)] {
        let mut command = super::support::multinet();
        let output = command.args(["completions", "bash"]).env("RUST_LOG", inherited).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{inherited}");
        assert_eq!(text(&output.stderr).contains("RUST_LOG"), status == 2, "{}", text(&output.stderr));
    }
}

#[test]
fn an_address_may_have_its_port_inside() {
    let output = multinet(&["resolve", "10.0.0.1:18515", "--server", "127.0.0.1"]);
    assert!(text(&output.stdout).contains("\n10-0-0-1  10.0.0.1  -        18515  "), "{output:?}");
}

#[test]
fn a_gpu_that_is_not_there_is_named() {
    for role in [&["server", "--address", "127.0.0.1", "--port", "0"][..], &["client", "127.0.0.1"]] {
        let arguments = [&["bench"], role, &["--use_cuda", "999"]].concat();
        let output = multinet(&arguments);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{arguments:?}: {stderr}");
        assert!(stderr.starts_with("multinet: --use_cuda 999: "), "{arguments:?}: {stderr}");
    }
}

#[test]
fn each_shell_has_a_completion_script() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = multinet(&["completions", shell]);
        assert!(output.status.success(), "{shell}");
        assert!(text(&output.stdout).contains("resolv-conf"), "{shell}");
    }
    check_refused(&["completions", "cmd"], "possible values: bash");
    let script = text(&multinet(&["completions", "bash"]).stdout);
    let check = Command::new("bash").args(["-n", "-c", &script]).status().unwrap();
    assert!(check.success());
}

#[test]
fn there_is_a_manual_page_for_each_subcommand() {
    let folder = tempfile::tempdir().unwrap();
    let output = multinet(&["man", folder.path().to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let page = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    assert!(page("multinet.1").contains(".TH multinet 1"));
    for subcommand in SUBCOMMANDS {
        assert!(page(&format!("multinet-{subcommand}.1")).contains(".SH SYNOPSIS"), "{subcommand}");
    }
    let output = multinet(&["man", "/nonexistent"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).starts_with("multinet: cannot write manual pages into /nonexistent: "));
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    // The output does not fit into the pipe.
    let script = format!(
        "{} completions zsh | head -c 1; exit ${{PIPESTATUS[0]}}",
        PathBuf::from(env!("CARGO_BIN_EXE_multinet")).display()
    );
    let output = Command::new("bash").args(["-c", &script]).output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""));
}
