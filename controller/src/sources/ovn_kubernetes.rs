//! Reads interfaces from OVN-Kubernetes' annotation `k8s.ovn.org/pod-networks`.
//!
//! Only this annotation shows a namespace's primary network (a UserDefinedNetwork or
//! ClusterUserDefinedNetwork with the role Primary). Multus reports its interface with the name of
//! OVN-Kubernetes itself, and pods do not request it. The annotation is a JSON object with an entry
//! per network, by the name of its NetworkAttachmentDefinition (go-controller,
//! `pkg/util/pod_annotation.go`):
//!
//! ```json
//! {"default": {"ip_addresses": ["10.128.0.5/23"], "mac_address": "0a:58:…",
//!              "role": "infrastructure-locked"},
//!  "vision/tenant-blue": {"ip_addresses": ["203.0.113.5/24"], "mac_address": "0a:58:…",
//!                         "role": "primary"}}
//! ```
//!
//! `ip_address` is an older form of a list with one address. An unreadable entry is ignored and
//! reported; the others are used.

use std::collections::BTreeMap;

use multinet_crds::Device;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::requests::definition;
use super::{PodAnnotations, Source};
use crate::limits::pods::MAX_NETWORKS;
use crate::model::{Addressless, Attachment, Report, Unreadable};
use crate::untrusted::{self, Problems, quoted, shortened};

/// Key of the pod annotation in which OVN-Kubernetes reports networks and addresses.
pub const KEY: &str = "k8s.ovn.org/pod-networks";

/// Name of the annotation's entry for the pod's default network, which is not a secondary network.
const DEFAULT: &str = "default";

/// Name of a pod's interface on a primary user-defined network (go-controller, `pkg/cni`).
const PRIMARY_INTERFACE: &str = "ovn-udn1";

/// Maximum length of untrusted text in a message, in characters.
const EXCERPT: usize = 80;

/// Source of interfaces that OVN-Kubernetes reports in a pod annotation.
pub struct OvnKubernetes;

/// Entry of a network in the annotation.
#[derive(Deserialize)]
struct NetworkEntry {
    ip_addresses: Option<Vec<String>>,
    ip_address: Option<String>,
    mac_address: Option<String>,
    role: Option<String>,
}

impl Source for OvnKubernetes {
    fn read(&self, pod: &PodAnnotations<'_>, report: &mut Report) {
        let Some(text) = pod.get(KEY) else { return };
        let entries: BTreeMap<String, &RawValue> = match serde_json::from_str::<Option<_>>(text) {
            Ok(entries) => entries.unwrap_or_default(),
            Err(error) => {
                let complaint = shortened(&error.to_string(), EXCERPT);
                report.unreadable.push(Unreadable(format!(
                    "annotation {KEY} is unreadable: {complaint}; delete the pod to have it written again"
                )));
                return;
            }
        };
        let mut problems = Problems::default();
        let networks = entries.into_iter().filter(|(name, _)| name != DEFAULT);
        for (name, entry) in networks.take(MAX_NETWORKS) {
            read_entry(&name, entry, report, &mut problems);
        }
        report.rejected.extend(problems.into_lines());
    }
}

fn read_entry(name: &str, entry: &RawValue, report: &mut Report, problems: &mut Problems) {
    let Some(network) = name.split_once('/').and_then(|(namespace, name)| definition(namespace, name)) else {
        return;
    };
    let entry: NetworkEntry = match serde_json::from_str(entry.get()) {
        Ok(entry) => entry,
        Err(error) => {
            let complaint = shortened(&error.to_string(), EXCERPT);
            problems
                .note(|| format!("network {} of annotation {KEY} is left out: {complaint}", quoted(name)));
            return;
        }
    };
    let networks = vec![network];
    let ips = entry.ip_addresses.unwrap_or_else(|| entry.ip_address.into_iter().collect());
    match untrusted::addresses(&ips, &shortened(name, EXCERPT), problems) {
        Ok(addresses) => {
            let is_primary = entry.role.as_deref() == Some("primary");
            let device = Device {
                interface: is_primary.then(|| PRIMARY_INTERFACE.to_owned()),
                mac: entry.mac_address.and_then(|mac| untrusted::mac(&mac)),
                ..Device::default()
            };
            report.interfaces.attachments.push(Attachment { networks, addresses, device, claimed: None });
        }
        Err(reason) => report.interfaces.addressless.push(Addressless { networks, claimed: None, reason }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::NoAddressReason;

    fn read(text: &str) -> Report {
        let annotations = [(KEY.to_owned(), text.to_owned())].into();
        let mut report = Report::default();
        OvnKubernetes.read(&PodAnnotations { namespace: "own", annotations: &annotations }, &mut report);
        report
    }

    /// Returns the network, addresses, interface and hardware address of each attachment.
    fn attachments(report: &Report) -> Vec<String> {
        let shown = |attachment: &Attachment| {
            let device = &attachment.device;
            let fields =
                (&attachment.networks[0].name, &attachment.addresses, &device.interface, &device.mac);
            format!("{fields:?}")
        };
        report.interfaces.attachments.iter().map(shown).collect()
    }

    #[test]
    fn primary_and_secondary_networks_are_read_and_the_default_one_is_not() {
        let report = read(
            r#"{"default":{"ip_addresses":["10.128.0.5/23"],"role":"infrastructure-locked"},
                "vision/blue":{"ip_addresses":["203.0.113.5/24","fd00::5/64"],"mac_address":"0a:58:cb:00:71:05","role":"primary"},
                "vision/old":{"ip_address":"198.51.100.5/24","role":"secondary"}}"#,
        );
        assert_eq!(
            attachments(&report),
            [
                r#"("blue", [203.0.113.5, fd00::5], Some("ovn-udn1"), Some("0a:58:cb:00:71:05"))"#,
                r#"("old", [198.51.100.5], None, None)"#,
            ]
        );
        assert_eq!((report.unreadable.len(), report.rejected.len()), (0, 0));
    }

    #[test]
    fn an_unreadable_network_does_not_affect_the_others() {
        let report = read(
            r#"{"vision/bad":{"ip_addresses":7},"vision/empty":{},"vision/good":{"ip_addresses":["10.0.0.1/24","x"]},"odd":{}}"#,
        );
        assert_eq!(attachments(&report), [r#"("good", [10.0.0.1], None, None)"#]);
        let [addressless] = &report.interfaces.addressless[..] else { panic!("{report:?}") };
        assert_eq!(
            (addressless.networks[0].name.as_str(), &addressless.reason),
            ("empty", &NoAddressReason::NoAddress)
        );
        let lines: Vec<&str> = report.rejected.iter().map(|line| line.0.as_str()).collect();
        assert!(
            lines[0].starts_with("network \"vision/bad\" of annotation k8s.ovn.org/pod-networks is left out")
        );
        assert_eq!(lines[1..], ["\"x\" of vision/good is left out: it is not an IP address"]);
    }

    #[test]
    fn an_annotation_without_a_json_object_is_unreadable() {
        for text in ["[", "[]", "7", "{", r#"{"a/b":}"#] {
            let report = read(text);
            assert_eq!((report.unreadable.len(), attachments(&report).len()), (1, 0), "{text}");
        }
        assert_eq!(read("null"), Report::default());
        assert_eq!(read("{}"), Report::default());
    }
}
