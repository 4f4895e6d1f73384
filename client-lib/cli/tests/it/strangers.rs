//! Tests of unexpected senders, which must not keep an honest one's transfer from coming.

use std::fs;
use std::path::Path;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::{Value, json};

use super::raw::{ABC, Sender};
use super::support::{Says, Server, run, text};

fn receiver(output: &Path, more: &[&str]) -> Server {
    Server::start(&[&["recv", "-o", output.to_str().unwrap()], more].concat(), 0, Says::Stderr)
}

fn begin(receiver: &Server, session: u128) -> Sender {
    let mut sender = Sender::connect(receiver.address, session, 1, 1);
    assert!(sender.ask(&json!({"offset": 0, "total": 1_000_000_000}), b"x"));
    sender
}

fn send(receiver: &Server) -> std::process::Output {
    run(&["send", &receiver.address.to_string()], b"content")
}

#[test]
fn silent_senders_do_not_keep_another_from_sending() {
    for more in [&[][..], &["--keep"]] {
        let folder = tempfile::tempdir().unwrap();
        let receiver = receiver(&folder.path().join("out"), more);
        let silent: Vec<Sender> = (0..20).map(|session| begin(&receiver, session)).collect();
        for name in ["out", "out.1"].iter().take(1 + more.len()) {
            let sender = send(&receiver);
            assert!(sender.status.success(), "{}", text(&sender.stderr));
            assert_eq!(fs::read(folder.path().join(name)).unwrap(), b"content");
        }
        if more.is_empty() {
            assert!(receiver.output().status.success());
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left of the others");
        }
        drop(silent);
    }
}

/// They are more than there is room for, and each has sent more than an honest one at its
/// beginning.
#[test]
fn many_slow_senders_do_not_end_an_honest_one_that_has_just_begun() {
    let folder = tempfile::tempdir().unwrap();
    let receiver = receiver(&folder.path().join("out"), &["--keep", "--frame-size", "65536"]);
    let slow = |session| {
        let mut sender = Sender::connect(receiver.address, session, 1, 1);
        let _ = sender.ask(&json!({"offset": 0}), b"xyz");
        sender
    };
    let mut all: Vec<Sender> = (100..164).map(slow).collect();
    let mut honest = Sender::connect(receiver.address, 7, 1, 1);
    assert!(honest.ask(&json!({"offset": 0}), b"a"));
    all.extend((164..180).map(slow));
    assert!(honest.ask(&json!({"offset": 1}), b"bc"));
    assert!(honest.ask(&json!({"offset": 3, "total": 3, "sha256": ABC}), b""));
    assert_eq!(fs::read(folder.path().join("out")).unwrap(), b"abc");
    receiver.interrupt();
    let said = receiver.stderr();
    assert!(said.contains("it has been still for longest"), "{said}");
}

/// The reader of the pipe would take that for the end of the transfer.
#[test]
fn a_sender_that_is_refused_does_not_end_a_named_pipe() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    mkfifo(&pipe, Mode::S_IRWXU).unwrap();
    let receiver = receiver(&pipe, &[]);
    let reading = std::thread::spawn(move || fs::read(pipe).unwrap());
    let mut silent = Sender::connect(receiver.address, 6, 1, 1);
    assert!(silent.ask(&json!({"offset": 0}), b""));
    let mut stranger = Sender::connect(receiver.address, 7, 1, 1);
    assert!(!stranger.ask(&json!({"offset": 0, "total": 0, "seal": ABC}), b""));
    let sender = send(&receiver);
    assert!(sender.status.success(), "{}", text(&sender.stderr));
    assert!(receiver.output().status.success());
    assert_eq!(reading.join().unwrap(), b"content");
}

#[test]
fn nonsense_does_not_end_the_receiver() {
    let folder = tempfile::tempdir().unwrap();
    let receiver = receiver(&folder.path().join("out"), &[]);
    let digest = "0".repeat(64);
    let nonsense: [Value; 6] = [
        json!({"offset": 0, "total": 0, "sha256": "00"}),
        json!({"offset": 0, "total": 0, "sha256": digest}),
        json!({"offset": 0, "total": 0, "seal": digest}),
        json!({"offset": -1}),
        json!("\u{1b}[31m"),
        json!({"offset": 1, "total": 1, "sha256": ABC}),
    ];
    for (session, header) in (100..).zip(&nonsense[..5]) {
        let mut stranger = Sender::connect(receiver.address, session, 1, 1);
        assert!(!stranger.ask(header, b""), "{header}");
    }
    // A sender that gives up before it has begun.
    let mut quitter = Sender::connect(receiver.address, 150, 1, 1);
    assert!(quitter.ask(&json!({"offset": 0, "abort": "changed"}), b""));
    // Its bytes are removed.
    let mut liar = begin(&receiver, 200);
    assert!(!liar.ask(&nonsense[5], b""));
    let sender = send(&receiver);
    assert!(sender.status.success(), "{}", text(&sender.stderr));
    let output = receiver.output();
    assert!(output.status.success(), "{output:?}");
    assert!(text(&output.stderr).contains("; waiting for another sender"), "{}", text(&output.stderr));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

/// The next receiver would take the file for complete.
#[test]
fn a_sender_that_gives_up_after_its_seal_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let receiver = receiver(&folder.path().join("out"), &[]);
    let mut sender = Sender::connect(receiver.address, 7, 1, 1);
    assert!(sender.ask(&json!({"offset": 0}), b"abc"));
    assert!(sender.ask(&json!({"offset": 3, "total": 3, "seal": ABC}), b""));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    assert!(sender.ask(&json!({"offset": 3, "abort": "changed"}), b""));
    assert_eq!(receiver.output().status.code(), Some(1));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// Bytes on standard output cannot be taken back.
#[test]
fn a_second_sender_to_standard_output_is_refused() {
    let receiver = Server::start(&["recv"], 0, Says::Stderr);
    // A sender that has sent nothing yet gives way.
    let mut silent = Sender::connect(receiver.address, 6, 1, 1);
    assert!(silent.ask(&json!({"offset": 0}), b""));
    let mut first = Sender::connect(receiver.address, 7, 1, 1);
    assert!(first.ask(&json!({"offset": 0}), b"ab"));
    let second = send(&receiver);
    assert_eq!(second.status.code(), Some(1));
    assert!(text(&second.stderr).contains("the receiver refused"), "{}", text(&second.stderr));
    assert!(first.ask(&json!({"offset": 2}), b"c"));
    assert!(first.ask(&json!({"offset": 3, "total": 3, "sha256": ABC}), b""));
    drop(first);
    let output = receiver.output();
    assert!(output.status.success());
    assert_eq!(output.stdout, b"abc");
}

#[test]
fn only_senders_that_from_names_may_send() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    let to = |receiver: &Server| run(&["send", &receiver.address.to_string(), "--wait", "1"], b"content");
    // No DNS server answers for this service.
    let server = ["--from", "infer.vision", "--server", "127.0.0.1:9"];
    let cases: [(&[&str], &str); 2] = [
        (&["--from", "10.9.0.0/24"], "not among those that --from allows"),
        (&server, "--from allows, and DNS does not tell the addresses of infer.vision"),
    ];
    for (from, expected) in cases {
        let receiver = receiver(&path, from);
        let sender = to(&receiver);
        assert_eq!(sender.status.code(), Some(1));
        let said = text(&sender.stderr).lines().last().unwrap().to_owned();
        assert!(said.starts_with("multinet: ") && said.ends_with(expected), "{said}");
        receiver.kill();
    }
    let receiver = receiver(&path, &["--from", "10.9.0.0/24", "--from", "127.0.0.1"]);
    let sender = to(&receiver);
    assert!(sender.status.success(), "{}", text(&sender.stderr));
    assert!(receiver.output().status.success());
    assert_eq!(fs::read(path).unwrap(), b"content");
}

#[test]
fn a_receiver_without_tls_says_what_that_means() {
    for (from, expected) in [
        (&[][..], "any client that reaches this port may send"),
        (&["--from", "127.0.0.1"], "hosts on the way"),
    ] {
        let receiver = Server::start(&[&["recv"], from].concat(), 0, Says::Stderr);
        receiver.interrupt();
        let said = receiver.stderr();
        assert!(said.contains(&format!("without TLS {expected}")) && said.lines().count() == 1, "{said}");
    }
}
