//! Device details in ResourceSlices, from attributes that several drivers use.
//!
//! | attribute | domains | who publishes it |
//! |---|---|---|
//! | `rdmaDevice` | `dra.net` | DRANET |
//! | `numaNode` | `dra.net`, `resource.kubernetes.io` (proposed) | DRANET, dra-driver-sriov |
//! | `pciAddress` | `dra.net`, the driver's | DRANET, dra-driver-sriov |
//! | `pciBusID` | `resource.kubernetes.io` | standard; dra-driver-sriov |
//! | `ifName`, `mac` | `dra.net` | DRANET |
//!
//! Each attribute is also read in the driver's own domain, where an unknown driver would publish
//! it. (An attribute without a domain belongs to the driver's.) The driver's domain takes
//! precedence, then `dra.net`, then the standard one. Attributes in other domains are ignored.
//! `interfaceName` of dra-driver-sriov is not in the table: it is the name on the node, which
//! differs from the name in the pod. DRANET keeps the name unless a user requests another one.

use std::collections::BTreeMap;
use std::fmt;

use multinet_crds::Device;
use multinet_runtime::ObjectKey;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};

use super::nullable;
use crate::model::DeviceSlice;
use crate::untrusted;

/// Domain of DRANET's attributes, in which other drivers publish too.
const DRANET: &str = "dra.net";

/// Domain of the attributes that Kubernetes defines.
const STANDARD: &str = "resource.kubernetes.io";

/// Fields of a ResourceSlice's `spec` that the controller reads.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(default)]
pub struct SliceSpec {
    #[serde(deserialize_with = "nullable")]
    driver: String,
    #[serde(deserialize_with = "nullable")]
    pool: Pool,
    #[serde(deserialize_with = "nullable")]
    devices: Vec<SliceDevice>,
}

#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(default)]
struct Pool {
    #[serde(deserialize_with = "nullable")]
    name: String,
    #[serde(deserialize_with = "nullable")]
    generation: i64,
    #[serde(rename = "resourceSliceCount", deserialize_with = "nullable")]
    slice_count: usize,
}

#[derive(Clone, Debug, serde::Deserialize)]
struct SliceDevice {
    name: String,
    #[serde(default, deserialize_with = "nullable")]
    attributes: Attributes,
    /// Device in v1beta1, whose attributes are one level deeper.
    #[serde(default, deserialize_with = "nullable")]
    basic: BasicDevice,
}

#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(default)]
struct BasicDevice {
    #[serde(deserialize_with = "nullable")]
    attributes: Attributes,
}

/// Attributes of a device that may set a [`Field`], from any domain.
#[derive(Clone, Debug, Default)]
struct Attributes(Vec<Attribute>);

#[derive(Clone, Debug)]
struct Attribute {
    domain: Option<String>,
    field: Field,
    value: Value,
}

/// The field of [`Device`] that an attribute sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Interface,
    Mac,
    RdmaDevice,
    PciAddress,
    NumaNode,
}

/// Value of an attribute. Attributes with other types, such as bool and version, have neither
/// field.
#[derive(Clone, Debug, Default, serde::Deserialize)]
struct Value {
    string: Option<String>,
    int: Option<i64>,
}

impl Field {
    /// Returns the field for an attribute name without its domain; `None` for an unused attribute.
    fn of(name: &str) -> Option<Self> {
        match name {
            "ifName" => Some(Self::Interface),
            "mac" => Some(Self::Mac),
            "rdmaDevice" => Some(Self::RdmaDevice),
            "pciAddress" | "pciBusID" => Some(Self::PciAddress),
            "numaNode" => Some(Self::NumaNode),
            _ => None,
        }
    }
}

impl SliceSpec {
    /// Converts the spec to the model type, with the known details of its devices.
    pub(crate) fn into_slice(self, key: ObjectKey) -> DeviceSlice {
        let mut devices = BTreeMap::new();
        for device in self.devices {
            let attributes = device.attributes.0.iter().chain(&device.basic.attributes.0);
            let known = known(attributes, &self.driver);
            if known != Device::default() {
                devices.insert(device.name, known);
            }
        }
        let Pool { name: pool, generation, slice_count } = self.pool;
        DeviceSlice { key, driver: self.driver, pool, generation, slice_count, devices }
    }
}

fn known<'a>(attributes: impl Iterator<Item = &'a Attribute>, driver: &str) -> Device {
    let rank = |attribute: &Attribute| match attribute.domain.as_deref() {
        None => Some(0),
        Some(domain) if domain == driver => Some(0),
        Some(DRANET) => Some(1),
        Some(STANDARD) => Some(2),
        Some(_) => None,
    };
    let mut ranked: Vec<_> = attributes.filter_map(|attribute| Some((rank(attribute)?, attribute))).collect();
    ranked.sort_by_key(|&(rank, _)| rank);
    let mut device = Device::default();
    for (_, Attribute { field, value, .. }) in ranked {
        let text = value.string.as_deref();
        match field {
            Field::Interface => fill(&mut device.interface, text, untrusted::interface),
            Field::Mac => fill(&mut device.mac, text, untrusted::mac),
            Field::RdmaDevice => fill(&mut device.rdma_device, text, untrusted::rdma_device),
            Field::PciAddress => fill(&mut device.pci_address, text, untrusted::pci_address),
            Field::NumaNode => fill(&mut device.numa_node, value.int, untrusted::numa_node),
        }
    }
    device
}

/// Sets `field` to the parsed value, unless it is set already.
fn fill<T, V>(field: &mut Option<V>, value: Option<T>, read: impl Fn(T) -> Option<V>) {
    if field.is_none() {
        *field = value.and_then(read);
    }
}

impl<'de> Deserialize<'de> for Attributes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(AttributesVisitor)
    }
}

struct AttributesVisitor;

impl<'de> Visitor<'de> for AttributesVisitor {
    type Value = Attributes;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("attributes by name")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Attributes, M::Error> {
        let mut attributes = Vec::new();
        while let Some(name) = map.next_key::<Name>()? {
            match name.0 {
                Some((domain, field)) => {
                    attributes.push(Attribute { domain, field, value: map.next_value()? });
                }
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(Attributes(attributes))
    }
}

/// Name of an attribute: its domain and field, if it may be useful.
struct Name(Option<(Option<String>, Field)>);

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(NameVisitor)
    }
}

struct NameVisitor;

impl Visitor<'_> for NameVisitor {
    type Value = Name;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of an attribute")
    }

    fn visit_str<E>(self, text: &str) -> Result<Name, E> {
        let (domain, name) = match text.split_once('/') {
            Some((domain, name)) => (Some(domain), name),
            None => (None, text),
        };
        Ok(Name(Field::of(name).map(|field| (domain.map(str::to_owned), field))))
    }
}
