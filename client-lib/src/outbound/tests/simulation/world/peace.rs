//! Healing: all faults end, and every promise has to be kept.

use super::{Checked, Connection, LARGEST, Side, Verdict, World, ensure};

/// Rounds until all work has to be done.
const ROUNDS: usize = 2_000;

impl World {
    pub(super) fn heal(&mut self) -> Checked {
        for target in 0..self.running.len() {
            if let Some(process) = self.running[target] {
                let process_is_small = self.processes[process].frame_size < LARGEST;
                self.processes[process].is_stalled = false;
                if !process_is_small {
                    continue;
                }
                self.kill(process);
            }
            let uid = self.uid_of(target);
            self.spawn(target, uid);
        }
        for connection in &mut self.connections {
            (connection.is_data_stuck, connection.is_control_stuck) = (false, false);
        }
        for sender in 0..self.senders.len() {
            self.resolve(sender)?;
        }
        self.quiesce()?;
        // Frames of all keys get through again.
        for sender in 0..self.senders.len() {
            for key in 0..self.plan.keys {
                self.submit_one(sender, (key, LARGEST), None)?;
            }
        }
        self.quiesce()
    }

    fn quiesce(&mut self) -> Checked {
        for _ in 0..ROUNDS {
            let before = self.moves;
            self.round()?;
            if self.moves > before {
                continue;
            }
            if self.is_quiet() {
                return self.check_end();
            }
            let due = self.senders.iter().filter_map(|sender| sender.outbound.due()).min();
            let Some(due) = due else {
                return Err(format!("work is left, but nothing happens any more: {}", self.stuck()));
            };
            self.advance(due.saturating_duration_since(self.now))?;
        }
        Err(format!("work never ends: {}", self.stuck()))
    }

    /// Returns the work that is left.
    fn stuck(&self) -> String {
        let left = self.senders.iter().map(|sender| {
            let ring = &sender.outbound.ring;
            let frames: Vec<_> = ring.sequences(|_| true).into_iter().map(|at| (at, ring.get(at))).collect();
            let links: Vec<_> = sender.outbound.peers.iter().flat_map(|peer| &peer.links).collect();
            format!("{frames:?} {links:?}")
        });
        left.collect::<Vec<_>>().join("; ")
    }

    /// Lets everything happen that can.
    fn round(&mut self) -> Checked {
        self.all(Connection::has_ended_for_receiver, Self::end_at_receiver)?;
        self.all(Connection::has_ended_for_sender, Self::down)?;
        self.all(|it| it.at_sender == Side::Pending, Self::dial)?;
        self.all(Connection::is_writable, Self::write)?;
        self.all(Connection::has_data_to_deliver, Self::arrive)?;
        for process in self.running.clone().into_iter().flatten() {
            while !self.processes[process].inbox.is_empty() {
                self.take_from(process)?;
            }
            while !self.processes[process].held.is_empty() {
                self.decide_on(process, 0, Verdict::Done)?;
            }
        }
        self.all(Connection::may_send_control, Self::send_control)?;
        self.all(Connection::has_control_to_deliver, Self::receive_control)
    }

    /// Does something to all connections for as long as it can be done.
    fn all(
        &mut self,
        fits: impl Fn(&Connection) -> bool,
        what: impl Fn(&mut Self, usize) -> Checked,
    ) -> Checked {
        let mut most = 100_000;
        while let Some(at) = self.connections.iter().position(&fits) {
            what(self, at)?;
            most -= 1;
            ensure!(most > 0, "it goes on and on: {:?}", self.connections[at]);
        }
        Ok(())
    }

    /// Returns whether every sender has all its connections to every receiver, and no work is left.
    fn is_quiet(&self) -> bool {
        let connections = usize::from(self.plan.settings.connections);
        self.senders.iter().all(|sender| {
            let peers = &sender.outbound.peers;
            let is_whole = |link: &crate::outbound::link::Lane| link.is_up();
            sender.outbound.is_idle()
                && peers.len() == self.plan.targets * if self.plan.faults.names { 2 } else { 1 }
                && peers.iter().all(|peer| peer.links.len() == connections && peer.links.iter().all(is_whole))
        })
    }

    fn check_end(&self) -> Checked {
        for sender in &self.senders {
            sender.check()?;
            sender.check_inside()?;
            sender.check_end()?;
        }
        Ok(())
    }
}
