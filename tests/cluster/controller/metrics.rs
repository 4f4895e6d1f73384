//! The controller's metrics against the list in docs/controller.md.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Result, ensure};
use multinet_testing::markdown::metrics;
use multinet_testing::tools::repository;

use crate::controller::stage::Stage;

/// Suffixes that the samples of a metric add to its name.
const SUFFIXES: [&str; 5] = ["_total", "_info", "_bucket", "_sum", "_count"];

/// Returns the names of the labels that the samples of a metric have.
fn labels(text: &str, metric: &str) -> BTreeSet<String> {
    let samples = text.lines().filter_map(|line| line.strip_prefix(metric));
    let samples = samples.map(|rest| SUFFIXES.iter().find_map(|end| rest.strip_prefix(end)).unwrap_or(rest));
    let labels = samples.filter_map(|rest| rest.strip_prefix('{')?.split_once('}'));
    let labels = labels.flat_map(|(labels, _)| labels.split("\",").filter_map(|label| label.split_once('=')));
    labels.map(|(name, _)| name.to_owned()).filter(|name| name != "le").collect()
}

#[tokio::test]
async fn the_documented_metrics_are_the_served_ones() -> Result<()> {
    let stage = Stage::shared().await?;
    let (_, text) = stage.controller.get("metrics").await?;
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let served: BTreeSet<&str> = types
        .filter_map(|line| line.split(' ').next())
        // The page of multinet-dns lists the metrics that every process has.
        .filter(|name| name.starts_with("multinet_") && !name.starts_with("multinet_watch_"))
        .collect();
    let documented = metrics(&fs::read_to_string(repository().join("docs/controller.md"))?);
    let names: BTreeSet<&str> = documented.iter().map(|(name, _)| name.as_str()).collect();
    ensure!(names == served, "documented: {names:?}\nserved: {served:?}");
    for (name, wanted) in documented.iter().filter(|(name, _)| name != "multinet_build") {
        let found = labels(&text, name);
        ensure!(found == *wanted, "{name} has the labels {found:?}, documented: {wanted:?}");
    }
    Ok(())
}
