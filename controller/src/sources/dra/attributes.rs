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

use multinet_crds::Device;
use multinet_crds::syntax::{INTERFACE, PCI_ADDRESS, RDMA_DEVICE, TextKind};
use multinet_runtime::ObjectKey;
use serde::Deserialize;
use serde_json::Value;

use super::nullable;
use crate::model::DeviceSlice;
use crate::untrusted;

/// Domain of DRANET's attributes, in which other drivers publish too.
const DRANET: &str = "dra.net";

/// Domain of the attributes that Kubernetes defines.
const STANDARD: &str = "resource.kubernetes.io";

/// Fields of a ResourceSlice's `spec` that the controller reads.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct SliceSpec {
    #[serde(deserialize_with = "nullable")]
    driver: String,
    #[serde(deserialize_with = "nullable")]
    pool: PoolSpec,
    #[serde(deserialize_with = "nullable")]
    devices: Vec<SliceDevice>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct PoolSpec {
    #[serde(deserialize_with = "nullable")]
    name: String,
    #[serde(deserialize_with = "nullable")]
    generation: i64,
    #[serde(rename = "resourceSliceCount", deserialize_with = "nullable")]
    slice_count: usize,
}

#[derive(Clone, Debug, Deserialize)]
struct SliceDevice {
    name: String,
    #[serde(default, deserialize_with = "nullable")]
    attributes: Attributes,
    /// Device in v1beta1, whose attributes are one level deeper.
    #[serde(default, deserialize_with = "nullable")]
    basic: BasicDevice,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct BasicDevice {
    #[serde(deserialize_with = "nullable")]
    attributes: Attributes,
}

/// Attributes of a device by name, with or without a domain. They are of several types, and most
/// of them are not used.
type Attributes = BTreeMap<String, Value>;

impl SliceSpec {
    /// Converts the spec to the model type, with the known details of its devices.
    pub(crate) fn into_slice(self, key: ObjectKey) -> DeviceSlice {
        let mut devices = BTreeMap::new();
        for device in self.devices {
            let attributes = device.attributes.iter().chain(&device.basic.attributes);
            let known = known(attributes, &self.driver);
            if known != Device::default() {
                devices.insert(device.name, known);
            }
        }
        let PoolSpec { name: pool, generation, slice_count } = self.pool;
        DeviceSlice { key, driver: self.driver, pool, generation, slice_count, devices }
    }
}

fn known<'a>(attributes: impl Iterator<Item = (&'a String, &'a Value)>, driver: &str) -> Device {
    let ranked = attributes.filter_map(|(name, value)| {
        let (domain, name) = name.split_once('/').unwrap_or((driver, name));
        let rank = match domain {
            _ if domain == driver => 0,
            DRANET => 1,
            STANDARD => 2,
            _ => return None,
        };
        Some((rank, name, value))
    });
    let mut ranked: Vec<_> = ranked.collect();
    ranked.sort_by_key(|&(rank, ..)| rank);
    let of_kind = |kind: &'static TextKind| move |text: &str| kind.accepts(text).then(|| text.to_owned());
    let mut device = Device::default();
    for (_, name, value) in ranked {
        let text = value["string"].as_str();
        match name {
            "ifName" => fill(&mut device.interface, text, of_kind(&INTERFACE)),
            "mac" => fill(&mut device.mac, text, untrusted::mac),
            "rdmaDevice" => fill(&mut device.rdma_device, text, of_kind(&RDMA_DEVICE)),
            "pciAddress" | "pciBusID" => fill(&mut device.pci_address, text, of_kind(&PCI_ADDRESS)),
            "numaNode" => fill(&mut device.numa_node, value["int"].as_i64(), untrusted::numa_node),
            _ => {}
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
