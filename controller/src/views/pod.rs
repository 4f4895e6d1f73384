//! The view of a pod.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use multinet_crds::syntax::DNS_LABEL;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};

use super::{Keep, Kind, View};
use crate::model::{self, PodClaim};
use crate::sources::dra::nullable;
use crate::sources::{self, PodAnnotations};

/// View of a pod: its labels, its readiness, and the sources of its addresses.
pub type Pod = View<PodKind>;

/// The kind of [`Pod`].
#[derive(Clone, Debug)]
pub struct PodKind;

impl Kind for PodKind {
    const GROUP: &'static str = "";
    const VERSION: &'static str = "v1";
    const KIND: &'static str = "Pod";
    const PLURAL: &'static str = "pods";
    type Scope = NamespaceResourceScope;
    const LABELS: Keep = Keep::All;
    const ANNOTATIONS: Keep = Keep::If(sources::is_read);
    const OWNERS: bool = true;
    type Spec = PodSpec;
    type Status = PodStatus;
}

/// Fields of a pod's `spec` that the controller reads.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    hostname: Option<String>,
    node_name: Option<String>,
    #[serde(deserialize_with = "nullable")]
    host_network: bool,
    #[serde(deserialize_with = "nullable")]
    resource_claims: Vec<SpecClaim>,
}

/// Claim in a pod's `spec`: by its own name, or by the name of a template.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SpecClaim {
    name: String,
    resource_claim_name: Option<String>,
    resource_claim_template_name: Option<String>,
}

/// Fields of a pod's `status` that the controller reads.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    #[serde(deserialize_with = "nullable")]
    phase: String,
    #[serde(rename = "podIPs", deserialize_with = "nullable")]
    pod_ips: Vec<IgnoredAny>,
    #[serde(rename = "conditions", deserialize_with = "ready")]
    ready: Option<Ready>,
    #[serde(deserialize_with = "nullable")]
    resource_claim_statuses: Vec<StatusClaim>,
    extended_resource_claim_status: Option<ExtendedResourceClaim>,
}

/// Condition Ready of the pod.
#[derive(Clone, Debug)]
struct Ready {
    is_true: bool,
    since: Option<Timestamp>,
}

/// Entry of a pod's status: the ResourceClaim that was made for a claim in the pod's `spec`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StatusClaim {
    name: String,
    resource_claim_name: Option<String>,
}

/// Claim that the scheduler made for extended resources (`resources.limits`) that are backed by a
/// DeviceClass instead of a device plugin.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExtendedResourceClaim {
    resource_claim_name: Option<String>,
}

impl From<Pod> for model::Pod {
    fn from(pod: Pod) -> Self {
        let key = pod.key();
        let View { metadata, spec, status } = pod;
        let report = report(&metadata);
        let machine = machine(&metadata);
        let claims = claims(&spec, status.resource_claim_statuses, status.extended_resource_claim_status);
        Self {
            key,
            uid: metadata.uid.unwrap_or_default(),
            labels: metadata.labels.unwrap_or_default(),
            created: metadata.creation_timestamp.map(|time| time.0),
            terminal: matches!(status.phase.as_str(), "Failed" | "Succeeded"),
            terminating: metadata.deletion_timestamp.is_some(),
            serving: status.ready.as_ref().is_some_and(|ready| ready.is_true),
            serving_changed: status.ready.and_then(|ready| ready.since),
            hostname: spec.hostname.filter(|hostname| DNS_LABEL.accepts(hostname)),
            node: spec.node_name.filter(|node| !node.is_empty()),
            host_network: spec.host_network,
            has_sandbox: !status.pod_ips.is_empty(),
            machine,
            report,
            claims,
        }
    }
}

fn report(metadata: &ObjectMeta) -> model::Report {
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    let report = |annotations| sources::report(&PodAnnotations { namespace, annotations });
    metadata.annotations.as_ref().map(report).unwrap_or_default()
}

/// Returns the uid of the KubeVirt VirtualMachineInstance that is the pod's controller, if one is.
fn machine(metadata: &ObjectMeta) -> Option<String> {
    let mut owners = metadata.owner_references.iter().flatten();
    let is_machine = |owner: &&OwnerReference| {
        owner.controller == Some(true)
            && owner.kind == "VirtualMachineInstance"
            && owner.api_version.starts_with("kubevirt.io/")
    };
    owners.find(is_machine).map(|owner| owner.uid.clone())
}

/// Returns the claims that a pod uses, each once. A claim from a template has no name before it is
/// made. It never gets one if it turned out to be unnecessary; such claims are left out.
fn claims(
    spec: &PodSpec,
    statuses: Vec<StatusClaim>,
    extended: Option<ExtendedResourceClaim>,
) -> Vec<PodClaim> {
    let made_for = |name: &str| {
        let status = statuses.iter().find(|status| status.name == name)?;
        status.resource_claim_name.clone()
    };
    let named = spec.resource_claims.iter().filter_map(|claim| {
        let name = claim.resource_claim_name.clone().or_else(|| made_for(&claim.name))?;
        Some(PodClaim { claim: name, template: claim.resource_claim_template_name.clone() })
    });
    let extended = extended
        .and_then(|extended| extended.resource_claim_name)
        .map(|claim| PodClaim { claim, template: None });
    let mut seen = HashSet::new();
    named
        .chain(extended)
        .filter(|claim| !claim.claim.is_empty() && seen.insert(claim.claim.clone()))
        .collect()
}

/// Deserializes condition Ready from the list of conditions.
fn ready<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Ready>, D::Error> {
    deserializer.deserialize_option(ConditionsVisitor)
}

struct ConditionsVisitor;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Condition<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    status: Cow<'a, str>,
    last_transition_time: Option<Time>,
}

impl<'de> Visitor<'de> for ConditionsVisitor {
    type Value = Option<Ready>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of conditions")
    }

    fn visit_none<E>(self) -> Result<Option<Ready>, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Option<Ready>, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<Ready>, D::Error> {
        deserializer.deserialize_seq(self)
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut conditions: S) -> Result<Option<Ready>, S::Error> {
        let mut ready = None;
        while let Some(condition) = conditions.next_element::<Condition<'de>>()? {
            if condition.kind == "Ready" {
                ready = Some(Ready {
                    is_true: condition.status == "True",
                    since: condition.last_transition_time.map(|time| time.0),
                });
            }
        }
        Ok(ready)
    }
}
