//! Permission to write, which each writer checks.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::Timing;

/// Duration that stands for ever. Shorter than the greatest possible one, so that adding to it does
/// not overflow.
const FOR_EVER: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// Tells whether this process may write now. Each writer has a clone, which is cheap, and checks it
/// before each write.
///
/// ```text
///   renewal is sent         is_leader() until      write_deadline()      others may take over
///        │                          │                      │                      │
///        0 ──── writes begin ───── 2/3 ── writes end ──── 9/10 ──── margin ────── 1 × duration
/// ```
///
/// These times count on the clock of this process. They hold even while the API server cannot be
/// reached, or every other task hangs.
#[derive(Clone, Debug)]
pub struct Leadership {
    tenure: watch::Receiver<Tenure>,
}

impl Leadership {
    pub(super) fn new(tenure: watch::Receiver<Tenure>) -> Self {
        Self { tenure }
    }

    /// Returns a leadership that lasts for ever, for processes without an election, and for tests.
    pub fn always() -> Self {
        let end = Instant::now() + FOR_EVER;
        let tenure = Tenure { term: 1, held: Some(Held { begin: end, end }) };
        Self { tenure: watch::channel(tenure).1 }
    }

    /// Returns whether a write may begin now: this process holds the lease, and less than two
    /// thirds of the duration have passed since it sent the last renewal that succeeded.
    pub fn is_leader(&self) -> bool {
        // Read the clock while the tenure is borrowed. Read before, it could be older than the
        // tenure.
        let tenure = self.tenure.borrow();
        tenure.leads(Instant::now())
    }

    /// Returns when a write that begins now has to be done or abandoned; `None` if none may begin.
    ///
    /// That is nine tenths of the duration after the last renewal was sent. The last tenth allows
    /// for clocks that run at different rates, and for abandoned requests still on their way.
    pub fn write_deadline(&self) -> Option<Instant> {
        let tenure = self.tenure.borrow();
        let now = Instant::now();
        tenure.held.filter(|held| now < held.begin).map(|held| held.end)
    }

    /// Returns the number of the term, which rises from 1 with each gain of leadership; 0 before
    /// the first. Work that began in one term must not write in another, because another process
    /// may have written in between.
    pub fn term(&self) -> u64 {
        self.tenure.borrow().term
    }

    /// Waits until [`is_leader`](Self::is_leader) differs from `was`, also because leadership
    /// lapsed. It misses a loss that is followed by a gain at once; compare terms to notice that.
    pub async fn changed(&mut self, was: bool) {
        self.wait_until(|tenure, now| tenure.leads(now) != was).await;
    }

    /// Waits until the given term is over: leadership is lost, or a later term has begun.
    pub async fn term_ended(&mut self, term: u64) {
        self.wait_until(|tenure, now| !tenure.leads(now) || tenure.term != term).await;
    }

    /// Waits until leadership or term differ from `was`, and returns the two.
    pub(super) async fn next(&mut self, was: (bool, u64)) -> (bool, u64) {
        let seen = |tenure: &Tenure, now| (tenure.leads(now), tenure.term);
        self.wait_until(|tenure, now| seen(tenure, now) != was).await;
        self.now()
    }

    /// Returns whether this process leads now, and the number of its term.
    pub(super) fn now(&self) -> (bool, u64) {
        let tenure = self.tenure.borrow();
        (tenure.leads(Instant::now()), tenure.term)
    }

    /// Returns whether leadership has lapsed: it was not renewed in time, but no loss was observed.
    pub(super) fn has_lapsed(&self) -> bool {
        let tenure = self.tenure.borrow();
        tenure.held.is_some() && !tenure.leads(Instant::now())
    }

    async fn wait_until(&mut self, done: impl Fn(&Tenure, Instant) -> bool) {
        loop {
            let deadline = {
                let tenure = self.tenure.borrow_and_update();
                let now = Instant::now();
                if done(&tenure, now) {
                    return;
                }
                tenure.held.map(|held| held.begin).filter(|begin| now < *begin)
            };
            let changed = async {
                if self.tenure.changed().await.is_err() {
                    // The election has ended, so the tenure changes only by the deadline.
                    std::future::pending::<()>().await;
                }
            };
            match deadline {
                Some(deadline) => drop(timeout_at(deadline, changed).await),
                None => changed.await,
            }
        }
    }
}

/// This process' hold on the lease, as the election publishes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tenure {
    term: u64,
    held: Option<Held>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    /// Time until which this process may begin writes.
    begin: Instant,
    /// Time by which this process has to be done with its writes.
    end: Instant,
}

impl Tenure {
    /// Returns whether writes of this process may begin at `now`.
    pub(super) fn leads(&self, now: Instant) -> bool {
        self.held.is_some_and(|held| now < held.begin)
    }

    /// Extends the tenure after a successful write of the lease that was sent at `sent`. If
    /// leadership had lapsed, a new term begins, because this process cannot know whether another
    /// one led in between.
    pub(super) fn renewed(&mut self, sent: Instant, now: Instant, timing: &Timing) {
        if !self.leads(now) {
            self.term += 1;
        }
        self.held = Some(Held { begin: sent + timing.renew_deadline, end: sent + timing.write_deadline });
    }

    /// Ends the tenure, because another process holds the lease or it was released. Returns whether
    /// this process led until now.
    pub(super) fn lost(&mut self, now: Instant) -> bool {
        let led = self.leads(now);
        self.held = None;
        led
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn leadership() -> (watch::Sender<Tenure>, Leadership) {
        let (send, tenure) = watch::channel(Tenure::default());
        (send, Leadership::new(tenure))
    }

    fn renew(tenure: &watch::Sender<Tenure>, sent: Instant) {
        let timing = Timing::of(15 * SECOND);
        tenure.send_modify(|tenure| tenure.renewed(sent, Instant::now(), &timing));
    }

    #[tokio::test(start_paused = true)]
    async fn leadership_lapses_two_thirds_of_the_duration_after_the_renewal_was_sent() {
        let (tenure, mut leadership) = leadership();
        assert!(!leadership.is_leader());
        assert_eq!((leadership.write_deadline(), leadership.term()), (None, 0));

        let sent = Instant::now();
        tokio::time::advance(3 * SECOND).await;
        renew(&tenure, sent);
        assert!(leadership.is_leader());
        assert_eq!(leadership.write_deadline(), Some(sent + Duration::from_millis(13_500)));
        leadership.changed(true).await;
        assert_eq!(sent.elapsed().as_millis() / 10, 1000, "10 s, give or take the timer");
        assert!(!leadership.is_leader());
        assert_eq!((leadership.write_deadline(), leadership.term()), (None, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn terms_rise_with_gains_only() {
        let (tenure, leadership) = leadership();
        renew(&tenure, Instant::now());
        tokio::time::advance(9 * SECOND).await;
        renew(&tenure, Instant::now());
        assert_eq!(leadership.now(), (true, 1));
        tokio::time::advance(10 * SECOND).await;
        assert_eq!(leadership.now(), (false, 1));
        renew(&tenure, Instant::now());
        assert_eq!(leadership.now(), (true, 2));
        tenure.send_modify(|tenure| assert!(tenure.lost(Instant::now())));
        assert_eq!(leadership.now(), (false, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn changed_resolves_on_gain_and_lapse_even_without_an_election() {
        let (tenure, mut leadership) = leadership();
        let waiting = tokio::spawn({
            let mut leadership = leadership.clone();
            async move {
                leadership.changed(false).await;
                leadership.is_leader()
            }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        renew(&tenure, Instant::now());
        assert!(waiting.await.unwrap());
        leadership.changed(false).await;

        // The election has ended. The deadline still passes, and no change follows.
        drop(tenure);
        leadership.changed(true).await;
        let never = tokio::time::timeout(3600 * SECOND, leadership.changed(false)).await;
        assert!(never.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_term_ends_even_if_another_follows_at_once() {
        let (tenure, mut leadership) = leadership();
        renew(&tenure, Instant::now());
        let going_on = tokio::time::timeout(SECOND, leadership.term_ended(1)).await;
        assert!(going_on.is_err());
        tenure.send_modify(|tenure| assert!(tenure.lost(Instant::now())));
        renew(&tenure, Instant::now());
        assert_eq!(leadership.now(), (true, 2));
        leadership.term_ended(1).await;
    }

    #[tokio::test(start_paused = true)]
    async fn the_leadership_without_an_election_never_ends() {
        let mut leadership = Leadership::always();
        leadership.changed(false).await;
        let ended = tokio::time::timeout(24 * 3600 * SECOND, leadership.changed(true)).await;
        assert!(ended.is_err() && leadership.is_leader());
        assert_eq!(leadership.term(), 1);
        assert!(leadership.write_deadline().is_some_and(|end| end > Instant::now() + 3600 * SECOND));
    }
}
