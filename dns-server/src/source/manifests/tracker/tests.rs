use std::path::Path;

use super::super::scan::FileStamp;
use super::*;

/// A tracker and a simulated file system, with a clock that only the test advances.
struct Simulation {
    tracker: Tracker,
    seen: BTreeMap<FileKey, FileState>,
    unknown: Vec<FileKey>,
    now: Instant,
}

fn key(name: &str) -> FileKey {
    FileKey::new(0, Path::new(name))
}

impl Simulation {
    /// Returns a file system with the file `a` of length 1, which has been read.
    fn new() -> Self {
        let mut simulation = Self {
            tracker: Tracker::default(),
            seen: BTreeMap::new(),
            unknown: Vec::new(),
            now: Instant::now(),
        };
        simulation.file("a", 1);
        assert_eq!(simulation.steps_at(true), ["read a"]);
        simulation
    }

    /// Puts a file of this length; another length is another state.
    fn file(&mut self, name: &str, len: u64) {
        let mut stamp = FileStamp::of(&std::fs::metadata("/").unwrap());
        stamp.len = len;
        self.seen.insert(key(name), FileState::File(stamp));
    }

    fn after(&mut self, wait: Duration) -> &mut Self {
        self.now += wait;
        self
    }

    /// Returns the steps that are due now.
    fn steps(&mut self) -> Vec<String> {
        self.steps_at(false)
    }

    fn steps_at(&mut self, is_first: bool) -> Vec<String> {
        let steps = self.tracker.due(self.seen.clone(), &self.unknown, self.now, is_first);
        let steps = steps.into_iter().map(|step| match step {
            Step::Read(key, _) => format!("read {}", key.path().display()),
            Step::Unreadable(key, reason) => format!("unreadable {} {reason}", key.path().display()),
            Step::Remove(key) => format!("remove {}", key.path().display()),
        });
        steps.collect()
    }
}

const NOTHING: [&str; 0] = [];

#[test]
fn a_change_is_read_once_the_file_has_stayed_the_same() {
    let mut simulation = Simulation::new();
    assert_eq!(simulation.after(QUIET).steps(), NOTHING);
    simulation.file("a", 2);
    simulation.file("b", 1);
    assert_eq!(simulation.steps(), NOTHING);
    simulation.file("a", 3);
    assert_eq!(simulation.after(QUIET / 2).steps(), NOTHING);
    assert_eq!(simulation.after(QUIET / 2).steps(), ["read b"]);
    assert_eq!(simulation.after(QUIET / 2).steps(), ["read a"]);
    assert_eq!(simulation.after(QUIET).steps(), NOTHING);
    // A change that is reverted in time causes no read.
    simulation.file("a", 4);
    assert_eq!(simulation.steps(), NOTHING);
    simulation.file("a", 3);
    assert_eq!(simulation.after(QUIET).steps(), NOTHING);
}

#[test]
fn a_file_that_keeps_changing_is_read_in_the_end() {
    let mut simulation = Simulation::new();
    let mut steps = Vec::new();
    let changes = LONGEST.as_millis() / (QUIET / 2).as_millis() + 2;
    for len in 2..2 + changes as u64 {
        simulation.file("a", len);
        steps.extend(simulation.steps());
        simulation.after(QUIET / 2);
    }
    assert_eq!(steps, ["read a"]);
}

#[test]
fn a_file_that_is_removed_and_written_anew_is_not_removed() {
    let mut simulation = Simulation::new();
    let file = simulation.seen.remove(&key("a")).unwrap();
    assert_eq!(simulation.steps(), NOTHING);
    simulation.seen.insert(key("a"), file);
    assert_eq!(simulation.after(QUIET).steps(), NOTHING);
    simulation.seen.clear();
    simulation.steps();
    assert_eq!(simulation.after(QUIET).steps(), ["remove a"]);
    assert_eq!(simulation.steps(), NOTHING);
    // A file that existed only between two reads causes no step.
    simulation.file("b", 1);
    simulation.steps();
    simulation.seen.clear();
    assert_eq!(simulation.after(QUIET).steps(), NOTHING);
}

#[test]
fn a_recently_written_file_is_read_again() {
    let mut simulation = Simulation::new();
    simulation.tracker.was_read(&key("a"), Duration::from_millis(10), simulation.now);
    assert_eq!(simulation.steps(), NOTHING);
    assert_eq!(simulation.after(COARSE).steps(), ["read a"]);
    simulation.tracker.was_read(&key("a"), COARSE, simulation.now);
    assert_eq!(simulation.after(COARSE).steps(), NOTHING);
}

#[test]
fn a_file_that_changed_while_it_was_read_is_read_again() {
    let mut simulation = Simulation::new();
    simulation.tracker.forget(&key("a"), simulation.now);
    assert_eq!(simulation.steps(), ["read a"]);
    simulation.tracker.forget(&key("a"), simulation.now);
    simulation.file("a", 2);
    assert_eq!(simulation.steps(), NOTHING);
    assert_eq!(simulation.after(QUIET).steps(), ["read a"]);
    // A file that is removed instead of read again is still noticed.
    simulation.tracker.forget(&key("a"), simulation.now);
    simulation.seen.clear();
    simulation.steps();
    assert_eq!(simulation.after(QUIET).steps(), ["remove a"]);
}

#[test]
fn a_file_in_a_folder_that_cannot_be_read_is_kept() {
    let mut simulation = Simulation::new();
    simulation.file("d/a", 1);
    simulation.steps();
    assert_eq!(simulation.after(QUIET).steps(), ["read d/a"]);
    simulation.seen.clear();
    simulation.seen.insert(key("d"), FileState::Unreadable("permission denied".to_owned()));
    simulation.unknown.push(key("d"));
    assert_eq!(simulation.steps(), NOTHING);
    assert_eq!(simulation.after(QUIET).steps(), ["remove a", "unreadable d permission denied"]);
    simulation.unknown.clear();
    simulation.seen.clear();
    simulation.file("d/a", 1);
    assert_eq!(simulation.steps(), NOTHING);
    assert_eq!(simulation.after(QUIET).steps(), ["remove d"]);
}
