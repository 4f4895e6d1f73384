//! Collecting violations on the way through an object.

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::hash::Hash;
use std::ops::RangeInclusive;

use super::Violation;
use crate::syntax::TextKind;

/// The most of a wrong value that a message repeats.
const QUOTED: usize = 80;

/// What was found so far, and where in the object we are.
#[derive(Default)]
pub struct Check {
    path: String,
    found: Vec<Violation>,
}

impl Check {
    /// Checks below the field `name` of where we are.
    pub(super) fn field(&mut self, name: &str, rules: impl FnOnce(&mut Self)) {
        let length = self.path.len();
        if length > 0 {
            self.path.push('.');
        }
        self.path.push_str(name);
        rules(self);
        self.path.truncate(length);
    }

    /// Checks below `[key]` of where we are.
    pub(super) fn entry(&mut self, key: impl fmt::Display, rules: impl FnOnce(&mut Self)) {
        let length = self.path.len();
        // Writing to a string cannot fail.
        let _ = write!(self.path, "[{key}]");
        rules(self);
        self.path.truncate(length);
    }

    /// Checks every item of the list `name`.
    pub(super) fn items<T>(&mut self, name: &str, items: &[T], rules: impl Fn(&mut Self, &T)) {
        self.field(name, |check| {
            for (index, item) in items.iter().enumerate() {
                check.entry(index, |check| rules(check, item));
            }
        });
    }

    /// Something is wrong where we are.
    pub(super) fn fail(&mut self, message: impl Into<String>) {
        self.found.push(Violation { field: self.path.clone(), message: message.into() });
    }

    /// The text at the field `name` is of this kind.
    pub(super) fn text(&mut self, name: &str, text: &str, kind: &TextKind) {
        if !kind.accepts(text) {
            self.field(name, |check| {
                check.fail(format!("must be {kind}; {} is not", quote(text)));
            });
        }
    }

    /// The text at the field `name`, if there is one, is of this kind.
    pub(super) fn optional(&mut self, name: &str, text: Option<&String>, kind: &TextKind) {
        if let Some(text) = text {
            self.text(name, text, kind);
        }
    }

    /// The number at the field `name` is in this range.
    pub(super) fn number(&mut self, name: &str, number: u16, range: RangeInclusive<u16>) {
        if !range.contains(&number) {
            let (start, end) = range.into_inner();
            self.field(name, |check| {
                check.fail(format!("must be {start} to {end}; {number} is not"));
            });
        }
    }

    /// The list `name` has a length in this range.
    pub(super) fn length(&mut self, name: &str, length: usize, range: RangeInclusive<usize>) {
        if !range.contains(&length) {
            let (start, end) = range.into_inner();
            let bound = if start == end { start.to_string() } else { format!("{start} to {end}") };
            self.field(name, |check| {
                check.fail(format!("must have {bound} items, not {length}"));
            });
        }
    }

    /// The keys of the items of the list `name` differ. They are at the field `key` of the items, or the items
    /// themselves where that is empty.
    pub(super) fn unique<K: Eq + Hash + fmt::Display>(
        &mut self,
        name: &str,
        key: &str,
        keys: impl Iterator<Item = K>,
    ) {
        let mut seen: HashMap<K, usize> = HashMap::new();
        self.field(name, |check| {
            for (index, found) in keys.enumerate() {
                if let Some(first) = seen.get(&found) {
                    let message = format!(
                        "must be unique in the list; {} is also that of item {first}",
                        quote(&found.to_string())
                    );
                    check.entry(index, |check| match key {
                        "" => check.fail(message),
                        key => check.field(key, |check| check.fail(message)),
                    });
                } else {
                    seen.insert(found, index);
                }
            }
        });
    }

    /// All that was found.
    pub(super) fn finish(self) -> Result<(), Vec<Violation>> {
        if self.found.is_empty() { Ok(()) } else { Err(self.found) }
    }
}

/// A wrong value for a message: in quotes, escaped, cut where it gets long.
pub(super) fn quote(text: &str) -> String {
    match text.char_indices().nth(QUOTED) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}
