//! Metrics as they are scraped.

#![allow(clippy::expect_used, reason = "what goes wrong in a test fails it")]

use anyhow::{Result, ensure};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

/// The text of a registry.
///
/// # Panics
/// If a metric cannot be written.
pub fn scrape(registry: &Registry) -> String {
    let mut text = String::new();
    encode(&mut text, registry).expect("metrics are text");
    text
}

/// The value of the sample with exactly this name and these labels, if there is one.
///
/// # Panics
/// If it is not a number.
pub fn sample(registry: &Registry, name: &str) -> Option<f64> {
    let text = scrape(registry);
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    Some(value.parse().expect("samples are numbers"))
}

/// The sum of the samples in `metrics` whose names and labels begin with `prefix`; zero while there is none, but an error if
/// there is no such metric.
pub fn sum(metrics: &str, prefix: &str) -> Result<f64> {
    let name = prefix.split(['{', ' ']).next().unwrap_or(prefix);
    let name = name.trim_end_matches("_total").trim_end_matches("_count");
    ensure!(metrics.contains(&format!("# TYPE {name} ")), "there is no metric {name}");
    let samples = metrics.lines().filter(|line| line.starts_with(prefix));
    samples.map(|line| Ok(line.rsplit(' ').next().unwrap_or_default().parse::<f64>()?)).sum()
}
