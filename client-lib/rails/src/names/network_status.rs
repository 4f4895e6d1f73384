//! The annotation `k8s.v1.cni.cncf.io/network-status`, which Multus and others write
//! (multi-network specification of the Network Plumbing Working Group, version 1.3).

use serde::Deserialize;

use super::{Attachment, ip};

/// Annotations that have the status, the newer name first.
const ANNOTATIONS: [&str; 2] = ["k8s.v1.cni.cncf.io/network-status=", "k8s.v1.cni.cncf.io/networks-status="];

#[derive(Deserialize)]
struct Entry {
    name: String,
    interface: Option<String>,
    #[serde(default)]
    ips: Vec<String>,
    #[serde(default)]
    default: bool,
}

/// Parses the annotation, or a file of the downward API with all annotations, which has one line
/// `KEY="ESCAPED VALUE"` for each. Text that is neither has no entries: the names are then unknown,
/// as without the file.
pub(super) fn parse(text: &str) -> Vec<Attachment> {
    let of = |annotation| text.lines().find_map(|line: &str| line.strip_prefix(annotation));
    let unescaped = ANNOTATIONS.into_iter().find_map(of).and_then(|value| serde_json::from_str(value).ok());
    let value: String = unescaped.unwrap_or_else(|| text.to_owned());
    let entries: Vec<Entry> = serde_json::from_str(&value).unwrap_or_default();
    let attachment = |entry: Entry| Attachment {
        network: entry.name.rsplit('/').next().unwrap_or_default().to_owned(),
        interface: entry.interface.filter(|name| !name.is_empty()),
        addresses: entry.ips.iter().filter_map(|text| ip(text)).collect(),
        pci: None,
    };
    entries.into_iter().filter(|entry| !entry.default).map(attachment).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = r#"[
        {"name": "cbr0", "interface": "eth0", "ips": ["10.244.0.9"], "default": true, "dns": {}},
        {"name": "vision/rdma-a", "interface": "net1", "ips": ["192.168.111.5", "fd00::5"], "mac": "02:00:00:00:00:01"},
        {"name": "rdma-b", "ips": ["192.168.112.5"]}
    ]"#;

    fn names(text: &str) -> Vec<(String, Option<String>, usize)> {
        parse(text).into_iter().map(|it| (it.network, it.interface, it.addresses.len())).collect()
    }

    #[test]
    fn networks_are_read_from_the_annotation_and_from_a_list_of_annotations() {
        let expected = [("rdma-a".to_owned(), Some("net1".to_owned()), 2), ("rdma-b".to_owned(), None, 1)];
        assert_eq!(names(STATUS), expected);
        let escaped = serde_json::to_string(STATUS).unwrap();
        for key in ANNOTATIONS {
            assert_eq!(names(&format!("a=\"b\"\n{key}{escaped}\nz=\"\"\n")), expected);
        }
    }

    #[test]
    fn text_of_another_form_has_no_networks() {
        for text in [
            "",
            "[]",
            "{}",
            "[{\"interface\": \"net1\"}]",
            "k8s.v1.cni.cncf.io/network-status=\"\\x\"",
            "\u{0}",
        ] {
            assert_eq!(parse(text), [], "{text:?}");
        }
    }
}
