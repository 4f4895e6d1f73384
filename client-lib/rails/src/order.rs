//! The order of names that contain numbers.

/// Returns a key by which names sort with their numbers as numbers: `worker-2` before `worker-10`.
/// Different names have different keys.
///
/// ```
/// use multinet_rails::by_number;
///
/// let mut hosts = ["worker-10", "worker-2", "worker"];
/// hosts.sort_by_cached_key(|host| by_number(host));
/// assert_eq!(hosts, ["worker", "worker-2", "worker-10"]);
/// ```
pub fn by_number(name: &str) -> impl Ord + use<> {
    let mut parts = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let (text, tail) = rest.split_at(rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len()));
        let (digits, tail) = tail.split_at(tail.find(|c: char| !c.is_ascii_digit()).unwrap_or(tail.len()));
        // Of numbers without leading zeros, the longer one is greater.
        let digits = digits.trim_start_matches('0');
        parts.push((text.to_owned(), digits.len(), digits.to_owned()));
        rest = tail;
    }
    (parts, name.to_owned())
}
