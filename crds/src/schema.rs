//! Parts of the CRDs' schemas that do not follow from the Rust types: kinds of text, ranges, and
//! core types with their bounds.
//!
//! Optional fields get the schema of their value, not a nullable one. The API server then drops a
//! null as if the field were absent, as in core types, and CEL rules need not handle null.

use schemars::{Schema, SchemaGenerator, json_schema};

use crate::syntax::{self, TextKind};

/// Bounds of `spec.ports[].port`.
pub(crate) const PORTS: std::ops::RangeInclusive<u16> = 1..=u16::MAX;
/// Bounds of `spec.ttlSeconds`.
pub(crate) const TTL_SECONDS: std::ops::RangeInclusive<u16> = 0..=3600;
/// Bounds of `spec.endpoints[].device.numaNode`; the kernel's MAX_NUMNODES is at most 1024.
pub(crate) const NUMA_NODES: std::ops::RangeInclusive<u16> = 0..=1023;
/// Length of the longest IPv6 address as text: INET6_ADDRSTRLEN less the final zero.
pub(crate) const ADDRESS_LENGTH: usize = 45;
/// Limit of labels, of expressions, and of values per expression in a selector.
pub(crate) const SELECTOR_ITEMS: usize = 64;
/// Length limit of a condition's message, as in metav1.Condition.
pub(crate) const MESSAGE_LENGTH: usize = 32_768;

/// Declares functions for `#[schemars(schema_with = "…")]`, one per kind of text or field.
macro_rules! texts {
    ($check:ident { $($name:ident: $text:ident,)* }) => {
        $(pub(crate) fn $name(_: &mut SchemaGenerator) -> Schema {
            $check(&syntax::$text)
        })*
    };
}

texts! {
    rule_text {
        dns_label: DNS_LABEL,
        dns_subdomain: DNS_SUBDOMAIN,
        port_name: PORT_NAME,
        qualified_name: QUALIFIED_NAME,
    }
}

// Texts of every endpoint. Checked by rules instead of patterns, a write of a slice would cost the
// API server a fifth more.
texts! {
    pattern_text {
        node_name: DNS_SUBDOMAIN,
        zone: LABEL_VALUE,
        target_kind: KIND,
        target_namespace: DNS_LABEL,
        target_name: DNS_SUBDOMAIN,
        target_uid: UID,
        interface: INTERFACE,
        mac: MAC,
        rdma_device: RDMA_DEVICE,
        pci_address: PCI_ADDRESS,
    }
}

/// Returns the schema of a text that a rule checks, whose message says in words what is allowed.
///
/// maxLength bounds the estimated cost of the rule. It is wider than the rule's own bound: if
/// maxLength is exceeded, the API server checks no rules, and reports that for the field `<nil>`.
fn rule_text(kind: &TextKind) -> Schema {
    json_schema!({
        "type": "string",
        "maxLength": 4 * kind.max(),
        "x-kubernetes-validations": [{"rule": rule("self", kind), "message": format!("must be {kind}")}],
    })
}

/// Returns the schema of a text that a pattern checks. That is cheaper than a rule, but the API
/// server's message shows only the pattern.
fn pattern_text(kind: &TextKind) -> Schema {
    json_schema!({"type": "string", "maxLength": kind.max(), "pattern": kind.pattern()})
}

/// Returns the CEL condition that the text in `variable` is of this kind.
pub(crate) fn rule(variable: &str, kind: &TextKind) -> String {
    format!("{variable}.size() <= {} && {variable}.matches(r'{}')", kind.max(), kind.pattern())
}

pub(crate) fn port_number(_: &mut SchemaGenerator) -> Schema {
    integer(*PORTS.start(), *PORTS.end())
}

pub(crate) fn ttl_seconds(_: &mut SchemaGenerator) -> Schema {
    integer(*TTL_SECONDS.start(), *TTL_SECONDS.end())
}

pub(crate) fn numa_node(_: &mut SchemaGenerator) -> Schema {
    integer(*NUMA_NODES.start(), *NUMA_NODES.end())
}

fn integer(minimum: u16, maximum: u16) -> Schema {
    json_schema!({"type": "integer", "format": "int32", "minimum": minimum, "maximum": maximum})
}

pub(crate) fn count(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "integer", "format": "int64", "minimum": 0, "maximum": u32::MAX})
}

/// Returns the schema of a list of exactly one address. A rule of the slice's spec checks its
/// family.
pub(crate) fn addresses(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "minItems": 1,
        "maxItems": 1,
        "items": {"type": "string", "maxLength": ADDRESS_LENGTH},
    })
}

/// Returns the schema of metav1.LabelSelector, with the bounds and rules that core types check in
/// Go.
pub(crate) fn label_selector(_: &mut SchemaGenerator) -> Schema {
    let key = rule_text(&syntax::QUALIFIED_NAME);
    let value = rule_text(&syntax::LABEL_VALUE);
    json_schema!({
        "type": "object",
        "x-kubernetes-map-type": "atomic",
        "properties": {
            "matchLabels": {
                "description": "Labels that a pod must have, with these values.",
                "type": "object",
                "maxProperties": SELECTOR_ITEMS,
                "additionalProperties": value,
                "x-kubernetes-validations": [{
                    "rule": format!("self.all(k, {})", rule("k", &syntax::QUALIFIED_NAME)),
                    "message": format!("every key must be {}", syntax::QUALIFIED_NAME),
                }],
            },
            "matchExpressions": {
                "description": "Requirements on a pod's labels, all of which must hold.",
                "type": "array",
                "maxItems": SELECTOR_ITEMS,
                "x-kubernetes-list-type": "atomic",
                "items": {
                    "description": "A requirement on one label.",
                    "type": "object",
                    "required": ["key", "operator"],
                    "properties": {
                        "key": with_description(key, "Key of the label: a qualified name of at most 253 characters."),
                        "operator": {
                            "description": "In, NotIn, Exists or DoesNotExist.",
                            "type": "string",
                            "enum": ["In", "NotIn", "Exists", "DoesNotExist"],
                        },
                        "values": {
                            "description": "Values of the label: at least one for In and NotIn, none for Exists and DoesNotExist.",
                            "type": "array",
                            "maxItems": SELECTOR_ITEMS,
                            "x-kubernetes-list-type": "atomic",
                            "items": value,
                        },
                    },
                    "x-kubernetes-validations": [
                        {
                            "rule": "!(self.operator in ['In', 'NotIn']) || (has(self.values) && self.values.size() > 0)",
                            "message": "values must not be empty for operator In or NotIn",
                            "fieldPath": ".values",
                            "reason": "FieldValueRequired",
                        },
                        {
                            "rule": "!(self.operator in ['Exists', 'DoesNotExist']) || !has(self.values) || self.values.size() == 0",
                            "message": "values must be empty for operator Exists or DoesNotExist",
                            "fieldPath": ".values",
                            "reason": "FieldValueForbidden",
                        },
                    ],
                },
            },
        },
    })
}

/// Returns the schema of a list of metav1.Condition, with its bounds in Go.
pub(crate) fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 16,
        "items": {
            "description": "One aspect of the state of the object.",
            "type": "object",
            "required": ["type", "status", "lastTransitionTime", "reason", "message"],
            "properties": {
                "type": {
                    "description": "Accepted, ResolvedRefs, Programmed, EndpointsReady, AddressConflict or Capped.",
                    "type": "string",
                    "maxLength": 316,
                    "pattern": concat!(
                        r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?",
                        r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
                    ),
                },
                "status": {
                    "description": "True, False or Unknown.",
                    "type": "string",
                    "enum": ["True", "False", "Unknown"],
                },
                "observedGeneration": {
                    "description": "The metadata.generation that the condition is based on.",
                    "type": "integer",
                    "format": "int64",
                    "minimum": 0,
                },
                "lastTransitionTime": {
                    "description": "Time at which the status last changed.",
                    "type": "string",
                    "format": "date-time",
                },
                "reason": {
                    "description": "Reason for the status, as one CamelCase word.",
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 1024,
                    "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
                },
                "message": {
                    "description": "Explanation for people, with a remedy where one is needed.",
                    "type": "string",
                    "maxLength": MESSAGE_LENGTH,
                },
            },
        },
    })
}

fn with_description(mut schema: Schema, description: &str) -> Schema {
    schema.insert("description".to_owned(), description.into());
    schema
}
