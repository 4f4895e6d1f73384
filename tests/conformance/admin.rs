//! The admin endpoints of the binary: metrics as docs/operations.md lists them, the state, and the
//! most frequent queries.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context as _, Result, ensure};
use multinet_testing::dns::Query;
use multinet_testing::markdown::metrics;
use multinet_testing::server::Flags;
use multinet_testing::tools::repository;
use serde_json::{Value, json};

use crate::fixtures::{ZONE, folder, server};

#[test]
fn the_documented_metrics_are_the_served_ones() -> Result<()> {
    let server = Flags::new().words("--notify 127.0.0.1:9").start(folder().as_ref())?;
    server.query(ZONE, "SOA")?;
    let (_, text) = server.get("/metrics")?;
    let served: BTreeSet<String> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE multinet_"))
        .filter_map(|rest| Some(format!("multinet_{}", rest.split(' ').next()?)))
        .collect();
    let page = fs::read_to_string(repository().join("docs/operations.md"))?;
    let documented: BTreeSet<String> = metrics(&page).into_iter().map(|(name, _)| name).collect();
    ensure!(documented.len() > 15, "the page has too few metrics: {documented:?}");
    // The metrics of watches exist only in a server that watches.
    let is_watch = |name: &&String| name.starts_with("multinet_watch_");
    let missing: Vec<_> = documented.difference(&served).filter(|name| !is_watch(name)).collect();
    ensure!(missing.is_empty(), "documented but not served: {missing:?}\nserved: {served:?}");
    let silent: Vec<_> = served.difference(&documented).collect();
    ensure!(silent.is_empty(), "served but not documented: {silent:?}");
    Ok(())
}

#[test]
fn queries_are_counted_by_type_and_code() -> Result<()> {
    let server = Flags::new().start(folder().as_ref())?;
    server.query(ZONE, "SOA")?;
    server.query(ZONE, "TYPE65280")?;
    server.query(&format!("no.{ZONE}"), "A")?;
    server.ask_tcp(&Query::new(ZONE, "NS"))?;
    for (metric, value) in [
        (r#"multinet_dns_requests_total{proto="udp",family="1",type="SOA"}"#, 1.0),
        (r#"multinet_dns_requests_total{proto="udp",family="1",type="other"}"#, 1.0),
        (r#"multinet_dns_requests_total{proto="tcp",family="1",type="NS"}"#, 1.0),
        (r#"multinet_dns_responses_total{proto="udp",rcode="NXDOMAIN"}"#, 1.0),
        (r#"multinet_dns_responses_total{proto="udp",rcode="NOERROR"}"#, 2.0),
        (r#"multinet_dns_request_size_bytes_count{proto="udp"}"#, 3.0),
        (r#"multinet_dns_response_size_bytes_count{proto="tcp"}"#, 1.0),
    ] {
        let counted = server.metric(metric)?;
        ensure!(counted == value, "{metric} is {counted}, not {value}");
    }
    Ok(())
}

/// The bounds rise, and so do the counts; the last bucket counts everything (OpenMetrics 1.0,
/// histogram).
#[test]
fn histogram_buckets_rise_up_to_infinity() -> Result<()> {
    let server = Flags::new().start(folder().as_ref())?;
    server.query(ZONE, "SOA")?;
    server.ask_tcp(&Query::new(ZONE, "NS"))?;
    let (_, metrics) = server.get("/metrics")?;
    let mut histograms = BTreeMap::<_, Vec<(f64, f64)>>::new();
    for line in metrics.lines() {
        let Some((name, rest)) = line.split_once("_bucket{") else { continue };
        let (labels, count) = rest.split_once("} ").context("no labels")?;
        let label = |key: &str| labels.split(',').find_map(|label| label.strip_prefix(key));
        let bound = label("le=").context("no bound")?.trim_matches('"').parse()?;
        histograms.entry((name, label("proto="))).or_default().push((bound, count.parse()?));
    }
    ensure!(histograms.len() >= 7, "{:?}", histograms.keys());
    for ((name, proto), buckets) in histograms {
        let rises = buckets.is_sorted_by(|one, two| one.0 < two.0 && one.1 <= two.1);
        ensure!(rises, "{name} {proto:?}: {buckets:?}");
        let (bound, all) = *buckets.last().context("no buckets")?;
        ensure!(bound == f64::INFINITY, "{name} {proto:?}: the last bound is finite: {buckets:?}");
        let labels = proto.map_or_else(String::new, |proto| format!("{{proto={proto}}}"));
        let count = format!("{name}_count{labels} {all}");
        ensure!(metrics.lines().any(|line| line == count), "no line {count}");
    }
    Ok(())
}

#[test]
fn the_state_page_is_sorted_and_complete() -> Result<()> {
    let server = Flags::new().start(folder().as_ref())?;
    let (status, body) = server.get("/debug/state")?;
    ensure!(status == 200, "{status}");
    let state: Value = serde_json::from_str(&body)?;
    let count = |key: &str| state[key].as_array().map(Vec::len).context("not a list");
    for (key, metric) in [("services", "multinet_dns_services"), ("slices", "multinet_dns_slices")] {
        let known = server.metric(&format!("{metric} "))?;
        ensure!(count(key)? > 0 && count(key)? as f64 == known, "{} of {known} {key}", count(key)?);
        let objects = state[key].as_array().context("not a list")?;
        let text = |object: &Value, key: &str| object[key].as_str().unwrap_or_default().to_owned();
        let order: Vec<_> = objects
            .iter()
            .map(|object| (text(object, "namespace"), text(object, "service"), text(object, "name")))
            .collect();
        ensure!(order.is_sorted(), "{key} are not sorted: {order:?}");
    }
    Ok(())
}

/// The page adds up the counts of both UDP workers and of TCP.
#[test]
fn the_most_frequent_queries_are_shown() -> Result<()> {
    let server = Flags::new().words("--debug-top 10 --udp-workers 2").start(folder().as_ref())?;
    for _ in 0..20 {
        server.query(ZONE, "SOA")?;
        server.ask_tcp(&Query::new(ZONE, "SOA"))?;
        server.query(&format!("NO.{ZONE}"), "A")?;
    }
    server.query(ZONE, "TYPE65280")?;
    let (status, body) = server.get("/debug/top")?;
    ensure!(status == 200, "{status}");
    let top: Value = serde_json::from_str(&body)?;
    let entry = |name: &str, kind: &str, rcode: &str, count: u64| json!({"name": format!("{name}{ZONE}."), "type": kind, "rcode": rcode, "count": count, "error": 0});
    let names = [
        entry("", "SOA", "NOERROR", 40),
        entry("no.", "A", "NXDOMAIN", 20),
        entry("", "TYPE65280", "NOERROR", 1),
    ];
    assert_eq!(top, json!({"queries": 61, "names": names}));
    Ok(())
}

#[test]
fn names_are_counted_only_with_the_flag() -> Result<()> {
    ensure!(server().get("/debug/top")?.0 == 404, "/debug/top is served without the flag");
    Ok(())
}
