//! The files contain the output of net-attach-def-client 1.7.6, the version in Multus 4.2.2, for
//! CNI results. `antrea.json` follows Antrea's source code instead.

use std::net::IpAddr;

use multinet_crds::Device;

use super::*;
use crate::model::NoAddressReason;

const MACVLAN: &str = include_str!("../../../fuzz/seeds/network_status/macvlan.json");
const SRIOV: &str = include_str!("../../../fuzz/seeds/network_status/sriov.json");
const VDPA: &str = include_str!("../../../fuzz/seeds/network_status/vdpa.json");
const VHOST_USER: &str = include_str!("../../../fuzz/seeds/network_status/vhost_user.json");
const MEMIF: &str = include_str!("../../../fuzz/seeds/network_status/memif.json");
const SEVERAL: &str = include_str!("../../../fuzz/seeds/network_status/several.json");
const LAYER2: &str = include_str!("../../../fuzz/seeds/network_status/layer2.json");
const ANTREA: &str = include_str!("../../../fuzz/seeds/network_status/antrea.json");

fn attachment(network: &str, addresses: &[&str], device: Device) -> Attachment {
    let (namespace, name) = network.split_once('/').unwrap();
    Attachment {
        networks: vec![Network {
            kind: multinet_crds::NetworkKind::NetworkAttachmentDefinition,
            namespace: Some(namespace.to_owned()),
            name: name.to_owned(),
        }],
        addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
        device,
        claimed: None,
    }
}

/// Builds a device from interface, hardware address, RDMA device and PCI address; `-` stands for
/// none.
fn device(fields: [&str; 4]) -> Device {
    let [interface, mac, rdma_device, pci_address] =
        fields.map(|field| Some(field.to_owned()).filter(|field| field != "-"));
    Device { interface, mac, rdma_device, pci_address, numa_node: None }
}

/// Reads the annotations of a pod in the namespace `own`.
fn report(annotations: &[(&str, &str)]) -> Report {
    let annotations = annotations.iter().map(|&(key, text)| (key.to_owned(), text.to_owned())).collect();
    let mut report = Report::default();
    Multus.read(&PodAnnotations { namespace: "own", annotations: &annotations }, &mut report);
    report
}

fn status(text: &str) -> Report {
    report(&[(KEY, text)])
}

/// Returns the attachments in an annotation of which nothing is rejected.
fn attachments(text: &str) -> Vec<Attachment> {
    let report = status(text);
    assert_eq!((report.rejected, report.unreadable), (Vec::new(), Vec::new()), "{text}");
    report.interfaces.attachments
}

fn texts(report: &Report) -> Vec<Vec<String>> {
    let addresses = |attachment: &Attachment| attachment.addresses.iter().map(IpAddr::to_string).collect();
    report.interfaces.attachments.iter().map(addresses).collect()
}

/// Returns the addresses of each attachment in an annotation.
fn addresses(text: &str) -> Vec<Vec<String>> {
    let report = status(text);
    assert_eq!((&report.rejected, &report.unreadable), (&Vec::new(), &Vec::new()), "{text}");
    texts(&report)
}

fn rejected(text: &str) -> Vec<String> {
    let report = status(text);
    assert_eq!(report.unreadable, [], "{text}");
    report.rejected.into_iter().map(|line| line.0).collect()
}

fn unreadable(text: &str) -> String {
    let Report { unreadable, rejected, .. } = status(text);
    assert_eq!((unreadable.len(), rejected.len()), (1, 0), "{text}");
    unreadable[0].0.clone()
}

/// Returns the networks of the attachments, as `namespace/name`.
fn networks(report: &Report) -> Vec<String> {
    let networks = report.interfaces.attachments.iter().map(|attachment| &attachment.networks[0]);
    networks.map(|network| format!("{}/{}", network.namespace.as_deref().unwrap(), network.name)).collect()
}

#[test]
fn annotations_of_multus_are_read() {
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
fn an_attachment_may_have_several_interfaces() {
    assert_eq!(
        attachments(SEVERAL),
        [
            attachment("vision/two", &["10.1.0.1"], device(["net1", "02:00:00:00:00:01", "-", "-"])),
            attachment("vision/two", &["10.2.0.1"], device(["net1-b", "02:00:00:00:00:02", "-", "-"])),
        ],
        "none of the default network, although only one of its two entries is marked"
    );
}

#[test]
fn bare_names_are_resolved_and_the_default_network_is_ignored() {
    assert_eq!(
        attachments(ANTREA),
        [
            attachment("own/rdma-a", &["148.14.24.100"], device(["eth1", "1a:2b:3c:4d:5e:6f", "-", "-"])),
            attachment("own/rdma-a", &["148.14.24.101"], device(["eth2", "1a:2b:3c:4d:5e:70", "-", "-"])),
        ]
    );
}

#[test]
fn a_network_attachment_definition_may_be_the_default_network() {
    let text = r#"[{"name":"a/n","ips":["10.0.0.1"],"default":true},{"name":"a/n","ips":["10.0.0.2"]}]"#;
    assert_eq!(addresses(text), [["10.0.0.1"], ["10.0.0.2"]]);
    let bare = r#"[{"name":"n","ips":["10.0.0.1"],"default":true},{"name":"n","ips":["10.0.0.2"]}]"#;
    assert_eq!(networks(&status(bare)), [""; 0], "a CNI configuration");
    let named = |default| report(&[(KEY, bare), (DEFAULT_NETWORK, default), (requests::KEY, "own/n")]);
    assert_eq!(networks(&named("x/n")), ["x/n", "x/n"]);
    for other in ["x/m", "n", ""] {
        assert_eq!(networks(&named(other)), [""; 0], "{other}: the namespace is Multus' own");
    }
}

#[test]
fn a_bare_name_refers_to_a_requested_network() {
    let text = r#"[{"name":"n","interface":"eth1","ips":["10.0.0.1"]},{"name":"n","interface":"eth2","ips":["10.0.0.2"]},
        {"name":"m","interface":"eth3","ips":["10.0.0.3"]},{"name":"k","interface":"eth4","ips":["10.0.0.4"]}]"#;
    let asked = |requests| report(&[(KEY, text), (requests::KEY, requests)]);
    assert_eq!(networks(&asked("n@eth1,x/n@eth2,y/m")), ["own/n", "x/n", "y/m", "own/k"]);
    let ambiguous = asked("n,x/n@eth2,x/n,m");
    assert_eq!(networks(&ambiguous), ["x/n", "own/m", "own/k"]);
    assert_eq!(
        ambiguous.rejected[0].0,
        "eth1 on n is left out: the pod asks for NetworkAttachmentDefinition own/n and NetworkAttachmentDefinition x/n; \
         name an interface for each in annotation k8s.v1.cni.cncf.io/networks"
    );
    let requested = ambiguous.requested.iter().map(Network::to_string).collect::<Vec<_>>();
    assert_eq!(requested.len(), 3, "{requested:?}");
}

#[test]
fn interfaces_without_an_address_have_a_reason() {
    let text = r#"[{"name":"a/n"},{"name":"a/m","ips":["fe80::1"]},{"name":"a/k","ips":[]},{"name":"cbr0","default":true}]"#;
    let report = status(text);
    let addressless: Vec<_> = report
        .interfaces
        .addressless
        .iter()
        .map(|addressless| (addressless.networks[0].name.as_str(), &addressless.reason))
        .collect();
    assert_eq!(
        addressless,
        [
            ("n", &NoAddressReason::NoAddress),
            ("m", &NoAddressReason::LinkLocal),
            ("k", &NoAddressReason::NoAddress)
        ]
    );
    assert_eq!((report.rejected, report.interfaces.attachments), (Vec::new(), Vec::new()));
}

#[test]
fn names_that_are_invalid_for_objects_are_ignored() {
    for name in ["", "/", "a/", "/b", "a/b/c", "Cbr0", "my_net", "a.b/c", &"x".repeat(254)] {
        let text = format!(r#"[{{"name":"{name}","ips":["10.0.0.1"]}}]"#);
        assert_eq!(attachments(&text), [], "{name}");
    }
    assert_eq!(attachments(r#"[{"ips":["10.0.0.1"]}]"#), []);
    assert_eq!(addresses(r#"[{"name":"a/rail.0","ips":["10.0.0.1"]}]"#), [["10.0.0.1"]]);
}

#[test]
fn an_empty_annotation_is_no_error() {
    for text in ["", " \n", "[]", "null", " [ ] "] {
        assert_eq!(attachments(text), [], "{text:?}");
    }
    let nulls = r#"[{"name":"a/n","interface":null,"ips":null,"mac":null,"default":null,"dns":null,"device-info":null}]"#;
    assert_eq!(attachments(nulls), []);
}

#[test]
fn addresses_are_read_in_every_notation() {
    for ips in [r#"["10.0.0.1","fd00::1"]"#, r#""10.0.0.1, fd00::1""#, r#"["10.0.0.1/24",null,"fd00::1/64"]"#]
    {
        let text = format!(r#"[{{"name":"a/n","ips":{ips}}}]"#);
        assert_eq!(addresses(&text), [["10.0.0.1", "fd00::1"]], "{ips}");
    }
}

#[test]
fn prefix_lengths_and_repetitions_of_addresses_are_removed() {
    let text = r#"[{"name":"a/n","ips":["10.0.0.1/24","fd00::1/64","10.0.0.1","fe80::1"]}]"#;
    assert_eq!(addresses(text), [["10.0.0.1", "fd00::1"]]);
}

#[test]
fn an_invalid_address_does_not_affect_the_others() {
    let text = r#"[{"name":"a/n","interface":"net1","ips":["10.0.0.999","10.0.0.1","::ffff:10.0.0.2"]},
        {"name":"a/m","ips":["<nil>"]}]"#;
    assert_eq!(
        status(text).interfaces.attachments,
        [attachment("a/n", &["10.0.0.1"], device(["net1", "-", "-", "-"]))]
    );
    assert_eq!(
        rejected(text),
        [
            "\"10.0.0.999\" of net1 on a/n is left out: it is not an IP address",
            "\"::ffff:10.0.0.2\" of net1 on a/n is left out: it is IPv4-mapped; report the IPv4 address itself",
            "\"<nil>\" of an interface on a/m is left out: it is not an IP address",
        ]
    );
}

#[test]
fn invalid_details_do_not_affect_the_others() {
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
fn several_rdma_devices_stay_in_one_text() {
    let text = r#"[{"name":"a/n","ips":["10.0.0.1"],"device-info":{"type":"pci","pci":{"rdma-device":"mlx5_2,mlx5_3"}}}]"#;
    assert_eq!(attachments(text)[0].device.rdma_device.as_deref(), Some("mlx5_2,mlx5_3"));
}

#[test]
fn an_annotation_without_a_list_is_unreadable_as_a_whole() {
    let good = r#"{"name":"a/n","ips":["10.0.0.1"]}"#;
    let cases = [
        "{}".to_owned(),
        "7".to_owned(),
        "\"text\"".to_owned(),
        "[".to_owned(),
        "not JSON".to_owned(),
        format!("[{good}] and more"),
        format!("[{good}][{good}]"),
        format!("[{good},{{\"name\":\"a/\u{1b}\"}}]"),
        "[".repeat(100_000),
    ];
    for text in cases {
        let message = unreadable(&text);
        assert!(
            message
                .starts_with("annotation k8s.v1.cni.cncf.io/network-status is unreadable at line 1 column ")
        );
        assert!(message.ends_with("; delete the pod to have it written again"), "{message}");
        assert!(!message.contains(char::is_control), "{message}");
        assert!(message.chars().count() < 280, "{message}");
    }
}

#[test]
fn an_invalid_entry_does_not_affect_the_others() {
    let good = r#"{"name":"a/n","ips":["10.0.0.1"]}"#;
    let long = format!(r#"{{"name":"a/m","ips":[["{}"]]}}"#, "ä\u{202e}".repeat(50_000));
    for bad in [
        "7",
        "null",
        "[]",
        r#"["a/m",null,["10.0.0.2"],null,null,null]"#,
        r#"{"name":7}"#,
        r#"{"name":"a/m","ips":7}"#,
        r#"{"name":"a/m","ips":{}}"#,
        r#"{"name":"a/m","ips":[7]}"#,
        r#"{"name":"a/m","default":"true"}"#,
        &long,
    ] {
        for text in [format!("[{bad},{good}]"), format!("[{good},{bad}]")] {
            assert_eq!(texts(&status(&text)), [["10.0.0.1"]], "{bad}");
            let [line] = &rejected(&text)[..] else { panic!("{bad}") };
            assert!(line.contains(" of the network status is left out: ") && line.len() < 280, "{line}");
        }
    }
}

#[test]
fn the_message_shows_the_position_of_the_error() {
    assert_eq!(
        unreadable("[{\n    \"name\": \"a/n\",\n    \"ips\": \"10.0.0.1\"\n} 7]"),
        "annotation k8s.v1.cni.cncf.io/network-status is unreadable at line 4 column 3, \
         after \"} 7\": expected `,` or `]`; delete the pod to have it written again"
    );
}

#[test]
fn the_old_annotation_is_read_if_the_new_one_is_absent() {
    let entry = |address: &str| format!(r#"[{{"name":"n","ips":["{address}"]}}]"#);
    let (one, two) = (entry("10.0.0.1"), entry("10.0.0.2"));
    assert_eq!(texts(&report(&[(OLD_KEY, &one)])), [["10.0.0.1"]]);
    assert_eq!(texts(&report(&[(OLD_KEY, &one), (KEY, &two)])), [["10.0.0.2"]]);
    assert_eq!(report(&[(OLD_KEY, &one), (KEY, "[]")]), Report::default());
    assert_eq!(report(&[(OLD_KEY, &one), (KEY, "x")]).unreadable.len(), 1);
    let old = report(&[(OLD_KEY, "x")]);
    assert!(old.unreadable[0].0.starts_with("annotation k8s.v1.cni.cncf.io/networks-status is"));
}

#[test]
fn attachments_above_the_limit_are_reported() {
    let entries: Vec<String> =
        (0..70).map(|i| format!(r#"{{"name":"a/n{i}","ips":["10.0.0.{i}"]}}"#)).collect();
    let text = format!("[{}]", entries.join(","));
    assert_eq!(status(&text).interfaces.attachments.len(), MAX_ATTACHMENTS);
    assert_eq!(rejected(&text), ["6 attachments beyond the first 64 are left out"]);
}

#[test]
fn a_huge_annotation_results_in_short_messages() {
    let fill = |unit: &str| format!("[{}]", vec![unit; 256 * 1024 / (unit.len() + 1)].join(","));
    let ips = |unit: &str| format!(r#"[{{"name":"a/n","ips":{}}}]"#, fill(unit));
    for text in [
        fill(r#"{"name":"a/n","ips":["10.0.0.1"]}"#),
        fill(r#"{"name":"n","ips":["10.0.0.1"],"default":true}"#),
        fill(r#"{"name":"a/n","ips":["x"]}"#),
        ips("\"x\""),
        ips("\"10.0.0.1\""),
    ] {
        let Report { interfaces, rejected, .. } = status(&text);
        assert!(interfaces.attachments.len() + interfaces.addressless.len() <= MAX_ATTACHMENTS);
        assert!(rejected.len() < 20, "{rejected:?}");
    }
}
