//! The compared figures, and the targets of their ratios.

use anyhow::{Result, bail};

use super::questions::Question;
use super::rounds::{Key, Measure};
use super::servers::Who;

/// No target; the ratio is only shown.
const ANY: f64 = f64::INFINITY;

/// Group of measurements that can run alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Group {
    Udp,
    Tcp,
    /// A hundred endpoints.
    Large,
    Rate,
    Latency,
    Workers,
    Memory,
}

/// A ratio of two figures.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) title: String,
    /// The highest allowed ratio; none if the ratio is only shown.
    pub(crate) target: Option<f64>,
    pub(crate) ours: Key,
    pub(crate) over: Key,
}

impl Group {
    const ALL: [(&str, Self); 7] = [
        ("udp", Self::Udp),
        ("tcp", Self::Tcp),
        ("large", Self::Large),
        ("rate", Self::Rate),
        ("latency", Self::Latency),
        ("workers", Self::Workers),
        ("memory", Self::Memory),
    ];

    /// Parses a list of names with commas. Without a list, returns all groups.
    pub(crate) fn parse(list: Option<&str>) -> Result<Vec<Self>> {
        let Some(list) = list else { return Ok(Self::ALL.map(|(_, group)| group).to_vec()) };
        let find = |name: &str| match Self::ALL.into_iter().find(|(of, _)| *of == name) {
            Some((_, group)) => Ok(group),
            None => bail!("unknown group {name:?}: expected one of {:?}", Self::ALL.map(|(name, _)| name)),
        };
        list.split(',').map(find).collect()
    }

    /// Returns the rows of the comparison. Memory is measured separately.
    fn rows(self) -> Vec<Row> {
        use Measure::{Apart, Everyday, Latency, Overload, Tcp, Udp, Workers};
        use Question::{A, Mixed, Nodata, Nxdomain, Srv, Truncated, Whole};
        use Who::{Core, Echo, Knot, Nsd};
        const UDP: &[(Who, f64)] = &[(Knot, 0.8), (Nsd, 0.95), (Core, 0.12)];
        match self {
            Self::Udp => [
                beside("CPU per UDP answer, A", Udp(A), UDP),
                beside("CPU per UDP answer, A", Udp(A), &[(Echo, 1.15)]),
                beside("CPU per UDP answer, NODATA", Udp(Nodata), UDP),
                beside("CPU per UDP answer, NXDOMAIN", Udp(Nxdomain), UDP),
                beside("CPU per UDP answer, SRV with additionals", Udp(Srv), UDP),
                beside("CPU per UDP answer, mixed", Udp(Mixed), UDP),
                beside(
                    "CPU per UDP answer, A, each from a port of its own",
                    Apart,
                    &[(Knot, ANY), (Nsd, ANY), (Core, ANY), (Echo, ANY)],
                ),
                ours("NXDOMAIN over positive", Udp(Nxdomain), Udp(A), 1.1),
                ours("NODATA over positive", Udp(Nodata), Udp(A), 1.1),
            ]
            .concat(),
            Self::Tcp => {
                beside("CPU per pipelined TCP answer", Tcp(A), &[(Knot, 0.6), (Nsd, ANY), (Core, 0.15)])
            }
            Self::Large => {
                let (udp, tcp) =
                    ("100 endpoints, truncated UDP answer", "100 endpoints, whole answer over TCP");
                [
                    ours(&format!("{udp}, over one of 3 endpoints"), Udp(Truncated), Udp(A), 1.2),
                    beside(udp, Udp(Truncated), &[(Knot, ANY), (Nsd, ANY), (Core, 0.025)]),
                    beside(tcp, Tcp(Whole), &[(Knot, 0.4), (Nsd, ANY), (Core, 0.05)]),
                ]
                .concat()
            }
            Self::Rate => {
                let targets = [(Knot, ANY), (Nsd, 0.95), (Core, 0.42), (Echo, ANY)];
                beside("CPU per answer at 10,000 queries/s", Everyday, &targets)
            }
            Self::Latency => [
                beside("p99 latency at half of saturation", Latency, &[(Knot, 1.0)]),
                beside("p99 latency of what is answered, at twice of saturation", Overload, &[(Knot, ANY)]),
            ]
            .concat(),
            Self::Workers => {
                let title = "two workers on two cores: CPU per answer, over one worker's";
                ours(title, Workers(2), Workers(1), 1.1)
            }
            Self::Memory => Vec::new(),
        }
    }
}

/// Returns the rows of these groups.
pub(crate) fn of(groups: &[Group]) -> Vec<Row> {
    groups.iter().flat_map(|group| group.rows()).collect()
}

/// Returns rows that compare one kind of figure with the same of other servers.
fn beside(title: &str, measure: Measure, others: &[(Who, f64)]) -> Vec<Row> {
    let row = |&(who, target): &(Who, f64)| Row {
        title: format!("{title}, over {}", who.name()),
        target: (target != ANY).then_some(target),
        ours: (measure, Who::Ours),
        over: (measure, who),
    };
    others.iter().map(row).collect()
}

/// Returns a row that compares two kinds of figure of multinet-dns.
fn ours(title: &str, measure: Measure, over: Measure, target: f64) -> Vec<Row> {
    let [ours, over] = [measure, over].map(|measure| (measure, Who::Ours));
    vec![Row { title: title.to_owned(), target: Some(target), ours, over }]
}
