//! The annotation `k8s.v1.cni.cncf.io/network-status`, which Multus and others write
//! (multi-network specification of the Network Plumbing Working Group, version 1.3).

use serde::Deserialize;
use serde_json::Value;

use super::{Attachment, ip};

/// Annotations that have the status, the newer name first.
const ANNOTATIONS: [&str; 2] = ["k8s.v1.cni.cncf.io/network-status=", "k8s.v1.cni.cncf.io/networks-status="];

#[derive(Deserialize)]
struct Entry {
    name: String,
    interface: Option<String>,
    ips: Option<Vec<String>>,
    default: Option<bool>,
}

/// Parses the annotation, or a file of the downward API with all annotations, which has one line
/// `KEY="ESCAPED VALUE"` for each. Either may be empty at first. Entries of another form are left
/// out. Returns `None` for text that is neither.
pub(super) fn parse(text: &str) -> Option<Vec<Attachment>> {
    let of = |annotation| text.lines().find_map(|line: &str| line.strip_prefix(annotation));
    let unescaped = ANNOTATIONS.into_iter().find_map(of).and_then(|value| serde_json::from_str(value).ok());
    let value: String = unescaped.unwrap_or_else(|| text.to_owned());
    let entries: Vec<Value> = match serde_json::from_str(&value) {
        Ok(entries) => entries,
        Err(_) if text.lines().all(|line| line.contains("=\"")) => Vec::new(),
        Err(_) => return None,
    };
    let entries = entries.into_iter().filter_map(|entry| serde_json::from_value::<Entry>(entry).ok());
    let attachment = |entry: Entry| Attachment {
        network: entry.name.rsplit('/').next().unwrap_or_default().to_owned(),
        interface: entry.interface.filter(|name| !name.is_empty()),
        addresses: entry.ips.iter().flatten().filter_map(|text| ip(text)).collect(),
        pci: None,
    };
    Some(entries.filter(|entry| entry.default != Some(true)).map(attachment).collect())
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
        parse(text).unwrap().into_iter().map(|it| (it.network, it.interface, it.addresses.len())).collect()
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
    fn entries_of_another_form_are_left_out() {
        let odd = r#"[{"name": "a", "interface": "net1", "ips": null, "default": null}, {"interface": "net2"}, 5,
                      {"name": "c", "ips": "192.168.1.1"}, {"name": "d", "interface": "", "ips": ["x"]}]"#;
        assert_eq!(names(odd), [("a".to_owned(), Some("net1".to_owned()), 0), ("d".to_owned(), None, 0)]);
        for none_yet in ["[]", "", "a=\"b\"\n"] {
            assert_eq!(names(none_yet), []);
        }
    }

    #[test]
    fn text_of_another_form_is_told() {
        for text in ["{}", "network-status", "[{]", "\u{0}"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
