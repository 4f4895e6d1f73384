//! Whether this process may write, as everything that writes asks it.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::Timing;

/// What stands for ever. (Not the last instant there is: additions to it should not overflow.)
const FOR_EVER: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// Whether this process may write now. Cheap to clone; every writer has one and asks it before each write.
///
/// ```text
///   renewal is sent                 is_leader() ends                ends()            others may take over
///        │                                 │                           │                       │
///        0 ─────────── writes begin ───── 2/3 ─── writes under way ── 9/10 ────── nothing ──── 1  × duration
/// ```
///
/// All of this goes by the clock of this process: it holds while the API server cannot be reached, and when
/// every other task is stuck.
#[derive(Clone, Debug)]
pub struct Leadership {
    tenure: watch::Receiver<Tenure>,
}

impl Leadership {
    pub(super) fn new(tenure: watch::Receiver<Tenure>) -> Self {
        Self { tenure }
    }

    /// The leadership of a process that needs no election; also for tests.
    pub fn always() -> Self {
        let end = Instant::now() + FOR_EVER;
        let tenure = Tenure { term: 1, held: Some(Held { begin: end, end }) };
        Self { tenure: watch::channel(tenure).1 }
    }

    /// Whether a write may begin now: this process holds the lease, and less than two thirds of the duration have
    /// passed since it sent the last renewal that succeeded.
    pub fn is_leader(&self) -> bool {
        // The clock is read while the tenure is held fast, so that no answer is older than a newer renewal.
        let tenure = self.tenure.borrow();
        tenure.leads(Instant::now())
    }

    /// By when a write that begins now has to be done or given up. None: it may not begin.
    ///
    /// That is nine tenths of the duration after the last renewal was sent. The last tenth makes up for clocks
    /// that run at different rates, and for the flight of a request that was given up too late to be stopped.
    pub fn write_deadline(&self) -> Option<Instant> {
        let tenure = self.tenure.borrow();
        let now = Instant::now();
        tenure.held.filter(|held| now < held.begin).map(|held| held.end)
    }

    /// A number that rises with every gain of leadership, from 1 on; 0 before the first. Work that has begun under one
    /// term must not write under another, for somebody else may have written in between.
    pub fn term(&self) -> u64 {
        self.tenure.borrow().term
    }

    /// Resolves once [`is_leader`](Self::is_leader) differs from `was`. A loss that comes by the mere passing of time
    /// is noticed as well. Where one is followed by a gain before anybody looks, only the term tells.
    pub async fn changed(&mut self, was: bool) {
        self.wait_until(|tenure, now| tenure.leads(now) != was).await;
    }

    /// Resolves once the term of that number is over: leadership is lost, or has lapsed and been gained anew.
    pub async fn term_ended(&mut self, term: u64) {
        self.wait_until(|tenure, now| !tenure.leads(now) || tenure.term != term).await;
    }

    /// Resolves once leadership or term differ from what was seen last. Returns them.
    pub(super) async fn next(&mut self, was: (bool, u64)) -> (bool, u64) {
        let seen = |tenure: &Tenure, now| (tenure.leads(now), tenure.term);
        self.wait_until(|tenure, now| seen(tenure, now) != was).await;
        self.now()
    }

    /// Leadership and term.
    pub(super) fn now(&self) -> (bool, u64) {
        let tenure = self.tenure.borrow();
        (tenure.leads(Instant::now()), tenure.term)
    }

    /// Whether leadership has ended by the mere passing of time.
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
                    // Nobody is left to tell anything; what remains is the deadline.
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

/// What this process has of the lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tenure {
    term: u64,
    held: Option<Held>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    /// Until when writes may begin.
    begin: Instant,
    /// By when they have to be over.
    end: Instant,
}

impl Tenure {
    /// Whether writes may begin.
    pub(super) fn leads(&self, now: Instant) -> bool {
        self.held.is_some_and(|held| now < held.begin)
    }

    /// A write of the lease that was sent at `sent` has succeeded. If leadership had lapsed, this is a new term,
    /// even if nobody else has led in between: nobody here can know that.
    pub(super) fn renewed(&mut self, sent: Instant, now: Instant, timing: &Timing) {
        if !self.leads(now) {
            self.term += 1;
        }
        self.held = Some(Held { begin: sent + timing.renew_deadline, end: sent + timing.write_deadline });
    }

    /// The lease is somebody else's, or given back. Returns whether it was held until now.
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
    async fn it_lapses_by_itself_two_thirds_after_the_renewal_was_sent() {
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
    async fn waiting_for_a_change() {
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

        // What renews it is gone; the deadline still comes, and nothing after it.
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
    async fn always_is_always() {
        let mut leadership = Leadership::always();
        leadership.changed(false).await;
        let ended = tokio::time::timeout(24 * 3600 * SECOND, leadership.changed(true)).await;
        assert!(ended.is_err() && leadership.is_leader());
        assert_eq!(leadership.term(), 1);
        assert!(leadership.write_deadline().is_some_and(|end| end > Instant::now() + 3600 * SECOND));
    }
}
