//! Beginning and end of connections.

use super::{Address, Checked, DownReason, LinkId, RefusalCode, Side, World, ensure, log_event};

impl World {
    /// Continues a handshake.
    pub(super) fn dial(&mut self, at: usize) -> Checked {
        self.moves += 1;
        let is_bad = self.plan.faults.dials && !self.is_peace;
        let connection = &self.connections[at];
        if connection.at_receiver == Side::Gone || (is_bad && self.rng.u8(..4) == 0) {
            return self.down(at);
        }
        if connection.at_receiver == Side::Pending {
            return match self.admit(at)? {
                None => Ok(()),
                Some(reason) => self.down_by(at, reason),
            };
        }
        let Self { senders, connections, processes, now, .. } = self;
        let connection = &mut connections[at];
        let sender = connection.sender;
        connection.slots = processes[connection.process].slots.into();
        connection.room = processes[connection.process].slots;
        connection.at_sender = Side::Open;
        senders[sender].up(*now, connection, processes[connection.process].frame_size);
        self.tally.count("up");
        log_event!(self, "up {:?}", self.connections[at]);
        self.check_and_act(sender)
    }

    /// Admits a connection, or returns why the process at its other end refuses it.
    fn admit(&mut self, at: usize) -> Result<Option<DownReason>, String> {
        let has_room = self.is_peace || !self.plan.faults.rooms || self.rng.u8(..3) > 0;
        let Self { senders, connections, processes, running, now, plan, .. } = self;
        let connection = &mut connections[at];
        let Some(&address) = senders[connection.sender].names.get(&connection.link.peer) else {
            return Err(format!("no endpoint belongs to {:?}", connection.link));
        };
        let Address { target, uid } = address;
        let Some(running) = running[target % plan.targets] else { return Ok(Some(DownReason::Broken)) };
        let process = &mut processes[running];
        if uid.is_some() && process.uid != uid {
            return Ok(Some(DownReason::Refused));
        }
        let LinkId { index, epoch, .. } = connection.link;
        // A peer that was forgotten and returns has the same name, so its connections replace those
        // before.
        let admitted = process.sessions.admit(*now, &connection.session, (target as u64, index), epoch);
        ensure!(process.sessions.len() <= plan.limit, "{} sessions", process.sessions.len());
        process.may_forget |= process.sessions.len() == plan.limit;
        match admitted {
            // The earlier connection of this index is ended all the same.
            Ok(_) if !has_room => {
                process.sessions.leave(*now, &connection.session, |seen| seen.lock().unwrap().shrink());
                Ok(Some(DownReason::Refused))
            }
            Ok((memory, lane)) => {
                connection.lane = lane;
                connection.process = running;
                connection.at_receiver = Side::Open;
                connection.memory = Some(memory);
                Ok(None)
            }
            Err(refusal) => {
                // A later connection of another index may have come and gone meanwhile.
                let is_late = refusal.code == RefusalCode::Epoch;
                let is_full = refusal.code == RefusalCode::Full && process.may_forget;
                ensure!(is_late || is_full, "{refusal:?}");
                Ok(Some(DownReason::Refused))
            }
        }
    }

    /// Lets the sender notice that a connection has ended.
    pub(super) fn down(&mut self, at: usize) -> Checked {
        self.down_by(at, DownReason::Broken)
    }

    fn down_by(&mut self, at: usize, reason: DownReason) -> Checked {
        self.moves += 1;
        let is_lost = self.rng.bool();
        let Self { senders, connections, now, .. } = self;
        let connection = &mut connections[at];
        let sender = connection.sender;
        self.tally.count("down");
        self.tally.add("down with data", u64::from(!connection.data.is_empty()));
        connection.at_sender = Side::Gone;
        connection.control.clear();
        if is_lost {
            connection.cut_data();
        } else {
            // The data may arrive after the next connection is up.
            connection.is_data_stuck |= self.rng.bool();
        }
        senders[sender].down(*now, connection, reason)?;
        log_event!(self, "down {:?}", self.connections[at]);
        self.sweep(at);
        self.check_and_act(sender)
    }

    /// Lets the receiver notice that a connection has ended.
    pub(super) fn end_at_receiver(&mut self, at: usize) -> Checked {
        self.moves += 1;
        let connection = &mut self.connections[at];
        connection.at_receiver = Side::Gone;
        connection.data.clear();
        if self.rng.bool() {
            connection.cut_control();
        }
        let (process, session) = (connection.process, connection.session);
        self.processes[process].sessions.leave(self.now, &session, |seen| seen.lock().unwrap().shrink());
        log_event!(self, "receiver knows the end of {:?}", self.connections[at]);
        self.sweep(at);
        Ok(())
    }

    /// Removes a connection that both sides have noticed the end of.
    fn sweep(&mut self, at: usize) {
        if self.connections[at].is_over() {
            self.connections.swap_remove(at);
        }
    }
}
