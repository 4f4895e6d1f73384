//! Tests of the end of transfers: which answer comes when, and how the next receiver goes on if one
//! dies.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::raw::{ABC, Frame, Receiver, Sender};
use super::support::{Says, Server, finish, run, spawn, text, until};

const SESSION: u128 = 7;

fn receiver(output: &Path, port: u16, more: &[&str]) -> Server {
    Server::start(&[&["recv", "-o", output.to_str().unwrap()], more].concat(), port, Says::Stderr)
}

/// Returns the names in a folder, with `ID` for the transfer's id.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| {
            let name = entry.unwrap().file_name().into_string().unwrap();
            name.split('.')
                .map(|part| if part.len() == 32 { "ID" } else { part })
                .collect::<Vec<_>>()
                .join(".")
        })
        .collect();
    names.sort();
    names
}

fn part() -> Value {
    json!({"offset": 0, "total": 3})
}

fn seal() -> Value {
    json!({"offset": 3, "total": 3, "seal": ABC})
}

fn end() -> Value {
    json!({"offset": 3, "total": 3, "sha256": ABC})
}

#[test]
fn a_sender_is_answered_when_the_file_is_safe_and_when_it_is_placed() {
    let folder = tempfile::tempdir().unwrap();
    let receiver = receiver(&folder.path().join("out"), 0, &[]);
    let mut sender = Sender::connect(receiver.address, SESSION, 1, 1);
    assert!(sender.ask(&part(), b"abc"));
    assert_eq!(names(folder.path()), ["out.ID.part"]);
    assert!(sender.ask(&seal(), b""));
    assert_eq!(names(folder.path()), ["out.ID.done", "out.ID.placed"]);
    assert!(sender.ask(&end(), b""));
    assert_eq!(names(folder.path()), ["out", "out.ID.placed"]);
    drop(sender);
    let output = receiver.output();
    assert!(output.status.success() && text(&output.stdout).starts_with("received 3 bytes"), "{output:?}");
    assert_eq!(
        (names(folder.path()), fs::read(folder.path().join("out")).unwrap()),
        (vec!["out".to_owned()], b"abc".to_vec())
    );
}

#[test]
fn a_sender_that_asks_late_is_answered_though_its_file_has_been_placed_and_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    let receiver = receiver(&path, 0, &["--keep", "--wait", "1"]);
    let mut sender = Sender::connect(receiver.address, SESSION, 1, 1);
    assert!(sender.ask(&part(), b"abc") && sender.ask(&seal(), b""));
    drop(sender);
    until(|| path.exists());
    let mut sender = Sender::connect(receiver.address, SESSION, 2, 3);
    assert!(sender.ask(&end(), b""));
    drop(sender);
    until(|| names(folder.path()) == ["out"]);
    receiver.interrupt();
    let output = receiver.output();
    assert_eq!(text(&output.stdout).lines().count(), 1, "{output:?}");
}

/// A sender of the version before asks once, and goes.
#[test]
fn a_sender_that_asks_once_is_answered_when_the_file_is_placed() {
    let folder = tempfile::tempdir().unwrap();
    let receiver = receiver(&folder.path().join("out"), 0, &[]);
    let mut sender = Sender::connect(receiver.address, SESSION, 1, 1);
    assert!(sender.ask(&part(), b"abc"));
    assert!(sender.ask(&end(), b""));
    assert_eq!(fs::read(folder.path().join("out")).unwrap(), b"abc");
    drop(sender);
    assert!(receiver.output().status.success());
    assert_eq!(names(folder.path()), ["out"]);
}

/// The next receiver has the same answers, and the file is there in the end.
#[test]
fn a_receiver_that_is_killed_after_any_answer_is_followed_by_one_with_the_same_answers() {
    for answers in 1..=3 {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let first = receiver(&path, 0, &[]);
        let address = first.address;
        let mut sender = Sender::connect(address, SESSION, 1, 1);
        let questions = [(part(), &b"abc"[..]), (seal(), b""), (end(), b"")];
        for (header, payload) in &questions[..answers] {
            assert!(sender.ask(header, payload));
        }
        first.kill();
        drop(sender);
        let second = receiver(&path, address.port(), &[]);
        // The sender may not have heard the last answer: it asks again.
        let again = answers - 1;
        let mut sender = Sender::connect(address, SESSION, 2, answers as u64);
        if answers > 1 {
            until(|| path.exists());
        }
        for (header, payload) in &questions[again..] {
            assert!(sender.ask(header, payload), "{answers}: {header}");
        }
        drop(sender);
        let output = second.output();
        assert!(output.status.success(), "{answers}: {output:?}");
        assert_eq!(text(&output.stderr), "", "{answers}");
        assert!(text(&output.stdout).starts_with(&format!("received 3 bytes, SHA-256 {ABC}")), "{output:?}");
        assert_eq!(names(folder.path()), ["out"], "{answers}");
        assert_eq!(fs::read(&path).unwrap(), b"abc", "{answers}");
    }
}

#[test]
fn a_complete_file_of_an_earlier_receiver_is_placed_though_its_sender_never_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    let first = receiver(&path, 0, &[]);
    let mut sender = Sender::connect(first.address, SESSION, 1, 1);
    assert!(sender.ask(&part(), b"abc") && sender.ask(&seal(), b""));
    first.kill();
    drop(sender);
    let output = receiver(&path, 0, &["--wait", "0"]).output();
    assert!(output.status.success(), "{output:?}");
    assert_eq!((names(folder.path()), fs::read(&path).unwrap()), (vec!["out".to_owned()], b"abc".to_vec()));
}

#[test]
fn what_a_sender_that_never_comes_back_has_left_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    let first = receiver(&path, 0, &[]);
    let mut sender = Sender::connect(first.address, SESSION, 1, 1);
    assert!(sender.ask(&part(), b"abc"));
    first.kill();
    drop(sender);
    assert_eq!(names(folder.path()), ["out.ID.part"]);
    let second = receiver(&path, 0, &["--wait", "0"]);
    until(|| names(folder.path()).is_empty());
    second.kill();
}

/// A program may take the file away while the receiver is started again.
#[test]
fn a_file_that_is_taken_away_is_not_placed_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    let first = receiver(&path, 0, &[]);
    let address = first.address;
    let mut sender = Sender::connect(address, SESSION, 1, 1);
    assert!(sender.ask(&part(), b"abc") && sender.ask(&seal(), b"") && sender.ask(&end(), b""));
    first.kill();
    drop(sender);
    fs::rename(&path, folder.path().join("taken")).unwrap();
    let second = receiver(&path, address.port(), &[]);
    // It answers that sender, and receives from the next.
    let mut sender = Sender::connect(address, SESSION, 2, 3);
    assert!(sender.ask(&end(), b""));
    assert_eq!(names(folder.path()), ["out.ID.placed", "taken"]);
    let next = run(&["send", &address.to_string()], b"next");
    assert!(next.status.success(), "{}", text(&next.stderr));
    let output = second.output();
    assert!(output.status.success() && text(&output.stdout).starts_with("received 4 bytes"), "{output:?}");
    assert_eq!(
        (names(folder.path()), fs::read(&path).unwrap()),
        (vec!["out".to_owned(), "taken".to_owned()], b"next".to_vec())
    );
}

#[test]
fn a_signal_after_the_last_answer_leaves_the_file_only() {
    for more in [&[][..], &["--keep"]] {
        let folder = tempfile::tempdir().unwrap();
        let receiver = receiver(&folder.path().join("out"), 0, more);
        let mut sender = Sender::connect(receiver.address, SESSION, 1, 1);
        assert!(sender.ask(&part(), b"abc") && sender.ask(&seal(), b"") && sender.ask(&end(), b""));
        receiver.interrupt();
        let output = receiver.output();
        assert_eq!(output.status.code(), Some(if more.is_empty() { 0 } else { 130 }));
        assert!(text(&output.stdout).starts_with("received 3 bytes"), "{output:?}");
        assert_eq!(names(folder.path()), ["out"]);
    }
}

/// The sender has asked, and knows that all is safe.
#[test]
fn a_transfer_is_complete_though_its_sender_goes_before_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let receiver = receiver(&folder.path().join("out"), 0, &["--wait", "0"]);
    let mut sender = Sender::connect(receiver.address, SESSION, 1, 1);
    assert!(sender.ask(&part(), b"abc") && sender.ask(&seal(), b""));
    drop(sender);
    assert!(receiver.output().status.success());
    assert_eq!(names(folder.path()), ["out"]);
}

/// It keeps the connection of a failed transfer for a while.
#[test]
fn a_signal_ends_a_receiver_that_waits_for_a_failed_sender_to_go() {
    let folder = tempfile::tempdir().unwrap();
    let receiver = receiver(&folder.path().join("out"), 0, &[]);
    let mut sender = Sender::connect(receiver.address, SESSION, 1, 1);
    assert!(sender.ask(&part(), b"ab"));
    assert!(sender.ask(&json!({"offset": 2, "abort": "changed"}), b""));
    let begin = Instant::now();
    receiver.interrupt();
    let output = receiver.output();
    assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).contains("has given up after 2 bytes"), "{output:?}");
    drop(sender);
}

#[test]
fn a_sender_that_gives_up_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let receiver = receiver(&folder.path().join("out"), 0, &[]);
    let mut sender = Sender::connect(receiver.address, SESSION, 1, 1);
    assert!(sender.ask(&part(), b"ab"));
    assert!(sender.ask(&json!({"offset": 2, "abort": "truncated"}), b""));
    drop(sender);
    let output = receiver.output();
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(
        said.ends_with("has given up after 2 bytes: the file that it sends has become shorter\n"),
        "{said}"
    );
    assert_eq!(names(folder.path()), Vec::<String>::new());
}

/// Acts as a receiver of the version before, which takes the seal for a part.
fn old_receiver(receiver: &mut Receiver, mut frame: Frame) -> Vec<u8> {
    let mut content = Vec::new();
    while frame.header.get("sha256").is_none() {
        receiver.acknowledge(&frame);
        content.append(&mut frame.payload);
        frame = receiver.frame().unwrap();
    }
    receiver.acknowledge(&frame);
    content
}

#[test]
fn a_receiver_of_the_version_before_receives_a_transfer() {
    let (listener, address) = Receiver::listen();
    let sender = spawn(&["send", &address.to_string(), "--transport", "tcp"]);
    let receiving = std::thread::spawn(move || {
        let (mut receiver, first) = Receiver::accept(&listener, 8);
        let content = old_receiver(&mut receiver, first);
        // Until the sender goes.
        (content, receiver.frame().is_none())
    });
    let sender = finish(sender, b"abc");
    assert!(sender.status.success(), "{}", text(&sender.stderr));
    assert_eq!(receiving.join().unwrap(), (b"abc".to_vec(), true));
}

/// Acknowledges all frames but the end, which is returned.
fn acknowledge_to_the_end(receiver: &mut Receiver, mut frame: Frame) -> Frame {
    while frame.header.get("sha256").is_none() {
        receiver.acknowledge(&frame);
        frame = receiver.frame().unwrap();
    }
    frame
}

#[test]
fn a_sender_without_the_last_answer_says_that_it_is_not_confirmed() {
    let (listener, address) = Receiver::listen();
    let sender = spawn(&["send", &address.to_string(), "--transport", "tcp", "--wait", "1"]);
    let receiving = std::thread::spawn(move || {
        let (mut receiver, frame) = Receiver::accept(&listener, 8);
        acknowledge_to_the_end(&mut receiver, frame);
        receiver.frame().is_none()
    });
    let sender = finish(sender, b"abc");
    assert_eq!(sender.status.code(), Some(3));
    let said = text(&sender.stderr);
    assert!(
        said.starts_with("multinet: not confirmed: the receiver has had all of it")
            && said.lines().count() == 1,
        "{said}"
    );
    assert!(sender.stdout.is_empty());
    receiving.join().unwrap();
}

/// It may have written all of it to the disk, and have died before it could say so.
#[test]
fn a_sender_without_an_answer_to_the_seal_says_that_it_is_not_confirmed() {
    let (listener, address) = Receiver::listen();
    let sender = spawn(&["send", &address.to_string(), "--transport", "tcp", "--wait", "1"]);
    let receiving = std::thread::spawn(move || {
        let (mut receiver, part) = Receiver::accept(&listener, 8);
        receiver.acknowledge(&part);
        receiver.frame().unwrap().header.get("seal").is_some()
    });
    let sender = finish(sender, b"abc");
    assert_eq!(sender.status.code(), Some(3), "{sender:?}");
    let said = text(&sender.stderr).lines().last().unwrap();
    assert!(
        said.starts_with(
            "multinet: not confirmed: the receiver has had all of it, but has not said that it is on the disk ("
        ),
        "{said}"
    );
    assert!(receiving.join().unwrap() && sender.stdout.is_empty());
}

#[test]
fn a_receiver_that_refuses_the_seal_has_not_received() {
    let (listener, address) = Receiver::listen();
    let sender = spawn(&["send", &address.to_string(), "--transport", "tcp"]);
    let receiving = std::thread::spawn(move || {
        let (mut receiver, part) = Receiver::accept(&listener, 8);
        receiver.acknowledge(&part);
        let seal = receiver.frame().unwrap();
        receiver.refuse(&seal);
        while receiver.frame().is_some() {}
    });
    let sender = finish(sender, b"abc");
    assert_eq!(sender.status.code(), Some(1));
    assert!(text(&sender.stderr).contains("multinet: the receiver refused the transfer"), "{sender:?}");
    receiving.join().unwrap();
}

/// A receiver of an earlier version takes the seal for a part, and compares at the end.
#[test]
fn a_receiver_that_refuses_the_end_has_not_received() {
    let (listener, address) = Receiver::listen();
    let sender = spawn(&["send", &address.to_string(), "--transport", "tcp"]);
    let receiving = std::thread::spawn(move || {
        let (mut receiver, frame) = Receiver::accept(&listener, 8);
        let end = acknowledge_to_the_end(&mut receiver, frame);
        receiver.refuse(&end);
        while receiver.frame().is_some() {}
    });
    let sender = finish(sender, b"abc");
    assert_eq!(sender.status.code(), Some(1));
    assert!(text(&sender.stderr).contains("multinet: the receiver refused the transfer"), "{sender:?}");
    receiving.join().unwrap();
}

/// The receiver that knows has gone: the file may be in its place.
#[test]
fn another_receiver_that_refuses_the_end_confirms_nothing() {
    let (listener, address) = Receiver::listen();
    let sender = spawn(&["send", &address.to_string(), "--transport", "tcp"]);
    let receiving = std::thread::spawn(move || {
        let (mut receiver, frame) = Receiver::accept(&listener, 8);
        acknowledge_to_the_end(&mut receiver, frame);
        drop(receiver);
        let (mut receiver, frame) = Receiver::accept(&listener, 8);
        receiver.refuse(&frame);
        while receiver.frame().is_some() {}
    });
    let sender = finish(sender, b"abc");
    assert_eq!(sender.status.code(), Some(3));
    receiving.join().unwrap();
}

/// Where large packets are lost on the way, a connection is made, and no frame comes through it.
#[test]
fn a_sender_without_progress_ends_and_names_the_likely_cause() {
    let (listener, address) = Receiver::listen();
    let sender = spawn(&["send", &address.to_string(), "--transport", "tcp", "--wait", "1"]);
    let receiving = std::thread::spawn(move || {
        let (mut receiver, _) = Receiver::accept(&listener, 8);
        while receiver.frame().is_some() {}
    });
    let sender = finish(sender, b"abc");
    assert_eq!(sender.status.code(), Some(1));
    let expected = format!(
        "multinet: nothing has got through to the receiver for 2 s (connections made: 1); 0 of 2 frames so far were acknowledged. \
         Likely, large packets are lost on the way: the MTU of a NIC is greater than that of the network; multinet doctor 127.0.0.1 {} \
         says so. Or the receiver hangs\n",
        address.port()
    );
    assert_eq!(text(&sender.stderr), expected);
    receiving.join().unwrap();
}

/// The file changes in the middle, while the receiver has no room for more.
#[test]
fn a_file_that_changes_while_it_is_sent_fails_and_the_receiver_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    for (change, reason) in [(100, "truncated"), (10_000, "changed")] {
        fs::write(&path, vec![7; 5000]).unwrap();
        let (listener, address) = Receiver::listen();
        let sender = spawn(&[
            "send",
            &address.to_string(),
            "--file",
            path.to_str().unwrap(),
            "--transport",
            "tcp",
            "--frame-size",
            "100",
        ]);
        let receiving = std::thread::spawn({
            let path = path.clone();
            move || {
                let (mut receiver, mut frame) = Receiver::accept(&listener, 2);
                fs::File::options().write(true).open(path).unwrap().set_len(change).unwrap();
                while frame.header.get("abort").is_none() {
                    assert!(frame.header.get("seal").is_none(), "all of it has been sent");
                    receiver.acknowledge(&frame);
                    frame = receiver.frame().unwrap();
                }
                receiver.acknowledge(&frame);
                while receiver.frame().is_some() {}
                frame.header["abort"].clone()
            }
        });
        let sender = finish(sender, b"");
        assert_eq!(sender.status.code(), Some(1));
        let said = text(&sender.stderr);
        assert!(
            said.starts_with(&format!("multinet: {} has ", path.display())) && said.lines().count() == 1,
            "{said}"
        );
        assert_eq!(receiving.join().unwrap(), reason);
    }
}

#[test]
fn an_output_that_cannot_be_written_is_refused_before_listening() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing").join("out");
    let output = run(&["recv", "-o", missing.to_str().unwrap(), "--address", "127.0.0.1"], b"");
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains("there is no folder") && !said.contains("listening"), "{said}");
}
