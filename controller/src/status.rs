//! Status of a service: conditions with reasons, and messages that tell users what to do (pure).

use std::net::IpAddr;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use multinet_crds::conditions::{
    AcceptedReason, AddressConflictReason, ConditionType, EndpointsReadyReason, ProgrammedReason,
    ResolvedRefsReason, remove, upsert,
};
use multinet_crds::syntax::DNS_SUBDOMAIN;
use multinet_crds::validate::Violation;
use multinet_crds::{
    EndpointCounts, MultiNetworkService, MultiNetworkServiceStatus, NetworkCounts, NetworkKind,
};

use crate::conflicts::Conflict;
use crate::endpoints::Collected;
use crate::model::Network;
use crate::name_summary::{MAX_NAMED, NameSummary};
use crate::tally::Tally;

/// A reference in a service that cannot be resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unresolved {
    /// The API server does not serve the network's kind.
    NotServed(Network),
    /// The network does not exist.
    NoNetwork(Network),
    /// The ResourceClaimTemplate is in another namespace than the service.
    ForeignTemplate(Network),
    /// The Service to mirror to does not exist.
    NoMirror(String),
    /// The Service to mirror to cannot be used, for the given reason.
    UnusableMirror(String, &'static str),
}

/// Result of planning a service, which its status reports.
#[derive(Clone, Debug)]
pub(crate) enum Evaluation {
    /// The service breaks rules. Its slices stay as they were.
    Invalid(Vec<Violation>),
    /// The service has no selector. Others write its slices, which contain these endpoints.
    NoSelector(Tally, Vec<Unresolved>),
    /// The service has a selector. Its endpoints have been collected.
    Collected(Box<Collected>, Vec<Unresolved>),
}

/// Returns the status of a service. `written` tells whether the slices could be written, or why
/// not. Conditions of types that the controller does not own are kept.
pub(crate) fn status(
    service: &MultiNetworkService,
    evaluation: &Evaluation,
    written: Result<(), &str>,
    zone: &str,
    now: &Time,
) -> MultiNetworkServiceStatus {
    let mut status = service.status.clone().unwrap_or_default();
    let generation = service.metadata.generation;
    let conditions = &mut status.conditions;
    accepted(conditions, evaluation, generation, now);
    match evaluation {
        Evaluation::Invalid(_) => {
            let message = "the service is not accepted; its slices stay as they were";
            upsert(conditions, ProgrammedReason::Invalid, message, generation, now);
        }
        Evaluation::NoSelector(tally, unresolved) => {
            resolved_refs(conditions, unresolved, generation, now);
            let (reason, message) = match (written, &service.spec.mirror) {
                // The slices that the service had with a selector still exist.
                (Err(why), _) => (ProgrammedReason::WriteFailed, why),
                (Ok(()), None) => (
                    ProgrammedReason::NoSelector,
                    "the service has no selector, so others must write its slices",
                ),
                (Ok(()), Some(_)) => (
                    ProgrammedReason::NoSelector,
                    "the service has no selector, so others must write its slices, and spec.mirror is not filled, since it takes the endpoints that a selector finds; \
                     give the service a selector, or remove spec.mirror",
                ),
            };
            upsert(conditions, reason, message, generation, now);
            let none = "no MultiNetworkEndpointSlice has the label multinetwork.numaproj.io/service-name of this service; write one, \
                        or give the service a selector";
            let (reason, message) =
                endpoints_ready(tally).unwrap_or_else(|| (EndpointsReadyReason::NoSlices, none.to_owned()));
            upsert(conditions, reason, &message, generation, now);
            upsert(conditions, AddressConflictReason::NoConflict, "", generation, now);
            remove(conditions, ConditionType::Capped);
            (status.endpoints, status.networks) = (Some(tally.endpoints), tally.networks.clone());
        }
        Evaluation::Collected(collected, unresolved) => {
            resolved_refs(conditions, unresolved, generation, now);
            match written {
                Ok(()) => {
                    let message = programmed(service, collected);
                    upsert(conditions, ProgrammedReason::Programmed, &message, generation, now);
                    let (reason, message) =
                        endpoints_ready(&collected.tally).unwrap_or_else(|| no_endpoints(collected));
                    upsert(conditions, reason, &message, generation, now);
                    let tally = &collected.tally;
                    (status.endpoints, status.networks) = (Some(tally.endpoints), tally.networks.clone());
                }
                Err(why) => {
                    upsert(conditions, ProgrammedReason::WriteFailed, why, generation, now);
                }
            }
            conflicts(conditions, collected, generation, now);
            let capped = &collected.capped;
            match capped.reason() {
                Some(reason) => drop(upsert(conditions, reason, &capped.message(), generation, now)),
                None => remove(conditions, ConditionType::Capped),
            }
        }
    }
    status.hostname = hostname(service, zone);
    status
}

/// Returns whether two statuses differ only in details that change with every pod: numbers and
/// names of pods and addresses, and condition EndpointsReady. Such changes may wait a moment.
pub(crate) fn differ_in_counts_only(
    old: &MultiNetworkServiceStatus,
    new: &MultiNetworkServiceStatus,
) -> bool {
    let essence = |status: &MultiNetworkServiceStatus| {
        let mut status = status.clone();
        status.endpoints = status.endpoints.map(|_| EndpointCounts::default());
        for counts in &mut status.networks {
            *counts = NetworkCounts { alias: std::mem::take(&mut counts.alias), ..NetworkCounts::default() };
        }
        status.conditions.retain(|condition| condition.type_ != ConditionType::EndpointsReady.as_str());
        for condition in status.conditions.iter_mut().filter(|condition| counts(condition)) {
            condition.message.clear();
        }
        status
    };
    essence(old) == essence(new)
}

/// Returns the parts of a condition whose change is worth an event: the reason, and the message
/// unless it contains counts.
pub(crate) fn event_content(condition: &Condition) -> (&str, &str) {
    (&condition.reason, if counts(condition) { "" } else { &condition.message })
}

/// Returns whether the condition's message contains counts and examples of pods or addresses.
fn counts(condition: &Condition) -> bool {
    let kinds = [ConditionType::Programmed, ConditionType::AddressConflict, ConditionType::Capped];
    kinds.iter().any(|kind| condition.type_ == kind.as_str())
}

fn accepted(conditions: &mut Vec<Condition>, evaluation: &Evaluation, generation: Option<i64>, now: &Time) {
    let Evaluation::Invalid(violations) = evaluation else {
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
    /// Returns the reason of condition ResolvedRefs for this reference.
    pub(crate) fn reason(&self) -> ResolvedRefsReason {
        match self {
            Self::NotServed(_) => ResolvedRefsReason::NetworkKindNotServed,
            Self::NoNetwork(_) => ResolvedRefsReason::NetworkNotFound,
            Self::ForeignTemplate(_) => ResolvedRefsReason::NetworkNotUsable,
            Self::NoMirror(_) => ResolvedRefsReason::MirrorNotFound,
            Self::UnusableMirror(..) => ResolvedRefsReason::MirrorNotUsable,
        }
    }

    /// Returns the message: what is missing, and what to do.
    pub(crate) fn message(&self) -> String {
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
    for ((missing, network), pods) in &collected.missing {
        let network = network.as_ref().map(|alias| format!("{alias}: ")).unwrap_or_default();
        let (count, why, remedy) = (pods.count, missing.message(), missing.remedy());
        parts.push(format!("{network}{count} of {} pods {why} ({pods}): {remedy}", collected.pods));
    }
    if collected.refused.count > 0 {
        let some = &collected.refused;
        parts.push(format!(
            "the mirror leaves out {some}, since Kubernetes' EndpointSlices accept no link-local addresses"
        ));
    }
    parts.join("; ")
}

/// Returns reason and message of condition EndpointsReady; `None` if there are no endpoints.
fn endpoints_ready(tally: &Tally) -> Option<(EndpointsReadyReason, String)> {
    if tally.endpoints.ready > 0 {
        Some((EndpointsReadyReason::EndpointsReady, String::new()))
    } else if tally.endpoints.total > 0 {
        let message = format!(
            "none of the pods with an address is ready ({}), so the name does not exist: see why their condition Ready is not True, or \
             set spec.publishNotReadyAddresses",
            tally.not_ready
        );
        Some((EndpointsReadyReason::NoneReady, message))
    } else {
        None
    }
}

fn no_endpoints(collected: &Collected) -> (EndpointsReadyReason, String) {
    match collected.pods {
        0 => (
            EndpointsReadyReason::NoPods,
            "spec.selector matches no pod, so the name does not exist".to_owned(),
        ),
        pods => {
            let message = format!(
                "none of the {pods} selected pods has an address on these networks, so the name does not exist: see condition Programmed"
            );
            (EndpointsReadyReason::NoAddresses, message)
        }
    }
}

fn conflicts(conditions: &mut Vec<Condition>, collected: &Collected, generation: Option<i64>, now: &Time) {
    let mut parts: Vec<String> = Vec::new();
    let mut causes: Vec<&str> = Vec::new();
    for ((network, address), conflict) in collected.conflicts.iter().take(MAX_NAMED) {
        parts.push(format!("{address} on {network} {}", conflict.message()));
        if !causes.contains(&conflict.remedy()) {
            causes.push(conflict.remedy());
        }
    }
    if collected.conflicts.len() > MAX_NAMED {
        parts.push(format!("{} more addresses are shared", collected.conflicts.len() - MAX_NAMED));
    }
    parts.extend(causes.iter().map(|&remedy| remedy.to_owned()));
    if !collected.elsewhere.is_empty() {
        let shown = |(network, address): &(Network, IpAddr)| format!("{address} on {network}");
        let addresses: NameSummary = collected.elsewhere.iter().map(shown).collect();
        parts.push(format!(
            "pods of other namespaces report {addresses}, too; it stays published here: if those namespaces share the network, give every pod an \
             address of its own"
        ));
    }
    let reason = match (collected.conflicts.is_empty(), collected.elsewhere.is_empty()) {
        (true, true) => AddressConflictReason::NoConflict,
        (true, false) => AddressConflictReason::OtherNamespace,
        (false, _) => AddressConflictReason::DuplicateAddress,
    };
    upsert(conditions, reason, &parts.join("; "), generation, now);
}

impl Conflict {
    fn message(&self) -> String {
        let others = &self.left_out;
        let shared = match &self.claim {
            Some(claim) => format!("is of ResourceClaim {claim}, which several pods share: it "),
            None => String::new(),
        };
        if self.is_answered {
            format!("{shared}is published for pod {}, and not for {others}", self.holder)
        } else {
            format!(
                "{shared}is also reported by {others}, beside pod {}, which is not ready or not selected",
                self.holder
            )
        }
    }

    fn remedy(&self) -> &'static str {
        match self.claim {
            Some(_) => {
                "give every pod a claim of its own, by resourceClaimTemplateName in the place of resourceClaimName"
            }
            None => {
                "give every pod of a network an address of its own: one IPAM range for all nodes (whereabouts, nv-ipam), not host-local \
                 per node"
            }
        }
    }
}

/// Returns the service's host name. Returns `None` if the zone makes it too long for DNS, since the
/// API server would reject it.
fn hostname(service: &MultiNetworkService, zone: &str) -> Option<String> {
    let name = service.metadata.name.as_deref()?;
    let namespace = service.metadata.namespace.as_deref()?;
    Some(format!("{name}.{namespace}.svc.{zone}")).filter(|hostname| DNS_SUBDOMAIN.accepts(hostname))
}

#[cfg(test)]
mod tests;
