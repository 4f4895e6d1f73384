//! Samples out of metrics in text format.

#![allow(clippy::expect_used, reason = "what goes wrong in a test fails it")]

use anyhow::{Result, ensure};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

/// Returns the metrics of a registry as text.
///
/// // # Panics
///
/// If a metric cannot be encoded.
pub fn scrape(registry: &Registry) -> String {
    let mut text = String::new();
    encode(&mut text, registry).expect("metrics are text");
    text
}

/// Returns the value of the sample with exactly this name and these labels, if it exists.
///
/// // # Panics
///
/// If the value is not a number.
pub fn sample(registry: &Registry, name: &str) -> Option<f64> {
    let text = scrape(registry);
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    Some(value.parse().expect("samples are numbers"))
}

/// Returns the sum of the samples in `metrics` whose names and labels begin with `prefix`; zero if
/// there is no sample yet. Fails if the metric does not exist.
pub fn sum(metrics: &str, prefix: &str) -> Result<f64> {
    let name = prefix.split(['{', ' ']).next().unwrap_or(prefix);
    let name = name.trim_end_matches("_total").trim_end_matches("_count");
    ensure!(metrics.contains(&format!("# TYPE {name} ")), "the metric {name} is not served");
    let samples = metrics.lines().filter(|line| line.starts_with(prefix));
    samples.map(|line| Ok(line.rsplit(' ').next().unwrap_or_default().parse::<f64>()?)).sum()
}
