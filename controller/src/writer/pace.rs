//! When a status is written: at once if people wait for it, else a second later, with what has changed until then (pure).

use std::collections::HashMap;
use std::time::Duration;

use multinet_runtime::ObjectKey;
use tokio::time::Instant;

/// How long numbers wait for more numbers.
pub(super) const PAUSE: Duration = Duration::from_secs(1);

/// The services whose numbers wait, and until when.
#[derive(Debug, Default)]
pub(super) struct Pace {
    waiting: HashMap<ObjectKey, Instant>,
}

/// What to do about a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// Write it.
    Now,
    /// Decide anew at that time.
    At(Instant),
    /// There is nothing to write.
    Never,
}

impl Pace {
    /// `urgent`: whether the status that is to be written can wait; `None`, if there is none.
    pub(super) fn when(&mut self, service: &ObjectKey, urgent: Option<bool>, now: Instant) -> When {
        let when = match (urgent, self.waiting.get(service)) {
            (None, _) => When::Never,
            (Some(true), _) => When::Now,
            (Some(false), Some(due)) if *due <= now => When::Now,
            (Some(false), Some(due)) => When::At(*due),
            (Some(false), None) => When::At(now + PAUSE),
        };
        match when {
            When::At(due) => drop(self.waiting.insert(service.clone(), due)),
            When::Never => self.written(service),
            // Until it is written: if that fails, it does not wait once more.
            When::Now => {}
        }
        when
    }

    /// A status has been written.
    pub(super) fn written(&mut self, service: &ObjectKey) {
        self.waiting.remove(service);
    }

    /// Somebody else writes from now on.
    pub(super) fn clear(&mut self) {
        self.waiting.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_once_a_second_and_the_rest_at_once() {
        let mut pace = Pace::default();
        let service = ObjectKey { namespace: "vision".into(), name: "infer".into() };
        let start = Instant::now();
        let after = |milliseconds| start + Duration::from_millis(milliseconds);
        assert_eq!(pace.when(&service, None, start), When::Never);
        assert_eq!(pace.when(&service, Some(false), start), When::At(start + PAUSE));
        let later = pace.when(&service, Some(false), after(700));
        assert_eq!(later, When::At(start + PAUSE), "what comes later does not put it off");
        for time in [1000, 1001] {
            assert_eq!(pace.when(&service, Some(false), after(time)), When::Now, "until it is written");
        }
        pace.written(&service);
        assert_eq!(pace.when(&service, Some(false), after(1001)), When::At(after(1001) + PAUSE));
        assert_eq!(pace.when(&service, Some(true), after(1002)), When::Now, "with all the numbers");
        assert_eq!(pace.when(&service, None, after(1003)), When::Never);
        assert!(pace.waiting.is_empty());
    }
}
