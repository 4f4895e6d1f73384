//! Faults of the simulated world.

use super::{Address, Checked, LARGEST, Process, Side, World, log_event};

impl World {
    pub(super) fn fault(&mut self) -> Checked {
        let faults = self.plan.faults;
        match self.rng.u32(..28) {
            0..4 if faults.breaks => {
                self.on_any(|it| it.at_receiver == Side::Open && !it.is_cut(), Self::cut)
            }
            // Only messages in flight can be lost.
            4..9 if faults.breaks => self.on_any(|it| it.is_busy() && !it.is_cut(), Self::cut),
            9..12 if faults.stalls => self.stall(),
            12..14 if faults.restarts => self.restart(false),
            14..16 if faults.replacements => self.restart(true),
            16..20 => {
                let sender = self.rng.usize(..self.senders.len());
                self.resolve(sender)
            }
            20 if faults.senders && self.rng.u8(..4) == 0 => self.restart_sender(),
            21..25 if faults.delays => self.on_any(|it| it.at_receiver == Side::Open, Self::delay),
            25..28 if faults.limits => self.on_any(|it| it.is_up() && it.limit.is_none(), Self::limit),
            _ => Ok(()),
        }
    }

    /// Cuts a connection in one direction or both, or makes only the sender believe so.
    fn cut(&mut self, at: usize) -> Checked {
        let which = self.rng.u8(..6);
        if which > 2 && self.connections[at].at_sender == Side::Open {
            return self.down(at);
        }
        let connection = &mut self.connections[at];
        if which != 0 {
            connection.cut_data();
        }
        if which != 1 {
            connection.cut_control();
        }
        if self.connections[at].at_sender == Side::Open && self.rng.bool() {
            // The sender notices, and still hears earlier reports.
            let Self { senders, connections, .. } = self;
            senders[connections[at].sender].ending(connections[at].link);
        }
        log_event!(self, "cut {:?}", self.connections[at]);
        Ok(())
    }

    /// Changes a receiver's number of slots for a sender.
    fn limit(&mut self, at: usize) -> Checked {
        let connection = &mut self.connections[at];
        connection.limit = Some((self.rng.u32(1..=self.plan.slots), false));
        connection.has_control_to_send = true;
        log_event!(self, "will be limited {:?}", self.connections[at]);
        Ok(())
    }

    fn delay(&mut self, at: usize) -> Checked {
        let connection = &mut self.connections[at];
        (connection.is_data_stuck, connection.is_control_stuck) = (self.rng.bool(), self.rng.bool());
        log_event!(self, "stuck {:?}", self.connections[at]);
        Ok(())
    }

    pub(super) fn go_on(&mut self, at: usize) -> Checked {
        let connection = &mut self.connections[at];
        (connection.is_data_stuck, connection.is_control_stuck) = (false, false);
        log_event!(self, "goes on {:?}", self.connections[at]);
        Ok(())
    }

    fn stall(&mut self) -> Checked {
        if let Some(process) = self.process(|it| !it.is_stalled) {
            self.processes[process].is_stalled = true;
            log_event!(self, "{process} is stalled");
        }
        Ok(())
    }

    /// Starts a process that is down, or ends a stall.
    pub(super) fn recover(&mut self) -> Checked {
        let target = self.rng.usize(..self.running.len());
        if self.running[target].is_none() {
            let uid = self.uid_of(target);
            self.spawn(target, uid);
        } else if let Some(process) = self.process(|it| it.is_stalled) {
            self.processes[process].is_stalled = false;
            log_event!(self, "{process} goes on");
        }
        Ok(())
    }

    /// Ends a process. Another one takes its place, at once or later.
    fn restart(&mut self, is_replaced: bool) -> Checked {
        let target = self.rng.usize(..self.running.len());
        let Some(process) = self.running[target] else { return Ok(()) };
        self.kill(process);
        if self.rng.bool() {
            let uid = self.processes[process].uid;
            self.next_uid += u32::from(is_replaced);
            let uid = if is_replaced { uid.map(|_| self.next_uid) } else { uid };
            self.spawn(target, uid);
        }
        Ok(())
    }

    /// Returns the uid of the latest pod of a target.
    pub(super) fn uid_of(&self, target: usize) -> Option<u32> {
        self.processes.iter().rfind(|process| process.target == target)?.uid
    }

    pub(super) fn kill(&mut self, process: usize) {
        log_event!(self, "{process} is killed");
        self.running[self.processes[process].target] = None;
        let all =
            self.connections.iter_mut().filter(|it| it.process == process && it.at_receiver == Side::Open);
        for connection in all {
            connection.at_receiver = Side::Gone;
            connection.data.clear();
            if self.rng.bool() {
                connection.cut_control();
            }
        }
        self.connections.retain(|connection| !connection.is_over());
        let dead = &mut self.processes[process];
        dead.inbox.clear();
        dead.held.clear();
    }

    pub(super) fn spawn(&mut self, target: usize, uid: Option<u32>) {
        let slots = self.rng.u32(1..=self.plan.slots);
        let is_small = self.plan.faults.sizes && !self.is_peace && self.rng.u8(..3) == 0;
        let frame_size = if is_small { LARGEST / 2 } else { LARGEST };
        self.running[target] = Some(self.processes.len());
        log_event!(self, "{} runs as {target}, {uid:?}, {slots} slots of {frame_size}", self.processes.len());
        self.processes.push(Process::new(target, uid, self.plan.limit, (slots, frame_size)));
    }

    /// Resolves the endpoints for a sender. The answer may be wrong.
    pub(super) fn resolve(&mut self, sender: usize) -> Checked {
        let is_true = self.is_peace || !self.plan.faults.dns || self.rng.bool();
        let mut addresses = Vec::new();
        let names = if self.plan.faults.names { 2 } else { 1 };
        for target in 0..self.running.len() * names {
            let pod = target % self.running.len();
            let uid = self.uid_of(pod);
            let is_there = if is_true { self.running[pod].is_some() } else { self.rng.u8(..4) > 0 };
            if is_there {
                addresses.push(Address { target, uid });
            }
        }
        log_event!(self, "sender {sender} resolves {addresses:?}");
        self.senders[sender].endpoints(self.now, &addresses)?;
        self.moves += 1;
        self.check_and_act(sender)
    }

    fn restart_sender(&mut self) -> Checked {
        let at = self.rng.usize(..self.senders.len());
        log_event!(self, "sender {at} starts over");
        for connection in self.connections.iter_mut().filter(|connection| connection.sender == at) {
            connection.at_sender = Side::Gone;
            connection.control.clear();
            if self.rng.bool() {
                connection.cut_data();
            }
        }
        self.connections.retain(|connection| !connection.is_over());
        self.senders[at] = self.sender();
        self.resolve(at)
    }
}
