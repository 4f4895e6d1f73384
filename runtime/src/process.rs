//! Metrics about the process itself: the standard ones (`process_…`), read from /proc on scrapes,
//! and the number of dropped log lines.

use std::fmt;
use std::fs;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

use crate::METRICS_PREFIX;

/// Clock ticks per second in /proc (USER_HZ), which is 100 on every architecture that Rust
/// supports.
const TICKS_PER_SECOND: f64 = 100.0;

/// Collector of the process' metrics. Leaves out a metric whose file in /proc cannot be read.
#[derive(Debug)]
pub(crate) struct ProcessCollector;

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let stat = fs::read_to_string("/proc/self/stat").ok().and_then(|text| Stat::parse(&text));
        let boot_time = fs::read_to_string("/proc/stat").ok().and_then(|text| boot_time(&text));

        let name = format!("{METRICS_PREFIX}_log_lines_dropped");
        let mut lines = encoder.encode_descriptor(
            &name,
            "Dropped log lines; reason is unread (standard error was not read) or repeated (too many of a kind)",
            None,
            MetricType::Counter,
        )?;
        for (reason, count) in
            [("unread", multinet_stderr::dropped_unread()), ("repeated", multinet_stderr::dropped_repeated())]
        {
            ConstCounter::new(count).encode(lines.encode_family(&[("reason", reason)])?)?;
        }

        if let Some(stat) = &stat {
            let cpu = ConstCounter::new(stat.cpu_seconds);
            metric(&mut encoder, "process_cpu", "User and system CPU time", Some(Unit::Seconds), &cpu)?;
        }
        if let (Some(stat), Some(boot_time)) = (&stat, boot_time) {
            let start = ConstGauge::new(boot_time + stat.start_seconds);
            metric(
                &mut encoder,
                "process_start_time",
                "Start since the Unix epoch",
                Some(Unit::Seconds),
                &start,
            )?;
        }
        if let Some(bytes) =
            fs::read_to_string("/proc/self/status").ok().and_then(|text| resident_bytes(&text))
        {
            let resident = ConstGauge::new(bytes);
            metric(&mut encoder, "process_resident_memory", "Resident memory", Some(Unit::Bytes), &resident)?;
        }
        if let Ok(entries) = fs::read_dir("/proc/self/fd") {
            // One of them is that of reading the directory.
            let open = ConstGauge::new(i64::try_from(entries.count().saturating_sub(1)).unwrap_or(i64::MAX));
            metric(&mut encoder, "process_open_fds", "Open file descriptors", None, &open)?;
        }
        if let Some(limit) = fs::read_to_string("/proc/self/limits").ok().and_then(|text| max_fds(&text)) {
            let limit = ConstGauge::new(limit);
            metric(&mut encoder, "process_max_fds", "Limit of open file descriptors", None, &limit)?;
        }
        Ok(())
    }
}

fn metric(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    unit: Option<Unit>,
    metric: &impl EncodeMetric,
) -> fmt::Result {
    metric.encode(encoder.encode_descriptor(name, help, unit.as_ref(), metric.metric_type())?)
}

/// Values of /proc/self/stat that the metrics need.
#[derive(Debug, PartialEq)]
struct Stat {
    /// User and system CPU time of the process together.
    cpu_seconds: f64,
    /// Time from boot to the start of the process, in seconds.
    start_seconds: f64,
}

impl Stat {
    fn parse(text: &str) -> Option<Self> {
        // The second field is the command in parentheses, which may contain spaces and parentheses.
        let (_, fields) = text.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        // proc_pid_stat(5) counts fields from 1, and the first one here is its third.
        let seconds = |number: usize| Some(fields.get(number - 3)?.parse::<f64>().ok()? / TICKS_PER_SECOND);
        Some(Self { cpu_seconds: seconds(14)? + seconds(15)?, start_seconds: seconds(22)? })
    }
}

/// Parses the time of boot, in seconds since the Unix epoch, from /proc/stat.
fn boot_time(text: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

/// Parses the resident memory, in bytes, from /proc/self/status, which gives it in KiB.
fn resident_bytes(text: &str) -> Option<i64> {
    let kib = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?.trim().strip_suffix(" kB")?;
    kib.trim().parse::<i64>().ok()?.checked_mul(1024)
}

/// Parses the soft limit of open files from /proc/self/limits; `None` if there is no limit.
fn max_fds(text: &str) -> Option<i64> {
    let limits = text.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    limits.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn fields_are_parsed_even_if_the_command_has_parentheses() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194560 900 0 0 0 250 150 7 7 20 0 8 0 12345 1000 200 184467";
        assert_eq!(Stat::parse(stat), Some(Stat { cpu_seconds: 4.0, start_seconds: 123.45 }));
        assert_eq!(Stat::parse("42 (a) S 1 2"), None);

        assert_eq!(boot_time("cpu 1 2 3\nbtime 1700000000\nprocesses 5\n"), Some(1_700_000_000.0));
        assert_eq!(resident_bytes("VmHWM:\t 200 kB\nVmRSS:\t 100 kB\n"), Some(102_400));
        assert_eq!(
            max_fds("Limit\nMax open files            1024                 524288               files\n"),
            Some(1024)
        );
        assert_eq!(
            max_fds("Max open files            unlimited            unlimited            files\n"),
            None
        );
    }

    #[test]
    fn the_metrics_of_this_process_have_plausible_values() {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(ProcessCollector));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let value = |name: &str| -> f64 {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.unwrap_or_else(|| panic!("{name} is missing in:\n{text}")).parse().unwrap()
        };
        assert!(value("process_cpu_seconds_total") >= 0.0);
        assert!(value("process_resident_memory_bytes") > 100_000.0);
        assert!(value("process_open_fds") >= 3.0);
        assert!(value("multinet_log_lines_dropped_total{reason=\"unread\"}") >= 0.0);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
        let start = value("process_start_time_seconds");
        assert!(start <= now + 2.0 && start > now - 86_400.0, "{start} is not shortly before {now}");
    }
}
