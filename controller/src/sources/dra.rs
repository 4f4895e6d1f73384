//! Reads interfaces from DRA: the status of ResourceClaims, and device attributes in
//! ResourceSlices.
//!
//! ```text
//!  ResourceClaim
//!    status.devices[]            networkData: addresses, interface, mac
//!        │ driver, pool, device, shareID
//!        v
//!    status.allocation…results[] request ── "req" or "req/alternative" ──┐
//!    spec.devices.requests[]     DeviceClass <───────────────────────────┘
//!
//!  ResourceSlice, which the index joins by driver, pool and device
//!    spec.devices[].attributes   RDMA device, NUMA node, PCI address
//! ```
//!
//! The types accept all versions of `resource.k8s.io` at once. This is possible since no version
//! uses the spelling of another one with a different meaning.
//!
//! # Conditions
//!
//! Kubernetes defines condition Ready of a device as True once the device is configured. No driver
//! has to write it. In practice:
//!
//! - Early versions of DRANET set Ready and NetworkReady to False when they could not set routes,
//!   next to the network data, and still let the pod start. Current versions fail the pod and only
//!   write True.
//! - The design of cni-dra-driver has Ready, which is False if the CNI plugin failed.
//! - dra-driver-sriov writes no conditions.
//! - DRANET writes RDMAOnlyDeviceReady for a device that never has an address.
//!
//! A device with Ready or NetworkReady False therefore has no address, since its driver may succeed
//! soon. The service's status names the condition. A missing or Unknown condition has no effect.
//! RDMALinkReady is ignored: the address works without the RDMA link.
//!
//! # Observers
//!
//! A device that was allocated with `adminAccess` belongs to another pod. The pod only observes it,
//! so its addresses are not the pod's.

mod attributes;
mod devices;
#[cfg(test)]
mod tests;

pub(crate) use self::attributes::SliceSpec;
pub(crate) use self::devices::Devices;

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use multinet_crds::syntax::INTERFACE;
use multinet_crds::{Device, NetworkKind};
use multinet_runtime::ObjectKey;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::{PodClaims, Source};
use crate::model::{
    Addressless, AddresslessClaimDevice, Attachment, Claim, ClaimDevice, ClaimedDevice, DeviceId, Interfaces,
    Network, NoAddressReason, Pod, Unreadable,
};
use crate::untrusted::{self, Problems, shortened};

/// Maximum length of a parser's error in a message, in characters.
const COMPLAINT: usize = 120;

/// Maximum number of problems of a claim that a message contains.
const MAX_SHOWN: usize = 3;

/// Maximum length of the message of a device's condition that our message quotes, in characters.
const CONDITION: usize = 80;

/// Source of interfaces that drivers of dynamic resource allocation (DRA) report in claims.
pub struct Dra;

impl Source for Dra {
    fn read_claims(&self, pod: &Pod, claims: &PodClaims<'_>, interfaces: &mut Interfaces) {
        for (reference, claim) in &claims.claims {
            let template = reference.template.as_ref().map(|name| Network {
                kind: NetworkKind::ResourceClaimTemplate,
                namespace: Some(pod.key.namespace.clone()),
                name: name.clone(),
            });
            let networks = |class: &Option<String>| {
                let class = class.clone().map(|name| Network {
                    kind: NetworkKind::DeviceClass,
                    namespace: None,
                    name,
                });
                class.into_iter().chain(template.clone()).collect()
            };
            interfaces.attachments.extend(claim.devices.iter().map(|device| {
                let (said, known) = (device.device.clone(), (claims.facts)(&device.id));
                Attachment {
                    networks: networks(&device.class),
                    addresses: device.addresses.clone(),
                    device: Device {
                        interface: said.interface.or(known.interface),
                        mac: said.mac.or(known.mac),
                        ..known
                    },
                    claimed: Some(ClaimedDevice { claim: claim.key.name.clone(), id: device.id.clone() }),
                }
            }));
            interfaces.addressless.extend(claim.addressless.iter().map(|device| Addressless {
                networks: networks(&device.class),
                claimed: Some(ClaimedDevice { claim: claim.key.name.clone(), id: device.id.clone() }),
                reason: device.reason.clone(),
            }));
        }
    }
}

/// Reads a claim. Never fails: unreadable parts are left out and described in
/// [`Claim::unreadable`].
pub(crate) fn read(key: ObjectKey, spec: Option<&RawValue>, status: Option<&RawValue>) -> Claim {
    let mut problems = Problems::default();
    let spec: Spec = parse_part(spec, "spec", &mut problems);
    let status: Status = parse_part(status, "status", &mut problems);
    let allocation: Allocation = parse_part(status.allocation.as_deref(), "status.allocation", &mut problems);
    let reserved_for: Vec<Consumer> =
        parse_part(status.reserved_for.as_deref(), "status.reservedFor", &mut problems);
    let results: HashMap<&SharedDevice, &AllocationResult> =
        allocation.devices.results.iter().map(|result| (&result.device, result)).collect();
    let statuses: Vec<Box<RawValue>> = parse_part(status.devices.as_deref(), "status.devices", &mut problems);
    let (mut devices, mut addressless, mut reported) = (Vec::new(), Vec::new(), HashSet::new());
    for (index, raw) in statuses.iter().enumerate() {
        let path = format!("status.devices[{index}]");
        let Some(status) = parse_part::<Option<DeviceStatus>>(Some(raw), &path, &mut problems) else {
            continue;
        };
        let result = results.get(&status.device);
        reported.insert(status.device.clone());
        let class = result.and_then(|result| spec.class_of(&result.request)).map(str::to_owned);
        let id = status.device.id.clone();
        let is_observed = result.is_some_and(|result| result.admin_access);
        match status.into_network(is_observed, &path, &mut problems) {
            Ok((addresses, device)) => devices.push(ClaimDevice { id, class, addresses, device }),
            Err(reason) => addressless.push(AddresslessClaimDevice { id, class, reason }),
        }
    }
    for result in allocation.devices.results.iter().filter(|result| !reported.contains(&result.device)) {
        let reason =
            if result.admin_access { NoAddressReason::Observer } else { NoAddressReason::NotReported };
        let class = spec.class_of(&result.request).map(str::to_owned);
        addressless.push(AddresslessClaimDevice { id: result.device.id.clone(), class, reason });
    }
    Claim {
        key,
        devices,
        addressless,
        reserved_for: reserved_for.into_iter().filter(Consumer::is_pod).map(|pod| pod.uid).collect(),
        unreadable: summarize(problems),
    }
}

/// Parses a part of an object. Reports an unreadable part as a problem, and treats it as absent.
fn parse_part<T: DeserializeOwned + Default>(
    raw: Option<&RawValue>,
    path: &str,
    problems: &mut Problems,
) -> T {
    let Some(raw) = raw else { return T::default() };
    match serde_json::from_str::<Option<T>>(raw.get()) {
        Ok(part) => part.unwrap_or_default(),
        Err(error) => {
            problems.note(|| format!("{path} is unreadable: {}", shortened(&error.to_string(), COMPLAINT)));
            T::default()
        }
    }
}

fn summarize(problems: Problems) -> Option<Unreadable> {
    let lines = problems.into_lines();
    let mut told: Vec<&str> = lines.iter().take(MAX_SHOWN).map(|line| line.0.as_str()).collect();
    if lines.len() > MAX_SHOWN {
        told.push("there are more problems");
    }
    (!told.is_empty()).then(|| Unreadable(told.join("; ")))
}

/// Deserializes null as the default value.
pub(crate) fn nullable<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Deserialize<'de> + Default,
    D: Deserializer<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Spec {
    #[serde(deserialize_with = "nullable")]
    devices: DeviceRequests,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct DeviceRequests {
    #[serde(deserialize_with = "nullable")]
    requests: Vec<DeviceRequest>,
}

/// A request for devices of one class, or of the first available of several classes.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DeviceRequest {
    name: String,
    /// Request for devices of one DeviceClass, in v1 and v1beta2.
    exactly: Option<ExactRequest>,
    #[serde(default, deserialize_with = "nullable")]
    first_available: Vec<Alternative>,
    /// Name of the requested DeviceClass, in v1beta1.
    device_class_name: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExactRequest {
    device_class_name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Alternative {
    name: String,
    device_class_name: String,
}

impl Spec {
    /// Returns the DeviceClass of the request with the name in an allocation result.
    fn class_of(&self, request: &str) -> Option<&str> {
        let (name, alternative) = match request.split_once('/') {
            Some((name, alternative)) => (name, Some(alternative)),
            None => (request, None),
        };
        let request = self.devices.requests.iter().find(|request| request.name == name)?;
        match alternative {
            Some(name) => request
                .first_available
                .iter()
                .find(|alternative| alternative.name == name)
                .map(|alternative| alternative.device_class_name.as_str()),
            None => request
                .exactly
                .as_ref()
                .map(|exactly| exactly.device_class_name.as_str())
                .or(request.device_class_name.as_deref()),
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    allocation: Option<Box<RawValue>>,
    devices: Option<Box<RawValue>>,
    reserved_for: Option<Box<RawValue>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Allocation {
    #[serde(deserialize_with = "nullable")]
    devices: Results,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Results {
    #[serde(deserialize_with = "nullable")]
    results: Vec<AllocationResult>,
}

#[derive(Deserialize)]
struct AllocationResult {
    request: String,
    #[serde(flatten)]
    device: SharedDevice,
    #[serde(default, rename = "adminAccess", deserialize_with = "nullable")]
    admin_access: bool,
}

/// A device with the ID of its share, if it is shared.
#[derive(Clone, PartialEq, Eq, Hash, Deserialize)]
struct SharedDevice {
    #[serde(flatten)]
    id: DeviceId,
    #[serde(rename = "shareID")]
    share_id: Option<String>,
}

/// A consumer that a claim is reserved for. So far, only pods can be consumers.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Consumer {
    #[serde(default, deserialize_with = "nullable")]
    api_group: String,
    resource: String,
    uid: String,
}

impl Consumer {
    fn is_pod(&self) -> bool {
        self.api_group.is_empty() && self.resource == "pods"
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DeviceStatus {
    #[serde(flatten)]
    device: SharedDevice,
    #[serde(default, deserialize_with = "nullable")]
    conditions: Vec<Condition>,
    network_data: Option<NetworkData>,
}

#[derive(Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    #[serde(default, deserialize_with = "nullable")]
    message: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NetworkData {
    #[serde(deserialize_with = "nullable")]
    interface_name: String,
    #[serde(deserialize_with = "nullable")]
    ips: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    hardware_address: String,
}

impl DeviceStatus {
    /// Returns the addresses and the details in the status, or the reason why the device has no
    /// address.
    fn into_network(
        self,
        is_observed: bool,
        path: &str,
        problems: &mut Problems,
    ) -> Result<(Vec<IpAddr>, Device), NoAddressReason> {
        if is_observed {
            return Err(NoAddressReason::Observer);
        }
        if let Some(condition) = self.condition(&["Ready", "NetworkReady"], "False") {
            let message = shortened(&condition.message, CONDITION);
            let says = if message.is_empty() { String::new() } else { format!(": {message}") };
            return Err(NoAddressReason::NotReady(format!("{} is False{says}", condition.kind)));
        }
        let rdma_only = self.condition(&["RDMAOnlyDeviceReady"], "True").is_some();
        let Some(network) = self.network_data else {
            return Err(if rdma_only { NoAddressReason::RdmaOnly } else { NoAddressReason::NotReported });
        };
        let addresses = untrusted::addresses(&network.ips, &path, problems)?;
        let device = Device {
            interface: Some(network.interface_name).filter(|name| INTERFACE.accepts(name)),
            mac: untrusted::mac(&network.hardware_address),
            ..Device::default()
        };
        Ok((addresses, device))
    }

    fn condition(&self, kinds: &[&str], status: &str) -> Option<&Condition> {
        self.conditions
            .iter()
            .find(|condition| kinds.contains(&condition.kind.as_str()) && condition.status == status)
    }
}
