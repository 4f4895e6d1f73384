//! Endpoints as JSON. The field names are documented in `multinet resolve --help`, and stay. Pure.

use multinet_client::{Endpoint, Resolved};
use serde::Serialize;
use serde_json::Result;

use super::change::{Difference, EndpointChange};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ResolvedView<'a> {
    name: &'a str,
    ttl_seconds: u64,
    endpoints: &'a [Endpoint],
}

#[derive(Serialize)]
struct ChangeView<'a> {
    change: EndpointChange,
    endpoint: &'a Endpoint,
}

#[derive(Serialize)]
struct StateView<'a> {
    change: &'a str,
    error: Option<&'a str>,
}

/// Returns a service's endpoints as one JSON object, on several lines.
pub(super) fn once(Resolved { name, endpoints, ttl, .. }: &Resolved) -> Result<String> {
    let view = ResolvedView { name, ttl_seconds: ttl.as_secs(), endpoints };
    Ok(serde_json::to_string_pretty(&view)? + "\n")
}

/// Returns a line of JSON for each change of an endpoint.
pub(super) fn changes(changes: &[Difference<'_>]) -> Result<String> {
    let line = |&(change, endpoint): &Difference<'_>| {
        Ok(serde_json::to_string(&ChangeView { change, endpoint })? + "\n")
    };
    changes.iter().map(line).collect()
}

/// Returns a line of JSON for a change of DNS's state: held, recovered or lost.
pub(super) fn state(change: &str, error: Option<&str>) -> Result<String> {
    Ok(serde_json::to_string(&StateView { change, error })? + "\n")
}
