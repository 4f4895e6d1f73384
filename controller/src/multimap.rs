//! A map from keys to sets of values, without empty sets.

use std::borrow::Borrow;
use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

/// Map from each key to a set of values.
#[derive(Clone, Debug)]
pub(crate) struct MultiMap<K, V> {
    sets: HashMap<K, BTreeSet<V>>,
}

impl<K, V> Default for MultiMap<K, V> {
    fn default() -> Self {
        Self { sets: HashMap::new() }
    }
}

impl<K: Eq + Hash, V: Ord> MultiMap<K, V> {
    /// Adds `value` to the set of `key`.
    pub(crate) fn insert(&mut self, key: K, value: V) {
        self.sets.entry(key).or_default().insert(value);
    }

    /// Removes `value` from the set of `key`.
    pub(crate) fn remove<Q: Eq + Hash + ?Sized>(&mut self, key: &Q, value: &V)
    where
        K: Borrow<Q>,
    {
        if let Some(set) = self.sets.get_mut(key) {
            set.remove(value);
            if set.is_empty() {
                self.sets.remove(key);
            }
        }
    }

    /// Returns the values of `key` in order.
    pub(crate) fn of<'a, Q: Eq + Hash + ?Sized>(
        &'a self,
        key: &Q,
    ) -> impl Iterator<Item = &'a V> + Clone + use<'a, Q, K, V>
    where
        K: Borrow<Q>,
    {
        self.sets.get(key).into_iter().flatten()
    }

    /// Returns the keys that have values.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &K> {
        self.sets.keys()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_sets_are_removed() {
        let mut map = MultiMap::default();
        map.insert("a".to_owned(), 2);
        map.insert("a".to_owned(), 1);
        map.insert("a".to_owned(), 1);
        assert_eq!(map.of("a").collect::<Vec<_>>(), [&1, &2]);
        map.remove("a", &1);
        map.remove("a", &2);
        map.remove("b", &2);
        assert_eq!((map.of("a").count(), map.keys().count()), (0, 0));
    }
}
