//! Turns of namespaces (pure): those with changes, and those to look at again after a pause.

use std::collections::{HashMap, HashSet, VecDeque};

use tokio::time::Instant;

/// Queue of namespaces, in which each waits once.
#[derive(Debug, Default)]
pub struct Turns {
    queue: VecDeque<String>,
    /// The namespaces of the queue.
    queued: HashSet<String>,
    /// Namespaces that join the queue later.
    postponed: HashMap<String, Instant>,
}

impl Turns {
    /// Adds a namespace to the end of the queue, unless it waits already.
    pub fn add(&mut self, namespace: String) {
        if self.queued.insert(namespace.clone()) {
            self.queue.push_back(namespace);
        }
    }

    /// Adds a namespace to the queue at that time, or at an earlier one that it was postponed to.
    pub fn postpone(&mut self, namespace: &str, until: Instant) {
        let known = self.postponed.entry(namespace.to_owned()).or_insert(until);
        *known = until.min(*known);
    }

    /// Removes the next namespace from the queue. Postponed ones whose time has come join it first,
    /// however long it is.
    pub fn next(&mut self, now: Instant) -> Option<String> {
        let due: Vec<_> = self.postponed.extract_if(|_, until| *until <= now).collect();
        due.into_iter().for_each(|(namespace, _)| self.add(namespace));
        let namespace = self.queue.pop_front()?;
        self.queued.remove(&namespace);
        self.postponed.remove(&namespace);
        Some(namespace)
    }

    /// Returns the time at which the first of the postponed namespaces joins the queue.
    pub fn due(&self) -> Option<Instant> {
        self.postponed.values().min().copied()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_postponed_namespace_has_its_turn_though_the_queue_is_never_empty() {
        let (mut turns, start) = (Turns::default(), Instant::now());
        turns.postpone("calm", start + 5 * SECOND);
        turns.postpone("calm", start + 9 * SECOND);
        assert_eq!(turns.due(), Some(start + 5 * SECOND));
        let busy = ["a", "b", "c"];
        busy.iter().for_each(|namespace| turns.add((*namespace).to_owned()));
        let mut order = Vec::new();
        for second in 0..10 {
            let namespace = turns.next(start + second * SECOND).unwrap();
            // It changes again at once.
            if busy.contains(&namespace.as_str()) {
                turns.add(namespace.clone());
            }
            order.push(namespace);
        }
        // Due at the sixth turn, it comes after those that wait by then.
        assert_eq!(order.concat(), "abcab cab calm c".replace(' ', ""));
        assert_eq!(turns.due(), None);
    }

    #[test]
    fn a_namespace_waits_once_and_a_turn_takes_the_place_of_a_postponed_one() {
        let (mut turns, now) = (Turns::default(), Instant::now());
        turns.postpone("a", now);
        turns.add("a".to_owned());
        turns.postpone("b", now + SECOND);
        turns.add("b".to_owned());
        assert_eq!([turns.next(now), turns.next(now)], [Some("a".to_owned()), Some("b".to_owned())]);
        assert_eq!((turns.next(now + SECOND), turns.due()), (None, None));
    }
}
