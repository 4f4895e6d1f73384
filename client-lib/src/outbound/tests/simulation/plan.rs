//! Parameters of a simulated world.

use crate::choose::Choice;
use crate::handshake::Delivery;
use crate::outbound::SendSettings;

/// All decisions that are made before the first step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    /// Steps until everything heals. There are `rounds` of these.
    pub(super) steps: usize,
    pub(super) rounds: usize,
    pub(super) senders: usize,
    pub(super) targets: usize,
    pub(super) settings: SendSettings,
    pub(super) keys: u64,
    /// The most slots that a receiver offers.
    pub(super) slots: u32,
    /// The most senders that a receiver remembers.
    pub(super) limit: usize,
    /// Faults per thousand steps.
    pub(super) pace: u32,
    pub(super) faults: Faults,
}

/// Kinds of faults that may happen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Faults {
    /// Connections cannot be made, hang, or exist for one side only.
    pub(super) dials: bool,
    /// Connections break.
    pub(super) breaks: bool,
    /// Messages in flight are delayed.
    pub(super) delays: bool,
    /// Receivers restart without memory.
    pub(super) restarts: bool,
    /// Pods are replaced by others of the same name.
    pub(super) replacements: bool,
    /// DNS adds and removes peers.
    pub(super) dns: bool,
    /// DNS has two names for each receiver.
    pub(super) names: bool,
    /// Receivers' applications reject frames.
    pub(super) rejects: bool,
    /// Receivers' applications stall for long.
    pub(super) stalls: bool,
    /// Frames name the only peer that may have them.
    pub(super) named: bool,
    /// Receivers accept frames of different sizes.
    pub(super) sizes: bool,
    /// Senders restart with another session.
    pub(super) senders: bool,
    /// Receivers have no room for another connection.
    pub(super) rooms: bool,
    /// Receivers lower the number of slots of a connection.
    pub(super) limits: bool,
}

impl Plan {
    pub(super) fn of(seed: u64, steps: usize) -> Self {
        let rng = &mut fastrand::Rng::with_seed(seed);
        let settings = SendSettings {
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

    /// Returns the complexity. Less is simpler.
    pub(super) fn weight(&self) -> usize {
        let mut faults = self.faults;
        let faults = Faults::EACH.into_iter().filter(|fault| *fault(&mut faults)).count();
        let settings = usize::from(self.settings.connections) + self.settings.replay.min(5);
        let sizes = self.rounds + self.senders + self.targets + self.keys as usize + self.slots as usize;
        faults + settings + sizes
    }

    /// Returns plans that are each simpler in one respect, and the same plan, to be tried with
    /// other seeds.
    pub(super) fn simpler(self) -> impl Iterator<Item = Self> {
        let faults = Faults::EACH.into_iter().map(move |fault| {
            let mut faults = self.faults;
            *fault(&mut faults) = false;
            Self { faults, ..self }
        });
        let settings = [
            SendSettings { connections: 1, ..self.settings },
            SendSettings { replay: self.settings.replay.min(4), ..self.settings },
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
        // With two names per receiver, the order of a key holds only within each name. So that is
        // rare.
        faults.names &= rng.u8(..4) == 0;
        faults
    }
}
