//! Generates names for new slices.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Characters that Kubernetes uses in generated names: without vowels and characters that look
/// alike.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// Number of random characters at the end of a slice's name.
const LENGTH: usize = 5;

/// Generator of names for new slices, which no existing slice has.
pub(crate) struct SliceNames<'a> {
    prefix: &'a str,
    uid: &'a str,
    seed: u64,
    taken: HashSet<String>,
}

impl<'a> SliceNames<'a> {
    /// Creates a generator of names with the prefix `prefix` for slices of the owner `uid`. If
    /// another writer took a name first, the caller tries again with another seed.
    pub(crate) fn new(prefix: &'a str, uid: &'a str, seed: u64, taken: HashSet<String>) -> Self {
        Self { prefix, uid, seed, taken }
    }

    /// Returns a new name for a slice of `group`: `<prefix>-<5 characters>`.
    pub(crate) fn next(&mut self, group: &impl Hash) -> String {
        let mut number = 0_u64;
        loop {
            let mut hasher = DefaultHasher::new();
            (self.uid, self.seed, number).hash(&mut hasher);
            group.hash(&mut hasher);
            let name = format!("{}-{}", self.prefix, suffix(hasher.finish()));
            if self.taken.insert(name.clone()) {
                return name;
            }
            number += 1;
        }
    }
}

fn suffix(mut hash: u64) -> String {
    let base = ALPHABET.len() as u64;
    let mut text = String::with_capacity(LENGTH);
    for _ in 0..LENGTH {
        text.push(char::from(ALPHABET[(hash % base) as usize]));
        hash /= base;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(uid: &str, seed: u64, group: &str, count: usize) -> Vec<String> {
        let mut names = SliceNames::new("infer", uid, seed, HashSet::new());
        (0..count).map(|_| names.next(&group)).collect()
    }

    #[test]
    fn a_name_is_a_dns_label_of_the_service_and_five_safe_characters() {
        for name in names("uid", 0, "rail0", 200) {
            let suffix = name.strip_prefix("infer-").unwrap();
            assert_eq!(suffix.len(), 5);
            assert!(suffix.bytes().all(|byte| ALPHABET.contains(&byte)), "{name}");
        }
    }

    #[test]
    fn a_name_follows_from_owner_group_number_and_seed() {
        let first = names("uid", 0, "rail0", 3);
        assert_eq!(first, names("uid", 0, "rail0", 3));
        assert_eq!(first.iter().collect::<HashSet<_>>().len(), 3);
        for other in [names("uid2", 0, "rail0", 1), names("uid", 1, "rail0", 1), names("uid", 0, "rail1", 1)]
        {
            assert!(!first.contains(&other[0]));
        }
    }

    #[test]
    fn an_existing_name_is_not_generated() {
        let existing = names("uid", 0, "rail0", 2);
        let mut names = SliceNames::new("infer", "uid", 0, existing.iter().cloned().collect());
        for _ in 0..3 {
            let name = names.next(&"rail0");
            assert!(!existing.contains(&name));
        }
    }
}
