//! The tables.

use std::fmt;
use std::time::Duration;

use multinet_testing::measure::verdict;

use crate::tools::{Bandwidths, RoundTrips};
use crate::{allocations, many};

/// From this size on it has to be as fast as iperf3.
const IPERF_FROM: u32 = 64 << 10;

/// At least so much of iperf3's bandwidth.
const IPERF_TARGET: f64 = 0.95;

/// At most so much of a bare echo's round trip.
const ECHO_TARGET: f64 = 1.15;

/// Fewer allocations per frame than this are none: what happens once in a while has nothing to do with frames.
const NONE: f64 = 0.001;

/// All that has been measured.
pub(crate) struct Page {
    pub(crate) rounds: usize,
    pub(crate) bandwidths: Vec<(u32, Bandwidths)>,
    pub(crate) round_trips: RoundTrips,
    pub(crate) allocations: allocations::Figures,
    pub(crate) many: many::Figures,
    pub(crate) deaths: Vec<Duration>,
}

impl fmt::Display for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
        writeln!(
            f,
            "Written by `make bench-client`. The peers are iperf3 (one stream) and `ucx_perftest` (`UCX_TLS=tcp`), both as Debian has them,\n\
             and a bare tokio echo, in the same run, over the loopback interface; they take turns, median of {} rounds. Machine: {cores}\n\
             cores, which both sides of each share.\n",
            self.rounds
        )?;
        self.bandwidth(f)?;
        self.round_trip(f)?;
        self.cost(f)?;
        self.death(f)
    }
}

impl Page {
    fn bandwidth(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "### Bandwidth\n\n\
             In GiB a second, until the receiver's code has let go of the last message (`multinet bench client -s SIZE`), one connection. CPU\n\
             is user and system time of both sides, in seconds per GiB; UCX polls, so that its CPU is that of waiting, too. iperf3 takes\n\
             blocks of 1 MiB at most (`-l`), which stand beside all larger sizes. Of UCX's tag and stream interfaces the faster one counts.\n\
             Most of what multinet is faster by from 256 KiB up is that it has no more under way to a receiver on its own machine than a core's\n\
             cache holds; between machines the kernel decides, for all of them.\n\n\
             | bytes | multinet | iperf3 | UCX | / iperf3 | target | / UCX | target | CPU: multinet | iperf3 | UCX |\n\
             |---|---|---|---|---|---|---|---|---|---|---|"
        )?;
        for (size, Bandwidths { multinet, iperf, ucx }) in &self.bandwidths {
            let [ours, theirs, others] = [multinet, iperf, ucx].map(|run| run.bandwidth / f64::from(1 << 30));
            let of_iperf = ours / theirs;
            let target = match *size >= IPERF_FROM {
                true => format!("at least {IPERF_TARGET}: {}", verdict(of_iperf >= IPERF_TARGET)),
                false => String::new(),
            };
            writeln!(
                f,
                "| {size} | {ours:.2} | {theirs:.2} | {others:.2} | {of_iperf:.3} | {target} | {:.3} | above 1: {} | {:.2} | {:.2} | {:.2} |",
                ours / others,
                verdict(ours > others),
                multinet.cpu,
                iperf.cpu,
                ucx.cpu,
            )?;
        }
        writeln!(f)
    }

    fn round_trip(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RoundTrips { multinet, acknowledged, ucx, echo } = self.round_trips;
        writeln!(
            f,
            "### Round trip of 64 bytes\n\n\
             Median in microseconds, one message under way. UCX polls and never sleeps ({ucx:.1}); the bare tokio echo sleeps, as we do\n\
             ({echo:.1}). A connection of multinet carries frames one way, so that a frame back comes on another one, and the kernel has\n\
             no data to send its own acknowledgements along with.\n\n\
             | multinet | time | / UCX | / echo | target |\n|---|---|---|---|---|"
        )?;
        let trips = [
            (
                "a frame there, a frame back (`multinet bench client --latency -s 64`, whose columns show half of it)",
                multinet,
            ),
            ("a frame there, the acknowledgement of the receiver's code back (at least once)", acknowledged),
        ];
        for (what, time) in trips {
            let target = verdict(time <= ECHO_TARGET * echo);
            writeln!(
                f,
                "| {what} | {time:.1} | {:.2} | {:.2} | at most {ECHO_TARGET}: {target} |",
                time / ucx,
                time / echo,
            )?;
        }
        writeln!(f)
    }

    fn cost(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let allocations::Figures { frames, at_most_once, at_least_once } = self.allocations;
        writeln!(
            f,
            "### Memory and rest\n\n\
             Allocations per frame, sender and receiver in one process, of {frames} frames of 4 KiB with a key and metadata, after a warm-up.\n\n\
             | delivery | allocations per frame | target |\n|---|---|---|"
        )?;
        for (delivery, count) in [("at most once", at_most_once), ("at least once", at_least_once)] {
            writeln!(f, "| {delivery} | {count:.4} | 0: {} |", verdict(count < NONE))?;
        }
        let many::Figures { peers, sender, receiver } = self.many;
        writeln!(
            f,
            "\nA sender connected to {peers} receivers, and those receivers, in one process each; nothing is sent.\n\n\
             | side | KiB per peer | CPU at rest, percent of a core |\n|---|---|---|"
        )?;
        for (name, side) in [("sender", sender), ("receivers", receiver)] {
            writeln!(f, "| {name} | {:.1} | {:.2} |", side.kibibytes_each, side.cpu * 100.0)?;
        }
        writeln!(f)
    }

    fn death(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut times = self.deaths.clone();
        times.sort_unstable();
        let at = |percent: usize| {
            let place = (times.len() * percent / 100).min(times.len().saturating_sub(1));
            times.get(place).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
        };
        writeln!(
            f,
            "### A peer dies\n\n\
             From `kill -9` of one of three receivers until another one has the first frame that was under way to it (at least once, a frame\n\
             of 4 KiB every millisecond), in milliseconds; {} deaths.\n\n\
             | p50 | p99 |\n|---|---|\n| {:.2} | {:.2} |",
            times.len(),
            at(50),
            at(99),
        )
    }
}
