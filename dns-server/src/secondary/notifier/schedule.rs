//! When one secondary is told of which zone: pure.
//!
//! There is at most one notification of a zone under way. What changes meanwhile is told with the next, so a
//! burst of changes is one notification at once and one when the first has been answered, [`INTERVAL`] after it
//! at the earliest. Without an answer it is repeated, ever more slowly, until there is one: a secondary that
//! comes back is told at once, and not when its own timers run out.

use std::time::{Duration, Instant};

use super::message::Notify;
use crate::store::name::Name;
use crate::store::state::Changes;

/// Between two notifications of a zone.
pub(super) const INTERVAL: Duration = Duration::from_millis(200);

/// How long the first answer may take; then twice as long each time.
const FIRST_WAIT: Duration = Duration::from_secs(1);

/// The longest of these waits.
const LONGEST_WAIT: Duration = Duration::from_secs(15);

/// The zones, and what one secondary knows of each.
#[derive(Debug, Default)]
pub(super) struct Schedule(Vec<ZoneSchedule>);

#[derive(Debug)]
struct ZoneSchedule {
    apex: Name,
    changed: u64,
    /// The change that was told of last.
    notified: u64,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    /// Nothing is under way, and nothing may be before this.
    Idle(Instant),
    /// A notification was sent, and is answered until then.
    Waiting { notify: Option<Notify>, attempt: u32, since: Instant, until: Instant },
}

/// What a message from the secondary means.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NotifyReply {
    /// It has heard.
    Accepted,
    /// It wants nothing of it, with this code.
    Refused(Name, u8),
}

/// What is to be sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DueNotify {
    pub(super) apex: Name,
    /// How often the last one has been sent in vain.
    pub(super) unanswered: u32,
    /// Whether the last one was not even refused.
    pub(super) is_lost: bool,
}

impl Schedule {
    /// Zones have changed.
    pub(super) fn changed(&mut self, changes: &Changes, now: Instant) {
        for (apex, changed) in changes {
            match self.0.iter_mut().find(|zone| zone.apex == *apex) {
                Some(zone) => zone.changed = *changed,
                None => self.0.push(ZoneSchedule {
                    apex: apex.clone(),
                    changed: *changed,
                    notified: 0,
                    phase: Phase::Idle(now),
                }),
            }
        }
    }

    /// A zone that is to be told of now; [`Self::sent`] has to follow.
    pub(super) fn due(&self, now: Instant) -> Option<DueNotify> {
        self.0.iter().filter(|zone| zone.due_at().is_some_and(|due| due <= now)).map(ZoneSchedule::due).next()
    }

    /// When something will be due, if nothing else happens.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.iter().filter_map(ZoneSchedule::due_at).min()
    }

    /// What was due has been sent, or could not be, which is no different from being lost.
    pub(super) fn sent(&mut self, apex: &Name, notify: Notify, now: Instant) {
        let Some(zone) = self.0.iter_mut().find(|zone| zone.apex == *apex) else { return };
        let attempt = match zone.phase {
            Phase::Idle(_) => 1,
            Phase::Waiting { attempt, .. } => attempt.saturating_add(1),
        };
        let wait = (FIRST_WAIT * 2u32.pow((attempt - 1).min(8))).min(LONGEST_WAIT);
        zone.notified = zone.changed;
        zone.phase = Phase::Waiting { notify: Some(notify), attempt, since: now, until: now + wait };
    }

    /// A message has come; nothing if it answers nothing. `clock` is in seconds since 1970.
    pub(super) fn received(&mut self, reply: &[u8], clock: u64) -> Option<NotifyReply> {
        self.0.iter_mut().find_map(|zone| {
            let Phase::Waiting { notify, since, .. } = &mut zone.phase else { return None };
            let code = notify.as_ref()?.answered_by(reply, clock)?;
            if code == 0 {
                zone.phase = Phase::Idle(*since + INTERVAL);
                Some(NotifyReply::Accepted)
            } else {
                *notify = None;
                Some(NotifyReply::Refused(zone.apex.clone(), code))
            }
        })
    }
}

impl ZoneSchedule {
    fn due_at(&self) -> Option<Instant> {
        match self.phase {
            Phase::Idle(from) => (self.changed > self.notified).then_some(from),
            Phase::Waiting { until, .. } => Some(until),
        }
    }

    fn due(&self) -> DueNotify {
        let (unanswered, is_lost) = match &self.phase {
            Phase::Idle(_) => (0, false),
            Phase::Waiting { notify, attempt, .. } => (*attempt, notify.is_some()),
        };
        DueNotify { apex: self.apex.clone(), unanswered, is_lost }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::rrset::HEADER;
    use crate::store::zone_copy::ZoneVersion;

    fn apex() -> Name {
        "z".parse().unwrap()
    }

    fn notify(id: u16) -> Notify {
        let soa = [apex().as_wire(), &[0; 32]].concat();
        Notify::new(id, &ZoneVersion { apex: apex(), serial: 1, soa }, None, 0)
    }

    fn reply(notify: &Notify, code: u8) -> Vec<u8> {
        let mut reply = notify.packet[..HEADER].to_vec();
        reply[2..].copy_from_slice(&[0xa0, code, 0, 0, 0, 0, 0, 0, 0, 0]);
        reply
    }

    fn changed(schedule: &mut Schedule, number: u64, now: Instant) {
        schedule.changed(&vec![(apex(), number)], now);
    }

    #[test]
    fn a_burst_is_one_at_once_and_one_later() {
        let start = Instant::now();
        let mut schedule = Schedule::default();
        assert_eq!((schedule.due(start), schedule.next()), (None, None));
        changed(&mut schedule, 1, start);
        assert!(schedule.due(start).is_some_and(|due| due.unanswered == 0));
        let first = notify(1);
        let answer = reply(&first, 0);
        schedule.sent(&apex(), first, start);
        for number in 2..100 {
            changed(&mut schedule, number, start);
            assert_eq!(schedule.due(start), None);
        }
        assert_eq!(schedule.received(&answer, 0), Some(NotifyReply::Accepted));
        assert_eq!(schedule.received(&answer, 0), None);
        assert_eq!((schedule.due(start), schedule.next()), (None, Some(start + INTERVAL)));
        let later = start + INTERVAL;
        assert!(schedule.due(later).is_some());
        let second = notify(2);
        let answer = reply(&second, 0);
        schedule.sent(&apex(), second, later);
        assert_eq!(schedule.received(&answer, 0), Some(NotifyReply::Accepted));
        assert_eq!(schedule.next(), None);
        // After a silence, again at once.
        changed(&mut schedule, 100, later + INTERVAL);
        assert!(schedule.due(later + INTERVAL).is_some());
    }

    #[test]
    fn without_an_answer_it_is_repeated_ever_more_slowly() {
        let start = Instant::now();
        let mut schedule = Schedule::default();
        changed(&mut schedule, 1, start);
        let mut now = start;
        let mut waits = Vec::new();
        for attempt in 0..7 {
            let due = schedule.due(now).unwrap();
            assert_eq!((due.unanswered, due.is_lost), (attempt, attempt > 0));
            schedule.sent(&apex(), notify(attempt as u16), now);
            let next = schedule.next().unwrap();
            waits.push((next - now).as_secs());
            now = next;
        }
        assert_eq!(waits, [1, 2, 4, 8, 15, 15, 15]);
        // Only the last one can be answered.
        assert_eq!(schedule.received(&reply(&notify(5), 0), 0), None);
        assert_eq!(schedule.received(&reply(&notify(6), 0), 0), Some(NotifyReply::Accepted));
        assert_eq!(schedule.next(), None);
    }

    #[test]
    fn who_refuses_is_asked_again_no_sooner() {
        let start = Instant::now();
        let mut schedule = Schedule::default();
        changed(&mut schedule, 1, start);
        schedule.sent(&apex(), notify(1), start);
        assert_eq!(schedule.received(&reply(&notify(1), 5), 0), Some(NotifyReply::Refused(apex(), 5)));
        assert_eq!(schedule.received(&reply(&notify(1), 0), 0), None);
        assert_eq!(schedule.due(start), None);
        let due = schedule.due(start + FIRST_WAIT).unwrap();
        assert_eq!((due.unanswered, due.is_lost), (1, false));
    }
}
