//! Tests of `multinet send` and `multinet recv`.

use std::fs;
use std::fs::Permissions;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Output;
use std::time::Duration;

use multinet_client::{Connector, Resolver, Transport};
use socket2::{Domain, Socket, Type};
use tempfile::TempDir;

use super::support::{Says, Server, finish, run, spawn, text, until, without_rights};

/// Returns bytes that do not repeat at multiples of any frame size.
fn bytes(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_u32;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

fn receiver(output: &Path, port: u16, more: &[&str]) -> Server {
    Server::start(&[&["recv", "-o", output.to_str().unwrap()], more].concat(), port, Says::Stderr)
}

fn send(to: SocketAddr, stdin: &[u8], more: &[&str]) -> Output {
    run(&[&["send", &to.to_string()], more].concat(), stdin)
}

/// Checks that both sides print the same size and checksum.
fn agree(sender: &Output, receiver: &Output, length: usize) {
    assert_eq!((text(&sender.stderr), text(&receiver.stderr)), ("", ""));
    assert!(sender.status.success() && receiver.status.success());
    let said = |output: &Output, did: &str| -> String {
        let line = text(&output.stdout).strip_prefix(did).unwrap_or_else(|| panic!("{output:?}")).to_owned();
        line.rsplit_once(", ").unwrap().0.to_owned()
    };
    let (sent, received) = (said(sender, "sent "), said(receiver, "received "));
    assert_eq!(sent, received);
    assert!(sent.starts_with(&format!("{length} bytes, SHA-256 ")), "{sent}");
}

fn only_file(folder: &TempDir) -> Vec<u8> {
    let files: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    let [file] = &files[..] else { panic!("{files:?}") };
    fs::read(file).unwrap()
}

#[test]
fn a_file_of_any_size_arrives() {
    for length in [0, 1, 1 << 20, 5 << 20, (5 << 20) + 1] {
        let folder = tempfile::tempdir().unwrap();
        let content = bytes(length);
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&content).unwrap();
        let receiver = receiver(&folder.path().join("out"), 0, &[]);
        let sender = send(receiver.address, b"", &[file.path().to_str().unwrap()]);
        agree(&sender, &receiver.output(), length);
        assert!(only_file(&folder) == content, "{length} bytes");
    }
}

#[test]
fn standard_input_arrives_at_standard_output() {
    let content = bytes(3_000_000);
    for arguments in [&["recv"][..], &["recv", "-o", "/dev/stdout"]] {
        let receiver = Server::start(arguments, 0, Says::Stderr);
        let sender = send(receiver.address, &content, &["--frame-size", "65536"]);
        assert!(sender.status.success(), "{}", text(&sender.stderr));
        let output = receiver.output();
        assert!(output.stdout == content);
        // Its messages go to the other stream.
        let said = text(&output.stderr);
        assert!(output.status.success() && said.starts_with("received 3000000 bytes, SHA-256 "), "{said}");
        assert_eq!(said.lines().count(), 1);
    }
}

#[test]
fn a_receiver_that_is_killed_and_started_again_continues_the_transfer() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    let content = bytes(5 << 20);
    let first = receiver(&path, 0, &[]);
    let address = first.address;
    let mut sender = spawn(&["send", &address.to_string(), "--frame-size", "100000"]);
    // Half of it comes, and more only when the second receiver is there: standard input is a pipe.
    let (half, rest) = content.split_at(2_500_000);
    sender.stdin.as_mut().unwrap().write_all(half).unwrap();
    let written = || {
        fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().metadata().unwrap().len())
            .sum::<u64>()
    };
    until(|| written() >= 2_000_000);
    first.kill();
    assert!(!path.exists());
    let second = receiver(&path, address.port(), &[]);
    let sender = finish(sender, rest);
    // Only log lines report the break.
    assert!(text(&sender.stderr).lines().all(|line| line.contains("WARN")), "{}", text(&sender.stderr));
    agree(&Output { stderr: Vec::new(), ..sender }, &second.output(), content.len());
    assert!(only_file(&folder) == content);
}

#[test]
fn a_receiver_without_the_beginning_says_so() {
    let content = bytes(3_000_000);
    let first = Server::start(&["recv", "--frame-size", "200000"], 0, Says::Stderr);
    let address = first.address;
    let mut sender = spawn(&["send", &address.to_string(), "--frame-size", "20000"]);
    // More than the sender keeps and the pipe holds: the sender has released the first frames,
    // since they were acknowledged. That they are printed would not prove it.
    sender.stdin.as_mut().unwrap().write_all(&content[..1_500_000]).unwrap();
    first.kill();
    // The next receiver does not have what the first one wrote to standard output.
    let second = Server::start(&["recv"], address.port(), Says::Stderr);
    let sender = finish(sender, &content[1_500_000..]);
    assert_eq!(sender.status.code(), Some(1));
    // It keeps waiting for a sender that begins at the beginning.
    second.interrupt();
    let receiver = second.output();
    let (theirs, ours) = (text(&receiver.stderr), text(&sender.stderr));
    assert!(theirs.contains("the beginning is missing"), "{theirs}");
    assert!(ours.contains("multinet: the receiver refused the transfer"), "{ours}");
    assert!(receiver.stdout.is_empty());
}

#[test]
fn transfers_one_after_the_other_get_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let receiver = receiver(&folder.path().join("out"), 0, &["--keep"]);
    for (length, name) in [(10, "out"), (200_000, "out.1"), (0, "out.2")] {
        let content = bytes(length);
        let sender = send(receiver.address, &content, &[]);
        assert!(sender.status.success(), "{}", text(&sender.stderr));
        assert!(fs::read(folder.path().join(name)).unwrap() == content);
    }
    until(|| fs::read_dir(folder.path()).unwrap().count() == 3);
    receiver.interrupt();
    let output = receiver.output();
    let names: Vec<&str> = text(&output.stdout)
        .lines()
        .map(|line| line.rsplit_once(", as ").map_or("", |(_, name)| name))
        .collect();
    let [one, two] = ["out.1", "out.2"].map(|name| folder.path().join(name).display().to_string());
    assert_eq!(names, ["", one.as_str(), two.as_str()]);
}

#[test]
fn transfers_at_once_get_numbers_as_they_end() {
    let folder = tempfile::tempdir().unwrap();
    let receiver = receiver(&folder.path().join("out"), 0, &["--keep"]);
    let contents = [30, 20, 10].map(bytes);
    let mut senders = contents.each_ref().map(|content| {
        let mut sender = spawn(&["send", &receiver.address.to_string(), "--frame-size", "5"]);
        sender.stdin.as_mut().unwrap().write_all(&content[..5]).unwrap();
        Some(sender)
    });
    until(|| fs::read_dir(folder.path()).unwrap().count() == 3);
    // The last one first.
    for (number, name) in [(2, "out"), (1, "out.1"), (0, "out.2")] {
        let sender = finish(senders[number].take().unwrap(), &contents[number][5..]);
        assert!(sender.status.success(), "{}", text(&sender.stderr));
        assert!(fs::read(folder.path().join(name)).unwrap() == contents[number], "{name}");
    }
    receiver.kill();
}

#[test]
fn a_file_that_exists_is_replaced_only_with_force() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    fs::write(&path, "old").unwrap();
    let refused = run(&["recv", "-o", path.to_str().unwrap(), "--address", "127.0.0.1"], b"");
    assert_eq!(refused.status.code(), Some(1));
    let expected =
        format!("multinet: {} exists: name another file, or have it replaced by --force\n", path.display());
    assert_eq!(text(&refused.stderr), expected);
    let receiver = receiver(&path, 0, &["--force"]);
    agree(&send(receiver.address, b"new", &[]), &receiver.output(), 3);
    assert_eq!(only_file(&folder), b"new");
}

#[test]
fn a_second_sender_to_a_file_may_finish_first() {
    let folder = tempfile::tempdir().unwrap();
    let receiver = receiver(&folder.path().join("out"), 0, &[]);
    let mut first = spawn(&["send", &receiver.address.to_string(), "--frame-size", "10", "--wait", "1"]);
    first.stdin.as_mut().unwrap().write_all(b"0123456789").unwrap();
    until(|| fs::read_dir(folder.path()).unwrap().count() > 0);
    let second = send(receiver.address, b"other", &[]);
    assert!(second.status.success(), "{}", text(&second.stderr));
    let first = finish(first, b"9876543210");
    assert_eq!(first.status.code(), Some(1));
    let output = receiver.output();
    assert!(output.status.success() && text(&output.stdout).starts_with("received 5 bytes"), "{output:?}");
    assert_eq!(only_file(&folder), b"other");
}

/// The receiver syncs the file system in place of the folder.
#[test]
fn a_folder_that_cannot_be_read_is_written_to() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    fs::set_permissions(folder.path(), Permissions::from_mode(0o333)).unwrap();
    let mut command = without_rights();
    command.args(["recv", "-o", path.to_str().unwrap()]);
    let receiver = Server::start_command(command, 0, Says::Stderr);
    let sender = send(receiver.address, b"content", &[]);
    assert!(sender.status.success(), "{}", text(&sender.stderr));
    let output = receiver.output();
    assert!(output.status.success(), "{output:?}");
    assert!(text(&output.stderr).contains("cannot look for what earlier receivers have left"), "{output:?}");
    assert_eq!(fs::read(path).unwrap(), b"content");
    fs::set_permissions(folder.path(), Permissions::from_mode(0o700)).unwrap();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

/// Both sides report it.
#[test]
fn a_full_disk_is_named() {
    let receiver = receiver(Path::new("/dev/full"), 0, &[]);
    let sender = send(receiver.address, b"content", &[]);
    let output = receiver.output();
    assert_eq!((sender.status.code(), output.status.code()), (Some(1), Some(1)));
    assert_eq!(
        text(&output.stderr),
        "multinet: cannot write /dev/full: No space left on device (os error 28)\n"
    );
    assert!(text(&sender.stderr).contains("it could not write"), "{}", text(&sender.stderr));
}

#[test]
fn the_wrong_peer_is_no_receiver() {
    // It receives frames, but does not keep them.
    let bench = Server::start(&["bench", "server"], 0, Says::Stdout);
    let sender = send(bench.address, b"content", &[]);
    assert_eq!(sender.status.code(), Some(1));
    assert!(text(&sender.stderr).contains("the receiver refused"), "{}", text(&sender.stderr));

    // Another protocol, and a port on which no program listens.
    let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = stranger.local_addr().unwrap();
    std::thread::spawn(move || {
        for connection in stranger.incoming() {
            let _ = connection
                .and_then(|mut connection| connection.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n"));
        }
    });
    // Bound, so that no other program gets the port, but not listening.
    let unused = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    unused.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
    let closed = unused.local_addr().unwrap().as_socket().unwrap();
    for (address, expected) in [(address, "something else than a handshake"), (closed, "Connection refused")]
    {
        let sender = send(address, b"content", &["--wait", "1"]);
        assert_eq!(sender.status.code(), Some(1));
        assert!(text(&sender.stderr).contains(expected), "{}", text(&sender.stderr));
    }
}

/// Other connections do not count as the sender. The receiver waits for the next sender.
#[test]
fn a_sender_that_goes_leaves_nothing() {
    for has_others in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let receiver = receiver(&folder.path().join("out"), 0, &["--wait", "1"]);
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let connect = async || {
            let address = receiver.address;
            let resolver = Resolver::builder().servers([address]).build().unwrap();
            let connector =
                Connector::builder().resolver(resolver).transport(Transport::Tcp).build().unwrap();
            connector.connect(&address.ip().to_string(), &address.port().to_string()).await.unwrap()
        };
        let other = has_others.then(|| runtime.block_on(connect()));
        let mut sender = spawn(&["send", &receiver.address.to_string(), "--frame-size", "10"]);
        sender.stdin.as_mut().unwrap().write_all(b"0123456789").unwrap();
        until(|| fs::read_dir(folder.path()).unwrap().count() > 0);
        sender.kill().unwrap();
        sender.wait().unwrap();
        until(|| fs::read_dir(folder.path()).unwrap().count() == 0);
        drop(other);
        let next = send(receiver.address, b"next", &[]);
        assert!(next.status.success(), "{}", text(&next.stderr));
        let output = receiver.output();
        let said = text(&output.stderr);
        assert!(said.contains("has gone for 1 s, after 10 bytes; waiting for another sender"), "{said}");
        assert!(output.status.success());
        assert_eq!(only_file(&folder), b"next");
    }
}

#[test]
fn a_sender_that_takes_its_time_is_not_gone() {
    let folder = tempfile::tempdir().unwrap();
    let receiver = receiver(&folder.path().join("out"), 0, &["--wait", "0"]);
    let mut sender = spawn(&["send", &receiver.address.to_string(), "--frame-size", "10"]);
    sender.stdin.as_mut().unwrap().write_all(b"0123456789").unwrap();
    until(|| fs::read_dir(folder.path()).unwrap().count() > 0);
    // The receiver checks several times meanwhile.
    std::thread::sleep(Duration::from_secs(1));
    agree(&finish(sender, b"9876543210"), &receiver.output(), 20);
    assert_eq!(only_file(&folder), b"01234567899876543210");
}

#[test]
fn a_closed_pipe_ends_quietly() {
    for more in [&[][..], &["--keep"]] {
        let receiver = Server::start(&[&["recv"], more].concat(), 0, Says::StderrAlone);
        let sender = send(receiver.address, &bytes(1_000_000), &[]);
        assert_eq!(sender.status.code(), Some(1));
        let output = receiver.output();
        assert!(output.status.success());
        assert_eq!(text(&output.stderr), "", "{more:?}");
    }
}

#[test]
fn the_sender_is_answered_though_the_receivers_output_has_no_reader() {
    for more in [&[][..], &["--keep"]] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let arguments = [&["recv", "-o", path.to_str().unwrap()], more].concat();
        let receiver = Server::start(&arguments, 0, Says::StderrAlone);
        let sender = send(receiver.address, b"content", &[]);
        assert!(sender.status.success(), "{}", text(&sender.stderr));
        let output = receiver.output();
        assert!(output.status.success());
        assert_eq!((text(&output.stderr), text(&sender.stderr)), ("", ""));
        assert_eq!(only_file(&folder), b"content");
    }
}

#[test]
fn an_interrupt_ends_quietly() {
    let folder = tempfile::tempdir().unwrap();
    let receiver = receiver(&folder.path().join("out"), 0, &[]);
    receiver.interrupt();
    let output = receiver.output();
    assert!(!output.status.success());
    assert_eq!((text(&output.stdout), text(&output.stderr)), ("", ""));
}

#[test]
fn a_log_without_reader_is_no_failure() {
    let folder = tempfile::tempdir().unwrap();
    let early = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = early.local_addr().unwrap();
    let mut sender = spawn(&["send", &address.to_string()]);
    drop(sender.stderr.take());
    // This connection breaks, which is a warning.
    drop(early.accept().unwrap());
    drop(early);
    let receiver = receiver(&folder.path().join("out"), address.port(), &[]);
    let sender = finish(sender, b"content");
    agree(&sender, &receiver.output(), 7);
    assert_eq!(only_file(&folder), b"content");
}
