use std::path::Path;

use super::super::scan::Print;
use super::*;

/// A tracker and the file system as it sees it, with a clock that only moves when told to.
struct World {
    tracker: Tracker,
    seen: BTreeMap<FileKey, Seen>,
    unknown: Vec<FileKey>,
    now: Instant,
}

fn key(name: &str) -> FileKey {
    FileKey::new(0, Path::new(name))
}

impl World {
    /// A file system with the file `a` of length 1, which has been read.
    fn new() -> Self {
        let mut world = Self {
            tracker: Tracker::default(),
            seen: BTreeMap::new(),
            unknown: Vec::new(),
            now: Instant::now(),
        };
        world.file("a", 1);
        assert_eq!(world.look_at(true), ["read a"]);
        world
    }

    /// A file of this length; another length is another state.
    fn file(&mut self, name: &str, len: u64) {
        let mut print = Print::of(&std::fs::metadata("/").unwrap());
        print.len = len;
        self.seen.insert(key(name), Seen::File(print));
    }

    fn after(&mut self, wait: Duration) -> &mut Self {
        self.now += wait;
        self
    }

    /// Returns what is done now.
    fn look(&mut self) -> Vec<String> {
        self.look_at(false)
    }

    fn look_at(&mut self, is_first: bool) -> Vec<String> {
        let steps = self.tracker.look(self.seen.clone(), &self.unknown, self.now, is_first);
        let steps = steps.into_iter().map(|step| match step {
            Step::Read(key) => format!("read {}", key.path().display()),
            Step::Unreadable(key, reason) => format!("unreadable {} {reason}", key.path().display()),
            Step::Remove(key) => format!("remove {}", key.path().display()),
        });
        steps.collect()
    }
}

const NOTHING: [&str; 0] = [];

#[test]
fn a_change_is_read_once_the_file_has_stayed_the_same() {
    let mut world = World::new();
    assert_eq!(world.after(QUIET).look(), NOTHING);
    world.file("a", 2);
    world.file("b", 1);
    assert_eq!(world.look(), NOTHING);
    world.file("a", 3);
    assert_eq!(world.after(QUIET / 2).look(), NOTHING);
    assert_eq!(world.after(QUIET / 2).look(), ["read b"]);
    assert_eq!(world.after(QUIET / 2).look(), ["read a"]);
    assert_eq!(world.after(QUIET).look(), NOTHING);
    // A change that is taken back is none.
    world.file("a", 4);
    assert_eq!(world.look(), NOTHING);
    world.file("a", 3);
    assert_eq!(world.after(QUIET).look(), NOTHING);
}

#[test]
fn a_file_that_is_removed_and_written_anew_is_not_removed() {
    let mut world = World::new();
    let file = world.seen.remove(&key("a")).unwrap();
    assert_eq!(world.look(), NOTHING);
    world.seen.insert(key("a"), file);
    assert_eq!(world.after(QUIET).look(), NOTHING);
    world.seen.clear();
    world.look();
    assert_eq!(world.after(QUIET).look(), ["remove a"]);
    assert_eq!(world.look(), NOTHING);
    // Nor is one that came and went between two reads.
    world.file("b", 1);
    world.look();
    world.seen.clear();
    assert_eq!(world.after(QUIET).look(), NOTHING);
}

#[test]
fn a_young_file_is_read_again() {
    let mut world = World::new();
    world.tracker.was_read(&key("a"), Duration::from_millis(10), world.now);
    assert_eq!(world.look(), NOTHING);
    assert_eq!(world.after(COARSE).look(), ["read a"]);
    world.tracker.was_read(&key("a"), COARSE, world.now);
    assert_eq!(world.after(COARSE).look(), NOTHING);
}

#[test]
fn a_file_that_changed_while_it_was_read_is_read_again() {
    let mut world = World::new();
    world.tracker.forget(&key("a"), world.now);
    assert_eq!(world.look(), ["read a"]);
    world.tracker.forget(&key("a"), world.now);
    world.file("a", 2);
    assert_eq!(world.look(), NOTHING);
    assert_eq!(world.after(QUIET).look(), ["read a"]);
    // It is not forgotten if it is removed instead.
    world.tracker.forget(&key("a"), world.now);
    world.seen.clear();
    world.look();
    assert_eq!(world.after(QUIET).look(), ["remove a"]);
}

#[test]
fn a_file_in_a_folder_that_cannot_be_read_is_kept() {
    let mut world = World::new();
    world.file("d/a", 1);
    world.look();
    assert_eq!(world.after(QUIET).look(), ["read d/a"]);
    world.seen.clear();
    world.seen.insert(key("d"), Seen::Unreadable("permission denied".to_owned()));
    world.unknown.push(key("d"));
    assert_eq!(world.look(), NOTHING);
    assert_eq!(world.after(QUIET).look(), ["remove a", "unreadable d permission denied"]);
    world.unknown.clear();
    world.seen.clear();
    world.file("d/a", 1);
    assert_eq!(world.look(), NOTHING);
    assert_eq!(world.after(QUIET).look(), ["remove d"]);
}
