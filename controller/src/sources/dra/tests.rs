use multinet_crds::Device;
use serde_json::json;

use super::*;
use crate::model::DeviceSlice;
use crate::views::{self, V1, V1Beta1};

const DRANET: &str = include_str!("../../../fuzz/seeds/claim/dranet.json");
const OLD: &str = include_str!("../../../fuzz/seeds/claim/v1beta1.json");
const SRIOV: &str = include_str!("../../../fuzz/seeds/claim/sriov.json");

fn claim(text: &str) -> Claim {
    serde_json::from_str::<views::ResourceClaim<V1>>(text).expect(text).into()
}

/// Builds a claim with a device `d` of one request, this device status and the other given fields.
fn with_device(device: serde_json::Value) -> Claim {
    claim(
        &json!({
            "metadata": {"name": "c", "namespace": "n"},
            "spec": {"devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": "rdma"}}]}},
            "status": {
                "allocation": {"devices": {"results": [
                    {"request": "nic", "driver": "dra.net", "pool": "p", "device": "d"}
                ]}},
                "devices": [device],
            },
        })
        .to_string(),
    )
}

fn id(driver: &str, pool: &str, device: &str) -> DeviceId {
    DeviceId { driver: driver.into(), pool: pool.into(), device: device.into() }
}

fn unreadable(claim: &Claim) -> &str {
    claim.unreadable.as_ref().map_or("", |problem| &problem.0)
}

#[test]
fn a_claim_of_dranet_is_read() {
    assert_eq!(
        claim(DRANET),
        Claim {
            key: ObjectKey { namespace: "vision".into(), name: "infer-0-rail0-x7k2p".into() },
            reserved_for: vec!["0b6d5c0e-6c5f-4a53-8f3e-2f2b3f1d7a10".into()],
            devices: vec![ClaimDevice {
                id: id("dra.net", "worker-a", "pci-0000-18-00-2"),
                class: Some("rdma-nic".into()),
                addresses: vec!["10.10.0.12".parse().unwrap(), "fd00:10::12".parse().unwrap()],
                device: Device {
                    interface: Some("net1".into()),
                    mac: Some("b8:59:9f:aa:bb:02".into()),
                    ..Device::default()
                },
            }],
            addressless: Vec::new(),
            unreadable: None,
        }
    );
}

#[test]
fn a_v1beta1_claim_with_alternatives_and_two_devices_is_read() {
    let claim: Claim = serde_json::from_str::<views::ResourceClaim<V1Beta1>>(OLD).unwrap().into();
    let devices: Vec<(&str, Option<&str>, String)> = claim
        .devices
        .iter()
        .map(|device| (device.id.device.as_str(), device.class.as_deref(), device.addresses[0].to_string()))
        .collect();
    assert_eq!(
        devices,
        [("eth3", Some("slow"), "10.10.0.3".to_owned()), ("eth1", Some("rdma-nic"), "10.10.0.1".to_owned())]
    );
    assert_eq!(claim.reserved_for, ["p1"], "a job is no pod");
    assert_eq!(claim.unreadable, None);
}

#[test]
fn a_claim_of_the_sriov_driver_is_read() {
    let claim = claim(SRIOV);
    let [device] = &claim.devices[..] else { panic!("{claim:?}") };
    assert_eq!(device.id.device, "0000-18-00-2");
    assert_eq!(device.class.as_deref(), Some("sriovnetwork.k8snetworkplumbingwg.io"), "joined by share, too");
    assert_eq!(device.device.mac.as_deref(), Some("ae:11:22:33:44:55"));
    assert_eq!(claim.unreadable, None);
}

#[test]
fn a_condition_that_is_false_leaves_the_device_out() {
    let with = |conditions: serde_json::Value| {
        let device = json!({"driver": "dra.net", "pool": "p", "device": "d", "conditions": conditions,
            "networkData": {"ips": ["10.0.0.1/24"]}});
        let claim = with_device(device);
        assert_eq!((&claim.unreadable, claim.devices.len() + claim.addressless.len()), (&None, 1));
        claim.addressless.into_iter().next().map(|device| device.reason)
    };
    let not_ready = |says: &str| Some(NoAddressReason::NotReady(says.to_owned()));
    let cases = [
        (json!(null), None),
        (json!([]), None),
        (json!([{"type": "Ready", "status": "True"}, {"type": "NetworkReady", "status": "True"}]), None),
        (json!([{"type": "Ready", "status": "Unknown"}]), None),
        (json!([{"type": "RDMALinkReady", "status": "False"}]), None),
        (json!([{"type": "Ready", "status": "False"}]), not_ready("Ready is False")),
        (
            json!([{"type": "Ready", "status": "True"}, {"type": "NetworkReady", "status": "False", "message": "no\nroute"}]),
            not_ready("NetworkReady is False: no\\nroute"),
        ),
    ];
    for (conditions, expected) in cases {
        assert_eq!(with(conditions.clone()), expected, "{conditions}");
    }
}

#[test]
fn the_class_of_a_device_is_found_by_its_request() {
    let network = json!({"ips": ["10.0.0.1"]});
    let other = json!({"driver": "dra.net", "pool": "p", "device": "e", "networkData": network});
    assert_eq!(with_device(other).devices[0].class, None, "not in the allocation");
    let share =
        json!({"driver": "dra.net", "pool": "p", "device": "d", "shareID": "s", "networkData": network});
    assert_eq!(with_device(share).devices[0].class, None, "another share");

    let spec: Spec = serde_json::from_value(json!({"devices": {"requests": [
        {"name": "new", "exactly": {"deviceClassName": "a"}},
        {"name": "old", "deviceClassName": "b"},
        {"name": "any", "firstAvailable": [{"name": "x", "deviceClassName": "c"}]},
        {"name": "odd"},
    ]}}))
    .unwrap();
    let cases = [
        ("new", Some("a")),
        ("old", Some("b")),
        ("any/x", Some("c")),
        ("any", None),
        ("any/y", None),
        ("new/x", None),
        ("odd", None),
        ("none", None),
        ("", None),
    ];
    for (request, expected) in cases {
        assert_eq!(spec.class_of(request), expected, "{request}");
    }
}

#[test]
fn a_claim_without_allocation_has_no_devices() {
    for text in [
        r#"{"metadata":{"name":"c","namespace":"n"}}"#,
        r#"{"metadata":{"name":"c","namespace":"n"},"spec":{},"status":{}}"#,
        r#"{"metadata":{"name":"c","namespace":"n"},"spec":null,"status":null}"#,
        r#"{"metadata":{"name":"c","namespace":"n"},"spec":{"devices":{"requests":null}},
            "status":{"allocation":null,"devices":null,"reservedFor":null}}"#,
        r#"{"metadata":{"name":"c","namespace":"n"},"status":{"allocation":{"devices":{"results":null}},"devices":[]}}"#,
    ] {
        let claim = claim(text);
        assert_eq!((claim.devices.len(), claim.reserved_for.len(), claim.unreadable), (0, 0, None), "{text}");
    }
}

#[test]
fn unreadable_parts_are_reported_and_do_not_affect_the_others() {
    let good = r#"{"driver":"dra.net","pool":"p","device":"d","networkData":{"ips":["10.0.0.1/24"]}}"#;
    let cases = [
        (
            format!(r#""spec":7,"status":{{"devices":[{good}]}}"#),
            "spec is unreadable: invalid type: integer `7`",
        ),
        (format!(r#""status":{{"devices":[7,{good}]}}"#), "status.devices[0] is unreadable: invalid type"),
        (
            format!(r#""status":{{"devices":[{good},{{"driver":"dra.net","device":"e"}}]}}"#),
            "status.devices[1] is unreadable: missing field `pool`",
        ),
        (
            format!(r#""status":{{"allocation":[7],"devices":[{good}]}}"#),
            "status.allocation is unreadable: invalid type",
        ),
        (
            format!(r#""status":{{"reservedFor":{{}},"devices":[{good}]}}"#),
            "status.reservedFor is unreadable: invalid type",
        ),
    ];
    for (rest, expected) in cases {
        let claim = claim(&format!(r#"{{"metadata":{{"name":"c","namespace":"n"}},{rest}}}"#));
        assert_eq!(claim.devices.len(), 1, "{rest}");
        assert!(unreadable(&claim).starts_with(expected), "{claim:?}");
    }
    for status in ["7", "[]", r#"{"devices":7}"#, r#"{"devices":{}}"#] {
        let claim = claim(&format!(r#"{{"metadata":{{"name":"c"}},"status":{status}}}"#));
        assert_eq!(claim.devices.len(), 0, "{status}");
        assert!(unreadable(&claim).contains("unreadable") || status == "[]", "{status}: {claim:?}");
    }
}

#[test]
fn invalid_addresses_are_reported_briefly() {
    let claim = with_device(json!({"driver": "dra.net", "pool": "p", "device": "d",
        "networkData": {"interfaceName": "a name that is none", "hardwareAddress": "x",
            "ips": ["10.0.0.1/24", "a\nb", "::ffff:10.0.0.1/96", "0.0.0.0/0", "127.0.0.1/8"]}}));
    assert_eq!(claim.devices[0].addresses.len(), 1);
    assert_eq!(claim.devices[0].device, Device::default());
    let problem = unreadable(&claim);
    assert!(
        problem.starts_with("\"a\\nb\" of status.devices[0] is left out: it is not an IP address; "),
        "{problem}"
    );
    assert!(problem.ends_with("; there are more problems"), "{problem}");
}

#[test]
fn a_device_without_addresses_has_a_reason() {
    let device = |network: serde_json::Value, conditions: serde_json::Value| json!({"driver": "dra.net", "pool": "p", "device": "d", "networkData": network, "conditions": conditions});
    let rdma_only = json!([{"type": "RDMAOnlyDeviceReady", "status": "True"}]);
    for (status, expected) in [
        (device(json!(null), json!(null)), NoAddressReason::NotReported),
        (device(json!({}), json!(null)), NoAddressReason::NoAddress),
        (device(json!({"ips": null}), json!(null)), NoAddressReason::NoAddress),
        (device(json!({"ips": ["fe80::1/64"]}), json!(null)), NoAddressReason::LinkLocal),
        (device(json!(null), rdma_only), NoAddressReason::RdmaOnly),
        (json!(null), NoAddressReason::NotReported),
    ] {
        let claim = with_device(status.clone());
        let [addressless] = &claim.addressless[..] else { panic!("{status}: {claim:?}") };
        assert_eq!(
            (&addressless.reason, addressless.class.as_deref()),
            (&expected, Some("rdma")),
            "{status}"
        );
        assert_eq!((claim.devices.len(), &claim.unreadable), (0, &None), "{status}");
    }
}

#[test]
fn a_device_with_admin_access_provides_no_address() {
    let with = |status: serde_json::Value| {
        let result =
            json!({"request": "nic", "driver": "dra.net", "pool": "p", "device": "d", "adminAccess": true});
        claim(
            &json!({
                "metadata": {"name": "c", "namespace": "n"},
                "status": {"allocation": {"devices": {"results": [result]}}, "devices": status},
            })
            .to_string(),
        )
    };
    let reported =
        json!([{"driver": "dra.net", "pool": "p", "device": "d", "networkData": {"ips": ["10.0.0.1/24"]}}]);
    for status in [json!([]), reported] {
        let claim = with(status);
        assert_eq!((claim.devices.len(), &claim.addressless[0].reason), (0, &NoAddressReason::Observer));
    }
}

fn slice(spec: serde_json::Value) -> DeviceSlice {
    let slice = json!({"metadata": {"name": "worker-a-dra.net-x"}, "spec": spec}).to_string();
    serde_json::from_str::<views::ResourceSlice<V1>>(&slice).expect(&slice).into()
}

/// Returns the details of a device with these attributes.
fn known(driver: &str, attributes: serde_json::Value) -> Device {
    let spec = json!({"driver": driver, "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "d", "attributes": attributes}]});
    slice(spec).devices.remove("d").unwrap_or_default()
}

#[test]
fn a_resource_slice_of_dranet_is_read() {
    let attributes = json!({
        "dra.net/ifName": {"string": "eth1"},
        "dra.net/pciAddress": {"string": "0000:18:00.2"},
        "dra.net/mac": {"string": "b8:59:9f:aa:bb:02"},
        "dra.net/numaNode": {"int": 1},
        "dra.net/mtu": {"int": 9000},
        "dra.net/rdma": {"bool": true},
        "dra.net/rdmaDevice": {"string": "mlx5_2"},
        "dra.net/state": {"string": "up"},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:17"},
    });
    let expected = Device {
        interface: Some("eth1".into()),
        mac: Some("b8:59:9f:aa:bb:02".into()),
        rdma_device: Some("mlx5_2".into()),
        pci_address: Some("0000:18:00.2".into()),
        numa_node: Some(1),
    };
    let pool = json!({"name": "worker-a", "generation": 7, "resourceSliceCount": 1});
    for device in [
        json!({"name": "pci-0000-18-00-2", "attributes": attributes, "capacity": {}}),
        json!({"name": "pci-0000-18-00-2", "basic": {"attributes": attributes}}),
    ] {
        let spec = json!({"driver": "dra.net", "nodeName": "worker-a", "pool": pool,
            "devices": [device, {"name": "lo", "attributes": {"dra.net/virtual": {"bool": true}}}, {"name": "bare"}]});
        assert_eq!(
            slice(spec),
            DeviceSlice {
                key: ObjectKey { namespace: String::new(), name: "worker-a-dra.net-x".into() },
                driver: "dra.net".into(),
                pool: "worker-a".into(),
                generation: 7,
                slice_count: 1,
                devices: [("pci-0000-18-00-2".to_owned(), expected.clone())].into(),
            }
        );
    }
}

#[test]
fn resource_slices_of_other_drivers_are_read() {
    let sriov = json!({
        "resource.kubernetes.io/pciBusID": {"string": "0000:18:00.3"},
        "sriovnetwork.k8snetworkplumbingwg.io/rdmaCapable": {"bool": true},
        "sriovnetwork.k8snetworkplumbingwg.io/interfaceName": {"string": "ens1f0v3"},
        "dra.net/numaNode": {"int": 0},
    });
    assert_eq!(
        known("sriovnetwork.k8snetworkplumbingwg.io", sriov),
        Device { pci_address: Some("0000:18:00.3".into()), numa_node: Some(0), ..Device::default() }
    );
    let own = json!({
        "rdmaDevice": {"string": "mlx5_7"},
        "nic.example.com/numaNode": {"int": 3},
        "dra.net/numaNode": {"int": 1},
        "resource.kubernetes.io/numaNode": {"int": 0},
        "other.example.com/mac": {"string": "02:00:00:00:00:01"},
    });
    assert_eq!(
        known("nic.example.com", own),
        Device { rdma_device: Some("mlx5_7".into()), numa_node: Some(3), ..Device::default() }
    );
}

#[test]
fn invalid_attributes_are_ignored() {
    let attributes = json!({
        "dra.net/rdmaDevice": {"string": ""},
        "dra.net/pciAddress": {"string": "usb-1"},
        "dra.net/numaNode": {"int": -1},
        "dra.net/mac": {"bool": true},
        "dra.net/ifName": {"version": "1.0.0"},
    });
    assert_eq!(known("dra.net", attributes), Device::default());
    let attributes = json!({
        "dra.net/pciAddress": {"string": "usb-1"},
        "resource.kubernetes.io/pciBusID": {"string": "0000:18:00.3"},
        "dra.net/numaNode": {"int": -1},
        "resource.kubernetes.io/numaNode": {"ints": [0, 1]},
    });
    let expected = Device { pci_address: Some("0000:18:00.3".into()), ..Device::default() };
    assert_eq!(known("dra.net", attributes), expected, "the next valid one");
}

#[test]
fn a_resource_slice_with_counters_only_has_no_devices() {
    let spec = json!({"driver": "gpu.example.com", "pool": {"name": "p", "generation": 1}, "devices": null,
        "sharedCounters": [{"name": "c"}]});
    assert!(slice(spec).devices.is_empty());
}
