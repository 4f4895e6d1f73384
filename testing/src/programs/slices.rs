//! Slices of a service, our own and those of Kubernetes, as text with one line per endpoint.
//!
//! A line is `rail0 192.168.111.5 infer-0 rs-`: alias of the network (core slices have none),
//! address, pod, and a letter for each true condition: **r**eady, **s**erving, **t**erminating.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind, Resource};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::manifests::{SLICE, types};
use crate::objects::Namespace;
use crate::replica::BOUND;
use crate::wait::eventually;

/// Label of our slices: the service.
pub const SERVICE_NAME: &str = "multinetwork.numaproj.io/service-name";
/// Label of our slices: the program that writes them.
pub const MANAGED_BY: &str = "multinetwork.numaproj.io/managed-by";
/// Value of [`MANAGED_BY`] on the controller's slices.
pub const CONTROLLER: &str = "multinet-controller";
/// Label of core slices: the Service.
pub const CORE_SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Label of core slices: the program that writes them.
pub const CORE_MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";

/// Returns the API of one of our kinds, by its plural.
pub fn api(client: Client, namespace: &str, kind: &str) -> Result<Api<DynamicObject>> {
    let kind = GroupVersionKind::try_from(&types(kind))?;
    let plural = format!("{}s", kind.kind.to_lowercase());
    Ok(Api::namespaced_with(client, namespace, &ApiResource::from_gvk_with_plural(&kind, &plural)))
}

/// Slices of one service.
#[derive(Clone)]
pub struct Slices<K> {
    api: Api<K>,
    selector: String,
    lines: fn(&K) -> Vec<String>,
}

impl Slices<DynamicObject> {
    /// Returns the slices of a MultiNetworkService, of all writers.
    pub fn of(namespace: &Namespace, service: &str) -> Result<Self> {
        let api = api(namespace.objects().client(), namespace.name(), SLICE)?;
        Ok(Self { api, selector: format!("{SERVICE_NAME}={service}"), lines })
    }
}

impl Slices<EndpointSlice> {
    /// Returns the slices of a core Service, of all writers.
    pub fn of_core(namespace: &Namespace, service: &str) -> Self {
        let api = Api::namespaced(namespace.objects().client(), namespace.name());
        Self { api, selector: format!("{CORE_SERVICE_NAME}={service}"), lines: core_lines }
    }
}

impl<K: Clone + std::fmt::Debug + DeserializeOwned + Resource> Slices<K> {
    /// Restricts the slices to those that also have this label.
    #[must_use]
    pub fn with_label(mut self, key: &str, value: &str) -> Self {
        self.selector = format!("{},{key}={value}", self.selector);
        self
    }

    /// Returns the API.
    pub fn api(&self) -> &Api<K> {
        &self.api
    }

    /// Returns the slices, sorted by name.
    pub async fn list(&self) -> Result<Vec<K>> {
        Ok(self.api.list(&ListParams::default().labels(&self.selector)).await?.items)
    }

    /// Returns the version of each slice.
    pub async fn versions(&self) -> Result<BTreeMap<String, String>> {
        versions(&self.list().await?)
    }

    /// Returns the lines of these slices, sorted. An endpoint in two slices appears twice.
    pub fn lines(&self, slices: &[K]) -> Vec<String> {
        let mut lines: Vec<String> = slices.iter().flat_map(self.lines).collect();
        lines.sort_unstable();
        lines
    }

    /// Returns the lines of all slices.
    pub async fn endpoints(&self) -> Result<Vec<String>> {
        Ok(self.lines(&self.list().await?))
    }

    /// Waits until the lines of all slices are these, in any order.
    pub async fn are<L: AsRef<str>>(&self, expected: &[L]) -> Result<()> {
        let mut expected: Vec<&str> = expected.iter().map(AsRef::as_ref).collect();
        expected.sort_unstable();
        let what = format!("{} to be {} endpoints", self.selector, expected.len());
        eventually(&what, BOUND, async || {
            let found = self.endpoints().await?;
            ensure!(found == expected, "{}", difference(&expected, &found));
            Ok(())
        })
        .await
    }

    /// Waits until no slice exists.
    pub async fn are_gone(&self) -> Result<()> {
        eventually(&format!("the slices {} to be gone", self.selector), BOUND, async || {
            let found = self.versions().await?;
            ensure!(found.is_empty(), "left are {found:?}");
            Ok(())
        })
        .await
    }

    /// Returns the only slice.
    pub async fn only(&self) -> Result<K> {
        let mut found = self.list().await?;
        ensure!(found.len() == 1, "{} slices {} instead of one", found.len(), self.selector);
        found.pop().context("no slice")
    }

    /// Merges `patch` into a slice, like a user with `kubectl edit`.
    pub async fn edit(&self, name: &str, patch: Value) -> Result<K> {
        let patched = self.api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        patched.with_context(|| format!("cannot edit the slice {name}"))
    }
}

/// Returns the version of each slice.
pub fn versions<K: Resource>(slices: &[K]) -> Result<BTreeMap<String, String>> {
    let versions = slices.iter().map(|slice| {
        let metadata = slice.meta();
        Some((metadata.name.clone()?, metadata.resource_version.clone()?))
    });
    versions.collect::<Option<_>>().context("a slice without name or version")
}

/// Describes missing, surplus and duplicate lines, at most 20 of each.
fn difference(expected: &[&str], found: &[String]) -> String {
    const SHOWN: usize = 20;
    let show = |title: &str, lines: Vec<&str>| match lines.len() {
        0 => String::new(),
        count => format!("\n{count} {title}:\n  {}", lines[..count.min(SHOWN)].join("\n  ")),
    };
    let missing = expected.iter().filter(|line| !found.iter().any(|found| found == *line)).copied();
    let surplus = found.iter().map(String::as_str).filter(|line| !expected.contains(line));
    let doubled = found.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0].as_str());
    [
        show("missing", missing.collect()),
        show("unexpected", surplus.collect()),
        show("repeated", doubled.collect()),
    ]
    .concat()
}

fn lines(slice: &DynamicObject) -> Vec<String> {
    let spec = &slice.data["spec"];
    let alias = spec["network"]["alias"].as_str().unwrap_or("?");
    let endpoints = spec["endpoints"].as_array().map(Vec::as_slice).unwrap_or_default();
    endpoints.iter().map(|endpoint| format!("{alias} {}", line(endpoint))).collect()
}

fn core_lines(slice: &EndpointSlice) -> Vec<String> {
    slice.endpoints.iter().map(|endpoint| line(&serde_json::json!(endpoint))).collect()
}

/// Returns the lines of a core slice, whose endpoints have the same fields as ours.
fn line(endpoint: &Value) -> String {
    let addresses = endpoint["addresses"].as_array().map(Vec::as_slice).unwrap_or_default();
    let addresses: Vec<&str> = addresses.iter().filter_map(Value::as_str).collect();
    let pod = endpoint["targetRef"]["name"].as_str().unwrap_or("?");
    let conditions = &endpoint["conditions"];
    // The defaults of absent conditions.
    let flags = [("ready", 'r', true), ("serving", 's', true), ("terminating", 't', false)];
    let flags = flags.map(
        |(name, letter, absent)| {
            if conditions[name].as_bool().unwrap_or(absent) { letter } else { '-' }
        },
    );
    format!("{} {pod} {}", addresses.join(","), String::from_iter(flags))
}
