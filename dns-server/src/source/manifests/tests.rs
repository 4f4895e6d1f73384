//! Real files, folders and links, followed by the real thread.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::sync::{Mutex, MutexGuard};

use multinet_runtime::ObjectKey;
use tempfile::TempDir;

use super::*;
use crate::limits::manifests::QUIET;

/// An index that records the calls to it.
#[derive(Default)]
struct RecordingIndex(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    /// Services and their TTLs: as last committed, and as applied since.
    committed: BTreeMap<String, Option<u16>>,
    services: BTreeMap<String, Option<u16>>,
    /// Number of calls to apply and delete.
    calls: usize,
    resets: usize,
    /// All committed states.
    history: Vec<BTreeMap<String, Option<u16>>>,
}

impl RecordingIndex {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap()
    }
}

impl Index<MultiNetworkService> for RecordingIndex {
    fn apply(&self, object: MultiNetworkService) {
        let mut inner = self.lock();
        inner.calls += 1;
        let metadata = object.metadata;
        let key = ObjectKey { namespace: metadata.namespace.unwrap(), name: metadata.name.unwrap() };
        inner.services.insert(key.to_string(), object.spec.ttl_seconds);
    }

    fn delete(&self, key: &ObjectKey) {
        let mut inner = self.lock();
        inner.calls += 1;
        inner.services.remove(&key.to_string());
    }

    fn reset(&self, live: &HashSet<ObjectKey>) {
        let mut inner = self.lock();
        inner.resets += 1;
        assert_eq!(live.len(), inner.services.len());
    }

    fn commit(&self) {
        let mut inner = self.lock();
        inner.committed = inner.services.clone();
        let state = inner.committed.clone();
        if inner.history.last() != Some(&state) {
            inner.history.push(state);
        }
    }
}

impl Index<MultiNetworkEndpointSlice> for RecordingIndex {
    fn apply(&self, _: MultiNetworkEndpointSlice) {}

    fn delete(&self, _: &ObjectKey) {}

    fn reset(&self, _: &HashSet<ObjectKey>) {
        self.lock().resets += 1;
    }

    fn commit(&self) {}
}

/// Loads files for an index that the test does not look at.
fn load(paths: &[PathBuf], readiness: &Readiness, metrics: ManifestMetrics) -> Result<Manifests> {
    super::load(paths, &RecordingIndex::default(), readiness, metrics)
}

/// A folder that is being followed.
struct Followed {
    folder: TempDir,
    index: Arc<RecordingIndex>,
    metrics: ManifestMetrics,
    readiness: Readiness,
    _shutdown: tokio_util::sync::DropGuard,
}

impl Followed {
    /// Follows a folder that `prepare` has filled.
    fn new(prepare: impl FnOnce(&Path)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        prepare(folder.path());
        let path = folder.path().join("m");
        Self::follow(folder, &[path])
    }

    fn follow(folder: TempDir, paths: &[PathBuf]) -> Self {
        let index = Arc::new(RecordingIndex::default());
        let (metrics, readiness) = (ManifestMetrics::default(), Readiness::default());
        let shutdown = CancellationToken::new();
        let manifests = super::load(paths, &*index, &readiness, metrics.clone()).unwrap();
        assert_eq!(index.lock().resets, 2);
        let following = manifests.follow(Arc::clone(&index), shutdown.clone());
        tokio::spawn(following);
        Self { folder, index, metrics, readiness, _shutdown: shutdown.drop_guard() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Waits until these services are served. `x=1` means service x with a TTL of 1.
    async fn serves(&self, expected: &str) {
        for _ in 0..1000 {
            if self.now() == expected {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("expected {expected:?}, served is {:?}", self.now());
    }

    fn now(&self) -> String {
        show(&self.index.lock().committed)
    }

    async fn has_bad(&self, expected: i64) {
        for _ in 0..1000 {
            if self.metrics.bad.get() == expected {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("expected {expected} bad manifests, there are {}", self.metrics.bad.get());
    }

    /// Returns all served states in order.
    fn history(&self) -> Vec<String> {
        self.index.lock().history.iter().map(show).collect()
    }
}

fn show(services: &BTreeMap<String, Option<u16>>) -> String {
    let services: Vec<String> = services
        .iter()
        .map(|(key, ttl)| format!("{}={}", key.trim_start_matches("vision/"), ttl.unwrap_or(0)))
        .collect();
    services.join(" ")
}

/// Returns a service with this TTL; a TTL above 3600 is bad.
fn service(name: &str, ttl: u32) -> String {
    format!(
        "---\napiVersion: multinetwork.numaproj.io/v1alpha1\nkind: MultiNetworkService\n\
         metadata: {{name: {name}, namespace: vision}}\n\
         spec: {{networks: [{{kind: NetworkAttachmentDefinition, name: rail0}}], ttlSeconds: {ttl}}}\n"
    )
}

fn one_file(folder: &Path) {
    fs::create_dir(folder.join("m")).unwrap();
    fs::write(folder.join("m/a.yaml"), service("x", 1)).unwrap();
}

#[tokio::test]
async fn files_that_come_change_and_go_are_followed() {
    let followed = Followed::new(|folder| {
        one_file(folder);
        fs::create_dir(folder.join("m/sub")).unwrap();
        fs::write(folder.join("m/sub/b.yml"), service("y1", 2)).unwrap();
        fs::write(folder.join("m/readme.txt"), service("no", 9)).unwrap();
        fs::write(folder.join("m/.hidden.yaml"), service("no", 9)).unwrap();
    });
    assert_eq!(followed.now(), "x=1 y1=2");
    fs::write(followed.path("m/c.json"), json("z", 3)).unwrap();
    followed.serves("x=1 y1=2 z=3").await;
    fs::remove_file(followed.path("m/a.yaml")).unwrap();
    followed.serves("y1=2 z=3").await;
    // New and removed folders are noticed too.
    fs::create_dir_all(followed.path("m/new/deep")).unwrap();
    fs::write(followed.path("m/new/deep/d.yaml"), service("d", 4)).unwrap();
    followed.serves("d=4 y1=2 z=3").await;
    fs::write(followed.path("m/new/deep/d.yaml"), service("d", 5)).unwrap();
    followed.serves("d=5 y1=2 z=3").await;
    fs::remove_dir_all(followed.path("m/new")).unwrap();
    fs::rename(followed.path("m/sub"), followed.path("m/.sub")).unwrap();
    followed.serves("z=3").await;
    assert_eq!(followed.metrics.found_bad.get(), 0);
}

fn json(name: &str, ttl: u32) -> String {
    format!(
        "{{\"apiVersion\": \"multinetwork.numaproj.io/v1alpha1\", \"kind\": \"MultiNetworkService\",\n \
         \"metadata\": {{\"name\": \"{name}\", \"namespace\": \"vision\"}},\n \
         \"spec\": {{\"networks\": [{{\"kind\": \"NetworkAttachmentDefinition\", \"name\": \"rail0\"}}], \
         \"ttlSeconds\": {ttl}}}}}\n"
    )
}

#[tokio::test]
async fn a_file_may_be_replaced_by_renaming() {
    let followed = Followed::new(one_file);
    for ttl in 2..5 {
        fs::write(followed.path("m/.a.yaml.tmp"), service("x", ttl)).unwrap();
        fs::rename(followed.path("m/.a.yaml.tmp"), followed.path("m/a.yaml")).unwrap();
        followed.serves(&format!("x={ttl}")).await;
    }
    assert_eq!(followed.history(), ["x=1", "x=2", "x=3", "x=4"]);
    // Some editors move the old file away first.
    fs::rename(followed.path("m/a.yaml"), followed.path("m/a.yaml~")).unwrap();
    fs::write(followed.path("m/a.yaml"), service("x", 9)).unwrap();
    followed.serves("x=9").await;
}

#[tokio::test]
async fn a_file_may_be_rewritten_in_place_slowly() {
    let followed = Followed::new(one_file);
    fs::write(followed.path("m/a.yaml"), service("x", 2)).unwrap();
    followed.serves("x=2").await;
    let text = service("x", 3) + &service("y1", 4);
    let mut file = fs::File::create(followed.path("m/a.yaml")).unwrap();
    for part in text.as_bytes().chunks(text.len() / 3) {
        // A part of the file may be valid, and must not be served.
        tokio::time::sleep(QUIET / 2).await;
        file.write_all(part).unwrap();
    }
    drop(file);
    followed.serves("x=3 y1=4").await;
    assert_eq!(followed.history(), ["x=1", "x=2", "x=3 y1=4"]);
    assert_eq!(followed.metrics.found_bad.get(), 0);
}

#[tokio::test]
async fn a_config_map_is_followed_through_its_links() {
    let version = |folder: &Path, version: &str, ttl: u32| {
        fs::create_dir(folder.join(version)).unwrap();
        fs::write(folder.join(version).join("a.yaml"), service("x", ttl)).unwrap();
        symlink(version, folder.join("..data_tmp")).unwrap();
        fs::rename(folder.join("..data_tmp"), folder.join("..data")).unwrap();
    };
    // Both the whole folder and a single file of it.
    for path in ["", "a.yaml"] {
        let folder = tempfile::tempdir().unwrap();
        version(folder.path(), "..2026_11_21", 1);
        symlink("..data/a.yaml", folder.path().join("a.yaml")).unwrap();
        let path = folder.path().join(path);
        let followed = Followed::follow(folder, &[path]);
        assert_eq!(followed.now(), "x=1");
        for (ttl, (name, before)) in
            (2..).zip([("..2026_11_22", "..2026_11_21"), ("..2026_11_23", "..2026_11_22")])
        {
            version(&followed.path(""), name, ttl);
            fs::remove_dir_all(followed.path(before)).unwrap();
            followed.serves(&format!("x={ttl}")).await;
        }
        assert_eq!(followed.history(), ["x=1", "x=2", "x=3"]);
        assert_eq!(followed.metrics.found_bad.get(), 0);
    }
}

#[tokio::test]
async fn files_behind_links_elsewhere_are_followed() {
    let followed = Followed::new(|folder| {
        for name in ["m", "one", "two"] {
            fs::create_dir(folder.join(name)).unwrap();
        }
        fs::write(folder.join("one/file"), service("x", 1)).unwrap();
        fs::write(folder.join("two/b.yaml"), service("y1", 2)).unwrap();
        symlink("../one/file", folder.join("m/a.yaml")).unwrap();
        symlink(folder.join("two"), folder.join("m/two")).unwrap();
        // Circles of links, and a second link to the same files.
        symlink(".", folder.join("m/circle")).unwrap();
        symlink("../m", folder.join("two/circle")).unwrap();
        symlink("two", folder.join("m/zwei")).unwrap();
    });
    assert_eq!(followed.now(), "x=1 y1=2");
    fs::write(followed.path("one/file"), service("x", 3)).unwrap();
    fs::write(followed.path("two/b.yaml"), service("y1", 4)).unwrap();
    followed.serves("x=3 y1=4").await;
    assert_eq!(followed.metrics.found_bad.get(), 0);
}

#[tokio::test]
async fn a_bad_manifest_is_served_once_it_is_good_again() {
    let followed = Followed::new(|folder| {
        one_file(folder);
        fs::write(folder.join("m/b.yaml"), service("y1", 2)).unwrap();
    });
    fs::write(followed.path("m/a.yaml"), service("x", 1) + "a: [\n").unwrap();
    followed.has_bad(1).await;
    fs::write(followed.path("m/b.yaml"), service("y1", 9999)).unwrap();
    followed.has_bad(2).await;
    fs::write(followed.path("m/c.yaml"), service("z", 3)).unwrap();
    followed.serves("x=1 y1=2 z=3").await;
    assert_eq!(followed.metrics.found_bad.get(), 2);
    fs::write(followed.path("m/a.yaml"), service("x", 4)).unwrap();
    fs::write(followed.path("m/b.yaml"), service("y1", 5)).unwrap();
    followed.serves("x=4 y1=5 z=3").await;
    followed.has_bad(0).await;
}

#[tokio::test]
async fn an_object_in_two_files_is_served_from_the_first() {
    let followed = Followed::new(|folder| {
        one_file(folder);
        fs::write(folder.join("m/b.yaml"), service("x", 2)).unwrap();
    });
    assert_eq!(followed.now(), "x=1");
    assert_eq!(followed.metrics.bad.get(), 1);
    fs::remove_file(followed.path("m/a.yaml")).unwrap();
    followed.serves("x=2").await;
    followed.has_bad(0).await;
    assert_eq!(followed.history(), ["x=1", "x=2"]);
}

#[tokio::test]
async fn a_single_file_may_go_and_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("objects");
    fs::write(&file, service("x", 1)).unwrap();
    let followed = Followed::follow(folder, &[file.clone(), file.clone()]);
    assert_eq!((followed.now().as_str(), followed.metrics.bad.get()), ("x=1", 0));
    // The last of a burst of changes is served.
    for ttl in (2..200).rev() {
        fs::write(&file, service("x", ttl)).unwrap();
    }
    followed.serves("x=2").await;
    fs::write(file.with_extension("tmp"), service("x", 4)).unwrap();
    fs::rename(file.with_extension("tmp"), &file).unwrap();
    followed.serves("x=4").await;
    fs::remove_file(&file).unwrap();
    // The file was given twice.
    followed.has_bad(2).await;
    assert_eq!(followed.now(), "x=4");
    fs::write(&file, service("x", 3)).unwrap();
    followed.serves("x=3").await;
    followed.has_bad(0).await;
}

#[tokio::test]
async fn a_folder_that_is_lost_keeps_its_answers_until_it_is_back() {
    let followed = Followed::new(one_file);
    let lost = || (followed.metrics.lost.get(), followed.readiness.notes());
    assert_eq!(lost(), (0, vec![]));
    fs::rename(followed.path("m"), followed.path("n")).unwrap();
    followed.has_bad(1).await;
    assert_eq!(followed.now(), "x=1");
    let note = format!(
        "the last answers stay, because these cannot be read: {}: no such file or directory",
        followed.path("m").display()
    );
    assert_eq!(lost(), (1, vec![("manifests".to_owned(), note)]));
    fs::create_dir(followed.path("m")).unwrap();
    fs::write(followed.path("m/b.yaml"), service("y1", 7)).unwrap();
    followed.serves("y1=7").await;
    followed.has_bad(0).await;
    assert_eq!(lost(), (0, vec![]));
}

#[tokio::test]
async fn only_what_changed_is_applied() {
    let followed = Followed::new(|folder| {
        one_file(folder);
        for number in 0..50 {
            fs::write(folder.join(format!("m/{number}.yaml")), service(&format!("s{number}"), 1)).unwrap();
        }
    });
    assert_eq!(followed.index.lock().calls, 51);
    fs::write(followed.path("m/a.yaml"), service("x", 1) + &service("z", 1)).unwrap();
    fs::write(followed.path("m/0.yaml"), service("s0", 2)).unwrap();
    followed.has_services(52).await;
    assert_eq!(followed.index.lock().calls, 53);
}

impl Followed {
    async fn has_services(&self, expected: usize) {
        for _ in 0..1000 {
            if self.index.lock().committed.len() == expected {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("expected {expected} services");
    }
}

#[tokio::test]
async fn the_thread_ends_with_the_shutdown() {
    let folder = tempfile::tempdir().unwrap();
    let manifests =
        load(&[folder.path().to_owned()], &Readiness::default(), ManifestMetrics::default()).unwrap();
    let shutdown = CancellationToken::new();
    let index = Arc::new(RecordingIndex::default());
    let following = tokio::spawn(manifests.follow(Arc::clone(&index), shutdown.clone()));
    shutdown.cancel();
    following.await.unwrap().unwrap();
    // The thread ends soon after the shutdown.
    for _ in 0..1000 {
        if Arc::strong_count(&index) == 1 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the thread has not ended");
}

#[test]
fn a_path_that_is_not_there_is_an_error_of_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let not_there = folder.path().join("none");
    let error = load(
        &[folder.path().to_owned(), not_there.clone()],
        &Readiness::default(),
        ManifestMetrics::default(),
    )
    .err()
    .unwrap();
    assert_eq!(
        error.to_string(),
        format!(
            "--manifests {}: no such file or directory; name a file or folder that is there and may be read",
            not_there.display()
        )
    );
    let pipe =
        load(&[PathBuf::from("/dev/null")], &Readiness::default(), ManifestMetrics::default()).err().unwrap();
    assert!(pipe.to_string().contains("neither a file nor a folder"), "{pipe}");
    symlink("circle", folder.path().join("circle")).unwrap();
    let circle = load(&[folder.path().join("circle")], &Readiness::default(), ManifestMetrics::default())
        .err()
        .unwrap();
    assert!(circle.to_string().contains("symbolic link"), "{circle}");
    // A bad file in a folder does not prevent the start.
    symlink("nowhere", folder.path().join("dangling.yaml")).unwrap();
    let metrics = ManifestMetrics::default();
    load(&[folder.path().to_owned()], &Readiness::default(), metrics.clone()).unwrap();
    assert_eq!(metrics.bad.get(), 1);
}

#[test]
fn the_quickstart_example_is_good() {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/examples/quickstart"));
    let metrics = ManifestMetrics::default();
    let manifests = load(&[path], &Readiness::default(), metrics.clone()).unwrap();
    assert_eq!(metrics.bad.get(), 0);
    let served: Vec<String> = manifests.files.served().map(ToString::to_string).collect();
    assert_eq!(
        served,
        [
            "MultiNetworkService vision/infer",
            "MultiNetworkEndpointSlice vision/infer-ipv4",
            "MultiNetworkEndpointSlice vision/infer-ipv6",
        ]
    );
}
