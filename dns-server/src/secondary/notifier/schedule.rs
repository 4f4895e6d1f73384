//! Decides when a secondary is notified of which zone. Pure.
//!
//! At most one notification of a zone is in flight. Changes in the meantime are covered by the next
//! one. So a burst of changes causes one notification at once, and one when the first has been
//! answered, at least [`NOTIFY_INTERVAL`] after it. A notification without an answer is repeated at
//! growing intervals until it is answered. So a secondary that returns is notified soon, and need
//! not wait for its own timers.

use std::time::Instant;

use super::message::Notify;
use crate::limits::transfers::{FIRST_WAIT, LONGEST_WAIT, NOTIFY_INTERVAL};
use crate::store::name::Name;
use crate::store::state::ZoneChanges;

/// Schedule of notifications to one secondary, with the state of each zone.
#[derive(Debug, Default)]
pub(super) struct Schedule(Vec<ZoneSchedule>);

#[derive(Debug)]
struct ZoneSchedule {
    apex: Name,
    changed: u64,
    /// Value of `changed` when the secondary was last notified; 0 before the first time.
    notified: u64,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    /// No notification is in flight. The next one may be sent from this time on.
    Idle(Instant),
    /// A notification is in flight. It is repeated at `until`. `notify` is `None` if the secondary
    /// has rejected it.
    Waiting { notify: Option<Notify>, attempt: u32, since: Instant, until: Instant },
}

/// Answer of a secondary to a notification.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NotifyReply {
    /// The secondary accepted the notification.
    Accepted,
    /// The secondary rejected the notification of this zone, with this DNS response code.
    Refused(Name, u8),
}

/// A notification that is due, about the zone `apex`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DueNotify {
    pub(super) apex: Name,
    /// Number of notifications of this zone in a row that were not accepted; 0 for a new change.
    pub(super) unanswered: u32,
    /// `true` if the last of these notifications got no reply at all.
    pub(super) is_lost: bool,
}

impl Schedule {
    /// Takes the zones' current change numbers, which make new notifications due.
    pub(super) fn changed(&mut self, changes: &ZoneChanges, now: Instant) {
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

    /// Returns a notification that is due. The caller must send it and call [`Self::sent`].
    pub(super) fn due(&self, now: Instant) -> Option<DueNotify> {
        self.0.iter().filter(|zone| zone.due_at().is_some_and(|due| due <= now)).map(ZoneSchedule::due).next()
    }

    /// Returns the time at which the next notification is due, unless something else happens
    /// before.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.iter().filter_map(ZoneSchedule::due_at).min()
    }

    /// Records that a due notification was sent. A failure to send counts as a lost message.
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

    /// Handles a message from the secondary. Returns `None` if it is not the reply to a
    /// notification. `clock` is in seconds since 1970.
    pub(super) fn received(&mut self, reply: &[u8], clock: u64) -> Option<NotifyReply> {
        self.0.iter_mut().find_map(|zone| {
            let Phase::Waiting { notify, since, .. } = &mut zone.phase else { return None };
            let code = notify.as_ref()?.answered_by(reply, clock)?;
            if code == 0 {
                zone.phase = Phase::Idle(*since + NOTIFY_INTERVAL);
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
    fn a_burst_of_changes_causes_one_notification_at_once_and_one_later() {
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
        assert_eq!((schedule.due(start), schedule.next()), (None, Some(start + NOTIFY_INTERVAL)));
        let later = start + NOTIFY_INTERVAL;
        assert!(schedule.due(later).is_some());
        let second = notify(2);
        let answer = reply(&second, 0);
        schedule.sent(&apex(), second, later);
        assert_eq!(schedule.received(&answer, 0), Some(NotifyReply::Accepted));
        assert_eq!(schedule.next(), None);
        // After a quiet interval, a notification is sent at once again.
        changed(&mut schedule, 100, later + NOTIFY_INTERVAL);
        assert!(schedule.due(later + NOTIFY_INTERVAL).is_some());
    }

    #[test]
    fn an_unanswered_notification_is_repeated_at_growing_intervals() {
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
        // Only the last attempt can be answered.
        assert_eq!(schedule.received(&reply(&notify(5), 0), 0), None);
        assert_eq!(schedule.received(&reply(&notify(6), 0), 0), Some(NotifyReply::Accepted));
        assert_eq!(schedule.next(), None);
    }

    #[test]
    fn a_rejected_notification_is_repeated_no_sooner_than_a_lost_one() {
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
