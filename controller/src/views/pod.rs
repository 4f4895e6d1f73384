//! The view of a pod.

use std::collections::HashSet;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use multinet_crds::syntax::DNS_LABEL;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{Kind, View};
use crate::model::{self, PodClaim};
use crate::sources::dra::nullable;
use crate::sources::{self, PodAnnotations};

/// View of a pod: its labels, its readiness, and the sources of its addresses.
pub type PodView = View<PodKind>;

/// The kind of [`PodView`].
#[derive(Clone, Debug)]
pub struct PodKind;

impl Kind for PodKind {
    type Object = Pod;
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
    #[serde(deserialize_with = "nullable")]
    conditions: Vec<PodCondition>,
    #[serde(deserialize_with = "nullable")]
    resource_claim_statuses: Vec<StatusClaim>,
    extended_resource_claim_status: Option<ExtendedResourceClaim>,
}

/// Condition in a pod's status.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodCondition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    last_transition_time: Option<Time>,
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

impl From<PodView> for model::Pod {
    fn from(pod: PodView) -> Self {
        let key = pod.key();
        let View { metadata, spec, status } = pod;
        let ready = status.conditions.iter().rfind(|condition| condition.kind == "Ready");
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
            serving: ready.is_some_and(|ready| ready.status == "True"),
            serving_changed: ready.and_then(|ready| Some(ready.last_transition_time.as_ref()?.0)),
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
