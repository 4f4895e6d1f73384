//! Collector of violations during a walk through an object.

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::hash::Hash;
use std::ops::RangeInclusive;

use super::Violation;
use crate::syntax::TextKind;

/// Number of characters of a wrong value that a message repeats.
const QUOTED: usize = 80;

/// Violations found so far, and the path of the current field.
#[derive(Default)]
pub struct Check {
    path: String,
    found: Vec<Violation>,
}

impl Check {
    /// Returns the path of the current field.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Runs `rules` with the field `name` appended to the path.
    pub(crate) fn field(&mut self, name: &str, rules: impl FnOnce(&mut Self)) {
        let length = self.path.len();
        if length > 0 {
            self.path.push('.');
        }
        self.path.push_str(name);
        rules(self);
        self.path.truncate(length);
    }

    /// Runs `rules` with `[key]` appended to the path.
    pub(crate) fn entry(&mut self, key: impl fmt::Display, rules: impl FnOnce(&mut Self)) {
        let length = self.path.len();
        // Writing to a string cannot fail.
        let _ = write!(self.path, "[{key}]");
        rules(self);
        self.path.truncate(length);
    }

    /// Runs `rules` for every item of the list `name`.
    pub(super) fn items<T>(&mut self, name: &str, items: &[T], rules: impl Fn(&mut Self, &T)) {
        self.field(name, |check| {
            for (index, item) in items.iter().enumerate() {
                check.entry(index, |check| rules(check, item));
            }
        });
    }

    /// Adds a violation at the current path.
    pub(crate) fn fail(&mut self, message: impl Into<String>) {
        self.found.push(Violation::new(self.path.clone(), message));
    }

    /// Requires that the text in the field `name` is of this kind.
    pub(super) fn text(&mut self, name: &str, text: &str, kind: &TextKind) {
        if !kind.accepts(text) {
            self.field(name, |check| {
                check.fail(format!("must be {kind}; {} is not", quote(text)));
            });
        }
    }

    /// Requires that the text in the field `name`, if present, is of this kind.
    pub(super) fn optional(&mut self, name: &str, text: Option<&String>, kind: &TextKind) {
        if let Some(text) = text {
            self.text(name, text, kind);
        }
    }

    /// Requires that the number in the field `name` is in this range.
    pub(super) fn number(&mut self, name: &str, number: u16, range: RangeInclusive<u16>) {
        if !range.contains(&number) {
            let (start, end) = range.into_inner();
            self.field(name, |check| {
                check.fail(format!("must be {start} to {end}; {number} is not"));
            });
        }
    }

    /// Requires that the length of the list `name` is in this range.
    pub(super) fn length(&mut self, name: &str, length: usize, range: RangeInclusive<usize>) {
        if !range.contains(&length) {
            let (start, end) = range.into_inner();
            let bound = if start == end { start.to_string() } else { format!("{start} to {end}") };
            self.field(name, |check| {
                check.fail(format!("must have {bound} items, not {length}"));
            });
        }
    }

    /// Requires that the keys of the items of the list `name` are unique. `key` names the field of
    /// an item that is its key; it is empty if the items are keys themselves.
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

    /// Returns the violations found, if there are any.
    pub(crate) fn finish(self) -> Result<(), Vec<Violation>> {
        if self.found.is_empty() { Ok(()) } else { Err(self.found) }
    }
}

/// Formats a wrong value for a message: in quotes, escaped, and cut if it is long.
pub(super) fn quote(text: &str) -> String {
    match text.char_indices().nth(QUOTED) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}
