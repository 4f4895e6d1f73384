//! Metrics about the process itself: the standard ones (`process_…`), read from /proc on scrapes,
//! and the number of dropped log lines.

use std::fmt;
use std::fs;

use procfs::WithCurrentSystemInfo as _;
use procfs::process::{LimitValue, Process};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

use crate::METRICS_PREFIX;

/// Collector of the process' metrics. Leaves out a metric whose file in /proc cannot be read.
#[derive(Debug)]
pub(crate) struct ProcessCollector;

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
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

        let seconds = Some(Unit::Seconds);
        if let Ok(stat) = Process::myself().and_then(|process| process.stat()) {
            let ticks = procfs::ticks_per_second() as f64;
            let cpu = ConstCounter::new((stat.utime + stat.stime) as f64 / ticks);
            metric(&mut encoder, "process_cpu", "User and system CPU time", seconds.clone(), &cpu)?;
            if let Ok(boot_time) = procfs::boot_time_secs() {
                let start = ConstGauge::new(boot_time as f64 + stat.starttime as f64 / ticks);
                metric(&mut encoder, "process_start_time", "Start since the Unix epoch", seconds, &start)?;
            }
            let resident = gauge(stat.rss_bytes().get());
            metric(&mut encoder, "process_resident_memory", "Resident memory", Some(Unit::Bytes), &resident)?;
        }
        if let Ok(entries) = fs::read_dir("/proc/self/fd") {
            // One of them is that of reading the directory.
            let open = gauge(entries.count().saturating_sub(1) as u64);
            metric(&mut encoder, "process_open_fds", "Open file descriptors", None, &open)?;
        }
        if let Ok(limits) = Process::myself().and_then(|process| process.limits())
            && let LimitValue::Value(limit) = limits.max_open_files.soft_limit
        {
            metric(&mut encoder, "process_max_fds", "Limit of open file descriptors", None, &gauge(limit))?;
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

fn gauge(value: u64) -> ConstGauge<i64> {
    ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    use super::*;

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
        assert!(value("process_max_fds") > value("process_open_fds"));
        assert!(value("multinet_log_lines_dropped_total{reason=\"unread\"}") >= 0.0);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
        let start = value("process_start_time_seconds");
        assert!(start <= now + 2.0 && start > now - 86_400.0, "{start} is not shortly before {now}");
    }
}
