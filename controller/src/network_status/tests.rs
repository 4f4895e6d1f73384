//! The files are what net-attach-def-client 1.7.6, which is in Multus 4.2.2, makes of CNI results; but for antrea.json, which
//! follows Antrea's source.

use std::net::IpAddr;

use multinet_crds::Device;

use super::*;

const MACVLAN: &str = include_str!("../../fuzz/seeds/network_status/macvlan.json");
const SRIOV: &str = include_str!("../../fuzz/seeds/network_status/sriov.json");
const VDPA: &str = include_str!("../../fuzz/seeds/network_status/vdpa.json");
const VHOST_USER: &str = include_str!("../../fuzz/seeds/network_status/vhost_user.json");
const MEMIF: &str = include_str!("../../fuzz/seeds/network_status/memif.json");
const SEVERAL: &str = include_str!("../../fuzz/seeds/network_status/several.json");
const LAYER2: &str = include_str!("../../fuzz/seeds/network_status/layer2.json");
const ANTREA: &str = include_str!("../../fuzz/seeds/network_status/antrea.json");

fn attachment(network: &str, addresses: &[&str], device: Device) -> Attachment {
    let (namespace, name) = network.split_once('/').unwrap();
    Attachment {
        networks: vec![Network {
            kind: NetworkKind::NetworkAttachmentDefinition,
            namespace: Some(namespace.to_owned()),
            name: name.to_owned(),
        }],
        addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
        device,
    }
}

/// Interface, mac, RDMA device, PCI address; `-` for none.
fn device(fields: [&str; 4]) -> Device {
    let [interface, mac, rdma_device, pci_address] =
        fields.map(|field| Some(field.to_owned()).filter(|field| field != "-"));
    Device { interface, mac, rdma_device, pci_address, numa_node: None }
}

/// Reads an annotation of a pod in namespace `own`.
fn status(text: &str) -> NetworkStatus {
    read(KEY, text, "own")
}

/// Of an annotation of which nothing is to be left out.
fn attachments(text: &str) -> Vec<Attachment> {
    let status = status(text);
    assert_eq!(status.rejected, [], "{text}");
    status.reported.expect(text)
}

/// Of an annotation with an attachment for each list of addresses.
fn addresses(text: &str) -> Vec<Vec<String>> {
    let addresses = |attachment: &Attachment| attachment.addresses.iter().map(IpAddr::to_string).collect();
    attachments(text).iter().map(addresses).collect()
}

fn rejected(text: &str) -> Vec<String> {
    let status = status(text);
    assert!(status.reported.is_ok(), "{text}");
    status.rejected.into_iter().map(|line| line.0).collect()
}

fn unreadable(text: &str) -> String {
    let status = status(text);
    assert_eq!(status.rejected, [], "{text}");
    status.reported.expect_err(text).0
}

#[test]
fn what_multus_writes() {
    let cases = [
        (
            MACVLAN,
            attachment(
                "vision/rdma-a",
                &["192.168.100.3", "fd00:100::3"],
                device(["net1", "3a:5f:09:b1:7e:44", "-", "-"]),
            ),
        ),
        (
            SRIOV,
            attachment(
                "vision/sriov-rdma",
                &["10.56.217.11"],
                device(["net1", "ae:11:22:33:44:55", "mlx5_2", "0000:18:00.2"]),
            ),
        ),
        (VDPA, attachment("vision/vdpa", &["10.56.217.12"], device(["net1", "-", "-", "0000:65:00.3"]))),
        (VHOST_USER, attachment("vision/vhost", &["10.56.217.12"], device(["net1", "-", "-", "-"]))),
        (MEMIF, attachment("vision/memif", &["10.56.217.12"], device(["net1", "-", "-", "-"]))),
    ];
    for (text, expected) in cases {
        assert_eq!(attachments(text), [expected], "{text}");
    }
    assert_eq!(attachments(LAYER2), [], "an interface without addresses is of no use");
}

#[test]
fn several_interfaces_of_an_attachment() {
    assert_eq!(
        attachments(SEVERAL),
        [
            attachment("vision/two", &["10.1.0.1"], device(["net1", "02:00:00:00:00:01", "-", "-"])),
            attachment("vision/two", &["10.2.0.1"], device(["net1-b", "02:00:00:00:00:02", "-", "-"])),
        ],
        "and none of the default network, although only one of its two says so"
    );
}

#[test]
fn bare_names_and_the_default_network_last() {
    assert_eq!(
        attachments(ANTREA),
        [
            attachment("own/rdma-a", &["148.14.24.100"], device(["eth1", "1a:2b:3c:4d:5e:6f", "-", "-"])),
            attachment("own/rdma-a", &["148.14.24.101"], device(["eth2", "1a:2b:3c:4d:5e:70", "-", "-"])),
        ]
    );
}

#[test]
fn a_definition_may_be_the_default_network_and_be_attached_once_more() {
    let text = r#"[{"name":"a/n","ips":["10.0.0.1"],"default":true},{"name":"a/n","ips":["10.0.0.2"]}]"#;
    assert_eq!(addresses(text), [["10.0.0.2"]]);
}

#[test]
fn names_of_no_definition_are_passed_over() {
    for name in ["", "/", "a/", "/b", "a/b/c", "Cbr0", "my_net", "a.b/c", &"x".repeat(254)] {
        let text = format!(r#"[{{"name":"{name}","ips":["10.0.0.1"]}}]"#);
        assert_eq!(attachments(&text), [], "{name}");
    }
    assert_eq!(attachments(r#"[{"ips":["10.0.0.1"]}]"#), []);
    assert_eq!(addresses(r#"[{"name":"a/rail.0","ips":["10.0.0.1"]}]"#), [["10.0.0.1"]]);
}

#[test]
fn nothing_is_no_error() {
    for text in ["", " \n", "[]", "null", " [ ] "] {
        assert_eq!(attachments(text), [], "{text:?}");
    }
    let nulls = r#"[{"name":"a/n","interface":null,"ips":null,"mac":null,"default":null,"dns":null,"device-info":null}]"#;
    assert_eq!(attachments(nulls), []);
}

#[test]
fn addresses_with_prefix_lengths_and_twice() {
    let text = r#"[{"name":"a/n","ips":["10.0.0.1/24","fd00::1/64","10.0.0.1","fe80::1"]}]"#;
    assert_eq!(addresses(text), [["10.0.0.1", "fd00::1"]]);
}

#[test]
fn a_bad_address_costs_only_itself() {
    let text = r#"[{"name":"a/n","interface":"net1","ips":["10.0.0.999","10.0.0.1","::ffff:10.0.0.2"]},
        {"name":"a/m","ips":["<nil>"]}]"#;
    let NetworkStatus { reported, .. } = status(text);
    assert_eq!(reported.unwrap(), [attachment("a/n", &["10.0.0.1"], device(["net1", "-", "-", "-"]))]);
    assert_eq!(
        rejected(text),
        [
            "\"10.0.0.999\" of net1 on a/n is left out: it is not an IP address",
            "\"::ffff:10.0.0.2\" of net1 on a/n is left out: it is IPv4-mapped; the IPv4 address is to be reported as such",
            "\"<nil>\" of an interface on a/m is left out: it is not an IP address",
        ]
    );
}

#[test]
fn bad_details_cost_only_themselves() {
    let long = "mlx5_0,".repeat(10);
    let details = [
        r#""interface":7"#.to_owned(),
        r#""interface":"not an interface""#.to_owned(),
        r#""mac":["02:00:00:00:00:01"]"#.to_owned(),
        r#""mac":"""#.to_owned(),
        r#""mtu":"big","dns":[],"gateway":{}"#.to_owned(),
        r#""device-info":"pci""#.to_owned(),
        r#""device-info":{"type":"new","new":{"pci-address":"0000:18:00.2"}}"#.to_owned(),
        r#""device-info":{"type":"pci","pci":{"pci-address":"18:00.2"}}"#.to_owned(),
        r#""device-info":{"type":"pci","pci":{"pci-address":7}}"#.to_owned(),
        format!(r#""device-info":{{"type":"pci","pci":{{"rdma-device":"{long}"}}}}"#),
        format!(r#""device-info":{}7{}"#, "[".repeat(500), "]".repeat(500)),
    ];
    for detail in details {
        let text = format!(r#"[{{"name":"a/n","ips":["10.0.0.1"],{detail}}}]"#);
        assert_eq!(attachments(&text), [attachment("a/n", &["10.0.0.1"], Device::default())], "{text}");
    }
}

#[test]
fn several_rdma_devices_stay_together() {
    let text = r#"[{"name":"a/n","ips":["10.0.0.1"],"device-info":{"type":"pci","pci":{"rdma-device":"mlx5_2,mlx5_3"}}}]"#;
    assert_eq!(attachments(text)[0].device.rdma_device.as_deref(), Some("mlx5_2,mlx5_3"));
}

#[test]
fn what_is_not_of_the_format_is_unreadable_as_a_whole() {
    let good = r#"{"name":"a/n","ips":["10.0.0.1"]}"#;
    let cases = [
        "{}".to_owned(),
        "7".to_owned(),
        "\"text\"".to_owned(),
        "[".to_owned(),
        "not JSON".to_owned(),
        format!("[{good}] and more"),
        format!("[{good}][{good}]"),
        format!("[{good},7]"),
        format!("[{good},null]"),
        format!("[{good},[]]"),
        format!(r#"[{good},["a/m",null,["10.0.0.2"],null,null,null]]"#),
        format!(r#"[{good},{{"name":7}}]"#),
        format!(r#"[{good},{{"name":"a/m","ips":"10.0.0.2"}}]"#),
        format!(r#"[{good},{{"name":"a/m","ips":[7]}}]"#),
        format!(r#"[{good},{{"name":"a/m","ips":[null]}}]"#),
        format!(r#"[{good},{{"name":"a/m","default":"true"}}]"#),
        format!("[{good},{{\"name\":\"a/\u{1b}\"}}]"),
        "[".repeat(100_000),
    ];
    for text in cases {
        let message = unreadable(&text);
        assert!(
            message
                .starts_with("annotation k8s.v1.cni.cncf.io/network-status is unreadable at line 1 column ")
        );
        assert!(message.ends_with("; delete the pod to have it written anew"), "{message}");
        assert!(!message.contains(char::is_control), "{message}");
        assert!(message.chars().count() < 280, "{message}");
    }
}

#[test]
fn the_message_shows_the_place() {
    let text = "[{\n    \"name\": \"a/n\",\n    \"ips\": \"10.0.0.1\"\n}]";
    assert_eq!(
        unreadable(text),
        "annotation k8s.v1.cni.cncf.io/network-status is unreadable at line 3 column 21, \
         after \"    \"ips\": \"10.0.0.1\"\": invalid type: string \"10.0.0.1\", expected a sequence; \
         delete the pod to have it written anew"
    );
    let long = format!(r#"[{{"name":"a/n","ips":"{}"}}]"#, "ä\u{202e}".repeat(50_000));
    assert!(unreadable(&long).chars().count() < 500, "{}", unreadable(&long));
}

#[test]
fn which_annotation_it_was() {
    let NetworkStatus { reported, .. } = read(OLD_KEY, "x", "own");
    assert!(reported.unwrap_err().0.starts_with("annotation k8s.v1.cni.cncf.io/networks-status is"));
}

#[test]
fn attachments_beyond_the_limit_are_told_of() {
    let entries: Vec<String> =
        (0..70).map(|i| format!(r#"{{"name":"a/n{i}","ips":["10.0.0.{i}"]}}"#)).collect();
    let text = format!("[{}]", entries.join(","));
    assert_eq!(status(&text).reported.unwrap().len(), MAX_ATTACHMENTS);
    assert_eq!(rejected(&text), ["6 attachments beyond the first 64 are left out"]);
}

#[test]
fn the_largest_annotation_gives_a_short_answer() {
    let fill = |unit: &str| format!("[{}]", vec![unit; 256 * 1024 / (unit.len() + 1)].join(","));
    let ips = |unit: &str| format!(r#"[{{"name":"a/n","ips":{}}}]"#, fill(unit));
    for text in [
        fill(r#"{"name":"a/n","ips":["10.0.0.1"]}"#),
        fill(r#"{"name":"n","ips":["10.0.0.1"],"default":true}"#),
        fill(r#"{"name":"a/n","ips":["x"]}"#),
        ips("\"x\""),
        ips("\"10.0.0.1\""),
    ] {
        let NetworkStatus { reported, rejected } = status(&text);
        assert!(reported.unwrap().len() <= MAX_ATTACHMENTS);
        assert!(rejected.len() < 20, "{rejected:?}");
    }
}
