//! The tables.

use std::fmt;

use multinet_testing::measure::{middle, verdict};

use crate::figures::{Bandwidths, Figures, Latencies};

/// Up to this size it is the rate of messages that counts, from the next on bandwidth.
const SMALL: u32 = 256;

/// From this size on there is a target.
const FRAMED: u32 = 64 << 10;

/// At least so much of `ib_write_bw`'s.
const FRAMED_TARGET: f64 = 0.9;

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
             in rounds, {} in all: figures are medians, ratios are the medians of each round's. A dash: the peer's program did not get it done.\n\n\
             `frames` is `multinet bench`, the whole path: `send` and `recv` with credits, until the receiver's code has let go of the last message.\n\
             `ib_write_bw` writes to one place again and again, of which the other side hears nothing. UCX is its transport `rc_verbs` itself, without its layer for programs, which does not connect over soft-RoCE; of its puts and\n\
             its active messages (up to 8 KiB) the faster counts.\n",
            self.rounds
        )?;
        let (small, large): (Vec<_>, Vec<_>) =
            self.figures.bandwidths.iter().partition(|it| it.size <= SMALL);
        table(f, "Small messages", "Messages a second.", &small)?;
        table(f, "Bandwidth", "In MiB a second.", &large)?;
        self.latency(f)
    }
}

fn table(f: &mut fmt::Formatter<'_>, title: &str, unit: &str, rows: &[&Bandwidths]) -> fmt::Result {
    writeln!(
        f,
        "### {title}\n\n{unit}\n\n\
         | bytes | queue pairs | frames | ib_write_bw | UCX | frames / ib_write_bw | target |\n\
         |---|---|---|---|---|---|---|"
    )?;
    for it in rows {
        let is_small = it.size <= SMALL;
        let (times, digits) = if is_small { (1.0, 0) } else { (f64::from(it.size) / f64::from(1 << 20), 1) };
        write!(f, "| {} | {} |", it.size, it.pairs)?;
        for rates in [&it.frames, &it.perftest, &it.ucx] {
            write!(f, " {} |", show(median(rates).map(|rate| rate * times), digits))?;
        }
        let frames = ratio(&it.frames, &it.perftest);
        let framed = frames.filter(|_| it.size >= FRAMED);
        writeln!(f, " {} | {} |", show(frames, 2), at_least(FRAMED_TARGET, framed))?;
    }
    writeln!(f)
}

impl Page {
    fn latency(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "### Latency\n\n\
             Median of one way in microseconds, half of there and back, one message under way. `ib_write_lat` looks again and again\n\
             whether something has come; of frames both are shown, `--busy-poll`, which does so, too, and sleeping until the device reports.\n\n\
             | bytes | ib_write_lat | frames, --busy-poll | / ib_write_lat | frames | / ib_write_lat |\n\
             |---|---|---|---|---|---|"
        )?;
        for Latencies { size, frames, busy, perftest } in &self.figures.latencies {
            writeln!(
                f,
                "| {size} | {} | {} | {} | {} | {} |",
                show(median(perftest), 1),
                show(median(busy), 1),
                show(ratio(busy, perftest), 2),
                show(median(frames), 1),
                show(ratio(frames, perftest), 2),
            )?;
        }
        Ok(())
    }
}

fn at_least(target: f64, ratio: Option<f64>) -> String {
    ratio.map(|ratio| format!("at least {target}: {}", verdict(ratio >= target))).unwrap_or_default()
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
