use std::path::Path;

use super::*;

/// A tracker and the file system as it sees it, with a clock that only moves when told to.
struct World {
    tracker: Tracker,
    writers: Writers,
    seen: BTreeMap<FileKey, Seen>,
    unknown: Vec<FileKey>,
    now: Instant,
}

fn key(name: &str) -> FileKey {
    FileKey::new(0, Path::new(name))
}

fn real(name: &str) -> PathBuf {
    Path::new("/real").join(name)
}

impl World {
    fn new() -> Self {
        let (tracker, writers, now) = (Tracker::default(), Writers::default(), Instant::now());
        Self { tracker, writers, seen: BTreeMap::new(), unknown: Vec::new(), now }
    }

    /// A file of this length; another length is another state.
    fn file(&mut self, name: &str, len: u64) {
        let metadata = std::fs::metadata("/").unwrap();
        let mut print = Print::of(real(name), &metadata);
        print.len = len;
        self.seen.insert(key(name), Seen::File(print));
    }

    fn after(&mut self, wait: Duration) -> &mut Self {
        self.now += wait;
        self
    }

    /// What is done now, and how long it is until there may be more to do.
    fn look(&mut self) -> (Vec<String>, Option<Duration>) {
        self.look_at(false)
    }

    fn look_at(&mut self, is_first: bool) -> (Vec<String>, Option<Duration>) {
        let (steps, next) =
            self.tracker.look(self.seen.clone(), &self.unknown, &self.writers, self.now, is_first);
        let steps = steps.into_iter().map(|step| match step {
            Step::Read(key, print) => format!("read {} {}", key.path().display(), print.len),
            Step::Unreadable(key, reason) => format!("unreadable {} {reason}", key.path().display()),
            Step::Remove(key) => format!("remove {}", key.path().display()),
        });
        (steps.collect(), next.map(|next| next - self.now))
    }
}

fn steps(steps: &[&str]) -> (Vec<String>, Option<Duration>) {
    (steps.iter().map(ToString::to_string).collect(), None)
}

fn wait(time: Duration) -> (Vec<String>, Option<Duration>) {
    (Vec::new(), Some(time))
}

#[test]
fn a_change_is_read_once_it_is_quiet() {
    let mut world = World::new();
    world.file("a", 1);
    assert_eq!(world.look_at(true), steps(&["read a 1"]));
    assert_eq!(world.after(QUIET).look(), steps(&[]));
    world.file("a", 2);
    world.file("b", 1);
    assert_eq!(world.look(), wait(QUIET));
    world.file("a", 3);
    assert_eq!(world.after(QUIET / 2).look(), wait(QUIET / 2));
    assert_eq!(world.after(QUIET / 2).look(), (vec!["read b 1".to_owned()], Some(QUIET / 2)));
    assert_eq!(world.after(QUIET / 2).look(), steps(&["read a 3"]));
    // What changes and changes back is no change.
    world.file("a", 4);
    assert_eq!(world.look(), wait(QUIET));
    world.file("a", 3);
    assert_eq!(world.after(QUIET).look(), steps(&[]));
}

#[test]
fn a_gap_between_removal_and_new_creation_is_none() {
    let mut world = World::new();
    world.file("a", 1);
    world.look_at(true);
    let file = world.seen.remove(&key("a")).unwrap();
    assert_eq!(world.look(), wait(QUIET));
    world.seen.insert(key("a"), file);
    assert_eq!(world.after(QUIET).look(), steps(&[]));
    world.seen.clear();
    world.look();
    assert_eq!(world.after(QUIET).look(), steps(&["remove a"]));
    assert_eq!(world.look(), steps(&[]));
    // A file that came and went between two looks is none either.
    world.file("b", 1);
    world.look();
    world.seen.clear();
    assert_eq!(world.after(QUIET).look(), steps(&[]));
}

#[test]
fn a_file_that_is_open_for_writing_is_left_alone() {
    let mut world = World::new();
    world.file("a", 9);
    world.look_at(true);
    world.file("a", 3);
    world.writers.wrote(real("a"), world.now);
    assert_eq!(world.look(), wait(OPEN));
    assert_eq!(world.after(OPEN / 2).look(), wait(OPEN / 2));
    world.writers.closed(real("a"), world.now);
    assert_eq!(world.look(), steps(&["read a 3"]));
    // Never closed: read all the same, in the end.
    world.file("a", 4);
    world.writers.wrote(real("a"), world.now);
    world.look();
    assert_eq!(world.after(OPEN).look(), steps(&["read a 4"]));
    // Something was missed: nothing is known of writers.
    world.file("a", 5);
    world.writers.wrote(real("a"), world.now);
    world.writers.forget(None);
    assert_eq!(world.look(), wait(QUIET));
}

#[test]
fn an_empty_file_may_be_about_to_be_written() {
    let mut world = World::new();
    world.file("a", 9);
    world.look_at(true);
    world.file("a", 0);
    assert_eq!(world.look(), wait(QUIET_EMPTY));
    world.writers.closed(real("a"), world.now);
    assert_eq!(world.look(), wait(QUIET));
    assert_eq!(world.after(QUIET).look(), steps(&["read a 0"]));
}

#[test]
fn a_young_file_is_read_again() {
    let mut world = World::new();
    world.file("a", 1);
    world.look_at(true);
    world.tracker.was_read(&key("a"), Duration::from_millis(10), world.now);
    assert_eq!(world.look(), wait(COARSE));
    assert_eq!(world.after(COARSE).look(), steps(&["read a 1"]));
    world.tracker.was_read(&key("a"), COARSE, world.now);
    assert_eq!(world.look(), steps(&[]));
}

#[test]
fn a_file_that_changed_while_it_was_read_is_new() {
    let mut world = World::new();
    world.file("a", 1);
    world.look_at(true);
    world.tracker.was_torn(&key("a"));
    assert_eq!(world.look(), wait(QUIET));
    assert_eq!(world.after(QUIET).look(), steps(&["read a 1"]));
    // It is not forgotten if it is removed instead.
    world.tracker.was_torn(&key("a"));
    world.seen.clear();
    world.look();
    assert_eq!(world.after(QUIET).look(), steps(&["remove a"]));
}

#[test]
fn nobody_knows_what_is_in_a_folder_that_cannot_be_read() {
    let mut world = World::new();
    world.file("d/a", 1);
    world.file("e", 1);
    world.look_at(true);
    world.seen.clear();
    world.seen.insert(key("d"), Seen::Unreadable("permission denied".to_owned()));
    world.unknown.push(key("d"));
    assert_eq!(world.look(), wait(QUIET));
    assert_eq!(world.after(QUIET).look(), steps(&["unreadable d permission denied", "remove e"]));
    world.unknown.clear();
    world.seen.clear();
    world.file("d/a", 1);
    assert_eq!(world.look(), wait(QUIET));
    assert_eq!(world.after(QUIET).look(), steps(&["remove d"]));
}
