//! All grids of a matrix, what is said about them, and their JSON. Pure.

use serde_json::{Value, json};

use super::grid::{Cell, Grid, Outlier, Traffic, is_slow};

/// Result of a matrix.
pub(super) struct MatrixReport {
    pub(super) service: String,
    /// Size of a message in bytes.
    pub(super) size: u32,
    pub(super) seconds: u32,
    pub(super) hosts: Vec<String>,
    pub(super) grids: Vec<Grid>,
}

impl MatrixReport {
    pub(super) fn cells(&self) -> impl Iterator<Item = &Cell> {
        self.grids.iter().flat_map(|grid| grid.cells.iter().flatten())
    }

    /// Returns a sentence about all that is worth one in a grid.
    pub(super) fn remarks(&self, grid: &Grid) -> Vec<String> {
        [self.outliers(grid), self.strays(grid), self.failures(grid)].concat()
    }

    /// Returns a sentence about each outlier of a grid.
    fn outliers(&self, grid: &Grid) -> Vec<String> {
        let Some(median) = grid.median() else { return Vec::new() };
        let say = |Outlier { traffic, gbps }: Outlier| {
            let who = self.figures(traffic, grid);
            let below = (1.0 - gbps / median) * 100.0;
            format!(
                "{who}: {} Gb/s, {below:.0} % below the rail's median of {}",
                number(gbps),
                number(median)
            )
        };
        grid.outliers().into_iter().map(say).collect()
    }

    /// Returns a sentence about the figures of another transport than that of most.
    fn strays(&self, grid: &Grid) -> Vec<String> {
        let usual = grid.usual_transport().unwrap_or_default();
        let say = |(traffic, transport): (Traffic, &str)| {
            format!("{}: by {transport}, and most others by {usual}", self.figures(traffic, grid))
        };
        grid.strays().into_iter().map(say).collect()
    }

    /// Returns the words for the figures of this traffic.
    fn figures(&self, traffic: Traffic, grid: &Grid) -> String {
        let rail = &grid.rail;
        match traffic {
            Traffic::From(host) => format!("all that {} sends on {rail}", self.name(host)),
            Traffic::To(host) => format!("all that {} receives on {rail}", self.name(host)),
            Traffic::All(host) => format!("all that {} sends and receives on {rail}", self.name(host)),
            Traffic::Pair(from, to) => format!("{} to {} on {rail}", self.name(from), self.name(to)),
        }
    }

    /// Returns a sentence about the failures of a grid, one for each host or pair.
    fn failures(&self, grid: &Grid) -> Vec<String> {
        let rail = &grid.rail;
        let say = |(traffic, reason): (Traffic, &str)| {
            let who = match traffic {
                Traffic::From(host) => format!("{} to all others on {rail}", self.name(host)),
                Traffic::To(host) => format!("all others to {} on {rail}", self.name(host)),
                Traffic::All(host) => format!("{} to and from all others on {rail}", self.name(host)),
                Traffic::Pair(from, to) => format!("{} to {} on {rail}", self.name(from), self.name(to)),
            };
            format!("{who}: not measured: {reason}")
        };
        grid.failures().into_iter().map(say).collect()
    }

    pub(super) fn size_in_words(&self) -> String {
        format!("messages of {} bytes", self.size)
    }

    /// Returns the transports of all figures of a grid, such as `TCP`, and their median.
    pub(super) fn figures_in_words(grid: &Grid) -> String {
        match grid.median() {
            Some(median) => format!(" by {}, median {}", Self::transports(grid), number(median)),
            None => ", none measured".to_owned(),
        }
    }

    fn name(&self, host: usize) -> &str {
        self.hosts.get(host).map_or("?", String::as_str)
    }

    fn transports(grid: &Grid) -> String {
        let mut names: Vec<&str> = grid.cells.iter().flatten().filter_map(Cell::transport).collect();
        names.sort_unstable();
        names.dedup();
        names.join(" and ")
    }

    pub(super) fn json(&self) -> serde_json::Result<String> {
        let rails: Vec<Value> = self.grids.iter().map(|grid| self.rail(grid)).collect();
        let document = json!({
            "service": self.service,
            "unit": "Gb/s",
            "messageBytes": self.size,
            "seconds": self.seconds,
            "hosts": self.hosts,
            "rails": rails,
        });
        Ok(serde_json::to_string_pretty(&document)? + "\n")
    }

    fn rail(&self, grid: &Grid) -> Value {
        let median = grid.median();
        let mut pairs = Vec::new();
        for (from, row) in grid.cells.iter().enumerate() {
            for (to, cell) in row.iter().enumerate() {
                let (from, to) = (self.name(from), self.name(to));
                match cell {
                    Cell::Empty => {}
                    Cell::Figure { gbps, transport } => pairs.push(json!({
                        "from": from, "to": to, "gbps": gbps, "transport": transport, "outlier": is_slow(*gbps, median),
                    })),
                    Cell::Failed(reason) => pairs.push(json!({ "from": from, "to": to, "error": reason })),
                }
            }
        }
        json!({
            "network": grid.rail,
            "median": median,
            "pairs": pairs,
            "outliers": self.outliers(grid),
            "failures": self.failures(grid),
        })
    }
}

/// Returns a figure with three significant digits or more.
pub(super) fn number(gbps: f64) -> String {
    match gbps {
        gbps if gbps >= 100.0 => format!("{gbps:.0}"),
        gbps if gbps >= 10.0 => format!("{gbps:.1}"),
        gbps if gbps >= 1.0 => format!("{gbps:.2}"),
        gbps => format!("{gbps:.3}"),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::grid::tests::{figure, grid};
    use super::*;

    /// Returns a report about four hosts, of which the third sends slowly and the last is gone.
    pub(in crate::matrix) fn report() -> MatrixReport {
        let failed = |reason: &str| Cell::Failed(reason.to_owned());
        let mut others = Vec::new();
        for host in 0..3 {
            others.push((3, host, failed("<gone>")));
            others.push((host, 3, failed("refused")));
            others.push((2, host, figure(4.0)));
        }
        let hosts = ["w-0", "w-1", "w-2", "w-10"].map(str::to_owned).to_vec();
        MatrixReport {
            service: "train".to_owned(),
            size: 1 << 20,
            seconds: 2,
            hosts,
            grids: vec![grid(&others)],
        }
    }

    #[test]
    fn outliers_and_failures_are_named_with_their_rail() {
        let report = report();
        assert_eq!(
            report.outliers(&report.grids[0]),
            ["all that w-2 sends on rail0: 4.00 Gb/s, 60 % below the rail's median of 10.0"]
        );
        assert_eq!(
            report.failures(&report.grids[0]),
            ["w-10 to and from all others on rail0: not measured: <gone>"]
        );
    }

    #[test]
    fn json_has_each_pair_and_what_stands_out() {
        let document: Value = serde_json::from_str(&report().json().unwrap()).unwrap();
        let rail = &document["rails"][0];
        let pair = |from: &str, to: &str| {
            let mut pairs = rail["pairs"].as_array().unwrap().iter();
            pairs.find(|pair| pair["from"] == from && pair["to"] == to).cloned().unwrap_or_default()
        };
        assert_eq!(rail["pairs"].as_array().unwrap().len(), 12);
        let slow = json!({"from": "w-2", "to": "w-0", "gbps": 4.0, "transport": "TCP", "outlier": true});
        assert_eq!(pair("w-2", "w-0"), slow);
        assert_eq!(pair("w-0", "w-1")["outlier"], false);
        assert_eq!(pair("w-10", "w-1"), json!({"from": "w-10", "to": "w-1", "error": "<gone>"}));
        assert_eq!(pair("w-0", "w-0"), Value::Null);
        assert_eq!((&rail["network"], &rail["median"]), (&json!("rail0"), &json!(10.0)));
        assert_eq!(document["hosts"], json!(["w-0", "w-1", "w-2", "w-10"]));
    }

    #[test]
    fn figures_have_three_digits_or_more() {
        let numbers = [0.00123, 1.0, 9.876, 94.12, 387.6].map(number);
        assert_eq!(numbers, ["0.001", "1.00", "9.88", "94.1", "388"]);
    }
}
