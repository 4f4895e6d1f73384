//! Decides whether an API group is served, from successive lists of the API server (pure).

use tokio::time::Instant;

use crate::limits::discovery::{MIN_ABSENCE, MIN_POLLS};

/// Whether the API server serves an API group, according to its lists of groups so far.
#[derive(Debug, Default)]
pub(super) struct Presence {
    /// Version of the group that is watched; `None` if the group counts as not served.
    served: Option<&'static str>,
    /// Time of the first list that lacked the group, and the number of such lists since.
    missing: Option<(Instant, u32)>,
}

/// Change that a list of API groups demands of the watches of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Watch this version of the group, instead of none or of another.
    Served(&'static str),
    /// Watch nothing: the API server serves no version that the controller can read.
    Gone,
}

impl Presence {
    /// Returns the version of the group that is watched; `None` if the group counts as not served.
    pub(super) fn served(&self) -> Option<&'static str> {
        self.served
    }

    /// Processes a list of served versions. `known` are the versions that the controller can read,
    /// best first. A watched version is kept while it is listed, even if a better one appears,
    /// since the objects are the same.
    pub(super) fn observe(
        &mut self,
        known: &'static [&'static str],
        listed: &[&str],
        now: Instant,
    ) -> Option<Change> {
        let best = known.iter().copied().find(|version| listed.contains(version));
        if let Some(served) = self.served {
            if listed.contains(&served) {
                self.missing = None;
                return None;
            }
            let (since, polls) = self.missing.get_or_insert((now, 0));
            *polls += 1;
            if *polls < MIN_POLLS || now.saturating_duration_since(*since) < MIN_ABSENCE {
                return None;
            }
        } else if best.is_none() {
            return None;
        }
        self.missing = None;
        self.served = best;
        Some(best.map_or(Change::Gone, Change::Served))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const KNOWN: &[&str] = &["v1", "v1beta2", "v1beta1"];

    /// Returns the change that each list causes. A list consists of a second and the served
    /// versions.
    fn story<const N: usize>(polls: [(u64, &[&str]); N]) -> [Option<Change>; N] {
        let (mut presence, start) = (Presence::default(), Instant::now());
        polls.map(|(second, listed)| presence.observe(KNOWN, listed, start + Duration::from_secs(second)))
    }

    #[test]
    fn the_best_served_version_is_chosen() {
        assert_eq!(story([(0, &[])]), [None]);
        assert_eq!(story([(0, &["v1beta1", "v1beta2"])]), [Some(Change::Served("v1beta2"))]);
        assert_eq!(story([(0, &["v1alpha3"]), (5, &["v1"])]), [None, Some(Change::Served("v1"))]);
    }

    #[test]
    fn a_group_is_gone_after_some_time_and_several_polls() {
        let served = Some(Change::Served("v1"));
        assert_eq!(
            story([(0, &["v1"]), (5, &[]), (20, &[]), (34, &[]), (35, &[]), (36, &[])]),
            [served, None, None, None, Some(Change::Gone), None]
        );
        assert_eq!(story([(0, &["v1"]), (5, &[]), (100, &[])]), [served, None, None], "two polls");
        assert_eq!(
            story([(0, &["v1"]), (5, &[]), (20, &[]), (34, &["v1"]), (40, &[]), (41, &[]), (42, &[])]),
            [served, None, None, None, None, None, None],
            "it was there in between"
        );
    }

    #[test]
    fn a_watched_version_is_kept_until_it_is_gone() {
        let served = Some(Change::Served("v1beta1"));
        assert_eq!(story([(0, &["v1beta1"]), (5, &["v1", "v1beta1"])]), [served, None]);
        assert_eq!(
            story([(0, &["v1beta1"]), (5, &["v1"]), (20, &["v1"]), (35, &["v1"])]),
            [served, None, None, Some(Change::Served("v1"))]
        );
    }
}
