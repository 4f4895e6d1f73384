//! Figures of a measurement, calculated from its times as perftest does. Pure.

use std::time::Duration;

/// Most messages for which the peak is looked for, as in perftest: the search takes a time that
/// grows with their square.
pub(super) const MAX_FOR_PEAK: u64 = 20_000;

/// How many of the slowest round trips are left out, as in perftest.
const TAIL: usize = 2;

/// Times at which messages were posted and confirmed, counted from the first post.
#[derive(Clone, Debug, Default)]
pub(super) struct Times {
    pub(super) posted: Vec<Duration>,
    pub(super) completed: Vec<Duration>,
}

/// Measured bandwidth of messages of one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bandwidth {
    pub(super) bytes: u32,
    pub(super) iterations: u64,
    /// Bytes per second in the best window; 0 if it was not looked for.
    pub(super) peak: f64,
    /// Payload bytes per second from the first post to the last confirmation.
    pub(super) average: f64,
    /// Messages per second from the first post to the last confirmation.
    pub(super) rate: f64,
}

/// Latency of one message size, in microseconds: half of each round trip.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Latency {
    pub(super) bytes: u32,
    pub(super) iterations: u64,
    pub(super) min: f64,
    pub(super) max: f64,
    /// The median, perftest's t_typical.
    pub(super) typical: f64,
    pub(super) average: f64,
    pub(super) deviation: f64,
    pub(super) percentile_99: f64,
    pub(super) percentile_99_9: f64,
}

impl Bandwidth {
    /// Calculates the bandwidth of `iterations` messages that took a time, and the peak if the
    /// times of each message were noted.
    pub(super) fn of(bytes: u32, iterations: u64, took: Duration, times: &Times) -> Self {
        // A clock that has not moved must not make an infinite bandwidth.
        let seconds = took.max(Duration::from_nanos(1)).as_secs_f64();
        let rate = iterations as f64 / seconds;
        let shortest = times.shortest_per_message();
        let peak = shortest.map_or(0.0, |seconds| f64::from(bytes) / seconds);
        Self { bytes, iterations, peak, average: rate * f64::from(bytes), rate }
    }
}

impl Times {
    /// Returns the shortest time per message, in seconds, between any post and any confirmation
    /// after it; `None` if no times were noted.
    fn shortest_per_message(&self) -> Option<f64> {
        let mut shortest: Option<f64> = None;
        for (first, posted) in self.posted.iter().enumerate() {
            for (count, completed) in (1_u32..).zip(self.completed.iter().skip(first)) {
                let time = completed.saturating_sub(*posted).max(Duration::from_nanos(1)).as_secs_f64();
                let each = time / f64::from(count);
                shortest = Some(shortest.map_or(each, |least| least.min(each)));
            }
        }
        shortest
    }
}

impl Latency {
    /// Calculates the latency from the times of round trips; `None` if there are none.
    pub(super) fn of(bytes: u32, mut round_trips: Vec<Duration>) -> Option<Self> {
        let iterations = round_trips.len() as u64;
        round_trips.sort_unstable();
        let halves: Vec<f64> = round_trips.iter().map(|time| time.as_secs_f64() * 1e6 / 2.0).collect();
        // Of very few, none is left out.
        let count = if halves.len() > 2 * TAIL { halves.len() - TAIL } else { halves.len() };
        let kept = halves.get(..count)?;
        let average = kept.iter().sum::<f64>() / count as f64;
        let variance = kept.iter().map(|half| (half - average).powi(2)).sum::<f64>() / count as f64;
        let at = |place: usize| halves.get(place.min(halves.len() - 1)).copied();
        let percentile = |part: f64| at((count as f64 * part).ceil() as usize);
        Some(Self {
            bytes,
            iterations,
            min: *kept.first()?,
            max: at(count)?,
            typical: median(kept)?,
            average,
            deviation: variance.sqrt(),
            percentile_99: percentile(0.99)?,
            percentile_99_9: percentile(0.999)?,
        })
    }
}

fn median(sorted: &[f64]) -> Option<f64> {
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    match sorted.len() % 2 {
        0 => Some((upper + sorted.get(middle - 1)?) / 2.0),
        _ => Some(upper),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn milliseconds(times: &[u64]) -> Vec<Duration> {
        times.iter().copied().map(Duration::from_millis).collect()
    }

    #[test]
    fn the_peak_is_that_of_the_best_window() {
        // Each of the first two takes 10 ms, the last two come 1 ms apart.
        let times =
            Times { posted: milliseconds(&[0, 10, 20, 21]), completed: milliseconds(&[10, 20, 21, 22]) };
        let figures = Bandwidth::of(1000, 4, Duration::from_millis(22), &times);
        assert_eq!((figures.peak.round(), figures.rate.round()), (1_000_000.0, 182.0));
        assert!((figures.average - 4000.0 / 0.022).abs() < 1.0);
    }

    #[test]
    fn messages_under_way_together_count_together() {
        // Four posted at once and confirmed at once: 1 ms each, not 4.
        let times = Times { posted: milliseconds(&[0; 4]), completed: milliseconds(&[4; 4]) };
        assert_eq!(Bandwidth::of(1000, 4, Duration::from_millis(4), &times).peak.round(), 1_000_000.0);
    }

    #[test]
    fn without_times_there_is_no_peak() {
        let figures = Bandwidth::of(1, 1, Duration::ZERO, &Times::default());
        assert_eq!(figures.peak, 0.0);
        assert!(figures.average.is_finite());
    }

    #[test]
    fn latencies_are_half_the_round_trips() {
        let trips: Vec<Duration> = (1..=102).map(|us| Duration::from_micros(us * 2)).collect();
        let figures = Latency::of(64, trips).unwrap();
        // The two slowest are out, but for the maximum, which is the faster one of them: as
        // perftest has it.
        let Latency { iterations, min, max, typical, average, percentile_99, percentile_99_9, .. } = figures;
        assert_eq!((iterations, min, max), (102, 1.0, 101.0));
        assert!((typical - 50.5).abs() < 1e-9 && (average - 50.5).abs() < 1e-9);
        assert!((percentile_99 - 100.0).abs() < 1e-9 && (percentile_99_9 - 101.0).abs() < 1e-9);
        assert!((figures.deviation - 28.866).abs() < 1e-3);
    }

    #[test]
    fn one_round_trip_is_enough() {
        let figures = Latency::of(2, vec![Duration::from_micros(8)]).unwrap();
        assert_eq!((figures.min, figures.max, figures.typical, figures.deviation), (4.0, 4.0, 4.0, 0.0));
        assert_eq!(Latency::of(2, Vec::new()), None);
    }
}
