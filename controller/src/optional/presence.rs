//! Whether an API group is there, from what the API server lists (pure).

use std::time::Duration;

use tokio::time::Instant;

/// How long what was there has to be missing, and how often in a row, before it is given up.
const MIN_ABSENCE: Duration = Duration::from_secs(30);
const MIN_POLLS: u32 = 3;

/// What is known of a group.
#[derive(Debug, Default)]
pub(super) struct Presence {
    /// The version that is watched.
    served: Option<&'static str>,
    /// Since when it is not listed, and how often it was not.
    missing: Option<(Instant, u32)>,
}

/// What has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// This version is there, in place of none or of another.
    Served(&'static str),
    /// None is there any more.
    Gone,
}

impl Presence {
    /// The version that is watched.
    pub(super) fn served(&self) -> Option<&'static str> {
        self.served
    }

    /// The API server lists these versions. `known`: those that we can read, the best one first. A version that is watched
    /// stays while it is listed, even if a better one appears: the objects are the same.
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
    use super::*;

    const KNOWN: &[&str] = &["v1", "v1beta2", "v1beta1"];

    /// What is said to each look, given as second and versions.
    fn story<const N: usize>(polls: [(u64, &[&str]); N]) -> [Option<Change>; N] {
        let (mut presence, start) = (Presence::default(), Instant::now());
        polls.map(|(second, listed)| presence.observe(KNOWN, listed, start + Duration::from_secs(second)))
    }

    #[test]
    fn the_best_version_that_is_there_from_the_first_look() {
        assert_eq!(story([(0, &[])]), [None]);
        assert_eq!(story([(0, &["v1beta1", "v1beta2"])]), [Some(Change::Served("v1beta2"))]);
        assert_eq!(story([(0, &["v1alpha3"]), (5, &["v1"])]), [None, Some(Change::Served("v1"))]);
    }

    #[test]
    fn gone_only_after_some_time_and_several_looks() {
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
    fn a_version_is_left_only_if_it_goes() {
        let served = Some(Change::Served("v1beta1"));
        assert_eq!(story([(0, &["v1beta1"]), (5, &["v1", "v1beta1"])]), [served, None]);
        assert_eq!(
            story([(0, &["v1beta1"]), (5, &["v1"]), (20, &["v1"]), (35, &["v1"])]),
            [served, None, None, Some(Change::Served("v1"))]
        );
    }
}
