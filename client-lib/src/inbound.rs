//! Sessions of a listener's senders: which connection of each is the latest, and which frames have
//! come.
//!
//! Pure: it has no sockets, and the caller passes the time.
//!
//! ```text
//!   handshake ── admit ──> Session { latest epoch of each lane, Seen }
//!   frame ───── arrived ─> deliver, drop, or acknowledge again
//! ```

mod seen;

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

pub(crate) use seen::{Arrival, Reporter, Seen};

use crate::handshake::{Refusal, RefusalCode};

/// Time for which a sender that has gone is remembered, so that it can come back and repeat frames.
const REMEMBERED: Duration = Duration::from_secs(600);

/// Most bytes that sessions without connections use together: 512 times the most of one. Usually,
/// one uses some hundred bytes.
const KEPT: usize = 64 << 20;

/// Most lanes of a session, over all names that the sender knows this listener by.
const LANES: usize = 256;

/// Sessions of a listener's senders by a key, and what their connections share.
#[derive(Debug)]
pub(crate) struct Sessions<K, T> {
    sessions: HashMap<K, Session<T>>,
    /// Most sessions that are remembered, with and without connections.
    limit: usize,
}

#[derive(Debug)]
struct Session<T> {
    /// Lanes that have been connected, [`LANES`] at most, and the latest epoch of each.
    lanes: Vec<((u64, u16), u64)>,
    /// Latest epoch of all lanes that [`forget`](Self::forget) has removed.
    forgotten: u64,
    connections: usize,
    /// Time since which the session has had at least one connection, if it has one now.
    came: Instant,
    /// Time when the session's last connection ended.
    left: Instant,
    /// Total time for which the session has had connections, before `came`.
    stayed: Duration,
    /// Bytes of memory that the session's state uses, counted while it has no connection, or else
    /// 0.
    bytes: usize,
    state: T,
}

impl<T> Session<T> {
    /// Returns the index of a lane. A new one begins with the latest epoch of all forgotten lanes,
    /// of which it may be one.
    fn place(&mut self, lane: (u64, u16)) -> Result<u16, Refusal> {
        let known = self.lanes.iter().position(|&(known, _)| known == lane);
        let place = known.unwrap_or(self.lanes.len());
        if place >= LANES {
            let message = format!("the sender has more than {LANES} connections to this listener");
            return Err(Refusal::new(RefusalCode::Full, message));
        }
        if known.is_none() {
            self.lanes.push((lane, self.forgotten));
        }
        // Less than `LANES`.
        Ok(place as u16)
    }

    /// Forgets the lanes, when no connection is left. They would add up, as the sender may use
    /// other numbers for them each time that it comes back.
    fn forget(&mut self) {
        let latest = std::mem::take(&mut self.lanes).into_iter().map(|(_, latest)| latest).max();
        self.forgotten = self.forgotten.max(latest.unwrap_or_default());
    }
}

impl<K: Clone + Eq + Hash, T: Clone + Default> Sessions<K, T> {
    pub(crate) fn new(limit: usize) -> Self {
        Self { sessions: HashMap::new(), limit }
    }

    /// Lets a connection in, which has to [`leave`](Self::leave) at its end. Returns the state that
    /// the session's connections share, and the lane's place among their lanes.
    ///
    /// A sender may know this listener by several names in DNS, each with lanes of its own. `peer`
    /// is its number for the name.
    pub(crate) fn admit(
        &mut self,
        now: Instant,
        id: &K,
        (peer, lane): (u64, u16),
        epoch: u64,
    ) -> Result<(T, u16), Refusal> {
        if !self.sessions.contains_key(id) {
            self.make_room(now)?;
        }
        let session = self.sessions.entry(id.clone()).or_insert_with(|| Session {
            lanes: Vec::new(),
            forgotten: 0,
            connections: 0,
            came: now,
            left: now,
            stayed: Duration::ZERO,
            bytes: 0,
            state: T::default(),
        });
        let place = session.place((peer, lane))?;
        let latest = &mut session.lanes[usize::from(place)].1;
        if epoch <= *latest {
            let message = format!(
                "epoch {epoch} of lane {lane} is not later than {latest}, which has been here already"
            );
            return Err(Refusal::new(RefusalCode::Epoch, message));
        }
        *latest = epoch;
        if session.connections == 0 {
            (session.came, session.bytes) = (now, 0);
        }
        session.connections += 1;
        Ok((session.state.clone(), place))
    }

    /// Returns whether no later connection of this lane, with another epoch, has been let in.
    pub(crate) fn is_latest(&self, id: &K, place: u16, epoch: u64) -> bool {
        let lane = self.sessions.get(id).and_then(|session| session.lanes.get(usize::from(place)));
        lane.is_some_and(|&(_, latest)| latest == epoch)
    }

    /// Returns whether any session whose key satisfies `is_one` has a connection.
    pub(crate) fn is_connected(&self, is_one: impl Fn(&K) -> bool) -> bool {
        self.sessions.iter().any(|(id, session)| session.connections > 0 && is_one(id))
    }

    /// Records the end of a connection. If it was the session's last, `shrink` frees memory of the
    /// session's state, and returns how many bytes are still used.
    pub(crate) fn leave(&mut self, now: Instant, id: &K, shrink: impl FnOnce(&T) -> usize) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        session.connections = session.connections.saturating_sub(1);
        if session.connections > 0 {
            return;
        }
        session.left = now;
        session.stayed += now - session.came;
        session.bytes = shrink(&session.state);
        session.forget();
        if self.kept() > KEPT {
            self.forget_old(now);
        }
        let mut kept = self.kept();
        while kept > KEPT
            && let Some(session) = self.remove_least()
        {
            kept -= session.bytes;
        }
    }

    /// Returns how many bytes the sessions without connections use together.
    fn kept(&self) -> usize {
        self.sessions.values().map(|session| session.bytes).sum()
    }

    /// Returns how many sessions are remembered.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Makes room for one more session: forgets those that have been gone for long, or else one of
    /// the others.
    fn make_room(&mut self, now: Instant) -> Result<(), Refusal> {
        if self.sessions.len() < self.limit {
            return Ok(());
        }
        self.forget_old(now);
        if self.sessions.len() < self.limit || self.remove_least().is_some() {
            return Ok(());
        }
        let message = format!("{} senders are connected, as many as may be", self.sessions.len());
        Err(Refusal::new(RefusalCode::Full, message))
    }

    /// Forgets the sessions that have had no connection for [`REMEMBERED`].
    fn forget_old(&mut self, now: Instant) {
        self.sessions.retain(|_, session| session.connections > 0 || now - session.left < REMEMBERED);
    }

    /// Forgets the session without connections that stayed for the shortest time; of equals, the
    /// one that has been gone for longest. A sender that comes with one session after the other
    /// must not push out those that have worked for long.
    fn remove_least(&mut self) -> Option<Session<T>> {
        let gone = self.sessions.iter().filter(|(_, session)| session.connections == 0);
        let (least, _) = gone.min_by_key(|(_, session)| (session.stayed, session.left))?;
        let least = least.clone();
        self.sessions.remove(&least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handshake::SessionId;

    fn sessions() -> Sessions<SessionId, ()> {
        Sessions::new(3)
    }

    #[test]
    fn an_epoch_that_is_not_later_is_refused() {
        let (mut sessions, now) = (sessions(), Instant::now());
        sessions.admit(now, &SessionId(1), (0, 0), 5).unwrap();
        for epoch in [5, 4, 0] {
            assert_eq!(
                sessions.admit(now, &SessionId(1), (0, 0), epoch).unwrap_err().code,
                RefusalCode::Epoch
            );
        }
        let (_, other) = sessions.admit(now, &SessionId(1), (0, 1), 1).unwrap();
        // The same listener under another name.
        let (_, further) = sessions.admit(now, &SessionId(1), (1, 0), 1).unwrap();
        assert_eq!((other, further), (1, 2));
        sessions.admit(now, &SessionId(1), (0, 0), 6).unwrap();
        assert!(sessions.is_latest(&SessionId(1), 0, 6) && !sessions.is_latest(&SessionId(1), 0, 5));
    }

    #[test]
    fn a_sender_that_comes_back_may_use_another_number_but_no_earlier_epoch() {
        let (mut sessions, now) = (sessions(), Instant::now());
        for epoch in 1..=1000 {
            let (_, place) = sessions.admit(now, &SessionId(1), (epoch, 0), epoch).unwrap();
            assert!(place == 0 && sessions.is_latest(&SessionId(1), place, epoch));
            sessions.leave(now, &SessionId(1), |()| 0);
        }
        // An earlier epoch is not let in, by any number.
        for peer in [1, 1000, 1001] {
            let again = sessions.admit(now, &SessionId(1), (peer, 0), 1000);
            assert_eq!(again.unwrap_err().code, RefusalCode::Epoch);
        }
        // Lanes at a time are bounded.
        let places: Vec<_> = (0..300).map(|peer| sessions.admit(now, &SessionId(2), (peer, 0), 1)).collect();
        assert_eq!(places.iter().filter(|place| place.is_ok()).count(), LANES);
    }

    #[test]
    fn no_more_sessions_are_remembered_than_the_limit() {
        let (mut sessions, start) = (sessions(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        for id in 1..=3 {
            sessions.admit(at(0), &SessionId(id), (0, 0), 1).unwrap();
        }
        assert_eq!(sessions.admit(at(1), &SessionId(4), (0, 0), 1).unwrap_err().code, RefusalCode::Full);
        sessions.leave(at(2), &SessionId(2), |()| 0);
        sessions.leave(at(3), &SessionId(1), |()| 0);
        sessions.admit(at(4), &SessionId(4), (0, 0), 1).unwrap();
        // The second is forgotten, the first is not.
        assert!(sessions.admit(at(5), &SessionId(1), (0, 0), 1).is_err());
        assert_eq!(sessions.len(), 3);
    }

    #[test]
    fn a_session_that_has_been_gone_for_long_pushes_out_no_other() {
        let (mut sessions, start) = (Sessions::<SessionId, ()>::new(2000), Instant::now());
        for id in 1..=2 {
            sessions.admit(start, &SessionId(id), (0, 0), 1).unwrap();
        }
        let now = start + REMEMBERED;
        sessions.leave(now, &SessionId(1), |()| KEPT);
        sessions.admit(now + REMEMBERED, &SessionId(3), (0, 0), 1).unwrap();
        sessions.leave(now + REMEMBERED, &SessionId(3), |()| 100);
        let ids: Vec<bool> = (1..=3).map(|id| sessions.sessions.contains_key(&SessionId(id))).collect();
        assert_eq!(ids, [false, true, true]);
    }

    #[test]
    fn a_flood_of_sessions_pushes_out_only_its_own() {
        let (mut sessions, start) = (Sessions::<SessionId, ()>::new(2000), Instant::now());
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        // Two that stay for a while, one of them in two parts, and one that stays for the whole
        // time.
        for id in 1..=3 {
            sessions.admit(at(0), &SessionId(id), (0, 0), 1).unwrap();
        }
        sessions.leave(at(1000), &SessionId(1), |()| 100);
        sessions.leave(at(20), &SessionId(2), |()| 100);
        sessions.admit(at(30), &SessionId(2), (0, 0), 2).unwrap();
        sessions.leave(at(50), &SessionId(2), |()| 100);
        for (number, id) in (0..10_000).zip(1000..) {
            let now = at(1000 + 30 * number);
            sessions.admit(now, &SessionId(id), (0, 0), 1).unwrap();
            sessions.leave(now + Duration::from_millis(30), &SessionId(id), |()| 128 << 10);
            let kept: usize = sessions.sessions.values().map(|session| session.bytes).sum();
            assert!(kept <= KEPT && sessions.len() <= 600, "{} keep {kept} bytes", sessions.len());
        }
        for id in 1..=3 {
            assert!(sessions.admit(at(400_000), &SessionId(id), (0, 0), 1).is_err(), "{id} is forgotten");
        }
        assert!(sessions.admit(at(400_000), &SessionId(1000), (0, 0), 1).is_ok());
    }
}
