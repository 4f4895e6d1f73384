//! Misuse of this crate that the compiler refuses.

#![expect(clippy::expect_used, reason = "a test that cannot be set up has failed")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;
use std::{env, fs};

/// The files of `tests/misuse`, each with the beginning of the compiler's error.
const REFUSED: [(&str, &str); 12] = [
    ("borrow_a_region", "6:5: error[E0308]: mismatched types: expected `&[u8]`, found `&MemoryRegion`"),
    ("change_received_bytes", "6:5: error[E0594]: cannot assign to data in dereference of `ReceivedBytes`"),
    ("connect_twice", "6:40: error[E0382]: use of moved value: `pair`"),
    ("copy_a_queue_pair", "6:5: error[E0308]: mismatched types: expected `QueuePair`, found `&QueuePair`"),
    ("drop_region_before_writing", "8:10: error[E0505]: cannot move out of `region` because it is borrowed"),
    ("fill_pages_of_a_write", "8:5: error[E0502]: cannot borrow `*pages` as mutable"),
    ("fill_pages_that_are_shared", "8:5: error[E0596]: cannot borrow data in an `Arc` as mutable"),
    ("keep_bytes_of_pages", "7:10: error[E0505]: cannot move out of `pages` because it is borrowed"),
    ("keep_received_bytes", "8:5: error[E0515]: cannot return value referencing local variable `received`"),
    (
        "make_up_received_bytes",
        "6:21: error[E0451]: fields `buffer` and `range` of struct `ReceivedBytes` are private",
    ),
    ("open_a_library_of_ones_own", "7:5: error[E0521]: borrowed data escapes outside of function"),
    (
        "write_before_connecting",
        "6:10: error[E0599]: no method named `post_writes` found for reference `&UnconnectedQueuePair`",
    ),
];

/// Returns the path of the newest build of the crate, the one that this test is linked with.
fn library() -> PathBuf {
    let program = env::current_exe().expect("a test has a file");
    let folder = program.parent().expect("which is in the folder of dependencies");
    let built = fs::read_dir(folder).expect("it is there").map(|entry| entry.expect("it can be read").path());
    let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let is_ours = |name: String| name.starts_with("libmultinet_verbs-") && name.ends_with(".rlib");
    let since =
        |path: &PathBuf| path.metadata().and_then(|about| about.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    built.filter(|path| name(path).is_some_and(is_ours)).max_by_key(since).expect("the crate is built")
}

#[test]
fn each_misuse_is_refused_by_the_compiler() {
    assert_eq!(fs::read_dir("tests/misuse").unwrap().count(), REFUSED.len(), "a file that is not tried");
    let library = library();
    let scratch = tempfile::tempdir().unwrap();
    for (name, reason) in REFUSED {
        let mut rustc = Command::new("rustc");
        rustc.args(["--edition=2024", "--emit=metadata", "--error-format=short", "--cap-lints=allow"]);
        rustc.arg("--out-dir").arg(scratch.path()).arg("-L").arg(library.parent().unwrap());
        rustc.arg("--extern").arg(format!("multinet_verbs={}", library.display()));
        let output = rustc.arg(format!("tests/misuse/{name}.rs")).output().expect("rustc starts");
        let said = String::from_utf8_lossy(&output.stderr);
        let first = said.lines().next().unwrap_or_default();
        assert!(first.starts_with(&format!("tests/misuse/{name}.rs:{reason}")), "{name}:\n{said}");
        assert!(said.contains("aborting due to 1 previous error"), "{name}:\n{said}");
    }
}
