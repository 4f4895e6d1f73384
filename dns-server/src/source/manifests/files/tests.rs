use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// Files, and an index that they feed: the TTL of each service.
#[derive(Default)]
struct Served {
    files: ManifestFiles,
    services: BTreeMap<String, Option<u16>>,
    news: Vec<String>,
    /// Contents of the files, for reading them again.
    contents: BTreeMap<FileKey, String>,
}

impl Served {
    fn put(&mut self, name: &str, content: &str) -> &mut Self {
        self.contents.insert(key(name), content.to_owned());
        self.files.set(&key(name), Content::of(content.as_bytes()));
        self
    }

    fn remove(&mut self, name: &str) -> &mut Self {
        self.contents.remove(&key(name));
        self.files.remove(&key(name));
        self
    }

    /// Takes the changes, reads files again on request, and returns the served objects and the
    /// changed problems.
    fn step(&mut self) -> (String, Vec<String>) {
        self.news.clear();
        let changes = self.files.take_changes();
        let wanted = self.take(changes);
        if !wanted.is_empty() {
            for key in wanted {
                self.files.set(&key, Content::of(self.contents[&key].as_bytes()));
            }
            let changes = self.files.take_changes();
            let wanted = self.take(changes);
            assert!(wanted.is_empty(), "{wanted:?} is read again and again");
        }
        let held: Vec<String> =
            self.services.iter().map(|(name, ttl)| format!("{name}={}", ttl.unwrap_or(0))).collect();
        let served: Vec<String> = self.files.served().map(|id| id.key.name.clone()).collect();
        assert_eq!(served, self.services.keys().cloned().collect::<Vec<_>>());
        (held.join(" "), self.news.clone())
    }

    fn take(&mut self, changes: Changes) -> BTreeSet<FileKey> {
        for update in changes.updates {
            match update {
                Update::Apply(Object::Service(service)) => {
                    let name = service.metadata.name.unwrap();
                    let before = self.services.insert(name.clone(), service.spec.ttl_seconds);
                    assert_ne!(
                        before,
                        Some(service.spec.ttl_seconds),
                        "{name} is applied and has not changed"
                    );
                }
                Update::Apply(Object::Slice(_)) => panic!("no slice was put"),
                Update::Delete(id) => {
                    assert!(self.services.remove(&id.key.name).is_some(), "{id} was not there");
                }
            }
        }
        for Report { file, subject, transition } in changes.reports {
            let subject = match subject {
                Subject::File => "file".to_owned(),
                Subject::Document(number) => format!("document {number}"),
                Subject::Object(id) => id.key.name,
                Subject::Again(id, number) => format!("{} in {number}", id.key.name),
            };
            let news = match transition {
                Transition::Found(problem, served) => {
                    let kind = format!("{:?}", problem.severity);
                    let fields: Vec<&str> = problem.faults.iter().map(|fault| fault.field.as_str()).collect();
                    format!("{kind}({}) serving {served:?}", fields.join(","))
                }
                Transition::Healed(_) => "healed".to_owned(),
            };
            self.news.push(format!("{} {subject} {news}", file.path().display()));
        }
        changes.reread
    }
}

fn key(name: &str) -> FileKey {
    FileKey::new(0, Path::new(name))
}

/// Returns a service with this TTL; a TTL above 3600 is bad.
fn service(name: &str, ttl: u32) -> String {
    format!(
        "---\napiVersion: multinetwork.numaproj.io/v1alpha1\nkind: MultiNetworkService\n\
         metadata: {{name: {name}, namespace: vision}}\n\
         spec: {{networks: [{{kind: NetworkAttachmentDefinition, name: rail0}}], ttlSeconds: {ttl}}}\n"
    )
}

fn nameless() -> String {
    service("gone", 1).replace("name: gone, ", "")
}

const BROKEN: &str = "a: [\n";

/// The new content of a file; `None` removes it.
type Write<'a> = (&'a str, Option<String>);

/// Runs steps. After each, checks the served objects and the reported problems.
fn play(steps: Vec<(Vec<Write<'_>>, &str, &[&str])>) {
    let mut served = Served::default();
    for (number, (writes, expected, news)) in steps.into_iter().enumerate() {
        for (name, content) in writes {
            match content {
                Some(content) => served.put(name, &content),
                None => served.remove(name),
            };
        }
        let (held, told) = served.step();
        assert_eq!(
            (held.as_str(), told),
            (expected, news.iter().map(ToString::to_string).collect()),
            "step {number}"
        );
        // Without changes, no object is updated and no problem is reported again.
        assert_eq!(served.step(), (expected.to_owned(), Vec::new()), "after step {number}");
    }
}

#[test]
fn objects_that_come_change_and_go_are_updated() {
    let both = service("x", 1) + &service("y1", 2);
    play(vec![
        (vec![("a", Some(both.clone()))], "x=1 y1=2", &[]),
        (vec![("a", Some(both))], "x=1 y1=2", &[]),
        (vec![("a", Some(service("x", 1) + &service("y1", 3)))], "x=1 y1=3", &[]),
        (vec![("a", Some(service("y1", 3)))], "y1=3", &[]),
        (vec![("a", None)], "", &[]),
        (vec![("a", None)], "", &[]),
    ]);
}

#[test]
fn a_bad_object_keeps_its_last_good_version() {
    play(vec![
        (
            vec![("a", Some(service("x", 1) + &service("y1", 9999)))],
            "x=1",
            &["a y1 Bad(spec.ttlSeconds) serving Nothing"],
        ),
        (
            vec![("a", Some(service("x", 9999) + &service("y1", 2)))],
            "x=1 y1=2",
            &["a x Bad(spec.ttlSeconds) serving LastGood", "a y1 healed"],
        ),
        (vec![("a", Some(service("x", 9999) + &service("y1", 3)))], "x=1 y1=3", &[]),
        (vec![("a", Some(service("x", 4)))], "x=4", &["a x healed"]),
        (vec![("a", Some(service("x", 9999)))], "x=4", &["a x Bad(spec.ttlSeconds) serving LastGood"]),
        (vec![("a", None)], "", &["a x healed"]),
    ]);
}

#[test]
fn a_broken_file_keeps_all_its_objects() {
    let good = service("x", 1) + &service("y1", 2);
    play(vec![
        (vec![("a", Some(good.clone())), ("b", Some(service("z", 3)))], "x=1 y1=2 z=3", &[]),
        (vec![("a", Some(BROKEN.to_owned()))], "x=1 y1=2 z=3", &["a file Bad() serving LastGood"]),
        (
            vec![("a", Some(service("x", 5) + BROKEN)), ("b", None)],
            "x=1 y1=2",
            &["a file Bad() serving LastGood"],
        ),
        (vec![("a", Some(good))], "x=1 y1=2", &["a file healed"]),
        (vec![("c", Some(BROKEN.to_owned()))], "x=1 y1=2", &["c file Bad() serving Nothing"]),
        (vec![("c", None), ("a", None)], "", &["c file healed"]),
    ]);
}

#[test]
fn an_unreadable_file_keeps_its_objects() {
    let mut served = Served::default();
    served.put("a", &service("x", 1)).step();
    served.files.set(&key("a"), Content::Unreadable("permission denied".to_owned()));
    assert_eq!(served.step(), ("x=1".to_owned(), vec!["a file Bad() serving LastGood".to_owned()]));
    served.put("a", &service("x", 1));
    assert_eq!(served.step(), ("x=1".to_owned(), vec!["a file healed".to_owned()]));
}

#[test]
fn an_object_that_lost_its_name_is_not_given_up() {
    play(vec![
        (vec![("a", Some(service("x", 1) + &service("y1", 2)))], "x=1 y1=2", &[]),
        (
            vec![("a", Some(nameless() + &service("y1", 3)))],
            "x=1 y1=3",
            &["a document 1 Bad(metadata.name) serving LastGood"],
        ),
        (vec![("a", Some(service("y1", 3)))], "y1=3", &["a document 1 healed"]),
    ]);
}

#[test]
fn the_first_file_is_served_and_the_second_takes_over() {
    play(vec![
        (vec![("b", Some(service("x", 2)))], "x=2", &[]),
        (vec![("a", Some(service("x", 1)))], "x=1", &["b x Bad(metadata.name) serving Other"]),
        (vec![("c", Some(service("x", 3)))], "x=1", &["c x Bad(metadata.name) serving Other"]),
        // A bad version in the first file does not make the second one served.
        (vec![("a", Some(service("x", 9999)))], "x=1", &["a x Bad(spec.ttlSeconds) serving LastGood"]),
        (vec![("a", Some(BROKEN.to_owned()))], "x=1", &["a file Bad() serving LastGood"]),
        (vec![("a", None)], "x=2", &["c x Bad(metadata.name) serving Other", "a file healed", "b x healed"]),
        (vec![("b", Some(service("y1", 5)))], "x=3 y1=5", &["c x healed"]),
        (vec![("a", Some(service("y1", 6))), ("b", None)], "x=3 y1=6", &[]),
    ]);
}

#[test]
fn a_bad_first_does_not_hide_a_good_second() {
    play(vec![
        (
            vec![("a", Some(service("x", 9999))), ("b", Some(service("x", 2)))],
            "x=2",
            &["a x Bad(spec.ttlSeconds) serving Other"],
        ),
        (vec![("a", Some(service("x", 1)))], "x=1", &["b x Bad(metadata.name) serving Other", "a x healed"]),
        // The second file becomes invalid while it waits, and then is the only one: there is no
        // valid version.
        (vec![("b", Some(service("x", 9999)))], "x=1", &["b x Bad(spec.ttlSeconds) serving Other"]),
        (vec![("a", None)], "x=1", &[]),
        (vec![("b", Some(service("x", 7)))], "x=7", &["b x healed"]),
    ]);
}

#[test]
fn an_object_that_moves_between_files_stays_served() {
    play(vec![
        (vec![("a", Some(service("x", 1))), ("b", Some(String::new()))], "x=1", &[]),
        (vec![("a", Some(String::new())), ("b", Some(service("x", 1)))], "x=1", &[]),
        (
            vec![("b", None), ("c", Some(service("x", 9999)))],
            "x=1",
            &["c x Bad(spec.ttlSeconds) serving LastGood"],
        ),
    ]);
}

#[test]
fn an_object_named_twice_in_a_file_is_served_once() {
    play(vec![
        (
            vec![("a", Some(service("x", 1) + &service("x", 2)))],
            "x=1",
            &["a x in 2 Bad(metadata.name) serving Other"],
        ),
        (
            vec![("a", Some(service("x", 9999) + &service("x", 2)))],
            "x=1",
            &["a x Bad(spec.ttlSeconds) serving LastGood"],
        ),
        (vec![("a", Some(service("x", 2)))], "x=2", &["a x healed", "a x in 2 healed"]),
    ]);
}

#[test]
fn files_are_ordered_as_given_then_by_path() {
    let order = [(0, "b.yaml"), (1, "a.yaml"), (1, "a/b.yaml"), (1, "a/b/c.yaml"), (1, "a/ba.yaml")];
    let keys = order.map(|(root, path)| FileKey::new(root, Path::new(path)));
    assert!(keys.is_sorted(), "{keys:?}");
}

#[test]
fn unknown_fields_are_served_with_a_doubt() {
    let doubtful = service("x", 1).replace("ttlSeconds", "ttl: 5, ttlSeconds");
    play(vec![
        (vec![("a", Some(doubtful.clone()))], "x=1", &["a x Doubtful(spec.ttl) serving LastGood"]),
        (vec![("a", Some(doubtful.replace(": 1}", ": 2}")))], "x=2", &[]),
        (vec![("a", Some(service("x", 2)))], "x=2", &["a x healed"]),
    ]);
}

#[test]
fn an_object_of_another_group_or_kind_is_passed_over() {
    let other = service("x", 1).replace("v1alpha1", "v9");
    let typo = service("x", 1).replace("MultiNetworkService", "MultiNetworkServices");
    let list = "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Pod}\n- {apiVersion: \
                multinetwork.numaproj.io/v1alpha1, kind: MultiNetworkService, metadata: {name: y1}}\n";
    let foreign = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n---\njust text\n---\n[1, 2]\n";
    play(vec![
        (vec![("a", Some(foreign.to_owned())), ("b", Some(service("z", 3)))], "z=3", &[]),
        (vec![("a", Some(other))], "z=3", &["a document 1 PassedOver(apiVersion) serving Nothing"]),
        (vec![("a", Some(typo))], "z=3", &["a document 1 PassedOver(kind) serving Nothing"]),
        (
            vec![("a", Some(list.to_owned()))],
            "z=3",
            &["a y1 Bad(items[1].spec) serving Nothing", "a document 1 healed"],
        ),
    ]);
    let mut files = ManifestFiles::default();
    files.set(&key("a"), Content::of(list.as_bytes()));
    files.take_changes();
    assert_eq!((files.count(), files.count_bad()), (1, 1));
}

/// Content of a file: broken YAML, a nameless service, or versions of three services, some of them
/// bad.
fn any_content() -> impl Strategy<Value = Option<String>> {
    let version = prop_oneof![Just(None), (1..4u32).prop_map(Some), Just(Some(9999))];
    let documents = [version.clone(), version.clone(), version].prop_map(|versions| {
        let versions = ["x", "y1", "z"].into_iter().zip(versions);
        Some(versions.filter_map(|(name, ttl)| Some(service(name, ttl?))).collect())
    });
    prop_oneof![1 => Just(None), 1 => Just(Some(BROKEN.to_owned())), 1 => Just(Some(nameless())), 5 => documents]
}

proptest! {
    /// Files that are all good in the end are served, after any history, as if they had
    /// always been.
    #[test]
    fn what_is_served_in_the_end_does_not_depend_on_the_steps(
        steps in vec((0..3usize, any_content(), any::<bool>()), 0..20),
        last in [1..4u32, 1..4, 1..4],
        names in [0..3usize, 0..3, 0..3],
    ) {
        const FILES: [&str; 3] = ["a", "b", "c"];
        let mut served = Served::default();
        for (file, content, is_settled) in steps {
            match content {
                Some(content) => served.put(FILES[file], &content),
                None => served.remove(FILES[file]),
            };
            if is_settled {
                served.step();
                served.step();
                prop_assert!(served.news.is_empty(), "reported twice: {:?}", served.news);
            }
        }
        let mut fresh = Served::default();
        for ((file, ttl), name) in FILES.into_iter().zip(last).zip(names) {
            let content = service(["x", "y1", "z"][name], ttl);
            served.put(file, &content);
            fresh.put(file, &content);
        }
        prop_assert_eq!(served.step().0, fresh.step().0);
        prop_assert_eq!(served.files.count_bad(), fresh.files.count_bad());
    }
}
