//! Tests of `multinet put` and `multinet get`.

use std::fs;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Output;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tempfile::NamedTempFile;

use super::support::{Says, Server, finish, host, reference, run, spawn, text, until, with_small_files};

/// Returns bytes that do not repeat at multiples of any frame size.
fn bytes(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_u32;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

/// Starts a `multinet put` of this content, with the id `file`. The file is removed with the second
/// value.
fn put(content: &[u8], more: &[&str]) -> (Server, NamedTempFile) {
    let file = NamedTempFile::new().unwrap();
    fs::write(file.path(), content).unwrap();
    let arguments = [&["put", file.path().to_str().unwrap(), "--id", "file"], more].concat();
    (Server::start(&arguments, 0, Says::Stderr), file)
}

fn get(from: SocketAddr, more: &[&str]) -> Output {
    run(&[&["get", &from.to_string(), &reference("file")], more].concat(), b"")
}

/// Returns the size and the checksum that a program has printed.
fn said<'o>(output: &'o [u8], did: &str) -> &'o str {
    let lines = text(output).lines();
    let line = lines.filter_map(|line| line.strip_prefix(did)).next();
    let line = line.unwrap_or_else(|| panic!("{}", text(output)));
    let (end, _) = line.match_indices(", ").nth(1).unwrap_or((line.len(), ""));
    &line[..end]
}

#[test]
fn a_file_of_any_size_is_fetched() {
    for length in [0, 1, 100_000, 1_234_567] {
        let content = bytes(length);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let (put, _file) = put(&content, &["--frame-size", "100000"]);
        let get = get(put.address, &["-o", path.to_str().unwrap()]);
        assert!(get.status.success() && get.stderr.is_empty(), "{get:?}");
        let put = put.output();
        assert!(put.status.success(), "{put:?}");
        assert_eq!(text(&put.stdout), format!("{}/file\n", host()));
        let told = said(&get.stdout, "received ");
        assert_eq!(told, said(&put.stderr, "offered "));
        assert!(told.starts_with(&format!("{length} bytes, SHA-256 ")), "{told}");
        assert!(fs::read(&path).unwrap() == content, "{length} bytes");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}

#[test]
fn standard_input_is_fetched_to_standard_output_by_its_random_id() {
    let content = bytes(300_000);
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let port = address.port().to_string();
    let mut put = spawn(&["put", "-", "--address", "127.0.0.1", "--port", &port, "--frame-size", "65536"]);
    put.stdin.take().unwrap().write_all(&content).unwrap();
    let mut reference = String::new();
    BufReader::new(put.stdout.as_mut().unwrap()).read_line(&mut reference).unwrap();
    let id = reference.trim().strip_prefix(&format!("{}/", host())).unwrap();
    assert!(id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{reference}");
    let get = run(&["get", &address.to_string(), reference.trim()], b"");
    assert!(get.status.success() && get.stdout == content, "{}", text(&get.stderr));
    // Messages go to the other stream.
    assert!(said(&get.stderr, "received ").starts_with("300000 bytes, SHA-256 "));
    assert!(put.wait().unwrap().success());
}

/// Returns a port that no program has at present.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A named pipe that is not read stops the first one in the middle.
#[test]
fn a_get_that_is_killed_leaves_the_file_to_the_next() {
    let content = bytes(3_000_000);
    let folder = tempfile::tempdir().unwrap();
    let [pipe, path] = ["pipe", "out"].map(|name| folder.path().join(name));
    mkfifo(&pipe, Mode::S_IRWXU).unwrap();
    // Opened for both, so that neither side waits for the other.
    let reader = File::options().read(true).write(true).open(&pipe).unwrap();
    let (put, _file) = put(&content, &["--frame-size", "100000"]);
    let mut first =
        spawn(&["get", &put.address.to_string(), &reference("file"), "-o", pipe.to_str().unwrap()]);
    until(|| is_readable(&reader));
    first.kill().unwrap();
    first.wait().unwrap();
    let second = get(put.address, &["-o", path.to_str().unwrap()]);
    assert!(second.status.success(), "{}", text(&second.stderr));
    assert!(fs::read(&path).unwrap() == content);
    assert!(put.output().status.success());
}

/// A limit on the size of files stops the first one in the middle, as a full disk does.
#[test]
fn a_get_that_fails_keeps_what_has_come_for_the_same_command() {
    let content = bytes(2_000_000);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    let output = path.to_str().unwrap();
    let (put, _file) = put(&content, &["--frame-size", "100000"]);
    let mut limited = with_small_files(1000);
    limited.args(["get", &put.address.to_string(), &reference("file"), "-o", output]);
    let failed = limited.output().unwrap();
    let said = text(&failed.stderr);
    assert_eq!(failed.status.code(), Some(1), "{said}");
    assert!(said.starts_with(&format!("multinet: cannot write {output}: File too large")), "{said}");
    assert!(said.contains("; 1000000 bytes are in "), "{said}");
    let left = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).next().unwrap();
    assert!(said.contains(&format!("{}, and the same command continues there", left.display())), "{said}");
    // Open, so that no new file gets its number.
    let part = File::open(left).unwrap();
    assert!(get(put.address, &["-o", output]).status.success());
    assert_eq!(fs::metadata(&path).unwrap().ino(), part.metadata().unwrap().ino(), "it was continued");
    assert!(fs::read(&path).unwrap() == content);
    assert!(put.output().status.success());
}

fn is_readable(file: &impl AsFd) -> bool {
    let mut wanted = [PollFd::new(file.as_fd(), PollFlags::POLLIN)];
    poll(&mut wanted, PollTimeout::ZERO).unwrap() > 0
}

/// The file ends with the first; the second is stopped in the middle by a pipe that is not read.
#[test]
fn of_two_gets_at_once_the_slower_one_says_that_the_file_is_gone() {
    let content = bytes(5_000_000);
    let folder = tempfile::tempdir().unwrap();
    let (put, _file) = put(&content, &["--frame-size", "100000"]);
    let slow = spawn(&["get", &put.address.to_string(), &reference("file"), "--wait", "1"]);
    let address = put.address;
    // Its first bytes are in the pipe.
    until(|| is_readable(slow.stdout.as_ref().unwrap()));
    let fast = get(address, &["-o", folder.path().join("out").to_str().unwrap()]);
    assert!(fast.status.success(), "{}", text(&fast.stderr));
    assert!(put.output().status.success());
    let slow = finish(slow, b"");
    let said = text(&slow.stderr).lines().last().unwrap_or_default().to_owned();
    assert_eq!(slow.status.code(), Some(1), "{said}");
    assert!(said.starts_with(&format!("multinet: {} after ", reference("file"))), "{said}");
    assert!(content.starts_with(&slow.stdout) && slow.stdout.len() < content.len());
}

/// The file is one chunk, which has come when its first bytes are in the pipe.
#[test]
fn a_get_whose_put_has_died_says_that_it_could_not_be_told() {
    let content = bytes(200_000);
    let (put, _file) = put(&content, &[]);
    let get = spawn(&["get", &put.address.to_string(), &reference("file")]);
    until(|| is_readable(get.stdout.as_ref().unwrap()));
    put.kill();
    let get = finish(get, b"");
    let said = text(&get.stderr).lines().last().unwrap_or_default();
    assert_eq!(get.status.code(), Some(3), "{said}");
    assert!(
        said.starts_with(&format!("multinet: not confirmed: all of {} has been written", reference("file"))),
        "{said}"
    );
    assert!(get.stdout == content);
}

#[test]
fn a_file_that_is_not_fetched_is_offered_until_the_deadline() {
    let (put, _file) = put(b"content", &["--wait", "0"]);
    let output = put.output();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stdout), format!("{}/file\n", host()));
    let said = text(&output.stderr).lines().last().unwrap().to_owned();
    assert!(
        said.starts_with("multinet: no multinet get has had all of ") && said.contains("raise --wait"),
        "{said}"
    );
}

#[test]
fn an_interrupt_ends_the_offer_quietly() {
    let (put, _file) = put(b"content", &[]);
    put.interrupt();
    let output = put.output();
    assert_eq!(output.status.code(), Some(130));
    assert!(!text(&output.stderr).contains("multinet: "), "{output:?}");
}

#[test]
fn only_clients_that_are_listed_fetch() {
    let (put, _file) = put(b"content", &["--from", "10.9.0.0/24,10.9.1.7"]);
    let refused = get(put.address, &["--wait", "1"]);
    let said = text(&refused.stderr);
    assert_eq!((refused.status.code(), refused.stdout.len()), (Some(1), 0), "{said}");
    assert!(
        said.contains("127.0.0.1 may not fetch here: it is not among those that --from allows"),
        "{said}"
    );
    put.interrupt();
    let said = put.stderr();
    assert!(said.contains("without TLS hosts on the way may read and change the file, and forge"), "{said}");
    let (put, _file) = self::put(b"content", &["--from", "10.9.0.0/24", "--from", "127.0.0.0/8"]);
    assert!(get(put.address, &[]).status.success());
    assert!(put.output().status.success());
}

#[test]
fn a_host_name_for_references_can_be_given() {
    let (put, _file) = put(b"content", &["--host", "infer-0"]);
    let fetched = run(&["get", &put.address.to_string(), "infer-0/file"], b"");
    assert_eq!((fetched.status.code(), text(&fetched.stdout)), (Some(0), "content"), "{fetched:?}");
    assert_eq!(text(&put.output().stdout), "infer-0/file\n");
    // The kernel's, if none has been set.
    let put = run(&["put", "-", "--address", "127.0.0.1", "--host", "(none)"], b"content");
    let said = text(&put.stderr);
    assert_eq!(put.status.code(), Some(1), "{said}");
    assert!(said.starts_with("multinet: \"(none)\" is no host name for a reference HOST/ID: "), "{said}");
    assert!(said.ends_with(": name this host (--host)\n"), "{said}");
}

#[test]
fn a_reference_that_leads_nowhere_is_named() {
    let (put, _file) = put(b"content", &[]);
    let address = put.address.to_string();
    let wrong = run(&["get", &address, &reference("other"), "--wait", "1"], b"");
    assert_eq!(wrong.status.code(), Some(1));
    let said = text(&wrong.stderr);
    assert!(
        said.starts_with("multinet: ") && said.contains(&*reference("other")) && said.lines().count() == 1,
        "{said}"
    );
    assert!(get(put.address, &[]).status.success());
    assert!(put.output().status.success());
    // It has ended, and its port is closed.
    let gone = run(&["get", &address, &reference("file"), "--wait", "1"], b"");
    assert_eq!(gone.status.code(), Some(1));
    assert!(text(&gone.stderr).contains("nothing listens there"), "{}", text(&gone.stderr));
}

#[test]
fn senders_and_offers_that_meet_say_who_the_other_is() {
    let (put, _file) = put(b"content", &[]);
    let sent = run(&["send", &put.address.to_string(), "--wait", "1"], b"content");
    assert_eq!(sent.status.code(), Some(1));
    assert!(text(&sent.stderr).contains("this port offers payloads to fetch"), "{}", text(&sent.stderr));
    let doctor = run(&["doctor", &put.address.to_string(), "--server", "127.0.0.1:9"], b"");
    assert!(text(&doctor.stdout).contains("it offers payloads to fetch"), "{}", text(&doctor.stdout));
    let receiver = Server::start(&["recv"], 0, Says::Stderr);
    let fetched = get(receiver.address, &["--wait", "1"]);
    assert_eq!(fetched.status.code(), Some(1));
    assert!(text(&fetched.stderr).contains("offers no payloads"), "{}", text(&fetched.stderr));
    assert!(get(put.address, &[]).status.success());
}

#[test]
fn a_file_that_cannot_be_offered_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    fs::write(path("large"), bytes(20_000)).unwrap();
    let large = [&path("large"), "--memory", "20000"];
    let cases: [(&[&str], &str); 3] = [
        (&[&path("missing")], "cannot read "),
        (&[&path("")], "is a folder: give a tar of it"),
        (&large, "large has 20000 bytes or more, and at most 19488 can be on offer: raise --memory"),
    ];
    for (arguments, expected) in cases {
        let put = run(&[&["put", "--address", "127.0.0.1", "--port", "0"], arguments].concat(), b"");
        let said = text(&put.stderr);
        assert_eq!((put.status.code(), put.stdout.len()), (Some(1), 0), "{said}");
        assert!(said.lines().last().unwrap().contains(expected), "{said}");
    }
    // The size of standard input is not known beforehand.
    let put =
        run(&["put", "-", "--address", "127.0.0.1", "--port", "0", "--memory", "20000"], &bytes(30_000));
    assert!(text(&put.stderr).contains("standard input has "), "{}", text(&put.stderr));
}

#[test]
fn an_output_that_exists_is_kept_unless_it_may_be_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    fs::write(&path, "old").unwrap();
    let (put, _file) = put(b"new", &[]);
    let output = path.to_str().unwrap();
    let refused = get(put.address, &["-o", output]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("have it replaced by --force"), "{}", text(&refused.stderr));
    assert_eq!(read(&path), "old");
    assert!(get(put.address, &["-o", output, "--force"]).status.success());
    assert_eq!(read(&path), "new");
    assert!(put.output().status.success());
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

#[test]
fn chunks_that_do_not_fit_name_the_flag() {
    let (put, _file) = put(&bytes(100_000), &[]);
    let small = get(put.address, &["--frame-size", "65536"]);
    let said = text(&small.stderr);
    assert_eq!(small.status.code(), Some(1));
    assert!(said.contains("raise --frame-size"), "{said}");
    assert!(get(put.address, &[]).status.success());
}

#[test]
fn an_offer_without_tls_says_what_that_means() {
    let (put, _file) = put(b"content", &[]);
    put.interrupt();
    let said = put.stderr();
    assert!(
        said.contains("without TLS any client that reaches this port and knows the reference may fetch"),
        "{said}"
    );
}
