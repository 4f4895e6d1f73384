//! The method by which a device reaches a GPU's memory: found once for each pair of the two, by a
//! trial, before any frame depends on it.
//!
//! An outcome that may change is tried again after a while: a forced method that failed, and copies
//! where a better method only lacked room.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use multinet_memory::{Forced, Gpu, GpuError, GpuMemory, Method};
use multinet_verbs::{Context, GPU_PROBE_SIZE, GpuMethodChoice, SourceGid, choose_gpu_method};
use parking_lot::Mutex;
use tracing::{info, warn};

/// The time after which a temporary outcome is tried again: the GPU's memory may have been full.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// The known methods by which one device reaches each GPU's memory, by the names of GPUs.
#[derive(Debug)]
pub(super) struct GpuMethods {
    context: Context,
    pub(super) forced: Forced,
    known: Mutex<HashMap<String, Arc<CachedMethod>>>,
}

/// The method for one GPU, with the state of the search for it.
#[derive(Debug, Default)]
struct CachedMethod {
    /// The outcome of the last trial and its time; `None` before the first.
    last: Mutex<Option<(TrialOutcome, Instant)>>,
    /// Held during a trial of methods, so that only one runs at a time for this GPU.
    trial: Mutex<()>,
    /// Whether a background thread is searching for the method.
    is_searching: AtomicBool,
    /// The time before which no background thread is started, after one could not be.
    not_before: Mutex<Option<Instant>>,
    has_warned_about_slots: AtomicBool,
}

/// The method for a GPU, or the reason why the forced one fails.
type Found = Result<Method, GpuError>;

/// The result of a trial of the methods for one GPU.
#[derive(Clone, Debug)]
struct TrialOutcome {
    found: Found,
    /// Whether a later trial may find something better, so that it is made after [`RETRY_AFTER`].
    is_temporary: bool,
}

impl GpuMethods {
    pub(super) fn new(context: Context, forced: Forced) -> Self {
        Self { context, forced, known: Mutex::default() }
    }

    /// Returns the method for a GPU. The first call tries the methods, which blocks for seconds:
    /// not for an async task.
    pub(super) fn get(&self, gpu: &Arc<dyn Gpu>, source: SourceGid) -> Found {
        let (cached, gpu) = (self.cached(&**gpu), Arc::clone(gpu));
        let (context, forced) = (self.context.clone(), self.forced);
        cached.get(Instant::now, move |before| search(&*gpu, &context, source, forced, before))
    }

    /// Returns the method for the GPU of this memory, if it is known. Otherwise a background thread
    /// starts to search for it.
    pub(super) fn known(&self, memory: &Arc<dyn GpuMemory>, source: SourceGid) -> Option<Found> {
        let cached = self.cached(memory.gpu());
        let last = cached.last(Instant::now());
        if !last.as_ref().is_some_and(|(_, is_valid)| *is_valid) {
            let (memory, context, forced) = (Arc::clone(memory), self.context.clone(), self.forced);
            cached.search_in_background(move |before| search(memory.gpu(), &context, source, forced, before));
        }
        // An expired outcome holds until the next one is known.
        last.map(|(found, _)| found)
    }

    /// Returns `true` once for each GPU: the first time that the slots of a connection do not fit.
    pub(super) fn should_warn_about_slots(&self, gpu: &dyn Gpu) -> bool {
        !self.cached(gpu).has_warned_about_slots.swap(true, Ordering::Relaxed)
    }

    fn cached(&self, gpu: &dyn Gpu) -> Arc<CachedMethod> {
        let mut known = self.known.lock();
        Arc::clone(known.entry(gpu.name().to_owned()).or_default())
    }
}

impl CachedMethod {
    /// Returns the outcome of the last trial, if there was one, and whether it is still valid.
    fn last(&self, now: Instant) -> Option<(Found, bool)> {
        let (TrialOutcome { found, is_temporary }, at) = self.last.lock().clone()?;
        let is_valid = !is_temporary || now.saturating_duration_since(at) < RETRY_AFTER;
        Some((found, is_valid))
    }

    /// Returns the method that is known to work, or searches for one. A search for something better
    /// than what works runs in the background, so that no handshake waits for it.
    fn get(
        self: &Arc<Self>,
        clock: impl Fn() -> Instant,
        search: impl FnOnce(Option<Found>) -> TrialOutcome + Send + 'static,
    ) -> Found {
        match self.last(clock()) {
            Some((Ok(method), true)) => Ok(method),
            Some((Ok(method), false)) => {
                self.search_in_background(search);
                Ok(method)
            }
            _ => self.search(clock, search),
        }
    }

    /// Starts a thread that searches, unless one is running. The caller asks for the outcome later.
    fn search_in_background(
        self: &Arc<Self>,
        search: impl FnOnce(Option<Found>) -> TrialOutcome + Send + 'static,
    ) {
        if !self.begin(Instant::now()) {
            return;
        }
        let cached = Arc::clone(self);
        let searching = move || {
            let _ = cached.search(Instant::now, search);
            cached.is_searching.store(false, Ordering::Relaxed);
        };
        if let Err(error) = thread::Builder::new().name("multinet-gpu".to_owned()).spawn(searching) {
            warn!(
                "cannot look for a better method for frames to and from GPUs now; trying again later: {error}"
            );
            self.postpone(Instant::now());
        }
    }

    /// Returns whether the caller is to start a thread that searches for the method now.
    fn begin(&self, now: Instant) -> bool {
        // The swap lets one caller through at a time. It takes the flag back if it is too early.
        !self.is_searching.swap(true, Ordering::Relaxed) && {
            let is_due = self.not_before.lock().is_none_or(|until| now >= until);
            self.is_searching.store(is_due, Ordering::Relaxed);
            is_due
        }
    }

    /// Notes that no thread could be started. The last outcome holds until one can be; without an
    /// outcome, frames are copied.
    fn postpone(&self, now: Instant) {
        *self.not_before.lock() = Some(now + RETRY_AFTER);
        self.is_searching.store(false, Ordering::Relaxed);
    }

    /// Returns the last outcome if it is valid, or that of a new trial. `search` gets the last one.
    fn search(
        &self,
        clock: impl Fn() -> Instant,
        search: impl FnOnce(Option<Found>) -> TrialOutcome,
    ) -> Found {
        // Another thread may have finished its trial while this one waited for the lock.
        let _trial = self.trial.lock();
        let before = match self.last(clock()) {
            Some((found, true)) => return found,
            last => last.map(|(found, _)| found),
        };
        let outcome = search(before);
        let found = outcome.found.clone();
        *self.last.lock() = Some((outcome, clock()));
        found
    }
}

/// Tries the methods. Logs the outcome, with the reasons against better methods, if it has changed.
fn search(
    gpu: &dyn Gpu,
    context: &Context,
    source: SourceGid,
    forced: Forced,
    before: Option<Found>,
) -> TrialOutcome {
    let (outcome, against) = try_methods(gpu, context, source, forced);
    if before.as_ref() == Some(&outcome.found) {
        return outcome;
    }
    let (device, gpu) = (context.name(), gpu.name());
    match &outcome {
        TrialOutcome { found: Ok(_), is_temporary: true } => {
            warn!(device, gpu, "frames to and from a GPU are copied until a better method works: {against}");
        }
        TrialOutcome { found: Ok(method), .. } if forced != Forced::To(Method::Staging) => {
            info!(device, gpu, %method, not = against, "chose the method for frames to and from a GPU");
        }
        // Staging was forced, or the caller gets the failure of the forced method.
        _ => {}
    }
    outcome
}

/// Tries the methods in their order. Returns the outcome and the reasons against better methods.
fn try_methods(
    gpu: &dyn Gpu,
    context: &Context,
    source: SourceGid,
    forced: Forced,
) -> (TrialOutcome, String) {
    if forced == Forced::To(Method::Staging) {
        return (TrialOutcome { found: Ok(Method::Staging), is_temporary: false }, String::new());
    }
    let memory = match gpu.allocate(GPU_PROBE_SIZE) {
        Ok(memory) => memory,
        // Staging needs no memory of the GPU.
        Err(error) if forced == Forced::No => {
            return (TrialOutcome { found: Ok(Method::Staging), is_temporary: true }, error.to_string());
        }
        Err(error) => return (TrialOutcome { found: Err(error), is_temporary: true }, String::new()),
    };
    let GpuMethodChoice { method, rejections, is_temporary } =
        choose_gpu_method(context, source, &memory, forced);
    let Some(method) = method else {
        // Staging always works. So if no method does, another one is forced.
        let reason =
            format!("{} does not reach {} by the forced method, {rejections}", context.name(), gpu.name());
        return (TrialOutcome { found: Err(GpuError::new(reason)), is_temporary: true }, String::new());
    };
    // A method that works without copies is kept, even if a better one may work later.
    let is_temporary = is_temporary && method == Method::Staging;
    (TrialOutcome { found: Ok(method), is_temporary }, rejections)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_thread_that_cannot_start_is_tried_again_after_a_while() {
        let (cached, now) = (CachedMethod::default(), Instant::now());
        assert!(cached.begin(now) && !cached.begin(now));
        cached.postpone(now);
        assert!(!cached.begin(now + RETRY_AFTER / 2));
        assert!(cached.begin(now + RETRY_AFTER) && !cached.begin(now + RETRY_AFTER));
    }

    #[test]
    fn staging_is_replaced_after_a_while_only_if_its_reason_is_temporary() {
        for is_temporary in [true, false] {
            let (cached, begin) = (CachedMethod::default(), Instant::now());
            let search = |after, expected: Option<Found>, method| {
                let outcome = TrialOutcome {
                    found: Ok(method),
                    is_temporary: is_temporary && method == Method::Staging,
                };
                let search = |before| {
                    assert_eq!(before, expected);
                    outcome
                };
                cached.search(|| begin + after, search)
            };
            let staged = Ok(Method::Staging);
            assert_eq!(search(Duration::ZERO, None, Method::Staging), staged);
            assert_eq!(cached.last(begin + RETRY_AFTER), Some((staged.clone(), !is_temporary)));
            assert_eq!(search(RETRY_AFTER / 2, None, Method::DmaBuf), staged);
            let later = if is_temporary { Ok(Method::DmaBuf) } else { staged.clone() };
            assert_eq!(search(RETRY_AFTER, Some(staged), Method::DmaBuf), later);
            assert_eq!(search(RETRY_AFTER * 9, None, Method::Staging), later);
        }
    }

    #[test]
    fn a_better_method_is_searched_for_in_the_background() {
        let cached = Arc::new(CachedMethod::default());
        let staged = TrialOutcome { found: Ok(Method::Staging), is_temporary: true };
        let long_ago = Instant::now().checked_sub(RETRY_AFTER).unwrap();
        cached.search(|| long_ago, |_| staged).unwrap();
        let (go_on, until) = mpsc::channel();
        let better = move |_| {
            until.recv().unwrap();
            TrialOutcome { found: Ok(Method::DmaBuf), is_temporary: false }
        };
        assert_eq!(cached.get(Instant::now, better), Ok(Method::Staging));
        // A search is running, so no other begins.
        assert_eq!(cached.get(Instant::now, |_| unreachable!()), Ok(Method::Staging));
        go_on.send(()).unwrap();
        while cached.is_searching.load(Ordering::Relaxed) {
            thread::yield_now();
        }
        assert_eq!(cached.get(Instant::now, |_| unreachable!()), Ok(Method::DmaBuf));
    }

    #[test]
    fn a_failure_is_tried_again_after_a_while_and_a_method_stays() {
        let (cached, begin, after) = (CachedMethod::default(), Instant::now(), Cell::new(Duration::ZERO));
        let tries = Cell::new(0);
        let search = |outcome: Found| {
            let found = cached.search(
                || begin + after.get(),
                |_| {
                    tries.set(tries.get() + 1);
                    TrialOutcome { is_temporary: outcome.is_err(), found: outcome }
                },
            );
            found.map_err(|error| error.to_string())
        };
        let full = || Err(GpuError::new("full"));
        assert_eq!(search(full()), Err("full".to_owned()));
        after.set(RETRY_AFTER - Duration::from_secs(1));
        assert_eq!((search(Ok(Method::DmaBuf)), tries.get()), (Err("full".to_owned()), 1));
        after.set(RETRY_AFTER);
        assert_eq!(
            cached.last(begin + RETRY_AFTER).map(|(found, is_valid)| (found.is_ok(), is_valid)),
            Some((false, false))
        );
        assert_eq!((search(Ok(Method::DmaBuf)), tries.get()), (Ok(Method::DmaBuf), 2));
        after.set(RETRY_AFTER * 1000);
        assert_eq!((search(full()), tries.get()), (Ok(Method::DmaBuf), 2));
    }
}
