//! How a device gets at a GPU's memory: found out once for the two of them, and tried before a frame is trusted to it. What may be otherwise later is tried again
//! after a while: a forced method that does not work, and copies where there was no room for something better.

use std::collections::HashMap;
use std::net::Ipv6Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use multinet_memory::{Forced, Gpu, GpuError, GpuMemory, Method};
use multinet_verbs::{Context, Reached, TRIED, reach_gpu};
use tracing::{info, warn};

use super::lock;

/// Where a device is tried: a port, a row of its GID table, and what is there.
pub(super) type Place = (u8, u8, Ipv6Addr);

/// What has not worked is tried again after so long: the GPU's memory may have been full.
const AGAIN: Duration = Duration::from_secs(10);

/// What has been found out of one device, by the names of GPUs.
#[derive(Debug, Default)]
pub(super) struct Methods(Mutex<HashMap<String, Arc<Entry>>>);

#[derive(Debug, Default)]
struct Entry {
    /// What was found last, and when.
    last: Mutex<Option<(Outcome, Instant)>>,
    /// One tries at a time.
    turn: Mutex<()>,
    /// A thread is at it.
    is_begun: AtomicBool,
    /// There was no thread to be had; none is asked for before this.
    put_off: Mutex<Option<Instant>>,
    /// Somebody has been told that it has no room for slots.
    has_complained: AtomicBool,
}

/// The method for a GPU, or why the forced one does not work.
type Found = Result<Method, GpuError>;

/// What has come of trying.
#[derive(Clone, Debug)]
struct Outcome {
    found: Found,
    /// Another one may come the next time.
    may_pass: bool,
}

impl Methods {
    /// The method for a GPU. The first time, it tries which works, for some seconds: not for an async task.
    pub(super) fn of(&self, gpu: &Arc<dyn Gpu>, context: &Context, place: Place, forced: Forced) -> Found {
        let (entry, gpu, context) = (self.entry(&**gpu), Arc::clone(gpu), context.clone());
        entry.get(Instant::now, move |before| find(&*gpu, &context, place, forced, before))
    }

    /// The method for the GPU of this memory, once it is known. A thread of its own finds it out.
    pub(super) fn known(
        &self,
        memory: &Arc<dyn GpuMemory>,
        context: &Context,
        place: Place,
        forced: Forced,
    ) -> Option<Found> {
        let entry = self.entry(memory.gpu());
        let last = entry.last(Instant::now());
        if !last.as_ref().is_some_and(|(_, is_fresh)| *is_fresh) {
            let (memory, context) = (Arc::clone(memory), context.clone());
            entry.find_aside(move |before| find(memory.gpu(), &context, place, forced, before));
        }
        // Until another outcome is there, the last one holds.
        last.map(|(found, _)| found)
    }

    /// Whether nobody has complained of this GPU yet.
    pub(super) fn is_first_complaint(&self, gpu: &dyn Gpu) -> bool {
        !self.entry(gpu).has_complained.swap(true, Ordering::Relaxed)
    }

    fn entry(&self, gpu: &dyn Gpu) -> Arc<Entry> {
        let mut known = lock(&self.0);
        Arc::clone(known.entry(gpu.name().to_owned()).or_default())
    }
}

impl Entry {
    /// What was found last, and whether that is so still.
    fn last(&self, now: Instant) -> Option<(Found, bool)> {
        let (Outcome { found, may_pass }, at) = lock(&self.last).clone()?;
        let is_fresh = !may_pass || now.saturating_duration_since(at) < AGAIN;
        Some((found, is_fresh))
    }

    /// What works, or is found now. For something better nobody's handshake waits.
    fn get(
        self: &Arc<Self>,
        clock: impl Fn() -> Instant,
        find: impl FnOnce(Option<Found>) -> Outcome + Send + 'static,
    ) -> Found {
        match self.last(clock()) {
            Some((Ok(method), true)) => Ok(method),
            Some((Ok(method), false)) => {
                self.find_aside(find);
                Ok(method)
            }
            _ => self.find(clock, find),
        }
    }

    /// Has a thread of its own find it out, unless one is at it. What is found is asked for again.
    fn find_aside(self: &Arc<Self>, find: impl FnOnce(Option<Found>) -> Outcome + Send + 'static) {
        if !self.begin(Instant::now()) {
            return;
        }
        let finder = Arc::clone(self);
        let finding = move || {
            let _ = finder.find(Instant::now, find);
            finder.is_begun.store(false, Ordering::Relaxed);
        };
        if let Err(error) = thread::Builder::new().name("multinet-gpu".to_owned()).spawn(finding) {
            warn!("frames to and from GPUs go as before: cannot start a thread: {error}");
            self.put_off(Instant::now());
        }
    }

    /// Whether a thread is to be started now, and by whoever asks.
    fn begin(&self, now: Instant) -> bool {
        !self.is_begun.swap(true, Ordering::Relaxed) && {
            let is_due = lock(&self.put_off).is_none_or(|until| now >= until);
            self.is_begun.store(is_due, Ordering::Relaxed);
            is_due
        }
    }

    /// It could not be started. Until it can, what was found last holds; where that is nothing, frames are copied.
    fn put_off(&self, now: Instant) {
        *lock(&self.put_off) = Some(now + AGAIN);
        self.is_begun.store(false, Ordering::Relaxed);
    }

    /// What was found last, or is found now, by who is told of the last.
    fn find(&self, clock: impl Fn() -> Instant, find: impl FnOnce(Option<Found>) -> Outcome) -> Found {
        let _turn = lock(&self.turn);
        let before = match self.last(clock()) {
            Some((found, true)) => return found,
            last => last.map(|(found, _)| found),
        };
        let outcome = find(before);
        let found = outcome.found.clone();
        *lock(&self.last) = Some((outcome, clock()));
        found
    }
}

/// Tries what may work, and says what does, and why not what would be better, if that is not as before.
fn find(gpu: &dyn Gpu, context: &Context, place: Place, forced: Forced, before: Option<Found>) -> Outcome {
    let (outcome, against) = try_all(gpu, context, place, forced);
    if before.as_ref() == Some(&outcome.found) {
        return outcome;
    }
    let (device, gpu) = (context.name(), gpu.name());
    match &outcome {
        Outcome { found: Ok(_), may_pass: true } => {
            warn!(device, gpu, "frames to and from a GPU are copied until it works: {against}");
        }
        Outcome { found: Ok(method), .. } if forced != Forced::To(Method::Staging) => {
            info!(device, gpu, %method, not = against, "frames to and from a GPU");
        }
        // It is what was asked for, or whoever has forced it is told.
        _ => {}
    }
    outcome
}

/// What works, and what speaks against anything better.
fn try_all(gpu: &dyn Gpu, context: &Context, place: Place, forced: Forced) -> (Outcome, String) {
    if forced == Forced::To(Method::Staging) {
        return (Outcome { found: Ok(Method::Staging), may_pass: false }, String::new());
    }
    let memory = match gpu.allocate(TRIED) {
        Ok(memory) => memory,
        // Copies take none of it.
        Err(error) if forced == Forced::No => {
            return (Outcome { found: Ok(Method::Staging), may_pass: true }, error.to_string());
        }
        Err(error) => return (Outcome { found: Err(error), may_pass: true }, String::new()),
    };
    let Reached { method, against, may_pass } = reach_gpu(context, place, &memory, forced);
    let Some(method) = method else {
        // Staging needs nothing, so it is not among what was tried: another one is forced.
        let reason = format!("{} does not reach {} by what is forced, {against}", context.name(), gpu.name());
        return (Outcome { found: Err(GpuError::new(reason)), may_pass: true }, String::new());
    };
    // One that works is not given up for a better one.
    let may_pass = may_pass && method == Method::Staging;
    (Outcome { found: Ok(method), may_pass }, against)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn without_a_thread_it_is_tried_again_after_a_while() {
        let (entry, now) = (Entry::default(), Instant::now());
        assert!(entry.begin(now) && !entry.begin(now));
        entry.put_off(now);
        assert!(!entry.begin(now + AGAIN / 2));
        assert!(entry.begin(now + AGAIN) && !entry.begin(now + AGAIN));
    }

    /// Only where something better may work later.
    #[test]
    fn copies_are_tried_to_be_done_without_after_a_while() {
        for may_pass in [true, false] {
            let (entry, begin) = (Entry::default(), Instant::now());
            let find = |after, expected: Option<Found>, method| {
                let outcome = Outcome { found: Ok(method), may_pass: may_pass && method == Method::Staging };
                let find = |before| {
                    assert_eq!(before, expected);
                    outcome
                };
                entry.find(|| begin + after, find)
            };
            let staged = Ok(Method::Staging);
            assert_eq!(find(Duration::ZERO, None, Method::Staging), staged);
            assert_eq!(entry.last(begin + AGAIN), Some((staged.clone(), !may_pass)));
            assert_eq!(find(AGAIN / 2, None, Method::DmaBuf), staged);
            let later = if may_pass { Ok(Method::DmaBuf) } else { staged.clone() };
            assert_eq!(find(AGAIN, Some(staged), Method::DmaBuf), later);
            assert_eq!(find(AGAIN * 9, None, Method::Staging), later);
        }
    }

    #[test]
    fn nobody_waits_for_something_better_than_what_works() {
        let entry = Arc::new(Entry::default());
        let staged = Outcome { found: Ok(Method::Staging), may_pass: true };
        let long_ago = Instant::now().checked_sub(AGAIN).unwrap();
        entry.find(|| long_ago, |_| staged).unwrap();
        let (go_on, until) = mpsc::channel();
        let better = move |_| {
            until.recv().unwrap();
            Outcome { found: Ok(Method::DmaBuf), may_pass: false }
        };
        assert_eq!(entry.get(Instant::now, better), Ok(Method::Staging));
        // One is at it.
        assert_eq!(entry.get(Instant::now, |_| unreachable!()), Ok(Method::Staging));
        go_on.send(()).unwrap();
        while entry.is_begun.load(Ordering::Relaxed) {
            thread::yield_now();
        }
        assert_eq!(entry.get(Instant::now, |_| unreachable!()), Ok(Method::DmaBuf));
    }

    #[test]
    fn a_failure_is_tried_again_after_a_while_and_a_method_stays() {
        let (entry, begin, after) = (Entry::default(), Instant::now(), Cell::new(Duration::ZERO));
        let tries = Cell::new(0);
        let find = |outcome: Found| {
            let found = entry.find(
                || begin + after.get(),
                |_| {
                    tries.set(tries.get() + 1);
                    Outcome { may_pass: outcome.is_err(), found: outcome }
                },
            );
            found.map_err(|error| error.to_string())
        };
        let full = || Err(GpuError::new("full"));
        assert_eq!(find(full()), Err("full".to_owned()));
        after.set(AGAIN - Duration::from_secs(1));
        assert_eq!((find(Ok(Method::DmaBuf)), tries.get()), (Err("full".to_owned()), 1));
        after.set(AGAIN);
        assert_eq!(
            entry.last(begin + AGAIN).map(|(found, is_fresh)| (found.is_ok(), is_fresh)),
            Some((false, false))
        );
        assert_eq!((find(Ok(Method::DmaBuf)), tries.get()), (Ok(Method::DmaBuf), 2));
        after.set(AGAIN * 1000);
        assert_eq!((find(full()), tries.get()), (Ok(Method::DmaBuf), 2));
    }
}
