//! The tables.

use std::fmt;

use multinet_testing::measure::{self, Spread, verdict};

use crate::bursts::{self, Depth, IN_FLIGHT, Round, middle};
use crate::changes::{BURST, Figures, ROUNDS};
use crate::cold::{EVENTS, Restart, Start, Usage};
use crate::samples::Samples;
use crate::writes::{self, CREATED, Cost, SIZE};
use crate::{Memory, PODS_EACH, watcher};

/// Resources that the two controllers write.
const SLICES: &str = "multinetworkendpointslices";
const STATUS: &str = "multinetworkservices/status";
const CORE_SLICES: &str = "endpointslices";

/// All that has been measured.
pub(crate) struct Page {
    pub(crate) samples: usize,
    /// By the number of pods in the cluster.
    pub(crate) changes: [(usize, Figures); 2],
    /// Bursts with the fewer pods in the cluster.
    pub(crate) depths: Vec<Depth>,
    /// Single changes of both sides, by how many endpoints our slices may have.
    pub(crate) limits: Vec<(usize, [Samples; 2])>,
    pub(crate) others: usize,
    /// Ours, core's.
    pub(crate) starts: [Start; 2],
    pub(crate) restart: Restart,
    /// Ours since it was started; core's growth over what it is without pods.
    pub(crate) usage: [Usage; 2],
    pub(crate) memory: Vec<Memory>,
    pub(crate) writes: writes::Figures,
}

impl fmt::Display for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
        writeln!(
            f,
            "Written by `make bench-programming`. The peer is kube-controller-manager 1.35.4 (the EndpointSlice controller with its\n\
             default flags) and CoreDNS 1.14.7 (kubernetes plugin), which do for the first NIC and a headless Service what\n\
             multinet-controller and multinet-dns do for the second NIC and a MultiNetworkService; in the same run, on the same API\n\
             server. Machine: {cores} cores for all of them, etcd and the API server included.\n"
        )?;
        self.changes(f)?;
        self.depths(f)?;
        self.limits(f)?;
        self.ten_thousand(f)?;
        self.memory(f)?;
        self.writes(f)
    }
}

impl Page {
    fn changes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let patch = &self.changes[0].1.patch;
        writeln!(
            f,
            "### From pod to answer\n\n\
             From sending the PATCH of a pod's status (or of its annotation) to the API server until a query over UDP is answered\n\
             rightly, in milliseconds; {} changes per row. The PATCH itself takes {:.1} (p50) and {:.1} (p99) of it.\n\
             Each side has pods of its own, so that both run all the time and their changes take turns. Who asks pauses\n\
             for at least {:?} time and again, in bursts for {:?}: the figures are no more exact.\n\n\
             - Single: the next change comes when this one is answered. Service of 20 pods.\n\
             - Back to back: the next change comes when the API server has taken this one, {ROUNDS} rounds. Service of 20 pods.\n\
             - Burst: one pod of each of {BURST} services at once. Services of 5 pods. {IN_FLIGHT} PATCHes are under way at a time; each change counts\n\
             \x20 from its own. Every figure is that of the round in the middle, of {}, in which the sides take turns; so are ratios. A random\n\
             \x20 number of lists before each keeps rounds out of step with the API server's garbage collection.\n\n\
             | change | pods in the cluster | ours p50 | p99 | core p50 | p99 | ours / core p50 | p99 | target |\n\
             |---|---|---|---|---|---|---|---|---|",
            self.samples,
            patch.percentile(50),
            patch.percentile(99),
            watcher::PAUSE,
            bursts::PAUSE,
            self.changes[0].1.bursts.len(),
        )?;
        for (pods, figures) in &self.changes {
            let [ours, core] = &figures.single;
            comparison(f, "single, readiness", *pods, (ours, core), 1.0)?;
            comparison(f, "single, Multus' annotation", *pods, (&figures.attached, core), 1.0)?;
            let [ours, core] = &figures.back_to_back;
            comparison(f, "back to back", *pods, (ours, core), 0.5)?;
            let (cells, ratios) = compared_by_round(&figures.bursts);
            comparison_row(f, "burst", *pods, (&cells, ratios), 0.05)?;
        }
        writeln!(f, "\nCore has no counterpart of the annotation; it is set against core's readiness.")?;
        for (pods, figures) in &self.changes {
            let cpu = |side: usize| middle(&figures.bursts, |round| round[side].cpu_seconds * 1e3);
            let patch = |side: usize| middle(&figures.bursts, |round| round[side].patches.percentile(50));
            writeln!(
                f,
                "In a burst with {pods} pods in the cluster the API server itself uses {:.0} ms of CPU (ours) and {:.0} ms (core); the\n\
                 PATCHes alone take {:.1} and {:.1} ms (p50).",
                cpu(0),
                cpu(1),
                patch(0),
                patch(1)
            )?;
            if let Ok(Spread { least, most, .. }) = Spread::of(ratios(&figures.bursts, 50)) {
                writeln!(f, "Over the rounds ours / core p50 is {least:.3} to {most:.3}.")?;
            }
        }
        writeln!(f)
    }

    fn depths(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "### Bursts\n\n\
             By how many PATCHes are under way at a time, {} rounds each. The more there are, the more of both sides' time is that in which\n\
             they wait for each other: the API server, etcd and everybody else have the machine's cores together. Most of core's time is that of its\n\
             client, which sends 20 requests a second; the last rows are without that limit (`--kube-api-qps=500 --kube-api-burst=1000`). {IN_FLIGHT} are\n\
             under way in what is set against the target above, which comes from a burst that took core some 50 ms without its limit.\n\n\
             | PATCHes under way | core's limit | PATCH alone p50: ours | core | ours p50 | p99 | core p50 | p99 | ours / core p50 | p99 |\n\
             |---|---|---|---|---|---|---|---|---|---|",
            self.depths.first().map_or(0, |depth| depth.rounds.len())
        )?;
        for Depth { in_flight, is_unlimited, rounds } in &self.depths {
            let [our_patch, core_patch] =
                [0, 1].map(|side| middle(rounds, |round| round[side].patches.percentile(50)));
            let limit = if *is_unlimited { "none" } else { "20/s" };
            let (cells, _) = compared_by_round(rounds);
            writeln!(f, "| {in_flight} | {limit} | {our_patch:.1} | {core_patch:.1} | {cells} |")?;
        }
        writeln!(f)
    }

    fn limits(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "### By the size of slices\n\n\
             Single changes of readiness again, with slices of so many endpoints at most (`--max-endpoints-per-slice`).\n\n\
             | endpoints | ours p50 | p99 | core p50 | p99 | ours / core p50 | p99 |\n|---|---|---|---|---|---|---|"
        )?;
        for (limit, [ours, core]) in &self.limits {
            writeln!(f, "| {limit} | {} |", compared(ours, core).0)?;
        }
        writeln!(f)
    }

    fn ten_thousand(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [ours, core] = &self.starts;
        let [our_usage, core_usage] = &self.usage;
        let requests = &self.restart.requests;
        let events = (self.restart.pods * EVENTS) as f64;
        let (slices, status) = (requests.writes(SLICES), requests.writes(STATUS));
        let core_slices = requests.writes(CORE_SLICES);
        writeln!(
            f,
            "### {others} pods in {services} services\n\n\
             Cold start: everything exists but slices; controller and DNS server are started, until all {others} addresses are answered.\n\
             Requests are those that the API server counts (`apiserver_request_total`), without watches. Then {restarted} of the pods\n\
             are replaced, one at a time; each gives {EVENTS} events that change an endpoint: the old pod is being deleted, the new one has an\n\
             address, it gets ready, the old one is gone. CPU and memory are the controllers' since their start, all of it; of\n\
             kube-controller-manager's, what it uses without pods is taken off.\n\n\
             | | ours | core | ours / core | target |\n|---|---|---|---|---|",
            others = self.others,
            services = self.others / PODS_EACH,
            restarted = self.restart.pods,
        )?;
        row(f, "cold start, seconds", ours.took.as_secs_f64(), core.took.as_secs_f64(), None)?;
        row(f, "cold start, requests", ours.requests.total() as f64, core.requests.total() as f64, None)?;
        row(
            f,
            "cold start, slice writes",
            ours.requests.writes(SLICES) as f64,
            core.requests.writes(CORE_SLICES) as f64,
            None,
        )?;
        row(f, "cold start, status writes", ours.requests.writes(STATUS) as f64, 0.0, None)?;
        row(f, "restart, slice writes", slices as f64, core_slices as f64, None)?;
        row(f, "restart, status writes", status as f64, 0.0, None)?;
        let per_event = (slices + status) as f64 / events;
        writeln!(
            f,
            "| restart, writes per event | {per_event:.2} | {:.2} | | at most 1.2: {} |",
            core_slices as f64 / events,
            verdict(per_event <= 1.2),
        )?;
        row(f, "CPU seconds", our_usage.cpu_seconds, core_usage.cpu_seconds, Some(0.5))?;
        row(f, "peak memory, MiB", our_usage.peak_mebibytes, core_usage.peak_mebibytes, Some(0.5))?;
        writeln!(f)
    }

    fn memory(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "### Memory of multinet-controller\n\n\
             In MiB; the first two shortly after a start, the last after all of the above.\n\n\
             | pods in the cluster | resident | peak |\n|---|---|---|"
        )?;
        for Memory { pods, resident, peak } in &self.memory {
            writeln!(f, "| {pods} | {resident:.0} | {peak:.0} |")?;
        }
        writeln!(f)
    }

    fn writes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "### Writing a slice\n\n\
             One endpoint of a slice changes, {} times, by each verb that notices other writers. Nobody watches. In milliseconds.\n\n\
             | slice of {SIZE} endpoints | CPU of the API server | round trip p50 | p99 |\n|---|---|---|---|",
            self.writes.verbs.first().map_or(0, |(_, cost)| cost.times.len()),
        )?;
        for (verb, cost) in &self.writes.verbs {
            writeln!(f, "| {} | {} |", verb.name(), cells(cost))?;
        }
        writeln!(
            f,
            "\nThe same by size, with the first of these, which is what the controller uses; and what it costs to create 10,000 endpoints in\n\
             slices of that size, reckoned from {CREATED}.\n\n\
             | endpoints | KiB | CPU of the API server | round trip p50 | p99 | creation: CPU of the API server, seconds |\n\
             |---|---|---|---|---|---|"
        )?;
        for (size, bytes, update, create) in &self.writes.sizes {
            let kibibytes = *bytes as f64 / 1024.0;
            let creation = create.cpu_seconds * 10_000.0 / CREATED as f64;
            writeln!(f, "| {size} | {kibibytes:.0} | {} | {creation:.1} |", cells(update))?;
        }
        Ok(())
    }
}

fn comparison(
    f: &mut fmt::Formatter<'_>,
    what: &str,
    pods: usize,
    (ours, core): (&Samples, &Samples),
    target: f64,
) -> fmt::Result {
    let (cells, ratios) = compared(ours, core);
    comparison_row(f, what, pods, (&cells, ratios), target)
}

fn comparison_row(
    f: &mut fmt::Formatter<'_>,
    what: &str,
    pods: usize,
    (cells, ratios): (&str, [f64; 2]),
    target: f64,
) -> fmt::Result {
    let is_met = ratios.iter().all(|ratio| *ratio <= target);
    writeln!(f, "| {what} | {pods} | {cells} | at most {target}: {} |", verdict(is_met))
}

/// The cells of a row, and the ratios among them.
fn compared(ours: &Samples, core: &Samples) -> (String, [f64; 2]) {
    let [our_half, our_most] = [50, 99].map(|percent| ours.percentile(percent));
    let [core_half, core_most] = [50, 99].map(|percent| core.percentile(percent));
    let ratios = [our_half / core_half, our_most / core_most];
    (comparison_cells([our_half, our_most, core_half, core_most], ratios), ratios)
}

/// The same of bursts: each value is that of the round in the middle.
fn compared_by_round(rounds: &[Round]) -> (String, [f64; 2]) {
    let times = |side: usize, percent| middle(rounds, |round| round[side].times.percentile(percent));
    let ratios = [50, 99].map(|percent| measure::middle(ratios(rounds, percent)).unwrap_or(f64::NAN));
    (comparison_cells([times(0, 50), times(0, 99), times(1, 50), times(1, 99)], ratios), ratios)
}

/// What ours takes of core's time, round by round.
fn ratios(rounds: &[Round], percent: usize) -> Vec<f64> {
    rounds
        .iter()
        .map(|[ours, core]| ours.times.percentile(percent) / core.times.percentile(percent))
        .collect()
}

fn comparison_cells([our_half, our_most, core_half, core_most]: [f64; 4], ratios: [f64; 2]) -> String {
    let [half, most] =
        ratios.map(|ratio| if ratio < 0.1 { format!("{ratio:.3}") } else { format!("{ratio:.2}") });
    format!("{our_half:.1} | {our_most:.1} | {core_half:.1} | {core_most:.1} | {half} | {most}")
}

fn row(f: &mut fmt::Formatter<'_>, what: &str, ours: f64, core: f64, target: Option<f64>) -> fmt::Result {
    let number =
        |value: f64| if value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.1}") };
    let ratio = if core > 0.0 { format!("{:.2}", ours / core) } else { String::new() };
    let target = target
        .map(|target| format!("at most {target}: {}", verdict(ours <= target * core)))
        .unwrap_or_default();
    writeln!(f, "| {what} | {} | {} | {ratio} | {target} |", number(ours), number(core))
}

fn cells(cost: &Cost) -> String {
    let [half, most] = [50, 99].map(|percent| cost.times.percentile(percent));
    format!("{:.1} | {half:.1} | {most:.1}", cost.cpu_milliseconds())
}
