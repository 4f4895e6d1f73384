//! How often a Vertex is reset (pure).
//!
//! A Vertex is reset once for each plan and outage of the webhook. The end of an outage is a probe
//! that succeeds, or a new leader. If the Vertex comes back without its plan, the webhook missed
//! that one write, or something took the plan away. Neither shows in the Vertex. So it is reset
//! once more after a pause, and then not before a probe has seen another outage.

use tokio::time::Instant;

use crate::limits::writes::{MAX_RESETS, PROBES_BEFORE_EVENT, RESET_PAUSE};
use crate::reconcile::KnownVertex;

/// Attempts of this leader to bring a Vertex to a plan.
#[derive(Clone, Debug, Default)]
pub struct Attempts {
    /// Stamp of the plan; `None` to have Numaflow remove what an earlier one injected.
    wanted: Option<String>,
    /// Resets since the last outage.
    resets: u32,
    /// Probes in a row that the webhook missed.
    missed: u32,
    /// Time of the last reset, or of the last probe after which no reset was allowed.
    last: Option<Instant>,
    /// Version of the Vertex that was last reset.
    version: String,
    /// First answer of the API server since it has refused to change the Vertex.
    refusal: Option<String>,
}

impl Attempts {
    /// Returns the attempts for a plan, which start anew if those before were for another one.
    pub fn for_plan(known: Option<Self>, wanted: Option<&str>) -> Self {
        let known = known.filter(|known| known.wanted.as_deref() == wanted);
        known.unwrap_or_else(|| Self { wanted: wanted.map(str::to_owned), ..Self::default() })
    }

    /// Returns whether the Vertex is to be probed now, and then reset.
    pub fn are_due(&self, vertex: &KnownVertex, now: Instant) -> bool {
        self.resets == 0 || !self.is_old(vertex) && !self.is_recent(now)
    }

    /// Records the result of a probe. Returns whether a reset is allowed.
    pub fn probed(&mut self, is_in_effect: bool, now: Instant) -> bool {
        if !is_in_effect {
            // An outage: the count starts anew after it.
            self.missed += 1;
            self.resets = 0;
            self.refusal = None;
            return false;
        }
        self.missed = 0;
        let is_allowed = self.resets < MAX_RESETS;
        if !is_allowed {
            self.last = Some(now);
            self.refusal = None;
        }
        is_allowed
    }

    /// Records that the API server refuses a probe or a reset. Returns whether that is new.
    pub fn refused(&mut self, message: &str) -> bool {
        let is_new = self.refusal.is_none();
        self.refusal.get_or_insert_with(|| message.to_owned());
        is_new
    }

    /// Returns why the API server refuses to change the Vertex; `None` if it does not.
    pub fn refusal(&self) -> Option<&str> {
        self.refusal.as_deref()
    }

    /// Records that this version of the Vertex was reset.
    pub fn reset(&mut self, vertex: &KnownVertex, now: Instant) {
        self.resets += 1;
        self.last = Some(now);
        self.version.clone_from(&vertex.version);
        self.refusal = None;
    }

    /// Returns whether the author of the Pipeline is to know that the webhook is not in effect for
    /// the Vertex, which has another plan.
    pub fn are_in_vain(&self, vertex: &KnownVertex) -> bool {
        self.missed >= PROBES_BEFORE_EVENT || self.resets > 0 && !self.is_old(vertex)
    }

    /// Returns whether the attempts still matter. Those for a plan that the Vertex has kept for a
    /// while do not, but a program that takes the plan away again and again meets the limit.
    pub fn matter(&self, vertex: &KnownVertex, now: Instant) -> bool {
        vertex.is_reset || vertex.stamp != self.wanted || self.is_recent(now)
    }

    /// Returns whether the watch has not shown the last reset yet.
    fn is_old(&self, vertex: &KnownVertex) -> bool {
        self.version == vertex.version
    }

    fn is_recent(&self, now: Instant) -> bool {
        self.last.is_some_and(|last| now.duration_since(last) < RESET_PAUSE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::writes::PAUSE;

    const PLAN: Option<&str> = Some("a");

    /// Returns a Vertex without plan.
    fn vertex(version: u32) -> KnownVertex {
        KnownVertex {
            uid: "u".to_owned(),
            version: version.to_string(),
            pipeline: "frames".to_owned(),
            vertex: "infer".to_owned(),
            is_reset: false,
            stamp: None,
        }
    }

    /// A leader, a Vertex that has not got its plan, and a webhook.
    struct World {
        attempts: Attempts,
        version: u32,
        now: Instant,
        resets: u32,
    }

    impl World {
        fn new() -> Self {
            let attempts = Attempts::for_plan(None, PLAN);
            Self { attempts, version: 1, now: Instant::now(), resets: 0 }
        }

        /// Looks at the Vertex every few seconds for ten minutes. `works` tells whether the webhook
        /// answers a probe; it misses what Numaflow writes. Returns the number of resets.
        fn run(&mut self, works: impl Fn(u32) -> bool) -> u32 {
            let before = self.resets;
            for look in 0..120 {
                let vertex = vertex(self.version);
                if self.attempts.are_due(&vertex, self.now) && self.attempts.probed(works(look), self.now) {
                    self.attempts.reset(&vertex, self.now);
                    self.resets += 1;
                    // The watch shows the reset, and what Numaflow wrote then.
                    assert!(!self.attempts.are_in_vain(&vertex), "it has not come back yet");
                    assert!(!self.attempts.are_due(&vertex, self.now + RESET_PAUSE));
                    self.version += 2;
                }
                self.now += PAUSE;
            }
            self.resets - before
        }
    }

    #[test]
    fn a_vertex_is_reset_once_and_then_once_more_until_an_outage_is_seen() {
        let mut world = World::new();
        assert_eq!(world.run(|_| true), 2);
        assert!(world.attempts.are_in_vain(&vertex(world.version)));
        assert_eq!(world.run(|_| true), 0);
        // Probes go on at a low rate, and see the next outage.
        assert_eq!(world.run(|look| look > 60), 2);
    }

    #[test]
    fn an_outage_is_reported_and_then_repaired_by_one_reset() {
        let (mut world, bare) = (World::new(), vertex(1));
        for missed in 1..=4 {
            assert!(world.attempts.are_due(&bare, world.now));
            assert!(!world.attempts.probed(false, world.now));
            assert_eq!(world.attempts.are_in_vain(&bare), missed >= 3, "{missed}");
        }
        assert!(world.attempts.probed(true, world.now));
        world.attempts.reset(&bare, world.now);
        // The Vertex waits for Numaflow, and has its plan then.
        let mut reset = vertex(2);
        reset.is_reset = true;
        assert!(world.attempts.matter(&reset, world.now + 2 * RESET_PAUSE));
        let mut planned = vertex(3);
        planned.stamp = PLAN.map(str::to_owned);
        assert!(world.attempts.matter(&planned, world.now));
        assert!(!world.attempts.matter(&planned, world.now + RESET_PAUSE));
    }

    #[test]
    fn another_plan_begins_anew() {
        let mut world = World::new();
        world.run(|_| true);
        world.attempts = Attempts::for_plan(Some(world.attempts), PLAN);
        assert_eq!(world.run(|_| true), 0);
        world.attempts = Attempts::for_plan(Some(world.attempts), None);
        assert_eq!(world.run(|_| true), 2);
    }
}
