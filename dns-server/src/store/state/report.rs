//! The report of all objects that `/debug/state` serves.

use std::net::IpAddr;
use std::sync::Arc;

use multinet_runtime::ObjectKey;
use serde::{Serialize, Serializer};

use super::Objects;
use crate::store::answers::Freshness;
use crate::store::endpoints::Endpoints;
use crate::store::index::Service;
use crate::store::name::Name;
use crate::store::slice::{Port, Slice};
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
        #[derive(Serialize)]
        struct Lines<'a> {
            freshness: String,
            serial: u32,
            services: EachAs<'a, (ObjectKey, Service), ServiceLine<'a>>,
            slices: EachAs<'a, (ObjectKey, Arc<Slice>), SliceLine<'a>>,
            synced: Synced,
            zones: Vec<String>,
        }
        let Objects { serial, services, slices } = &self.objects;
        let lines = Lines {
            freshness: format!("{:?}", self.freshness),
            serial: *serial,
            services: EachAs(services, ServiceLine::new),
            slices: EachAs(slices, SliceLine::new),
            synced: self.synced,
            zones: self.zones.iter().map(Name::to_string).collect(),
        };
        lines.serialize(serializer)
    }
}

/// Serializes a list, and converts each element to its line only when that is written.
struct EachAs<'a, T, L>(&'a [T], fn(&'a T) -> L);

impl<T, L: Serialize> Serialize for EachAs<'_, T, L> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(self.1))
    }
}

#[derive(Serialize)]
struct ServiceLine<'a> {
    name: &'a str,
    namespace: &'a str,
    ttl: Option<u32>,
}

impl<'a> ServiceLine<'a> {
    fn new((key, service): &'a (ObjectKey, Service)) -> Self {
        Self { name: &key.name, namespace: &key.namespace, ttl: service.ttl }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SliceLine<'a> {
    endpoints: EndpointLines<'a>,
    name: &'a str,
    namespace: &'a str,
    network: &'a str,
    not_ready: u32,
    ports: EachAs<'a, Port, PortLine<'a>>,
    service: &'a str,
}

impl<'a> SliceLine<'a> {
    fn new((key, slice): &'a (ObjectKey, Arc<Slice>)) -> Self {
        Self {
            endpoints: EndpointLines(&slice.endpoints),
            name: &key.name,
            namespace: &key.namespace,
            network: &slice.network,
            not_ready: slice.not_ready,
            ports: EachAs(&slice.ports, PortLine::new),
            service: &slice.service,
        }
    }
}

#[derive(Serialize)]
struct PortLine<'a> {
    name: &'a str,
    port: u16,
    protocol: &'static str,
}

impl<'a> PortLine<'a> {
    fn new(port: &'a Port) -> Self {
        Self { name: &port.name, port: port.number, protocol: port.protocol.as_str() }
    }
}

struct EndpointLines<'a>(&'a Endpoints);

impl Serialize for EndpointLines<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Line {
            address: IpAddr,
            host: String,
            txt: Vec<String>,
        }
        let lines = self.0.iter().map(|endpoint| Line {
            address: endpoint.address,
            host: endpoint.host().into_owned(),
            txt: txt::strings(endpoint.txt),
        });
        serializer.collect_seq(lines)
    }
}
