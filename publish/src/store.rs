//! The keys that etcd has, and the fewest changes that lead to those that it should have. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::index::{Objects, Scope, Slot};
use crate::keys::{self, Keys};

/// A change of one key, with the version of the key that it was planned on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The key.
    pub key: String,
    /// The new value; `None` deletes the key.
    pub value: Option<String>,
    /// Revision of etcd at which the key was changed last; 0 if there is no such key.
    pub revision: i64,
}

#[derive(Debug)]
struct Known {
    value: String,
    revision: i64,
}

/// The keys that etcd has, as far as they are known: the last list, and what was written since.
#[derive(Debug, Default)]
pub struct Store {
    known: BTreeMap<String, Known>,
    /// Keys of other programs, which are never written.
    foreign: BTreeSet<String>,
    /// Keys that could not be written, since another program has them.
    blocked: BTreeSet<String>,
}

impl Store {
    /// Adds a key from a list.
    pub fn add(&mut self, key: String, value: Vec<u8>, revision: i64) {
        match String::from_utf8(value) {
            Ok(value) if keys::is_ours(value.as_bytes()) => {
                self.known.insert(key, Known { value, revision });
            }
            _ => {
                self.foreign.insert(key);
            }
        }
    }

    /// Returns the number of this program's keys.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Returns whether etcd has none of this program's keys.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Returns the keys that could not be written, since another program has them.
    pub fn blocked(&self) -> &BTreeSet<String> {
        &self.blocked
    }

    /// Appends the fewest changes that give a slot the keys that it should have: first the puts, so
    /// that no name is gone in between.
    pub fn plan(&mut self, objects: &Objects, slot: &Slot, changes: &mut Vec<Change>) {
        let mut wanted = objects.keys(slot);
        let mut deletes = Vec::new();
        for scope in objects.scopes(slot) {
            self.blocked.retain(|key| !scope.contains(key));
            for (key, known) in self.within(&scope) {
                match wanted.remove(key) {
                    Some(value) if value == known.value => {}
                    Some(value) => changes.push(Change {
                        key: key.clone(),
                        value: Some(value),
                        revision: known.revision,
                    }),
                    None => {
                        deletes.push(Change { key: key.clone(), value: None, revision: known.revision });
                    }
                }
            }
        }
        self.create(wanted, changes);
        changes.append(&mut deletes);
    }

    fn create(&mut self, keys: Keys, changes: &mut Vec<Change>) {
        for (key, value) in keys {
            if self.foreign.contains(&key) {
                self.blocked.insert(key);
            } else {
                changes.push(Change { key, value: Some(value), revision: 0 });
            }
        }
    }

    /// Returns the fewest changes that give etcd the keys of all slots, and no others.
    pub fn plan_all(&mut self, objects: &Objects) -> Vec<Change> {
        let mut changes = Vec::new();
        let mut kept = BTreeSet::new();
        for slot in objects.all() {
            kept.extend(
                objects.scopes(&slot).iter().flat_map(|scope| self.within(scope)).map(|(key, _)| key.clone()),
            );
            self.plan(objects, &slot, &mut changes);
        }
        let unwanted = self.known.iter().filter(|(key, _)| !kept.contains(*key));
        let delete = |(key, known): (&String, &Known)| Change {
            key: key.clone(),
            value: None,
            revision: known.revision,
        };
        changes.extend(unwanted.map(delete));
        changes
    }

    fn within<'a>(&'a self, scope: &'a Scope) -> impl Iterator<Item = (&'a String, &'a Known)> {
        let first = match scope {
            Scope::At(key) | Scope::Below(key) => key.as_str(),
        };
        let from = self.known.range::<str, _>((Bound::Included(first), Bound::Unbounded));
        from.take_while(|(key, _)| scope.contains(key))
    }

    /// Records that changes were written in a transaction with this revision.
    pub fn written(&mut self, changes: impl IntoIterator<Item = Change>, revision: i64) {
        for Change { key, value, .. } in changes {
            match value {
                Some(value) => self.known.insert(key, Known { value, revision }),
                None => self.known.remove(&key),
            };
        }
    }
}

impl Scope {
    fn contains(&self, key: &str) -> bool {
        match self {
            Self::At(at) => key == at,
            Self::Below(prefix) => key.starts_with(prefix.as_str()),
        }
    }
}

#[cfg(test)]
mod tests;
