//! The report of all objects that `/debug/state` serves.

use std::sync::Arc;

use multinet_runtime::ObjectKey;
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::Objects;
use crate::store::answers::Freshness;
use crate::store::index::Service;
use crate::store::name::Name;
use crate::store::slice::Slice;
use crate::store::txt;

/// A consistent report of all objects. It is formatted while it is serialized, since the text may
/// have hundreds of megabytes in a large cluster.
#[derive(Debug)]
pub struct StateReport {
    pub(super) freshness: Freshness,
    pub(super) synced: Synced,
    pub(super) zones: Vec<Name>,
    pub(super) objects: Objects,
}

/// Whether the source has delivered all objects of each kind.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Synced {
    pub(super) services: bool,
    pub(super) slices: bool,
}

impl Serialize for StateReport {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Objects { serial, services, slices } = &self.objects;
        let zones: Vec<String> = self.zones.iter().map(Name::to_string).collect();
        let mut report = serializer.serialize_map(None)?;
        report.serialize_entry("freshness", &format!("{:?}", self.freshness))?;
        report.serialize_entry("serial", serial)?;
        report.serialize_entry("services", &Rows(services, service_row))?;
        report.serialize_entry("slices", &Rows(slices, slice_row))?;
        report.serialize_entry("synced", &self.synced)?;
        report.serialize_entry("zones", &zones)?;
        report.end()
    }
}

/// Serializes a list, and converts each element to its row only when that is written.
struct Rows<'a, T>(&'a [T], fn(&T) -> Value);

impl<T> Serialize for Rows<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(self.1))
    }
}

fn service_row((key, service): &(ObjectKey, Service)) -> Value {
    json!({ "name": key.name, "namespace": key.namespace, "ttl": service.ttl })
}

fn slice_row((key, slice): &(ObjectKey, Arc<Slice>)) -> Value {
    let endpoints = slice.endpoints.iter().map(|endpoint| {
        json!({ "address": endpoint.address, "host": endpoint.host(), "txt": txt::strings(endpoint.txt) })
    });
    let ports = slice.ports.iter().map(|port| {
        let protocol = format!("_{}", port.protocol.as_str().to_lowercase());
        json!({ "name": port.name, "port": port.number, "protocol": protocol })
    });
    json!({
        "endpoints": endpoints.collect::<Vec<_>>(),
        "name": key.name,
        "namespace": key.namespace,
        "network": slice.network,
        "notReady": slice.not_ready,
        "ports": ports.collect::<Vec<_>>(),
        "service": slice.service,
        "vertex": slice.vertex,
    })
}
