//! The tables.

use std::fmt;

use multinet_testing::measure::{middle, verdict};

use crate::figures::{Bandwidths, Figures, Latencies};

/// Up to this size it is the rate of messages that counts, from the next on bandwidth.
const SMALL: u32 = 256;

/// From this size on there is a target for frames, too.
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
             in rounds, {} in all: figures are medians, ratios are the medians of each round's. A dash: the peer's program did not get it done.\n\n\
             `--verbs` is `multinet bench --verbs`, RDMA writes to one place again and again, of which the other side hears nothing: what `ib_write_bw`\n\
             does, but of messages up to 8 KiB up to 16 by one call, and up to 192 bytes within the request; its latency is that of writes that the other side sees in memory, as `ib_write_lat` does. `frames` is `multinet bench`, the whole path: `send` and `recv` with credits, until the receiver's code has let go of the last\n\
             message. UCX is its transport `rc_verbs` itself, without its layer for programs, which does not connect over soft-RoCE; of its puts and\n\
             its active messages (up to 8 KiB) the faster counts.\n",
            self.rounds
        )?;
        let (small, large): (Vec<_>, Vec<_>) =
            self.figures.bandwidths.iter().partition(|it| it.size <= SMALL);
        table(f, "Small messages", "Messages a second.", RATE_TARGET, &small)?;
        table(f, "Bandwidth", "In MiB a second.", BANDWIDTH_TARGET, &large)?;
        self.latency(f)
    }
}

fn table(
    f: &mut fmt::Formatter<'_>,
    title: &str,
    unit: &str,
    target: f64,
    rows: &[&Bandwidths],
) -> fmt::Result {
    writeln!(
        f,
        "### {title}\n\n{unit}\n\n\
         | bytes | queue pairs | --verbs | frames | ib_write_bw | UCX | --verbs / ib_write_bw | target | frames / ib_write_bw | target | --verbs / UCX | target |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|"
    )?;
    for it in rows {
        let is_small = it.size <= SMALL;
        let (times, digits) = if is_small { (1.0, 0) } else { (f64::from(it.size) / f64::from(1 << 20), 1) };
        write!(f, "| {} | {} |", it.size, it.pairs)?;
        for rates in [&it.verbs, &it.frames, &it.perftest, &it.ucx] {
            write!(f, " {} |", show(median(rates).map(|rate| rate * times), digits))?;
        }
        let (verbs, frames) = (ratio(&it.verbs, &it.perftest), ratio(&it.frames, &it.perftest));
        let of_ucx = ratio(&it.verbs, &it.ucx);
        let framed = frames.filter(|_| it.size >= FRAMED);
        let above = of_ucx.filter(|_| !is_small);
        let above = above.map(|ratio| format!("above 1: {}", verdict(ratio > 1.0)));
        writeln!(
            f,
            " {} | {} | {} | {} | {} | {} |",
            show(verbs, 2),
            at_least(target, verbs),
            show(frames, 2),
            at_least(FRAMED_TARGET, framed),
            show(of_ucx, 2),
            above.unwrap_or_default()
        )?;
    }
    writeln!(f)
}

impl Page {
    fn latency(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "### Latency\n\n\
             Median of one way in microseconds, half of there and back, one message under way. `--verbs` and `ib_write_lat` look again and again\n\
             whether something has come; of frames both are shown, `--busy-poll`, which does so, too, and sleeping until the device reports.\n\n\
             | bytes | --verbs | ib_write_lat | --verbs / ib_write_lat | target | frames, --busy-poll | / ib_write_lat | frames | / ib_write_lat |\n\
             |---|---|---|---|---|---|---|---|---|"
        )?;
        for Latencies { size, verbs, frames, busy, perftest } in &self.figures.latencies {
            let of_perftest = ratio(verbs, perftest);
            let target = of_perftest
                .map(|ratio| format!("at most {LATENCY_TARGET}: {}", verdict(ratio <= LATENCY_TARGET)));
            writeln!(
                f,
                "| {size} | {} | {} | {} | {} | {} | {} | {} | {} |",
                show(median(verbs), 1),
                show(median(perftest), 1),
                show(of_perftest, 2),
                target.unwrap_or_default(),
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
