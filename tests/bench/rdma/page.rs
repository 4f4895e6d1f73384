//! The tables.

use std::fmt;

use multinet_tests::measure::{middle, verdict};

use crate::figures::{Bandwidths, Figures, Latencies, Run};

/// Up to this size it is the rate of messages that counts, from the next on bandwidth.
const SMALL: u32 = 256;
const LARGE: u32 = 4 << 10;

/// From this size on there is a target for the framed path of its own.
const FRAMED: u32 = 64 << 10;

/// At least so much of `ib_write_bw`'s.
const RATE_TARGET: f64 = 0.8;
const BANDWIDTH_TARGET: f64 = 0.95;
const FRAMED_TARGET: f64 = 0.9;

/// At most so much of `ib_write_lat`'s.
const LATENCY_TARGET: f64 = 1.1;

/// All that has been measured.
pub(crate) struct Page {
    pub(crate) rounds: usize,
    pub(crate) figures: Figures,
}

impl fmt::Display for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "Written by `make bench-rdma`. The peers are perftest and `ucx_perftest`, as Debian has them, in the same run, over the same\n\
             device: soft-RoCE in a guest of QEMU that computes in software, with 2 processors, which both sides of each and the device\n\
             itself share. So no figure says how fast a NIC would be; the ratios say what each program's own work is. The programs take turns\n\
             in {} rounds: figures are medians, ratios are the medians of each round's. A dash: the peer's program did not get it done.\n\n\
             `multinet bench` is always the full framed path: `send` and `recv` with credits, until the receiver's code has let go of the last\n\
             message. `ib_write_bw` writes to one place again and again, of which the receiver hears nothing. UCX is its transport `rc_verbs`\n\
             itself, without its layer for programs, which does not connect over soft-RoCE; of its puts and its active messages (up to 8 KiB)\n\
             the faster counts. CPU is what all of the guest used for each message, the device's part included, in microseconds, less what a\n\
             run of a few messages costs; perftest and UCX poll, so that theirs is that of waiting, too.\n",
            self.rounds
        )?;
        writeln!(
            f,
            "### Small messages\n\nMessages a second.\n\n\
             | bytes | queue pairs | multinet | ib_write_bw | UCX | / ib_write_bw | target | / UCX | CPU: multinet | ib_write_bw | UCX |\n\
             |---|---|---|---|---|---|---|---|---|---|---|"
        )?;
        let is_small = |it: &&Bandwidths| it.size <= SMALL;
        for it in self.figures.bandwidths.iter().filter(is_small) {
            it.heads(f, 1.0)?;
            let ratio = it.of_perftest();
            let target =
                ratio.map(|ratio| format!("at least {RATE_TARGET}: {}", verdict(ratio >= RATE_TARGET)));
            write!(f, " {} | {} | {} |", show(ratio, 2), target.unwrap_or_default(), show(it.of_ucx(), 2))?;
            it.tails(f)?;
        }
        writeln!(
            f,
            "\n### Bandwidth\n\nIn MiB a second.\n\n\
             | bytes | queue pairs | multinet | ib_write_bw | UCX | / ib_write_bw | target | target of the framed path | / UCX | target | CPU: multinet | ib_write_bw | UCX |\n\
             |---|---|---|---|---|---|---|---|---|---|---|---|---|"
        )?;
        for it in self.figures.bandwidths.iter().filter(|it| !is_small(it)) {
            it.heads(f, f64::from(it.size) / f64::from(1 << 20))?;
            let (of_perftest, of_ucx) = (it.of_perftest(), it.of_ucx());
            let at_least = |from: u32, target: f64| {
                let ratio = of_perftest.filter(|_| it.size >= from);
                ratio
                    .map(|ratio| format!("at least {target}: {}", verdict(ratio >= target)))
                    .unwrap_or_default()
            };
            let above = of_ucx.map(|ratio| format!("above 1: {}", verdict(ratio > 1.0))).unwrap_or_default();
            let targets = (at_least(LARGE, BANDWIDTH_TARGET), at_least(FRAMED, FRAMED_TARGET));
            let of_perftest = show(of_perftest, 2);
            write!(f, " {of_perftest} | {} | {} | {} | {above} |", targets.0, targets.1, show(of_ucx, 2))?;
            it.tails(f)?;
        }
        self.latency(f)
    }
}

impl Page {
    fn latency(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n### Latency\n\n\
             Median of one way in microseconds, half of there and back, one message under way. `ib_write_lat` polls its memory, so it stands beside\n\
             `--busy-poll` on both sides; without that `multinet` sleeps until the device reports.\n\n\
             | bytes | multinet --busy-poll | ib_write_lat | / ib_write_lat | target | multinet | / ib_write_lat |\n|---|---|---|---|---|---|---|"
        )?;
        for Latencies { size, multinet, busy, perftest } in &self.figures.latencies {
            let ratio = ratio(busy, perftest);
            let target =
                ratio.map(|ratio| format!("at most {LATENCY_TARGET}: {}", verdict(ratio <= LATENCY_TARGET)));
            writeln!(
                f,
                "| {size} | {} | {} | {} | {} | {} | {} |",
                show(median(busy), 1),
                show(median(perftest), 1),
                show(ratio, 2),
                target.unwrap_or_default(),
                show(median(multinet), 1),
                show(self::ratio(multinet, perftest), 2),
            )?;
        }
        Ok(())
    }
}

impl Bandwidths {
    /// What it is, and the figures, each so many times the rate.
    fn heads(&self, f: &mut fmt::Formatter<'_>, unit: f64) -> fmt::Result {
        let digits = if self.size <= SMALL { 0 } else { 1 };
        write!(f, "| {} | {} |", self.size, self.pairs)?;
        for runs in [&self.multinet, &self.perftest, &self.ucx] {
            write!(f, " {} |", show(median(&rates(runs)).map(|rate| rate * unit), digits))?;
        }
        Ok(())
    }

    fn tails(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for runs in [&self.multinet, &self.perftest, &self.ucx] {
            let costs: Vec<_> = runs.iter().map(|run| run.map(|run| run.cpu)).collect();
            write!(f, " {} |", show(median(&costs), 0))?;
        }
        writeln!(f)
    }

    fn of_perftest(&self) -> Option<f64> {
        ratio(&rates(&self.multinet), &rates(&self.perftest))
    }

    fn of_ucx(&self) -> Option<f64> {
        ratio(&rates(&self.multinet), &rates(&self.ucx))
    }
}

fn rates(runs: &[Option<Run>]) -> Vec<Option<f64>> {
    runs.iter().map(|run| run.map(|run| run.rate)).collect()
}

/// The median of the rounds' ratios: whatever else the machine does lasts longer than a round's two runs.
fn ratio(ours: &[Option<f64>], theirs: &[Option<f64>]) -> Option<f64> {
    let ratios = ours.iter().zip(theirs).map(|(ours, theirs)| Some((*ours)? / (*theirs)?));
    median(&ratios.collect::<Vec<_>>())
}

fn median(values: &[Option<f64>]) -> Option<f64> {
    middle(values.iter().copied().flatten().collect()).ok()
}

fn show(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{value:.digits$}"))
}
