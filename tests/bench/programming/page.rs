//! The tables.

use std::slice::from_ref;
use std::time::Duration;

use multinet_testing::bench::{Cell, Table, at_most, figure, ratio, text};
use multinet_testing::measure::percentile;

use super::Memory;
use super::bursts::{Burst, Depth, IN_FLIGHT, Round};
use super::changes::{Figures, PODS_EACH, ROUNDS};
use super::cold::{EVENTS, Restart, Start, Usage};
use super::creation::{Controller, Creation};
use super::webhook;
use super::writes::{self, CREATED, Cost, SIZE};

/// Resources that the two controllers write.
const SLICES: &str = "multinetworkendpointslices";
const STATUS: &str = "multinetworkservices/status";
const CORE_SLICES: &str = "endpointslices";

/// Times of both sides, by round.
type Rounds<'t> = Vec<[&'t [Duration]; 2]>;

/// Returns the table of times from a pod's change to the answer by the number of pods, and the
/// table of the API server's part.
pub(crate) fn changes(samples: usize, changes: &[(usize, Figures)]) -> [Table; 2] {
    let bursts = changes.first().map_or(0, |(_, figures)| figures.bursts.len());
    let mut answers = Table::new(
        "From pod to answer",
        format!(
            "In milliseconds; {samples} changes per row, back to back in {ROUNDS} rounds; {bursts} bursts."
        ),
        "change | pods in the cluster | ours p50 | p99 | core p50 | p99 | ours / core p50 | p99 | target",
    );
    let mut apiserver = Table::new(
        "The API server's part",
        "In milliseconds; of bursts, the medians of the rounds.",
        "change | pods in the cluster | PATCH alone p50 | p99 | CPU of the API server",
    );
    for (pods, figures) in changes {
        let Figures { patch, single: [ours, core], attached, back_to_back: [our_next, core_next], bursts } =
            figures;
        for (what, rounds, target) in [
            ("single, readiness", one(ours, core), Some(1.25)),
            ("single, Multus' annotation", one(attached, core), None),
            ("back to back", one(our_next, core_next), None),
            ("burst", times(bursts), None),
        ] {
            let cells = compared(&rounds);
            let verdict = at_most(target, &cells[4..5]);
            answers.row([text(what), text(pods)].into_iter().chain(cells).chain([verdict]));
        }
        let [half, most] = percentiles(from_ref(&&patch[..]));
        apiserver.row([text("single, both sides"), text(pods), half, most, text("")]);
        for (side, what) in ["burst, ours", "burst, core"].into_iter().enumerate() {
            let side: Vec<&Burst> = bursts.iter().map(|round| &round[side]).collect();
            let [half, most] = percentiles(&side.iter().map(|burst| &burst.patches[..]).collect::<Vec<_>>());
            let cpu = figure(side.iter().map(|burst| burst.cpu_seconds * 1e3), 0);
            apiserver.row([text(what), text(pods), half, most, cpu]);
        }
    }
    [answers, apiserver]
}

/// Returns the table of bursts by the number of concurrent PATCHes.
pub(crate) fn depths(depths: &[Depth]) -> Table {
    let rounds = depths.first().map_or(0, |depth| depth.rounds.len());
    let columns = "PATCHes under way | core's limit | PATCH alone p50: ours | core | ours p50 | p99 | core p50 | p99 | ours / core p50 | p99 | target";
    let mut table = Table::new("Bursts", format!("In milliseconds; {rounds} rounds each."), columns);
    for Depth { in_flight, is_unlimited, rounds } in depths {
        let limit = if *is_unlimited { "none" } else { "20/s" };
        let patch = |side: usize| figure(rounds.iter().map(|round| percentile(&round[side].patches, 50)), 1);
        let cells = [text(in_flight), text(limit), patch(0), patch(1)];
        let compared = compared(&times(rounds));
        let target = (*is_unlimited && *in_flight == IN_FLIGHT).then_some(0.8);
        let verdict = at_most(target, &compared[4..5]);
        table.row(cells.into_iter().chain(compared).chain([verdict]));
    }
    table
}

/// Returns the table of the cost of creating a service, by the limit of endpoints per slice.
pub(crate) fn creations(creations: &[Creation]) -> Table {
    let of = |controller| creations.iter().filter(move |creation| creation.controller == controller);
    let rounds = of(Controller::Default).count();
    let title = format!("Creating a service of {PODS_EACH} pods on two rails with two families");
    let note = format!(
        "CPU of the API server beyond what the same pods cost without a controller; {rounds} rounds in turn."
    );
    let columns =
        "endpoints in a slice | slices | target | CPU of the API server, seconds | of that with 4 | target";
    let mut table = Table::new(title, note, columns);
    let alone: Vec<f64> = of(Controller::None).map(|creation| creation.cpu_seconds).collect();
    let beyond = |controller| -> Vec<f64> {
        of(controller).zip(&alone).map(|(creation, alone)| creation.cpu_seconds - alone).collect()
    };
    let small = beyond(Controller::WithSlicesOf(4));
    for (name, controller, targets) in [
        ("4", Controller::WithSlicesOf(4), None),
        ("25, the default", Controller::Default, Some((32.0, 0.6))),
    ] {
        let objects = figure(of(controller).map(|creation| creation.objects as f64), 0);
        let cpu = beyond(controller);
        let share = ratio(cpu.iter().zip(&small).map(|(cpu, small)| cpu / small));
        let (most, least) = targets.unzip();
        let verdicts = [at_most(most, from_ref(&objects)), at_most(least, from_ref(&share))];
        let [of_objects, of_cpu] = verdicts;
        table.row([text(name), objects, of_objects, figure(cpu, 2), share, of_cpu]);
    }
    table
}

/// Returns the table of single changes by the limit of endpoints per slice.
pub(crate) fn limits(limits: &[(usize, [Vec<Duration>; 2])]) -> Table {
    let columns = "endpoints | ours p50 | p99 | core p50 | p99 | ours / core p50 | p99";
    let mut table = Table::new("By the size of slices", "In milliseconds.", columns);
    for (limit, [ours, core]) in limits {
        table.row([text(limit)].into_iter().chain(compared(&[[ours, core]])));
    }
    table
}

/// Returns the table of a cold start and a rolling restart, and of the controllers' usage.
pub(crate) fn many_pods(
    pods: usize,
    [ours, core]: [Start; 2],
    restart: &Restart,
    alone: (usize, [f64; 2]),
    [our_usage, core_usage]: [Usage; 2],
) -> Table {
    let title = format!("{pods} pods in {} services", pods / super::PODS_EACH);
    let note = format!("{} pods are replaced.", restart.pods);
    let mut table = Table::new(title, note, " | ours | core | ours / core | target");
    let mut row = |what: &str, ours: f64, core: f64, target: Option<f64>| {
        let number = |value: f64| figure([value], usize::from(value.fract() != 0.0));
        let ratio = if core > 0.0 { ratio([ours / core]) } else { text("") };
        let verdict = at_most(target, from_ref(&ratio));
        table.row([text(what), number(ours), number(core), ratio, verdict]);
    };
    row("cold start, seconds", ours.took.as_secs_f64(), core.took.as_secs_f64(), Some(1.0));
    row("cold start, requests", ours.requests.total() as f64, core.requests.total() as f64, None);
    let writes = |start: &Start, resource| start.requests.writes(resource) as f64;
    row("cold start, slice writes", writes(&ours, SLICES), writes(&core, CORE_SLICES), None);
    row("cold start, status writes", writes(&ours, STATUS), 0.0, None);
    let [slices, status, core_slices] =
        [SLICES, STATUS, CORE_SLICES].map(|resource| restart.requests.writes(resource) as f64);
    row("restart, slice writes", slices, core_slices, None);
    row("restart, status writes", status, 0.0, None);
    let (replaced, [ours_alone, core_alone]) = alone;
    let what = format!("restart of {replaced} with one side alone, CPU seconds of the API server");
    row(&what, ours_alone, core_alone, Some(1.5));
    row("CPU seconds", our_usage.cpu_seconds, core_usage.cpu_seconds, Some(0.5));
    row("peak memory, MiB", our_usage.peak_mebibytes, core_usage.peak_mebibytes, Some(0.5));
    let [ours, core] =
        [slices + status, core_slices].map(|writes| figure([writes / (restart.pods * EVENTS) as f64], 2));
    let verdict = at_most(Some(1.2), from_ref(&ours));
    table.row([text("restart, writes per event"), ours, core, text(""), verdict]);
    table
}

/// Returns the table of the controller's memory.
pub(crate) fn memory(memory: &[Memory]) -> Table {
    let note = "In MiB; the first two shortly after a start, the last after all of the above.";
    let columns = "pods in the cluster | resident | peak";
    let mut table = Table::new("Memory of multinet-controller", note, columns);
    for Memory { pods, resident, peak } in memory {
        table.row([text(pods), figure([*resident], 0), figure([*peak], 0)]);
    }
    table
}

/// Returns the tables of the cost of writing a slice, by verb and by size.
pub(crate) fn writes(figures: &writes::Figures) -> [Table; 2] {
    let count = figures.verbs.first().map_or(0, |(_, cost)| cost.times.len());
    let note = format!("{count} changes each, in milliseconds.");
    let columns = format!("slice of {SIZE} endpoints | CPU of the API server | round trip p50 | p99");
    let mut verbs = Table::new("Writing a slice, by verb", &note, &columns);
    for (verb, cost) in &figures.verbs {
        verbs.row([text(verb.name())].into_iter().chain(cells(cost)));
    }
    let columns = "endpoints | KiB | CPU of the API server | round trip p50 | p99 | creation: CPU of the API server, seconds";
    let mut sizes = Table::new("Writing a slice, by size", &note, columns);
    for (size, bytes, update, create) in &figures.sizes {
        let creation = figure([create.cpu_seconds * 10_000.0 / CREATED as f64], 1);
        let first = [text(size), figure([*bytes as f64 / 1024.0], 0)];
        sizes.row(first.into_iter().chain(cells(update)).chain([creation]));
    }
    [verbs, sizes]
}

/// Returns the table of what the webhook adds to a write of a Vertex.
pub(crate) fn webhook(webhook::Figures { without, with }: &webhook::Figures) -> Table {
    let note = format!("{} writes each, in milliseconds.", with.len());
    let columns = "write of a Vertex | p50 | p99 | added to p50 | target";
    let mut table = Table::new("The webhook of multinet-numaflow", note, columns);
    let [half, most] = percentiles(&[without]);
    table.row([text("without the webhook"), half, most, text(""), text("")]);
    let [half, most] = percentiles(&[with]);
    let added = figure([percentile(with, 50) - percentile(without, 50)], 1);
    let verdict = at_most(Some(5.0), from_ref(&added));
    table.row([text("with it"), half, most, added, verdict]);
    table
}

fn one<'t>(ours: &'t [Duration], core: &'t [Duration]) -> Rounds<'t> {
    vec![[ours, core]]
}

fn times(rounds: &[Round]) -> Rounds<'_> {
    rounds.iter().map(|[ours, core]| [&ours.times[..], &core.times]).collect()
}

/// Returns p50 and p99 of ours, the same of core, and the ratios: the medians over the rounds.
fn compared(rounds: &[[&[Duration]; 2]]) -> [Cell; 6] {
    let side = |side: usize| percentiles(&rounds.iter().map(|round| round[side]).collect::<Vec<_>>());
    let over = |percent| {
        ratio(rounds.iter().map(|[ours, core]| percentile(ours, percent) / percentile(core, percent)))
    };
    let ([our_half, our_most], [core_half, core_most]) = (side(0), side(1));
    [our_half, our_most, core_half, core_most, over(50), over(99)]
}

/// Returns p50 and p99, in milliseconds.
fn percentiles(rounds: &[&[Duration]]) -> [Cell; 2] {
    [50, 99].map(|percent| figure(rounds.iter().map(|times| percentile(times, percent)), 1))
}

/// Returns the CPU time of the API server for a write, and the p50 and p99 of the round trip.
fn cells(cost: &Cost) -> [Cell; 3] {
    let [half, most] = percentiles(from_ref(&&cost.times[..]));
    [figure([cost.cpu_seconds * 1e3 / cost.times.len() as f64], 1), half, most]
}
