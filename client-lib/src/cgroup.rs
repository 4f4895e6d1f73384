//! Finds how much memory this process may use: the least limit of its control group and those above
//! it, or what the machine has.
//!
//! A container with its own namespace of control groups does not see the groups above, and so not
//! the limit of the whole pod. Version 1 shows that limit all the same, in
//! `hierarchical_memory_limit`. Without a mount of the groups, the machine's memory counts; mounts
//! of the first process and of the parent are tried, too.

use std::fmt;
use std::path::{Component, Path, PathBuf};

/// Limit on this process's memory, and the file that it was read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    pub(crate) bytes: u64,
    file: PathBuf,
}

/// Mounted hierarchy of control groups that limits memory.
struct Mount {
    /// Path of the control group that is mounted, from the hierarchy's root.
    root: PathBuf,
    point: PathBuf,
    is_v2: bool,
}

impl Limit {
    /// Reads the least limit that holds for this process. `None` if the kernel shows none.
    pub(crate) fn read() -> Option<Self> {
        let read = |file: &Path| std::fs::read_to_string(file).ok();
        let text = |file: &str| read(Path::new(file)).unwrap_or_default();
        let groups = text("/proc/self/cgroup");
        // `ip netns exec` mounts another /sys over the one that has the groups. The first process,
        // or this one's parent, may still see that.
        let others = [1, std::os::unix::process::parent_id()].map(|process| format!("/proc/{process}"));
        let of_others = others.iter().map(|process| {
            let files = files(&groups, &text(&format!("{process}/mountinfo")));
            let seen = |file: PathBuf| PathBuf::from(format!("{process}/root{}", file.display()));
            files.into_iter().map(seen).collect()
        });
        let own: Vec<_> = files(&groups, &text("/proc/self/mountinfo"));
        let group = std::iter::once(own).chain(of_others).find_map(|files| least(files, read));
        group.into_iter().chain(least([MACHINE.into()], read)).min_by_key(|limit| limit.bytes)
    }
}

#[cfg(test)]
impl Limit {
    pub(crate) fn of(bytes: u64, file: &str) -> Self {
        Self { bytes, file: file.into() }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of {}", self.bytes, self.file.display())
    }
}

/// File that states how much memory the machine has.
const MACHINE: &str = "/proc/meminfo";

/// Returns the least memory limit in these files. `None` if none of them has one.
fn least(files: impl IntoIterator<Item = PathBuf>, read: impl Fn(&Path) -> Option<String>) -> Option<Limit> {
    let limits = files.into_iter().filter_map(|file| Some(Limit { bytes: value(&read(&file)?)?, file }));
    limits.min_by_key(|limit| limit.bytes)
}

/// Returns the limit in a file's text: a lone number, `max` (none), or one line of several.
fn value(text: &str) -> Option<u64> {
    let mut words = text.split_whitespace();
    let first = words.next()?;
    if let Ok(bytes) = first.parse() {
        return Some(bytes);
    }
    let line = |name| words.clone().skip_while(move |&word| word != name).nth(1)?.parse::<u64>().ok();
    match first {
        "MemTotal:" => words.next()?.parse::<u64>().ok()?.checked_mul(1024),
        _ => line("hierarchical_memory_limit"),
    }
}

/// Returns the files that may have a limit of this process's groups, and of those above them, given
/// the kernel's lists of groups and mounts.
fn files(groups: &str, mounts: &str) -> Vec<PathBuf> {
    mounts.lines().filter_map(Mount::parse).flat_map(|mount| mount.files(groups)).collect()
}

impl Mount {
    /// Parses a line of `/proc/self/mountinfo` (proc(5)). `None` if it mounts no memory limits.
    fn parse(line: &str) -> Option<Self> {
        let (mount, kind) = line.split_once(" - ")?;
        let mut kind = kind.split(' ');
        let is_v2 = match (kind.next()?, kind.nth(1)?) {
            ("cgroup2", _) => true,
            ("cgroup", options) if options.split(',').any(|option| option == "memory") => false,
            _ => return None,
        };
        let mut mount = mount.split(' ').skip(3);
        Some(Self { root: unescaped(mount.next()?), point: unescaped(mount.next()?), is_v2 })
    }

    fn files(&self, groups: &str) -> Vec<PathBuf> {
        let names: &[_] = match self.is_v2 {
            true => &["memory.max", "memory.high"],
            false => &["memory.limit_in_bytes", "memory.stat"],
        };
        let group = self.group(groups);
        let folders = group.ancestors().map(|group| self.point.join(group));
        folders.flat_map(|folder| names.iter().map(move |name| folder.join(name))).collect()
    }

    /// Returns this process's group, relative to the one that is mounted. If it is not below that,
    /// the kernel has named it as another namespace sees it, and the mounted one is this process's.
    fn group<'a>(&self, groups: &'a str) -> &'a Path {
        let is_ours = |controllers: &str| match self.is_v2 {
            true => controllers.is_empty(),
            false => controllers.split(',').any(|controller| controller == "memory"),
        };
        let path = |line: &'a str| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            is_ours(controllers).then_some(Path::new(path))
        };
        let path = groups.lines().find_map(path);
        let below = path.and_then(|path| path.strip_prefix(&self.root).ok());
        let is_below = |path: &&Path| path.components().all(|part| matches!(part, Component::Normal(_)));
        below.filter(is_below).unwrap_or_else(|| Path::new(""))
    }
}

/// Decodes a path from mountinfo, where blanks, line ends and backslashes are octal numbers.
fn unescaped(path: &str) -> PathBuf {
    let codes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    codes.iter().fold(path.to_owned(), |path, (code, character)| path.replace(code, character)).into()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// Returns the least limit in some files, and its file. All others are missing.
    fn found(groups: &str, mounts: &str, machine: &str, there: &[(&str, &str)]) -> Option<(u64, String)> {
        let there: HashMap<_, _> = there.iter().copied().chain([(MACHINE, machine)]).collect();
        let files = files(groups, mounts).into_iter().chain([PathBuf::from(MACHINE)]);
        let read = |file: &Path| Some((*there.get(file.to_str()?)?).to_owned());
        least(files, read).map(|limit| (limit.bytes, limit.file.to_str().unwrap().to_owned()))
    }

    const V2: &str = "30 23 0:26 / /sys/fs/cgroup ro,nosuid shared:4 - cgroup2 cgroup rw,nsdelegate";
    const V1: &str = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory";
    const OTHER_V1: &str = "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct";
    const MACHINE_OF_4_GIB: &str = "MemTotal:        4194304 kB\nMemFree:          100 kB\n";

    #[test]
    fn the_least_limit_of_the_group_and_those_above_counts() {
        let check = |groups: &str, mounts: &str, there: &[(&str, &str)], expected: (u64, &str)| {
            let found = found(groups, mounts, MACHINE_OF_4_GIB, there);
            assert_eq!(found, Some((expected.0, expected.1.to_owned())), "{groups} {mounts}");
        };
        let own = "/sys/fs/cgroup/memory.max";
        // With a namespace of its own, as pods have it. A soft limit counts if it is lower.
        check("0::/\n", V2, &[(own, "536870912\n")], (512 << 20, own));
        let high = "/sys/fs/cgroup/memory.high";
        check("0::/\n", V2, &[(own, "536870912\n"), (high, "1000000\n")], (1_000_000, high));
        // Without one. The pod's limit is lower than the container's.
        let pod = "/sys/fs/cgroup/kubepods/pod7/memory.max";
        let container = "/sys/fs/cgroup/kubepods/pod7/c/memory.max";
        let there = [(pod, "1048576\n"), (container, "max\n"), (own, "max\n")];
        check("0::/kubepods/pod7/c\n", V2, &there, (1 << 20, pod));
        // Version 1, whose folder is the container's own, and which names groups as the node sees
        // them.
        let docker = "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory";
        let limit = "/sys/fs/cgroup/memory/memory.limit_in_bytes";
        let groups = "4:memory:/docker/abc\n1:name=systemd:/docker/abc\n0::/\n";
        check(groups, docker, &[(limit, "536870912\n")], (512 << 20, limit));
        let stat = "/sys/fs/cgroup/memory/memory.stat";
        let above = "cache 0\nhierarchical_memory_limit 1048576\nhierarchical_memsw_limit 5\n";
        check(groups, docker, &[(limit, "9223372036854771712\n"), (stat, above)], (1 << 20, stat));
        // Both versions at a time, of which one limits memory.
        let both = format!("{OTHER_V1}\n{V1}\n38 31 0:41 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw");
        let nested = "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes";
        check("5:cpu,cpuacct:/\n4:memory:/a/b\n0::/\n", &both, &[(nested, "4096\n")], (4096, nested));
        // Mounted in another place, and with a blank.
        let blank = "30 23 0:26 /x\\040y /mnt/a\\040b ro - cgroup2 none rw";
        let there = [("/mnt/a b/z/memory.max", "4096")];
        check("0::/x y/z\n", blank, &there, (4096, "/mnt/a b/z/memory.max"));
    }

    #[test]
    fn without_a_limit_the_machines_memory_counts() {
        let machine = Some((4 << 30, MACHINE.to_owned()));
        type Files<'f> = &'f [(&'f str, &'f str)];
        let cases: [(&str, &str, Files<'_>); 6] = [
            ("0::/\n", V2, &[("/sys/fs/cgroup/memory.max", "max\n")]),
            ("4:memory:/\n", V1, &[("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")]),
            // Not mounted, not for memory, not readable, or malformed.
            ("0::/\n", "", &[("/sys/fs/cgroup/memory.max", "1\n")]),
            ("5:cpu:/\n", OTHER_V1, &[("/sys/fs/cgroup/cpu/memory.limit_in_bytes", "1\n")]),
            ("", V2, &[]),
            ("0::/../../x\nnonsense", "nonsense - x", &[]),
        ];
        for (groups, mounts, there) in cases {
            assert_eq!(found(groups, mounts, MACHINE_OF_4_GIB, there), machine, "{groups} {mounts}");
        }
        assert_eq!(found("", "", "nonsense", &[]), None);
    }

    #[test]
    fn a_group_outside_of_the_mounted_one_is_taken_for_that() {
        let own = "/sys/fs/cgroup/memory.max";
        let there = [(own, "4096"), ("/sys/fs/cgroup/../x/memory.max", "1"), ("/x/memory.max", "1")];
        for groups in ["0::/../x", "0::x", "", "4:memory:/x"] {
            assert_eq!(found(groups, V2, MACHINE_OF_4_GIB, &there), Some((4096, own.to_owned())), "{groups}");
        }
    }
}
