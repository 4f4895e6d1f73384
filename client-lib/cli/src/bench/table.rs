//! Rows exactly as perftest prints them, so that outputs can be laid side by side, and perftest's
//! JSON keys. Pure.

use serde_json::{Value, json};

use super::figures::{Bandwidth, Latency};

/// Unit in which bandwidths are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Mebibytes,
    Gigabits,
}

/// Kind of measurement: bandwidth, with the unit to print it in, or latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Test {
    Bandwidth(Unit),
    Latency,
}

/// Line of dashes above and below the table of results.
pub(super) const LINE: &str =
    "---------------------------------------------------------------------------------------\n";

impl Unit {
    /// Returns how many bytes per second are 1 MiB/sec or 1 Gb/sec.
    fn divisor(self) -> f64 {
        match self {
            Self::Mebibytes => f64::from(1 << 20),
            Self::Gigabits => 125e6,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Mebibytes => "MiB/sec",
            Self::Gigabits => "Gb/sec",
        }
    }
}

impl Test {
    pub(super) fn header(self) -> String {
        match self {
            Self::Bandwidth(unit) => {
                let unit = unit.name();
                format!(" #bytes     #iterations    BW peak[{unit}]    BW average[{unit}]   MsgRate[Mpps]\n")
            }
            Self::Latency => {
                " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    \
                              t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] \n"
                    .to_owned()
            }
        }
    }
}

impl Bandwidth {
    pub(super) fn row(&self, unit: Unit) -> String {
        let [peak, average] = [self.peak, self.average].map(|bandwidth| bandwidth / unit.divisor());
        let digits = if unit == Unit::Gigabits && average < 0.1 { 6 } else { 2 };
        format!(
            " {:<7}    {:<10}       {peak:<7.digits$}            {average:<7.digits$}\t\t     {:<7.6}\n",
            self.bytes,
            self.iterations,
            self.rate / 1e6
        )
    }

    pub(super) fn json(&self, unit: Unit) -> Value {
        json!({
            "MsgSize": self.bytes,
            "n_iterations": self.iterations,
            "BW_peak": self.peak / unit.divisor(),
            "BW_average": self.average / unit.divisor(),
            "MsgRate": self.rate / 1e6,
        })
    }
}

impl Latency {
    pub(super) fn row(&self) -> String {
        format!(
            " {:<7} {}          {:<7.2}        {:<7.2}      {:<7.2}  \t       {:<7.2}     \t{:<7.2}\t\t{:<7.2} \t\t{:<7.2}\n",
            self.bytes,
            self.iterations,
            self.min,
            self.max,
            self.typical,
            self.average,
            self.deviation,
            self.percentile_99,
            self.percentile_99_9
        )
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "MsgSize": self.bytes,
            "n_iterations": self.iterations,
            "t_min": self.min,
            "t_max": self.max,
            "t_typical": self.typical,
            "t_avg": self.average,
            "t_stdev": self.deviation,
            "percentile_99": self.percentile_99,
            "percentile_99_9": self.percentile_99_9,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIGURES: Bandwidth =
        Bandwidth { bytes: 65_536, iterations: 5000, peak: 3.5e9, average: 3.25e9, rate: 49_591.06 };

    #[test]
    fn bandwidths_stand_under_perftests_columns() {
        let header = " #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]\n";
        assert_eq!(Test::Bandwidth(Unit::Mebibytes).header(), header);
        let cases = [
            (
                FIGURES,
                Unit::Mebibytes,
                " 65536      5000             3337.86            3099.44\t\t     0.049591\n",
            ),
            (
                FIGURES,
                Unit::Gigabits,
                " 65536      5000             28.00              26.00  \t\t     0.049591\n",
            ),
            (
                Bandwidth { bytes: 2, peak: 1.25e6, average: 1e6, rate: 5e5, ..FIGURES },
                Unit::Gigabits,
                " 2          5000             0.010000            0.008000\t\t     0.500000\n",
            ),
            (
                Bandwidth { bytes: 2, peak: 0.0, average: 1e6, rate: 5e5, iterations: 100_000_000 },
                Unit::Mebibytes,
                " 2          100000000        0.00               0.95   \t\t     0.500000\n",
            ),
        ];
        for (figures, unit, row) in cases {
            assert_eq!(figures.row(unit), row);
        }
    }

    #[test]
    fn latencies_stand_under_perftests_columns() {
        let figures = Latency {
            bytes: 64,
            iterations: 1000,
            min: 8.1,
            max: 1234.567,
            typical: 9.0,
            average: 9.25,
            deviation: 0.5,
            percentile_99: 12.0,
            percentile_99_9: 20.125,
        };
        let header = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   \
                      99% percentile[usec]   99.9% percentile[usec] \n";
        assert_eq!(Test::Latency.header(), header);
        let row = " 64      1000          8.10           1234.57      9.00     \t       9.25        \t0.50   \t\t12.00   \t\t20.12  \n";
        assert_eq!(figures.row(), row);
    }

    #[test]
    fn json_has_perftests_keys() {
        let value = FIGURES.json(Unit::Gigabits);
        assert_eq!((&value["MsgSize"], &value["n_iterations"]), (&json!(65_536), &json!(5000)));
        assert_eq!((&value["BW_peak"], &value["BW_average"]), (&json!(28.0), &json!(26.0)));
    }
}
