//! Objects of the model in terms of their owners' intent, with their JSON as the API server sends
//! it.

use std::collections::BTreeMap;
use std::fmt::Debug;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Resource;
use multinet_controller::views;
use multinet_crds::MultiNetworkEndpointSlice;
use multinet_runtime::ObjectKey;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Names of objects. They are few, so that references often match.
pub(crate) const NAMESPACES: [&str; 2] = ["red", "blue"];
pub(crate) const PODS: [&str; 4] = ["p0", "p1", "p2", "p3"];
pub(crate) const SERVICES: [&str; 3] = ["one", "two", "three"];
pub(crate) const CORE_SERVICES: [&str; 2] = ["core-a", "core-b"];
pub(crate) const NODES: [&str; 2] = ["n0", "n1"];
pub(crate) const CLAIMS: [&str; 3] = ["c0", "c1", "c2"];
pub(crate) const RAILS: [&str; 2] = ["rail0", "rail1"];
pub(crate) const CLASSES: [&str; 2] = ["rdma", "fast"];
pub(crate) const TEMPLATES: [&str; 2] = ["tpl0", "tpl1"];
pub(crate) const DEVICES: [&str; 2] = ["d0", "d1"];
pub(crate) const DEVICE_SLICES: [&str; 3] = ["s0", "s1", "s2"];
pub(crate) const LABELS: [&str; 2] = ["app", "tier"];
pub(crate) const VALUES: [&str; 2] = ["x", "y"];

/// Names that Multus may report for an interface's network.
pub(crate) const REPORTED: [&str; 8] =
    ["red/rail0", "red/rail1", "blue/rail0", "blue/rail1", "rail0", "rail1", "cbr0", "No such name"];

/// Networks that a pod may request.
pub(crate) const ASKED: [&str; 5] = [
    "rail0",
    "blue/rail0@net0,rail1",
    "blue/rail0@net1,red/rail0@net0",
    "red/rail1,blue/rail1",
    "blue/rail1@net2",
];

/// Reported texts of addresses, each with its address if it can be published.
pub(crate) const ADDRESSES: [(&str, Option<&str>); 17] = [
    ("10.0.0.1", Some("10.0.0.1")),
    ("10.0.0.2", Some("10.0.0.2")),
    ("10.0.0.3", Some("10.0.0.3")),
    ("10.0.0.4", Some("10.0.0.4")),
    ("10.0.0.5", Some("10.0.0.5")),
    ("fd00::1", Some("fd00::1")),
    ("FD00:0::1", Some("fd00::1")),
    ("fd00::2", Some("fd00::2")),
    ("fd00::3", Some("fd00::3")),
    ("169.254.7.1", Some("169.254.7.1")),
    ("fe80::1", None),
    ("::ffff:10.0.0.1", None),
    ("10.0.0.999", None),
    ("127.0.0.1", None),
    ("0.0.0.0", None),
    ("224.0.0.1", None),
    ("", None),
];

/// Annotations that cannot be read.
pub(crate) const MALFORMED: [&str; 4] = ["[{", "{}", r#"[{"name":7}]"#, r#"[{"name":"red/rail0","ips":7}]"#];

/// A kind of object in the cluster, with the type that the controller reads it as.
pub(crate) trait Object: Clone + Debug + PartialEq {
    type View: Resource<DynamicType = ()> + DeserializeOwned;

    /// Returns the object as the API server sends it.
    fn json(&self, key: &ObjectKey, version: u64) -> Value;
}

pub(crate) fn key(namespace: &str, name: &str) -> ObjectKey {
    ObjectKey { namespace: namespace.to_owned(), name: name.to_owned() }
}

pub(super) fn metadata(key: &ObjectKey, version: u64) -> Value {
    let mut metadata = json!({"name": key.name, "resourceVersion": version.to_string()});
    if !key.namespace.is_empty() {
        metadata["namespace"] = json!(key.namespace);
    }
    metadata
}

/// Returns the time in the format of RFC 3339.
pub(crate) fn time(second: i64) -> String {
    jiff::Timestamp::from_second(second).expect("a time").to_string()
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pod {
    pub(crate) uid: String,
    pub(crate) created: i64,
    pub(crate) labels: BTreeMap<&'static str, &'static str>,
    /// Labels and annotations that the controller ignores.
    pub(crate) noise: u64,
    pub(crate) phase: &'static str,
    pub(crate) is_deleted: bool,
    /// Condition Ready, and the time of its last transition.
    pub(crate) ready: Option<bool>,
    pub(crate) ready_since: i64,
    pub(crate) hostname: Option<&'static str>,
    pub(crate) subdomain: Option<&'static str>,
    pub(crate) node: Option<&'static str>,
    pub(crate) host_network: bool,
    pub(crate) has_sandbox: bool,
    /// Annotation `networks`.
    pub(crate) asked: Option<&'static str>,
    /// Annotations `network-status` and `networks-status`.
    pub(crate) report: Option<Report>,
    pub(crate) old_report: Option<Report>,
    pub(crate) claims: Vec<ClaimUse>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Report {
    Malformed(&'static str),
    Interfaces(Vec<Interface>),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Interface {
    pub(crate) network: &'static str,
    pub(crate) is_default: bool,
    /// Indexes into [`ADDRESSES`].
    pub(crate) addresses: Vec<usize>,
    pub(crate) mac: Option<&'static str>,
    /// PCI address and RDMA device.
    pub(crate) function: Option<(&'static str, &'static str)>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ClaimUse {
    Direct(&'static str),
    /// The template, and the claim that was made from it, if any.
    Template(&'static str, Option<&'static str>),
}

impl Report {
    fn text(&self) -> String {
        match self {
            Self::Malformed(text) => (*text).to_owned(),
            Self::Interfaces(interfaces) => {
                let entries = interfaces.iter().enumerate().map(|(number, interface)| {
                    let ips: Vec<&str> = interface.addresses.iter().map(|&place| ADDRESSES[place].0).collect();
                    let mut entry = json!({
                        "name": interface.network, "interface": format!("net{number}"), "ips": ips, "dns": {},
                    });
                    if interface.is_default {
                        entry["default"] = json!(true);
                    }
                    if let Some(mac) = interface.mac {
                        entry["mac"] = json!(mac);
                    }
                    if let Some((pci, rdma)) = interface.function {
                        entry["device-info"] =
                            json!({"type": "pci", "version": "1.1.0", "pci": {"pci-address": pci, "rdma-device": rdma}});
                    }
                    entry
                });
                Value::Array(entries.collect()).to_string()
            }
        }
    }
}

impl Object for Pod {
    type View = views::PodView;

    fn json(&self, key: &ObjectKey, version: u64) -> Value {
        let mut metadata = metadata(key, version);
        let mut labels = json!(self.labels);
        labels["noise"] = json!(self.noise.to_string());
        let mut annotations = json!({"noise": self.noise.to_string()});
        for (name, report) in [("network-status", &self.report), ("networks-status", &self.old_report)] {
            if let Some(report) = report {
                annotations[format!("k8s.v1.cni.cncf.io/{name}")] = json!(report.text());
            }
        }
        if let Some(asked) = self.asked {
            annotations["k8s.v1.cni.cncf.io/networks"] = json!(asked);
        }
        metadata["uid"] = json!(self.uid);
        metadata["labels"] = labels;
        metadata["annotations"] = annotations;
        metadata["creationTimestamp"] = json!(time(self.created));
        if self.is_deleted {
            metadata["deletionTimestamp"] = json!(time(self.created + 1));
        }
        let mut claims = Vec::new();
        let mut claim_statuses = Vec::new();
        for (number, claim) in self.claims.iter().enumerate() {
            let name = format!("claim{number}");
            match claim {
                ClaimUse::Direct(claim) => claims.push(json!({"name": name, "resourceClaimName": claim})),
                ClaimUse::Template(template, made) => {
                    claims.push(json!({"name": name, "resourceClaimTemplateName": template}));
                    claim_statuses.push(json!({"name": name, "resourceClaimName": made}));
                }
            }
        }
        let mut conditions = vec![json!({"type": "Initialized", "status": "True"})];
        if let Some(ready) = self.ready {
            let status = if ready { "True" } else { "False" };
            conditions.push(
                json!({"type": "Ready", "status": status, "lastTransitionTime": time(self.ready_since)}),
            );
        }
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": metadata,
            "spec": {
                "hostname": self.hostname, "subdomain": self.subdomain, "nodeName": self.node,
                "hostNetwork": self.host_network, "resourceClaims": claims, "containers": [{"name": "main"}],
            },
            "status": {
                "phase": self.phase, "podIPs": self.has_sandbox.then(|| json!([{"ip": "10.244.0.9"}])), "conditions": conditions,
                "resourceClaimStatuses": claim_statuses,
            },
        })
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Claim {
    pub(crate) reserved_for: Vec<String>,
    pub(crate) class: &'static str,
    pub(crate) devices: Vec<ClaimDevice>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ClaimDevice {
    pub(crate) pool: &'static str,
    pub(crate) device: &'static str,
    /// Whether the allocation names the request.
    pub(crate) is_allocated: bool,
    pub(crate) ready: Option<bool>,
    pub(crate) addresses: Vec<usize>,
    pub(crate) interface: Option<&'static str>,
}

impl Object for Claim {
    type View = views::ResourceClaim<views::V1>;

    fn json(&self, key: &ObjectKey, version: u64) -> Value {
        let results: Vec<Value> = (self.devices.iter().filter(|device| device.is_allocated))
            .map(|device| json!({"request": "r", "driver": "dra.net", "pool": device.pool, "device": device.device}))
            .collect();
        let devices: Vec<Value> = self
            .devices
            .iter()
            .map(|device| {
                let prefix = |text: &str| format!("{text}/{}", if text.contains(':') { 64 } else { 24 });
                let ips: Vec<String> =
                    device.addresses.iter().map(|&place| prefix(ADDRESSES[place].0)).collect();
                let ready = device.ready.map(|ready| if ready { "True" } else { "False" });
                json!({
                    "driver": "dra.net", "pool": device.pool, "device": device.device,
                    "conditions": ready.map(|status| json!([{"type": "Ready", "status": status}])),
                    "networkData": {"interfaceName": device.interface, "ips": ips},
                })
            })
            .collect();
        let reserved: Vec<Value> = self
            .reserved_for
            .iter()
            .map(|uid| json!({"resource": "pods", "name": "some-pod", "uid": uid}))
            .collect();
        json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata(key, version),
            "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": self.class}}]}},
            "status": {"allocation": {"devices": {"results": results}}, "devices": devices, "reservedFor": reserved},
        })
    }
}

/// A ResourceSlice of DRANET, with RDMA device and NUMA node of each device.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DeviceSlice {
    pub(crate) pool: &'static str,
    pub(crate) generation: i64,
    pub(crate) devices: BTreeMap<&'static str, (&'static str, u16)>,
}

impl Object for DeviceSlice {
    type View = views::ResourceSlice<views::V1>;

    fn json(&self, key: &ObjectKey, version: u64) -> Value {
        let devices: Vec<Value> = self
            .devices
            .iter()
            .map(|(name, (rdma, numa))| {
                json!({"name": name, "attributes": {
                    "dra.net/rdmaDevice": {"string": rdma}, "dra.net/numaNode": {"int": numa}, "dra.net/rdma": {"bool": true},
                }})
            })
            .collect();
        json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata(key, version),
            "spec": {
                "driver": "dra.net", "nodeName": self.pool, "devices": devices,
                "pool": {"name": self.pool, "generation": self.generation, "resourceSliceCount": 1},
            },
        })
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node {
    pub(crate) zone: Option<&'static str>,
}

impl Object for Node {
    type View = views::NodeView;

    fn json(&self, key: &ObjectKey, version: u64) -> Value {
        let mut metadata = metadata(key, version);
        metadata["labels"] = json!({"kubernetes.io/hostname": key.name});
        if let Some(zone) = self.zone {
            metadata["labels"]["topology.kubernetes.io/zone"] = json!(zone);
        }
        json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata})
    }
}

/// Defines a kind of object of which only the existence matters.
macro_rules! marker {
    ($name:ident, $view:ty) => {
        #[derive(Clone, Debug, PartialEq)]
        pub(crate) struct $name;

        impl Object for $name {
            type View = $view;

            fn json(&self, key: &ObjectKey, version: u64) -> Value {
                json!({"kind": stringify!($name), "metadata": metadata(key, version), "spec": {"config": "{}"}})
            }
        }
    };
}

marker!(Nad, views::NetworkAttachmentDefinition);
marker!(Class, views::DeviceClass<views::V1>);
marker!(Template, views::ResourceClaimTemplate<views::V1>);

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum CoreService {
    Headless,
    WithSelector,
    WithAddress,
    ExternalName,
}

impl Object for CoreService {
    type View = views::ServiceView;

    fn json(&self, key: &ObjectKey, version: u64) -> Value {
        let spec = match self {
            Self::Headless => json!({"type": "ClusterIP", "clusterIP": "None"}),
            Self::WithSelector => json!({"type": "ClusterIP", "clusterIP": "None", "selector": {"app": "x"}}),
            Self::WithAddress => json!({"type": "ClusterIP", "clusterIP": "10.96.0.7"}),
            Self::ExternalName => json!({"type": "ExternalName", "externalName": "example.com"}),
        };
        json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata(key, version), "spec": spec})
    }
}

impl Object for MultiNetworkEndpointSlice {
    type View = Self;

    fn json(&self, _: &ObjectKey, _: u64) -> Value {
        serde_json::to_value(self).expect("a slice as JSON")
    }
}

impl Object for EndpointSlice {
    type View = Self;

    fn json(&self, _: &ObjectKey, _: u64) -> Value {
        serde_json::to_value(self).expect("a slice as JSON")
    }
}
