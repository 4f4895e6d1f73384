//! The binary: `inject` on files, and its exit status. And the stored inputs of fuzzing.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a panic fails the test")]

mod corpus;

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const EXAMPLE: &str = "deploy/examples/numaflow/multus/3-pipeline.yaml";

/// Runs the program in the repository's root with this standard input.
fn run(arguments: &[&str], input: &str) -> Output {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_multinet-numaflow"));
    command.args(arguments).current_dir(root).env_clear();
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A program that fails early does not read.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn files_are_printed_with_everything_injected() {
    let printed = run(&["inject", "-f", EXAMPLE], "");
    assert_eq!((printed.status.code(), text(&printed.stderr)), (Some(0), String::new()));
    let printed = text(&printed.stdout);
    for part in ["kind: Pipeline", "name: video-decode", "infer.video.video-multus.vertexdomain.local.:18515"]
    {
        assert!(printed.contains(part), "{printed}");
    }
    let zone = ["inject", "--filename=-", "--vertex-zone=nics.example", "--ipc-lock=false"];
    let piped = text(&run(&zone, &std::fs::read_to_string(Path::new("..").join(EXAMPLE)).unwrap()).stdout);
    assert!(piped.contains("infer.video.video-multus.nics.example.:18515"), "{piped}");
    assert!(printed.contains("IPC_LOCK") && !piped.contains("IPC_LOCK"), "{piped}");
}

#[test]
fn a_wrong_file_is_one_line_and_status_2() {
    for (arguments, input, message) in [
        (&["inject", "-f", "none.yaml"][..], "", "none.yaml: cannot be read"),
        (&["inject", "-f", "-"], "a: [", "-: is not YAML"),
        (&["inject", "-f", "-"], "", "the files have no Pipeline or MonoVertex"),
        (&["inject", "-f", "-"], "kind: Service", "is not a Pipeline or MonoVertex"),
        (&["inject"], "", "--filename <FILE>"),
    ] {
        let output = run(arguments, input);
        let said = text(&output.stderr);
        assert_eq!(
            (output.status.code(), output.stdout.len(), said.lines().count()),
            (Some(2), 0, 1),
            "{said}"
        );
        assert!(said.starts_with("multinet-numaflow: ") && said.contains(message), "{said}");
    }
}
