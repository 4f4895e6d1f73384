//! What a listener knows of the senders: which connection of each is the latest, and which frames it has had.
//!
//! Pure: no sockets, and a clock that is passed.
//!
//! ```text
//!   handshake ── admit ──> Session { latest epoch of each lane, Seen }
//!   frame ───── arrived ─> deliver, drop, or acknowledge again
//! ```

mod seen;

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

pub(crate) use seen::{Arrival, Seen, Teller};

use crate::handshake::{Refusal, RefusalCode};

/// How long a sender that has gone is remembered, so that it can come back and repeat frames.
const REMEMBERED: Duration = Duration::from_secs(600);

/// The most lanes of a session, whatever number of names the sender has for us.
const LANES: usize = 256;

/// All senders, by what tells one session from another.
#[derive(Debug)]
pub(crate) struct Sessions<K, T> {
    sessions: HashMap<K, Session<T>>,
    /// The most that are remembered.
    limit: usize,
}

#[derive(Debug)]
struct Session<T> {
    /// Those that have been here, [`LANES`] at most, and the latest epoch of each.
    lanes: Vec<((u64, u16), u64)>,
    /// The latest epoch of lanes that have been forgotten.
    forgotten: u64,
    /// How many of its connections are there.
    connections: usize,
    /// When the last one ended.
    left: Instant,
    state: T,
}

impl<T> Session<T> {
    /// The place of a lane. One that is new, or has been forgotten, has to be later than all that have been.
    fn place(&mut self, lane: (u64, u16)) -> Result<u16, Refusal> {
        let known = self.lanes.iter().position(|&(known, _)| known == lane);
        let place = known.unwrap_or(self.lanes.len());
        if place >= LANES {
            let message = format!("a sender with more than {LANES} connections to one listener");
            return Err(Refusal::new(RefusalCode::Full, message));
        }
        if known.is_none() {
            self.lanes.push((lane, self.forgotten));
        }
        // Less than 256.
        Ok(place as u16)
    }

    /// Nobody is there: when the sender comes back, it may know us by another number, again and again.
    fn forget(&mut self) {
        let latest = self.lanes.drain(..).map(|(_, latest)| latest).max();
        self.forgotten = self.forgotten.max(latest.unwrap_or_default());
    }
}

impl<K: Clone + Eq + Hash, T: Clone + Default> Sessions<K, T> {
    pub(crate) fn new(limit: usize) -> Self {
        Self { sessions: HashMap::new(), limit }
    }

    /// Lets a connection in, or says why not: what is kept of the session, which all its connections share, and the lane's place among them. Each
    /// has to [`leave`](Self::leave).
    ///
    /// A sender knows this listener by as many names as DNS has for it, each with lanes of its own: `peer` is its number for the name.
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
            left: now,
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
        session.connections += 1;
        Ok((session.state.clone(), place))
    }

    /// Whether a connection is still the latest of its lane.
    pub(crate) fn is_latest(&self, id: &K, place: u16, epoch: u64) -> bool {
        let lane = self.sessions.get(id).and_then(|session| session.lanes.get(usize::from(place)));
        lane.is_some_and(|&(_, latest)| latest == epoch)
    }

    /// Whether any of these sessions has a connection.
    pub(crate) fn is_connected(&self, is_one: impl Fn(&K) -> bool) -> bool {
        self.sessions.iter().any(|(id, session)| session.connections > 0 && is_one(id))
    }

    /// A connection that was let in has ended.
    pub(crate) fn leave(&mut self, now: Instant, id: &K) {
        if let Some(session) = self.sessions.get_mut(id) {
            session.connections = session.connections.saturating_sub(1);
            session.left = now;
            if session.connections == 0 {
                session.forget();
            }
        }
    }

    /// How many are remembered.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Forgets whoever has been gone for long, and the one that has been gone longest if that is not enough.
    fn make_room(&mut self, now: Instant) -> Result<(), Refusal> {
        if self.sessions.len() < self.limit {
            return Ok(());
        }
        let gone = |session: &Session<T>| session.connections == 0;
        self.sessions.retain(|_, session| !gone(session) || now - session.left < REMEMBERED);
        if self.sessions.len() < self.limit {
            return Ok(());
        }
        let oldest = self.sessions.iter().filter(|(_, session)| gone(session));
        let oldest = oldest.min_by_key(|(_, session)| session.left).map(|(id, _)| id.clone());
        let refusal = || {
            let message = format!("{} senders are connected, as many as may be", self.sessions.len());
            Refusal::new(RefusalCode::Full, message)
        };
        let oldest = oldest.ok_or_else(refusal)?;
        self.sessions.remove(&oldest);
        Ok(())
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
    fn an_epoch_that_has_been_here_is_refused() {
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
    fn a_sender_that_comes_back_may_know_us_by_another_number() {
        let (mut sessions, now) = (sessions(), Instant::now());
        for epoch in 1..=1000 {
            let (_, place) = sessions.admit(now, &SessionId(1), (epoch, 0), epoch).unwrap();
            assert!(place == 0 && sessions.is_latest(&SessionId(1), place, epoch));
            sessions.leave(now, &SessionId(1));
        }
        // What has been here is not let in again, whatever it is called.
        for peer in [1, 1000, 1001] {
            let again = sessions.admit(now, &SessionId(1), (peer, 0), 1000);
            assert_eq!(again.unwrap_err().code, RefusalCode::Epoch);
        }
        // Those that are there at a time are few.
        let places: Vec<_> = (0..300).map(|peer| sessions.admit(now, &SessionId(2), (peer, 0), 1)).collect();
        assert_eq!(places.iter().filter(|place| place.is_ok()).count(), LANES);
    }

    #[test]
    fn as_many_are_remembered_as_may_be() {
        let (mut sessions, start) = (sessions(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        for id in 1..=3 {
            sessions.admit(at(0), &SessionId(id), (0, 0), 1).unwrap();
        }
        assert_eq!(sessions.admit(at(1), &SessionId(4), (0, 0), 1).unwrap_err().code, RefusalCode::Full);
        sessions.leave(at(2), &SessionId(2));
        sessions.leave(at(3), &SessionId(1));
        sessions.admit(at(4), &SessionId(4), (0, 0), 1).unwrap();
        // The second is forgotten, the first is not.
        assert!(sessions.admit(at(5), &SessionId(1), (0, 0), 1).is_err());
        assert_eq!(sessions.len(), 3);
    }
}
