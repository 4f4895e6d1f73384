//! Requests to the API server, from its own metrics.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use multinet_testing::http;

use super::stage::Stage;

/// The resources that the controllers and DNS servers read and write. The API server alone requests
/// the others.
const RESOURCES: [&str; 11] = [
    "multinetworkservices",
    "multinetworkendpointslices",
    "endpointslices",
    "events",
    "network-attachment-definitions",
    "nodes",
    "pods",
    "resourceclaims",
    "resourceslices",
    "services",
    "namespaces",
];

/// Verbs of requests that write.
const WRITES: [&str; 5] = ["POST", "PUT", "PATCH", "APPLY", "DELETE"];

/// Numbers of requests, by resource with subresource, and verb. Watches are left out, because the
/// API server counts them when they end.
#[derive(Debug, Clone, Default)]
pub(crate) struct Requests(BTreeMap<(String, String), u64>);

impl Requests {
    /// Counts the requests until now.
    pub(crate) async fn count(stage: &Stage) -> Result<Self> {
        let text = stage.objects.client().request_text(http::request("/metrics")?).await?;
        let mut counts = BTreeMap::new();
        for line in text.lines().filter(|line| line.starts_with("apiserver_request_total{")) {
            let label = |name: &str| {
                let (_, rest) = line.split_once(&format!("{name}=\""))?;
                rest.split_once('"').map(|(value, _)| value)
            };
            let (Some(resource), Some(verb)) = (label(",resource"), label(",verb")) else { continue };
            if !RESOURCES.contains(&resource) || verb == "WATCH" {
                continue;
            }
            let resource = match label("subresource") {
                Some(subresource) if !subresource.is_empty() => format!("{resource}/{subresource}"),
                _ => resource.to_owned(),
            };
            let value: f64 = line.rsplit(' ').next().context("a line without value")?.parse()?;
            *counts.entry((resource, verb.to_owned())).or_default() += value as u64;
        }
        Ok(Self(counts))
    }

    /// Returns the requests after `before`.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let counts = self.0.iter().filter_map(|(key, count)| {
            let new = count - before.0.get(key).copied().unwrap_or_default();
            (new > 0).then(|| (key.clone(), new))
        });
        Self(counts.collect())
    }

    /// Returns the number of all requests.
    pub(crate) fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// Returns the number of writes of this resource (with its subresource).
    pub(crate) fn writes(&self, resource: &str) -> u64 {
        let found = self.0.iter().filter(|((of, verb), _)| of == resource && WRITES.contains(&verb.as_str()));
        found.map(|(_, count)| count).sum()
    }
}
