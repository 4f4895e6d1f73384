//! Encoding of metrics in the format that a client prefers: OpenMetrics, or Prometheus' older text
//! format.

use std::fmt::{Error, Write as _};

use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;

/// Media type of OpenMetrics.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Media type of Prometheus' older text format.
const PROMETHEUS_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Returns all metrics in the format that the header `Accept` prefers, with its media type.
/// OpenMetrics wins a tie, also if the client accepts neither format.
///
/// # Errors
///
/// If a metric cannot be encoded.
pub(crate) fn encode(registry: &Registry, accept: &str) -> Result<(&'static str, String), Error> {
    let mut open_metrics = String::new();
    text::encode(&mut open_metrics, registry)?;
    let weight = |kind| weight(accept, kind);
    if weight(["text", "plain"]) <= weight(["application", "openmetrics-text"]) {
        return Ok((OPEN_METRICS, open_metrics));
    }
    Ok((PROMETHEUS_TEXT, to_prometheus_text(&open_metrics)?))
}

/// Returns the weight of a media type in `accept`, in thousandths: that of the most specific range
/// that covers it (RFC 9110 §12.5.1).
fn weight(accept: &str, [kind, subkind]: [&str; 2]) -> u16 {
    let ranges = accept.split(',').filter_map(|range| {
        let mut parts = range.split(';').map(str::trim);
        let (range_kind, range_subkind) = parts.next()?.split_once('/')?;
        let specific = [(range_kind, kind), (range_subkind, subkind)].map(|(range, wanted)| {
            if range.eq_ignore_ascii_case(wanted) { Some(1) } else { (range == "*").then_some(0) }
        });
        let q = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
        let q = q.map_or(1.0, |q| q.parse::<f32>().unwrap_or_default());
        Some((specific[0]? + specific[1]?, (q.clamp(0.0, 1.0) * 1000.0) as u16))
    });
    // Among equally specific ranges, such as those of several versions, the greatest weight counts.
    ranges.max().map_or(0, |(_, weight)| weight)
}

/// Converts OpenMetrics to Prometheus' older format, in which a family has the name of its samples,
/// and which has fewer types.
fn to_prometheus_text(open_metrics: &str) -> Result<String, Error> {
    let mut out = String::with_capacity(open_metrics.len());
    let mut help = None;
    for line in open_metrics.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("HELP"), Some(_), text) => help = text,
            (Some("#"), Some("TYPE"), Some(family), Some(kind)) => {
                let (suffix, kind) = match kind {
                    "counter" => ("_total", kind),
                    "info" => ("_info", "gauge"),
                    "stateset" => ("", "gauge"),
                    "unknown" => ("", "untyped"),
                    _ => ("", kind),
                };
                if let Some(help) = help.take() {
                    writeln!(out, "# HELP {family}{suffix} {help}")?;
                }
                writeln!(out, "# TYPE {family}{suffix} {kind}")?;
            }
            // The older format has neither `# UNIT` nor `# EOF`.
            (Some("#"), ..) => {}
            _ => writeln!(out, "{line}")?,
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::gauge::Gauge;
    use prometheus_client::metrics::histogram::Histogram;
    use prometheus_client::metrics::info::Info;
    use prometheus_client::registry::Unit;

    use super::*;

    #[test]
    fn the_accept_header_selects_the_format() {
        for (accept, is_open_metrics) in [
            ("", true),
            ("*/*", true),
            ("application/openmetrics-text", true),
            ("text/plain", false),
            ("TEXT/PLAIN;version=0.0.4", false),
            ("text/*, application/json", false),
            ("text/html", true),
            ("text/html,*/*;q=0.8", true),
            ("text/plain;version=0.0.4;q=1,*/*;q=0.1", false),
            ("application/openmetrics-text;q=0, */*", false),
            ("text/plain, application/openmetrics-text", true),
            ("text/plain;q=0.9, application/openmetrics-text;q=0.8", false),
            // Prometheus 2 and 3.
            (
                "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,\
                 text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
                true,
            ),
            (
                "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
                 text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
                true,
            ),
        ] {
            let (media_type, text) = encode(&Registry::default(), accept).unwrap();
            assert_eq!(media_type == OPEN_METRICS, is_open_metrics, "{accept}");
            assert_eq!(text, if is_open_metrics { "# EOF\n" } else { "" }, "{accept}");
        }
    }

    #[test]
    fn the_older_format_renames_families_and_maps_types() {
        let mut registry = Registry::default();
        let (counter, gauge) = (Counter::<u64>::default(), Gauge::<i64>::default());
        let histogram = Histogram::new([1.0]);
        counter.inc_by(3);
        histogram.observe(0.5);
        registry.register("asked", "Queries # answered", counter);
        registry.register_with_unit("size", "Octets", Unit::Bytes, gauge);
        registry.register("time", "Seconds", histogram);
        registry.register("build", "The version", Info::new([("version", "a # b")]));
        let (_, text) = encode(&registry, "text/plain").unwrap();
        let expected = [
            "# HELP asked_total Queries # answered.",
            "# TYPE asked_total counter",
            "asked_total 3",
            "# HELP size_bytes Octets.",
            "# TYPE size_bytes gauge",
            "size_bytes 0",
            "# HELP time Seconds.",
            "# TYPE time histogram",
            "time_sum 0.5",
            "time_count 1",
            "time_bucket{le=\"1.0\"} 1",
            "time_bucket{le=\"+Inf\"} 1",
            "# HELP build_info The version.",
            "# TYPE build_info gauge",
            "build_info{version=\"a # b\"} 1",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
    }
}
