//! What a service's status says: conditions with reasons, and messages that say what to do (pure).

use std::fmt::Write as _;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use multinet_crds::conditions::{
    AcceptedReason, AddressConflictReason, ConditionType, ProgrammedReason, ResolvedRefsReason, upsert,
};
use multinet_crds::syntax::DNS_SUBDOMAIN;
use multinet_crds::validate::Violation;
use multinet_crds::{EndpointCounts, MultiNetworkService, MultiNetworkServiceStatus, NetworkKind};

use crate::endpoints::{Collected, LeftOut};
use crate::model::Network;

/// How many pods or conflicts a message names before it only counts.
const NAMED: usize = 3;

/// A reference of a service that leads nowhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unresolved {
    /// The API server does not serve the network's kind.
    NotServed(Network),
    /// There is no such network.
    NoNetwork(Network),
    /// It is a ResourceClaimTemplate of another namespace than the service's.
    ForeignTemplate(Network),
    /// There is no such Service to mirror to.
    NoMirror(String),
    /// The Service to mirror to cannot be used, and why.
    UnusableMirror(String, &'static str),
}

/// What became of a service.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// It breaks rules; its slices stay as they were.
    Invalid(Vec<Violation>),
    /// It has no selector: its slices are somebody else's.
    NoSelector(Vec<Unresolved>),
    /// It has endpoints, or could have.
    Collected(Box<Collected>, Vec<Unresolved>),
}

/// The status that follows from the verdict. `written`: whether the slices could be written, else why not. Conditions of
/// types that are not ours stay as they are in the service.
pub fn status(
    service: &MultiNetworkService,
    verdict: &Verdict,
    written: Result<(), &str>,
    zone: &str,
    now: &Time,
) -> MultiNetworkServiceStatus {
    let mut status = service.status.clone().unwrap_or_default();
    let generation = service.metadata.generation;
    let conditions = &mut status.conditions;
    accepted(conditions, verdict, generation, now);
    match verdict {
        Verdict::Invalid(_) => {
            let message = "the service is not accepted; its slices stay as they were";
            upsert(conditions, ProgrammedReason::Invalid, message, generation, now);
        }
        Verdict::NoSelector(unresolved) => {
            resolved_refs(conditions, unresolved, generation, now);
            let (reason, message) = match (written, &service.spec.mirror) {
                // What it had when it had a selector is still there.
                (Err(why), _) => (ProgrammedReason::WriteFailed, why),
                (Ok(()), None) => (
                    ProgrammedReason::NoSelector,
                    "the service has no selector: its slices are somebody else's to write",
                ),
                (Ok(()), Some(_)) => (
                    ProgrammedReason::NoSelector,
                    "the service has no selector: its slices are somebody else's to write, and nobody fills spec.mirror, which takes what a selector finds; \
                     give the service a selector, or remove spec.mirror",
                ),
            };
            upsert(conditions, reason, message, generation, now);
            upsert(conditions, AddressConflictReason::NoConflict, "", generation, now);
            status.endpoints = None;
        }
        Verdict::Collected(collected, unresolved) => {
            resolved_refs(conditions, unresolved, generation, now);
            match written {
                Ok(()) => {
                    let message = programmed(service, collected);
                    upsert(conditions, ProgrammedReason::Programmed, &message, generation, now);
                    status.endpoints = Some(collected.counts);
                }
                Err(why) => {
                    upsert(conditions, ProgrammedReason::WriteFailed, why, generation, now);
                }
            }
            conflicts(conditions, collected, generation, now);
        }
    }
    status.hostname = hostname(service, zone);
    status
}

/// Whether two statuses differ in no more than numbers: how many endpoints, which pods are none, and which share addresses.
/// Those may wait a moment, since they change with every pod.
pub fn differ_in_counts_only(old: &MultiNetworkServiceStatus, new: &MultiNetworkServiceStatus) -> bool {
    let essence = |status: &MultiNetworkServiceStatus| {
        let mut status = status.clone();
        status.endpoints = status.endpoints.map(|_| EndpointCounts::default());
        for condition in status.conditions.iter_mut().filter(|condition| counts(condition)) {
            condition.message.clear();
        }
        status
    };
    essence(old) == essence(new)
}

/// What a condition says that is news: its reason, and what it explains, unless that changes with every pod.
pub fn news(condition: &Condition) -> (&str, &str) {
    (&condition.reason, if counts(condition) { "" } else { &condition.message })
}

/// Whether the condition's message names some pods or addresses, and counts the others.
fn counts(condition: &Condition) -> bool {
    let kinds = [ConditionType::Programmed, ConditionType::AddressConflict];
    kinds.iter().any(|kind| condition.type_ == kind.as_str())
}

fn accepted(conditions: &mut Vec<Condition>, verdict: &Verdict, generation: Option<i64>, now: &Time) {
    let Verdict::Invalid(violations) = verdict else {
        upsert(conditions, AcceptedReason::Accepted, "", generation, now);
        return;
    };
    let message = violations.iter().map(Violation::to_string).collect::<Vec<_>>().join("; ");
    upsert(conditions, AcceptedReason::Invalid, &message, generation, now);
}

fn resolved_refs(
    conditions: &mut Vec<Condition>,
    unresolved: &[Unresolved],
    generation: Option<i64>,
    now: &Time,
) {
    let reason = unresolved.first().map_or(ResolvedRefsReason::ResolvedRefs, Unresolved::reason);
    let message = unresolved.iter().map(Unresolved::message).collect::<Vec<_>>().join("; ");
    upsert(conditions, reason, &message, generation, now);
}

impl Unresolved {
    /// The reason of the condition.
    pub fn reason(&self) -> ResolvedRefsReason {
        match self {
            Self::NotServed(_) => ResolvedRefsReason::NetworkKindNotServed,
            Self::NoNetwork(_) => ResolvedRefsReason::NetworkNotFound,
            Self::ForeignTemplate(_) => ResolvedRefsReason::NetworkNotUsable,
            Self::NoMirror(_) => ResolvedRefsReason::MirrorNotFound,
            Self::UnusableMirror(..) => ResolvedRefsReason::MirrorNotUsable,
        }
    }

    /// What is missing, and what to do.
    pub fn message(&self) -> String {
        match self {
            Self::NotServed(network) => {
                let install = match network.kind {
                    NetworkKind::NetworkAttachmentDefinition => {
                        "install Multus with its CustomResourceDefinition network-attachment-definitions.k8s.cni.cncf.io"
                    }
                    NetworkKind::DeviceClass | NetworkKind::ResourceClaimTemplate => {
                        "enable dynamic resource allocation (API group resource.k8s.io)"
                    }
                };
                format!("the API server does not serve the kind of {network}; {install}")
            }
            Self::NoNetwork(network) => {
                format!("{network} does not exist; create it, or correct spec.networks")
            }
            Self::ForeignTemplate(network) => format!(
                "{network} is in another namespace: pods use only those of their own; remove the namespace from spec.networks"
            ),
            Self::NoMirror(name) => format!(
                "Service {name} to mirror to does not exist; create it with clusterIP: None and without selector"
            ),
            Self::UnusableMirror(name, why) => format!(
                "Service {name} cannot be mirrored to: {why}; use one with clusterIP: None and without selector"
            ),
        }
    }
}

fn programmed(service: &MultiNetworkService, collected: &Collected) -> String {
    let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
    if collected.pods == 0 {
        return format!(
            "spec.selector matches no pod of namespace {namespace}; correct it, or label the pods that it is meant for"
        );
    }
    let mut parts = Vec::new();
    for reason in [LeftOut::NoAddress, LeftOut::HostNetwork, LeftOut::Unreadable] {
        let pods = collected.left_out.iter().filter(|(_, why)| *why == reason).map(|(pod, _)| pod.as_str());
        let pods: Vec<&str> = pods.collect();
        if !pods.is_empty() {
            let (count, why, some) = (pods.len(), reason.message(), few(&pods));
            let remedy = reason.remedy();
            parts.push(format!("{count} of {} pods {why} ({some}): {remedy}", collected.pods));
        }
    }
    if let Some(mirror) = &service.spec.mirror {
        let addresses = collected.not_mirrored(mirror.network.as_deref());
        if !addresses.is_empty() {
            let some = few(&addresses);
            parts.push(format!("not mirrored, as core EndpointSlices take no link-local addresses: {some}"));
        }
    }
    parts.join("; ")
}

impl LeftOut {
    fn message(self) -> &'static str {
        match self {
            Self::NoAddress => "have no address on these networks",
            Self::HostNetwork => "have their node's network (hostNetwork) and no other",
            Self::Unreadable => "have a network-status annotation that cannot be read",
        }
    }

    fn remedy(self) -> &'static str {
        match self {
            Self::NoAddress => {
                "name the network in annotation k8s.v1.cni.cncf.io/networks or in a resource claim of the pod; \
                 if it is named there, see its events"
            }
            Self::HostNetwork => "remove hostNetwork from the pod",
            Self::Unreadable => "see the pod's events",
        }
    }
}

fn conflicts(conditions: &mut Vec<Condition>, collected: &Collected, generation: Option<i64>, now: &Time) {
    if collected.conflicts.is_empty() {
        upsert(conditions, AddressConflictReason::NoConflict, "", generation, now);
        return;
    }
    let mut message = String::new();
    // Writing to a String cannot fail.
    for ((network, address), conflict) in collected.conflicts.iter().take(NAMED) {
        let others: Vec<String> = conflict.left_out.iter().map(ToString::to_string).collect();
        let others: Vec<&str> = others.iter().map(String::as_str).collect();
        let _ = write!(
            message,
            "{address} on {network} is published for pod {}, which had it first, and not for {}; ",
            conflict.kept,
            few(&others)
        );
    }
    if collected.conflicts.len() > NAMED {
        let _ = write!(message, "{} more addresses are shared; ", collected.conflicts.len() - NAMED);
    }
    message.push_str("give every pod of a network an address of its own: one IPAM range for all nodes (whereabouts, nv-ipam), not host-local per node");
    upsert(conditions, AddressConflictReason::DuplicateAddress, &message, generation, now);
}

/// The first few, and how many more there are.
fn few(names: &[&str]) -> String {
    let mut text = names.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
    if names.len() > NAMED {
        let _ = write!(text, " and {} more", names.len() - NAMED);
    }
    text
}

/// The name to ask for, if there is one: below a long zone it may be too long for DNS, which the API server would refuse.
fn hostname(service: &MultiNetworkService, zone: &str) -> Option<String> {
    let name = service.metadata.name.as_deref()?;
    let namespace = service.metadata.namespace.as_deref()?;
    Some(format!("{name}.{namespace}.svc.{zone}")).filter(|hostname| DNS_SUBDOMAIN.accepts(hostname))
}

#[cfg(test)]
mod tests;
