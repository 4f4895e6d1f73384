//! The rows of the page: which figures are compared, and what their ratio has to be.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, bail};
use multinet_testing::measure::Spread;

use crate::questions::Question;
use crate::rounds::{Figures, Key, Measure};
use crate::servers::Who;

/// What can be measured by itself.
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
    /// At most; none for what is only shown.
    pub(crate) target: Option<f64>,
    pub(crate) ours: Key,
    pub(crate) over: Key,
}

impl Group {
    const ALL: [Self; 7] =
        [Self::Udp, Self::Tcp, Self::Large, Self::Rate, Self::Latency, Self::Workers, Self::Memory];

    fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
            Self::Large => "large",
            Self::Rate => "rate",
            Self::Latency => "latency",
            Self::Workers => "workers",
            Self::Memory => "memory",
        }
    }

    /// The groups whose names stand in a list with commas; all without one.
    pub(crate) fn parse(list: Option<&str>) -> Result<Vec<Self>> {
        let Some(list) = list else { return Ok(Self::ALL.to_vec()) };
        let find = |name: &str| match Self::ALL.into_iter().find(|group| group.name() == name) {
            Some(group) => Ok(group),
            None => bail!("there is no group {name:?}; there are {}", Self::ALL.map(Self::name).join(", ")),
        };
        list.split(',').map(find).collect()
    }

    /// What is compared. Memory is measured apart.
    fn rows(self) -> Vec<Row> {
        use Who::{Core, Echo, Knot, Nsd, Ours};
        let of_a = Measure::Udp(Question::A);
        match self {
            Self::Udp => udp(),
            Self::Tcp => [(Knot, Some(0.6)), (Nsd, None), (Core, Some(0.15))]
                .map(|(who, target)| {
                    against("CPU per pipelined TCP answer", Measure::Tcp(Question::A), who, target)
                })
                .into(),
            Self::Large => {
                let truncated = Measure::Udp(Question::Truncated);
                let udp = "100 endpoints, truncated UDP answer";
                let first = Row {
                    title: format!("{udp}, over one of 3 endpoints"),
                    target: Some(1.2),
                    ours: (truncated, Ours),
                    over: (of_a, Ours),
                };
                let udp = [(Knot, None), (Nsd, None), (Core, Some(0.025))]
                    .map(|(who, target)| against(udp, truncated, who, target));
                let tcp = [(Knot, Some(0.4)), (Nsd, None), (Core, Some(0.05))].map(|(who, target)| {
                    against(
                        "100 endpoints, whole answer over TCP",
                        Measure::Tcp(Question::Whole),
                        who,
                        target,
                    )
                });
                [first].into_iter().chain(udp).chain(tcp).collect()
            }
            Self::Rate => [(Knot, None), (Nsd, Some(0.95)), (Core, Some(0.42)), (Echo, None)]
                .map(|(who, target)| {
                    against("CPU per answer at 10,000 queries/s", Measure::Everyday, who, target)
                })
                .into(),
            Self::Latency => {
                vec![
                    against("p99 latency at half of saturation", Measure::Latency, Knot, Some(1.0)),
                    against(
                        "p99 latency of what is answered, at twice of saturation",
                        Measure::Overload,
                        Knot,
                        None,
                    ),
                ]
            }
            Self::Workers => vec![Row {
                title: "two workers on two cores: CPU per answer, over one worker's".into(),
                target: Some(1.1),
                ours: (Measure::Workers(2), Ours),
                over: (Measure::Workers(1), Ours),
            }],
            Self::Memory => Vec::new(),
        }
    }
}

fn udp() -> Vec<Row> {
    let questions = [Question::A, Question::Nodata, Question::Nxdomain, Question::Srv, Question::Mixed];
    let peers = [(Who::Knot, 0.8), (Who::Nsd, 0.95), (Who::Core, 0.12)];
    let mut rows = Vec::new();
    for (who, target) in peers {
        for question in questions {
            let title = format!("CPU per UDP answer, {}", question.name());
            rows.push(against(&title, Measure::Udp(question), who, Some(target)));
        }
    }
    let apart = "CPU per UDP answer, A, each from a port of its own";
    rows.extend(
        [Who::Knot, Who::Nsd, Who::Core, Who::Echo].map(|who| against(apart, Measure::Apart, who, None)),
    );
    let of_a = Measure::Udp(Question::A);
    rows.push(against("CPU per UDP answer, A", of_a, Who::Echo, Some(1.15)));
    rows.extend([Question::Nxdomain, Question::Nodata].map(|question| Row {
        title: format!("{} over positive", question.name()),
        target: Some(1.1),
        ours: (Measure::Udp(question), Who::Ours),
        over: (of_a, Who::Ours),
    }));
    rows
}

fn against(title: &str, measure: Measure, who: Who, target: Option<f64>) -> Row {
    let title = format!("{title}, over {}", who.name());
    Row { title, target, ours: (measure, Who::Ours), over: (measure, who) }
}

/// The rows of these groups.
pub(crate) fn of(groups: &[Group]) -> Vec<Row> {
    groups.iter().flat_map(|group| group.rows()).collect()
}

/// What has to be measured for them.
pub(crate) fn keys(rows: &[Row]) -> BTreeSet<Key> {
    rows.iter().flat_map(|row| [row.ours, row.over]).collect()
}

impl Row {
    /// The ratios of all rounds; none if there is no round in which both have a figure.
    pub(crate) fn ratio(&self, figures: &Figures) -> Result<Option<Spread>> {
        let of = |key| figures.get(key).context("not measured");
        let pairs = of(&self.ours)?.iter().zip(of(&self.over)?);
        let ratios = pairs.map(|(ours, over)| ours / over).filter(|ratio| ratio.is_finite());
        Ok(Spread::of(ratios.collect()).ok())
    }
}
