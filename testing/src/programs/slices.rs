//! What a service's slices say, ours and those of Kubernetes itself, one line for each endpoint.
//!
//! A line is `rail0 192.168.111.5 infer-0 rs-`: alias of the network (core slices have none), address, pod, and one letter
//! for each condition that is true: **r**eady, **s**erving, **t**erminating.

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

/// Label of our slices: the service that they belong to.
pub const SERVICE_NAME: &str = "multinetwork.numaproj.io/service-name";
/// Label of our slices: who writes them.
pub const MANAGED_BY: &str = "multinetwork.numaproj.io/managed-by";
/// The controller's value of that label.
pub const CONTROLLER: &str = "multinet-controller";
/// Label of core slices: the Service that they belong to.
pub const CORE_SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Label of core slices: who writes them.
pub const CORE_MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";

/// One of our objects of that kind, by its plural.
pub fn api(client: Client, namespace: &str, kind: &str) -> Result<Api<DynamicObject>> {
    let kind = GroupVersionKind::try_from(&types(kind))?;
    let plural = format!("{}s", kind.kind.to_lowercase());
    Ok(Api::namespaced_with(client, namespace, &ApiResource::from_gvk_with_plural(&kind, &plural)))
}

/// The slices of one service.
#[derive(Clone)]
pub struct Slices<K> {
    api: Api<K>,
    selector: String,
    lines: fn(&K) -> Vec<String>,
}

impl Slices<DynamicObject> {
    /// Those of a MultiNetworkService, whoever writes them.
    pub fn of(namespace: &Namespace, service: &str) -> Result<Self> {
        let api = api(namespace.objects().client(), namespace.name(), SLICE)?;
        Ok(Self { api, selector: format!("{SERVICE_NAME}={service}"), lines })
    }
}

impl Slices<EndpointSlice> {
    /// Those of a core Service, whoever writes them.
    pub fn of_core(namespace: &Namespace, service: &str) -> Self {
        let api = Api::namespaced(namespace.objects().client(), namespace.name());
        Self { api, selector: format!("{CORE_SERVICE_NAME}={service}"), lines: core_lines }
    }
}

impl<K: Clone + std::fmt::Debug + DeserializeOwned + Resource> Slices<K> {
    /// Only those that also have this label.
    #[must_use]
    pub fn with_label(mut self, key: &str, value: &str) -> Self {
        self.selector = format!("{},{key}={value}", self.selector);
        self
    }

    /// The API below.
    pub fn api(&self) -> &Api<K> {
        &self.api
    }

    /// The slices, by name.
    pub async fn list(&self) -> Result<Vec<K>> {
        Ok(self.api.list(&ListParams::default().labels(&self.selector)).await?.items)
    }

    /// The version of each slice.
    pub async fn versions(&self) -> Result<BTreeMap<String, String>> {
        versions(&self.list().await?)
    }

    /// The lines of these slices, sorted. An endpoint that stands in two slices comes twice.
    pub fn lines(&self, slices: &[K]) -> Vec<String> {
        let mut lines: Vec<String> = slices.iter().flat_map(self.lines).collect();
        lines.sort_unstable();
        lines
    }

    /// The lines of all slices.
    pub async fn endpoints(&self) -> Result<Vec<String>> {
        Ok(self.lines(&self.list().await?))
    }

    /// Waits until these are the lines of all slices, in any order.
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

    /// Waits until there is no slice.
    pub async fn are_gone(&self) -> Result<()> {
        eventually(&format!("the slices {} to be gone", self.selector), BOUND, async || {
            let found = self.versions().await?;
            ensure!(found.is_empty(), "there are {found:?}");
            Ok(())
        })
        .await
    }

    /// The one slice.
    pub async fn only(&self) -> Result<K> {
        let mut found = self.list().await?;
        ensure!(found.len() == 1, "{} slices {} instead of one", found.len(), self.selector);
        found.pop().context("no slice")
    }

    /// Merges this into a slice, as somebody with `kubectl edit` would.
    pub async fn edit(&self, name: &str, patch: Value) -> Result<K> {
        let patched = self.api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        patched.with_context(|| format!("cannot edit the slice {name}"))
    }
}

/// The version of each slice.
pub fn versions<K: Resource>(slices: &[K]) -> Result<BTreeMap<String, String>> {
    let versions = slices.iter().map(|slice| {
        let metadata = slice.meta();
        Some((metadata.name.clone()?, metadata.resource_version.clone()?))
    });
    versions.collect::<Option<_>>().context("a slice without name or version")
}

/// What is missing and what is too much, each at most a few lines.
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
        show("too many", surplus.collect()),
        show("twice", doubled.collect()),
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

/// Both kinds of endpoint have the same fields.
fn line(endpoint: &Value) -> String {
    let addresses = endpoint["addresses"].as_array().map(Vec::as_slice).unwrap_or_default();
    let addresses: Vec<&str> = addresses.iter().filter_map(Value::as_str).collect();
    let pod = endpoint["targetRef"]["name"].as_str().unwrap_or("?");
    let conditions = &endpoint["conditions"];
    // What stands there if it is absent.
    let flags = [("ready", 'r', true), ("serving", 's', true), ("terminating", 't', false)];
    let flags = flags.map(
        |(name, letter, absent)| {
            if conditions[name].as_bool().unwrap_or(absent) { letter } else { '-' }
        },
    );
    format!("{} {pod} {}", addresses.join(","), String::from_iter(flags))
}
