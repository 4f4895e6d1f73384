//! What a world is like.

use crate::choose::Choice;
use crate::handshake::Delivery;
use crate::outbound::Settings;

/// All that is decided before the first step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    /// Steps until everything heals; then it starts over, `rounds` times.
    pub(super) steps: usize,
    pub(super) rounds: usize,
    pub(super) senders: usize,
    pub(super) targets: usize,
    pub(super) settings: Settings,
    pub(super) keys: u64,
    /// The most slots that a receiver offers.
    pub(super) slots: u32,
    /// How many senders a receiver remembers.
    pub(super) limit: usize,
    /// Faults in a thousand steps.
    pub(super) pace: u32,
    pub(super) faults: Faults,
}

/// What may go wrong.
#[derive(Clone, Copy, Debug)]
pub(super) struct Faults {
    /// Connections cannot be made, hang, or are there for one side only.
    pub(super) dials: bool,
    /// Connections break.
    pub(super) breaks: bool,
    /// What is on its way stays there for a while.
    pub(super) delays: bool,
    /// Receivers start over without memory.
    pub(super) restarts: bool,
    /// Pods are replaced under their name.
    pub(super) replacements: bool,
    /// DNS adds and removes peers.
    pub(super) dns: bool,
    /// DNS has two names for each receiver.
    pub(super) names: bool,
    /// Receivers' code does not want frames.
    pub(super) rejects: bool,
    /// Receivers' code stands still for long.
    pub(super) stalls: bool,
    /// Frames are for one peer only.
    pub(super) named: bool,
    /// Receivers take frames of different sizes.
    pub(super) sizes: bool,
    /// Senders start over, as another session.
    pub(super) senders: bool,
    /// Receivers have no room for another connection.
    pub(super) rooms: bool,
    /// Receivers have less room for a connection than they said at first.
    pub(super) limits: bool,
}

impl Plan {
    pub(super) fn of(seed: u64, steps: usize) -> Self {
        let rng = &mut fastrand::Rng::with_seed(seed);
        let settings = Settings {
            delivery: [Delivery::AtMostOnce, Delivery::AtLeastOnce, Delivery::AtLeastOnce][rng.usize(..3)],
            choice: [
                Choice::RoundRobin,
                Choice::LeastOutstanding,
                Choice::Nearest,
                Choice::ByKey,
                Choice::ByKey,
            ][rng.usize(..5)],
            replay: [1, 4, 32, 256][rng.usize(..4)],
            connections: [1, 1, 2, 3][rng.usize(..4)],
        };
        Self {
            seed,
            steps,
            rounds: 4,
            senders: rng.usize(1..=2),
            targets: rng.usize(1..=5),
            settings,
            keys: rng.u64(1..=6),
            slots: [1, 4, 16][rng.usize(..3)],
            limit: if rng.u8(..8) == 0 { 2 } else { 10_000 },
            pace: [5, 30, 100][rng.usize(..3)],
            faults: Faults::of(rng),
        }
    }

    /// Less is simpler.
    pub(super) fn weight(&self) -> usize {
        let mut faults = self.faults;
        let faults = Faults::EACH.into_iter().filter(|fault| *fault(&mut faults)).count();
        let settings = usize::from(self.settings.connections) + self.settings.replay.min(5);
        let sizes = self.rounds + self.senders + self.targets + self.keys as usize + self.slots as usize;
        faults + settings + sizes
    }

    /// The same, each with something less, and itself.
    pub(super) fn simpler(self) -> impl Iterator<Item = Self> {
        let faults = Faults::EACH.into_iter().map(move |fault| {
            let mut faults = self.faults;
            *fault(&mut faults) = false;
            Self { faults, ..self }
        });
        let settings = [
            Settings { connections: 1, ..self.settings },
            Settings { replay: self.settings.replay.min(4), ..self.settings },
        ];
        let settings = settings.into_iter().map(move |settings| Self { settings, ..self });
        let sizes = [
            Self { rounds: 1, ..self },
            Self { senders: 1, ..self },
            Self { targets: (self.targets - 1).max(1), ..self },
            Self { keys: 1, ..self },
            Self { slots: 1, ..self },
            self,
        ];
        sizes.into_iter().chain(faults).chain(settings)
    }
}

impl Faults {
    const EACH: [fn(&mut Self) -> &mut bool; 14] = [
        |faults| &mut faults.dials,
        |faults| &mut faults.breaks,
        |faults| &mut faults.delays,
        |faults| &mut faults.restarts,
        |faults| &mut faults.replacements,
        |faults| &mut faults.dns,
        |faults| &mut faults.names,
        |faults| &mut faults.rejects,
        |faults| &mut faults.stalls,
        |faults| &mut faults.named,
        |faults| &mut faults.sizes,
        |faults| &mut faults.senders,
        |faults| &mut faults.rooms,
        |faults| &mut faults.limits,
    ];

    fn of(rng: &mut fastrand::Rng) -> Self {
        let mut faults = Self {
            dials: false,
            breaks: false,
            delays: false,
            restarts: false,
            replacements: false,
            dns: false,
            names: false,
            rejects: false,
            stalls: false,
            named: false,
            sizes: false,
            senders: false,
            rooms: false,
            limits: false,
        };
        Self::EACH.into_iter().for_each(|fault| *fault(&mut faults) = rng.bool());
        // The order of a key's frames is promised for each name.
        faults.names &= rng.u8(..4) == 0;
        faults
    }
}
