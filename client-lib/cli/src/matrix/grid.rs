//! Figures of all pairs on one rail, and which of them stand out. Pure.

use std::collections::BTreeMap;

/// Share of the rail's median below which a figure stands out.
const SLOW: f64 = 0.8;

/// Outcome of the measurement from one host to another.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Cell {
    /// The two are the same host.
    Empty,
    Figure {
        /// Payload in gigabits per second.
        gbps: f64,
        transport: String,
    },
    Failed(String),
}

/// Figures on one rail, by sender and receiver.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Grid {
    pub(super) rail: String,
    pub(super) cells: Vec<Vec<Cell>>,
}

/// Traffic whose figures, or failures, are told together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Traffic {
    /// All that this host sends.
    From(usize),
    /// All that this host receives.
    To(usize),
    /// All that this host sends and receives.
    All(usize),
    Pair(usize, usize),
}

/// Figures that are far below the median of their rail.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Outlier {
    pub(super) traffic: Traffic,
    /// Figure of the traffic, or the median of its figures.
    pub(super) gbps: f64,
}

impl Cell {
    pub(super) fn gbps(&self) -> Option<f64> {
        match self {
            Self::Figure { gbps, .. } => Some(*gbps),
            Self::Empty | Self::Failed(_) => None,
        }
    }

    pub(super) fn transport(&self) -> Option<&str> {
        match self {
            Self::Figure { transport, .. } => Some(transport),
            Self::Empty | Self::Failed(_) => None,
        }
    }
}

impl Grid {
    pub(super) fn new(rail: &str, hosts: usize) -> Self {
        Self { rail: rail.to_owned(), cells: vec![vec![Cell::Empty; hosts]; hosts] }
    }

    /// Returns the median of all figures; `None` if there are none.
    pub(super) fn median(&self) -> Option<f64> {
        middle(self.cells.iter().flatten().filter_map(Cell::gbps).collect())
    }

    /// Returns the figures that are far below the median. All of one host that are, in one
    /// direction, are one outlier.
    pub(super) fn outliers(&self) -> Vec<Outlier> {
        let median = self.median();
        let is_slow = |cell: &Cell| cell.gbps().map(|gbps| is_slow(gbps, median));
        let outlier = |traffic| {
            let figures = self.of(traffic).filter_map(Cell::gbps).collect();
            middle(figures).map(|gbps| Outlier { traffic, gbps })
        };
        self.traffic(is_slow).into_iter().filter_map(outlier).collect()
    }

    /// Returns the measurements that failed, each with the reason of the first. If all of one host
    /// have, in both directions, they are one failure: mostly, its server is at fault.
    pub(super) fn failures(&self) -> Vec<(Traffic, &str)> {
        let has_failed = |cell: &Cell| match cell {
            Cell::Empty => None,
            cell => Some(matches!(cell, Cell::Failed(_))),
        };
        let reason = |traffic| {
            let mut cells = self.of(traffic);
            let reason = cells.find_map(|cell| match cell {
                Cell::Failed(reason) => Some(reason.as_str()),
                _ => None,
            });
            (traffic, reason.unwrap_or_default())
        };
        let traffic = self.traffic(has_failed);
        let in_both = |host| traffic.contains(&Traffic::From(host)) && traffic.contains(&Traffic::To(host));
        let joined = |traffic: &Traffic| match *traffic {
            Traffic::From(host) if in_both(host) => Some(Traffic::All(host)),
            Traffic::To(host) if in_both(host) => None,
            traffic => Some(traffic),
        };
        traffic.iter().filter_map(joined).map(reason).collect()
    }

    /// Returns the transport of most figures, such as `RDMA`. `None` if there are no figures.
    pub(super) fn usual_transport(&self) -> Option<&str> {
        let mut counts = BTreeMap::new();
        self.cells
            .iter()
            .flatten()
            .filter_map(Cell::transport)
            .for_each(|name| *counts.entry(name).or_insert(0) += 1);
        counts.into_iter().max_by_key(|(_, count)| *count).map(|(name, _)| name)
    }

    /// Returns the figures of another transport than that of most, which are not comparable to
    /// these, each with its transport.
    pub(super) fn strays(&self) -> Vec<(Traffic, &str)> {
        let usual = self.usual_transport();
        let is_other = |cell: &Cell| cell.transport().map(|name| Some(name) != usual);
        let name = |traffic| {
            let mut names = self.of(traffic).filter_map(Cell::transport);
            (traffic, names.find(|name| Some(*name) != usual).unwrap_or_default())
        };
        self.traffic(is_other).into_iter().map(name).collect()
    }

    /// Returns the cells of this traffic.
    fn of(&self, traffic: Traffic) -> Box<dyn Iterator<Item = &Cell> + '_> {
        match traffic {
            Traffic::From(host) => Box::new(self.cells[host].iter()),
            Traffic::To(host) => Box::new(self.cells.iter().map(move |row| &row[host])),
            Traffic::All(host) => Box::new(self.of(Traffic::From(host)).chain(self.of(Traffic::To(host)))),
            Traffic::Pair(from, to) => Box::new(std::iter::once(&self.cells[from][to])),
        }
    }

    /// Returns the traffic for which a property holds: that of whole hosts where it holds for all
    /// of at least two others, and else that of pairs. What holds for all that a host sends is not
    /// told of its receivers again. `None` means that a cell has no part in it.
    fn traffic(&self, holds: impl Fn(&Cell) -> Option<bool>) -> Vec<Traffic> {
        let all = |cells: &mut dyn Iterator<Item = &Cell>| {
            let found: Vec<bool> = cells.filter_map(&holds).collect();
            found.len() > 1 && found.iter().all(|holds| *holds)
        };
        let senders: Vec<bool> = self.cells.iter().map(|row| all(&mut row.iter())).collect();
        let others = || self.cells.iter().zip(&senders).filter(|(_, is_told)| !**is_told).map(|(row, _)| row);
        let receivers: Vec<bool> =
            (0..self.cells.len()).map(|to| all(&mut others().map(|row| &row[to]))).collect();
        let mut traffic = Vec::new();
        for (host, (sender, receiver)) in senders.iter().zip(&receivers).enumerate() {
            traffic.extend(sender.then_some(Traffic::From(host)));
            traffic.extend(receiver.then_some(Traffic::To(host)));
        }
        for (from, row) in self.cells.iter().enumerate().filter(|(from, _)| !senders[*from]) {
            let cells =
                row.iter().enumerate().filter(|(to, cell)| !receivers[*to] && holds(cell) == Some(true));
            traffic.extend(cells.map(|(to, _)| Traffic::Pair(from, to)));
        }
        traffic
    }
}

/// Returns whether a figure is far below the median of its rail.
pub(super) fn is_slow(gbps: f64, median: Option<f64>) -> bool {
    median.is_some_and(|median| gbps < SLOW * median)
}

fn middle(mut figures: Vec<f64>) -> Option<f64> {
    figures.sort_unstable_by(f64::total_cmp);
    let half = figures.len() / 2;
    let upper = *figures.get(half)?;
    match figures.len() % 2 {
        0 => Some((upper + figures.get(half - 1)?) / 2.0),
        _ => Some(upper),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns a grid of four hosts with 10 Gb/s each, but for these cells.
    pub(in crate::matrix) fn grid(others: &[(usize, usize, Cell)]) -> Grid {
        let mut grid = Grid::new("rail0", 4);
        for (from, row) in grid.cells.iter_mut().enumerate() {
            for (to, cell) in row.iter_mut().enumerate().filter(|(to, _)| *to != from) {
                let other = others.iter().find(|(a, b, _)| (*a, *b) == (from, to));
                *cell = other.map_or_else(|| figure(10.0), |(_, _, cell)| cell.clone());
            }
        }
        grid
    }

    pub(in crate::matrix) fn figure(gbps: f64) -> Cell {
        Cell::Figure { gbps, transport: "TCP".to_owned() }
    }

    fn failed(reason: &str) -> Cell {
        Cell::Failed(reason.to_owned())
    }

    #[test]
    fn figures_twenty_percent_below_the_median_stand_out() {
        assert_eq!(grid(&[]).outliers(), []);
        let pair = grid(&[(1, 2, figure(7.9)), (2, 1, figure(8.1))]);
        assert_eq!(pair.outliers(), [Outlier { traffic: Traffic::Pair(1, 2), gbps: 7.9 }]);
    }

    #[test]
    fn a_host_whose_figures_all_stand_out_is_named_once() {
        let slow = |gbps| figure(gbps);
        let sender = [(2, 0, slow(4.0)), (2, 1, slow(5.0)), (2, 3, slow(6.0)), (0, 1, slow(3.0))];
        let expected = [
            Outlier { traffic: Traffic::From(2), gbps: 5.0 },
            Outlier { traffic: Traffic::Pair(0, 1), gbps: 3.0 },
        ];
        assert_eq!(grid(&sender).outliers(), expected);
        let receiver = [(0, 2, slow(4.0)), (1, 2, slow(5.0)), (3, 2, failed("gone"))];
        assert_eq!(grid(&receiver).outliers(), [Outlier { traffic: Traffic::To(2), gbps: 4.5 }]);
    }

    #[test]
    fn failures_are_told_by_host_or_pair_with_a_reason() {
        let dead = [
            (3, 0, failed("not connected")),
            (3, 1, failed("not connected")),
            (3, 2, failed("not connected")),
            (0, 3, failed("refused by 10.0.0.4")),
            (1, 3, failed("refused by 10.0.0.4 too")),
            (2, 3, failed("late")),
            (0, 1, failed("once")),
        ];
        let grid = grid(&dead);
        let expected = [(Traffic::All(3), "not connected"), (Traffic::Pair(0, 1), "once")];
        assert_eq!(grid.failures(), expected);
        assert_eq!((grid.median(), grid.outliers()), (Some(10.0), vec![]));
        // In one direction only.
        let deaf = self::grid(&dead[3..6]);
        assert_eq!(deaf.failures(), [(Traffic::To(3), "refused by 10.0.0.4")]);
    }

    #[test]
    fn what_a_sender_explains_is_not_told_of_its_receivers() {
        let mut grid = Grid::new("rail0", 3);
        grid.cells[0] = vec![Cell::Empty, figure(10.0), failed("refused")];
        grid.cells[1] = vec![failed("old"), Cell::Empty, failed("old")];
        grid.cells[2] = vec![failed("gone"), failed("gone"), Cell::Empty];
        let expected =
            [(Traffic::From(1), "old"), (Traffic::From(2), "gone"), (Traffic::Pair(0, 2), "refused")];
        assert_eq!(grid.failures(), expected);
    }

    #[test]
    fn figures_of_another_transport_than_most_are_told() {
        let by_tcp = || Cell::Figure { gbps: 10.0, transport: "TCP".to_owned() };
        let mut grid = grid(&[]);
        assert_eq!((grid.usual_transport(), grid.strays()), (Some("TCP"), vec![]));
        for cell in grid.cells.iter_mut().flatten() {
            if let Cell::Figure { transport, .. } = cell {
                *transport = "RDMA".to_owned();
            }
        }
        (grid.cells[0][1], grid.cells[2][0], grid.cells[2][1], grid.cells[2][3]) =
            (by_tcp(), by_tcp(), by_tcp(), failed("gone"));
        assert_eq!(grid.usual_transport(), Some("RDMA"));
        assert_eq!(grid.strays(), [(Traffic::From(2), "TCP"), (Traffic::Pair(0, 1), "TCP")]);
    }

    #[test]
    fn without_figures_there_is_no_median() {
        let grid = Grid::new("rail0", 2);
        assert_eq!((grid.usual_transport(), grid.strays()), (None, vec![]));
        assert_eq!((grid.median(), grid.outliers(), grid.failures()), (None, vec![], vec![]));
    }
}
