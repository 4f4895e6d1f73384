//! Reads the networks that a pod requests from its annotation `k8s.v1.cni.cncf.io/networks`.
//!
//! The value is a comma-separated list of `[namespace/]name[@interface]`, or a JSON list of objects
//! with these fields (Kubernetes Network Custom Resource Definition De-facto Standard, section
//! 4.1). Unreadable parts are ignored: the CNI has refused such a pod already.

use multinet_crds::NetworkKind;
use multinet_crds::syntax::{DNS_LABEL, DNS_SUBDOMAIN};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::PodAnnotations;
use crate::limits::pods::MAX_REQUESTS;
use crate::model::Network;

/// Key of the pod annotation that requests networks.
pub(super) const KEY: &str = "k8s.v1.cni.cncf.io/networks";

/// Networks that a pod requests in its annotation.
#[derive(Debug, Default)]
pub(super) struct NetworkRequests(Vec<NetworkRequest>);

#[derive(Debug, PartialEq, Eq)]
struct NetworkRequest {
    network: Network,
    interface: Option<String>,
}

/// Network that a name without a namespace refers to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// The pod requests one network with this name, in this namespace.
    Namespace(String),
    /// The pod requests no network with this name.
    NotRequested,
    /// The pod requests several networks with this name.
    Ambiguous(Vec<Network>),
}

impl NetworkRequests {
    /// Reads the networks that a pod's annotation requests.
    pub(super) fn of(pod: &PodAnnotations<'_>) -> Self {
        let text = pod.get(KEY).unwrap_or_default().trim();
        let requests: Vec<NetworkRequest> = if text.starts_with('[') {
            let entries: Vec<&RawValue> = serde_json::from_str(text).unwrap_or_default();
            let entries = entries.iter().take(MAX_REQUESTS);
            entries.filter_map(|entry| Element::parse(entry)?.into_request(pod.namespace)).collect()
        } else {
            let entries = text.split(',').take(MAX_REQUESTS);
            entries.filter_map(|entry| shorthand(entry.trim(), pod.namespace)).collect()
        };
        Self(requests)
    }

    /// Returns the requested networks, each once.
    pub(super) fn networks(&self) -> Vec<Network> {
        let mut networks: Vec<Network> = self.0.iter().map(|request| request.network.clone()).collect();
        networks.sort_unstable();
        networks.dedup();
        networks
    }

    /// Resolves the network name of `interface`: by a request for that interface, or else by the
    /// name alone.
    pub(super) fn meaning(&self, name: &str, interface: Option<&str>) -> Meaning {
        let named = || self.0.iter().filter(|request| request.network.name == name);
        let at_interface =
            named().find(|request| interface.is_some() && request.interface.as_deref() == interface);
        if let Some(NetworkRequest { network, .. }) = at_interface {
            return Meaning::of([network]);
        }
        // A request for another interface cannot be meant.
        Meaning::of(
            named()
                .filter(|request| request.interface.is_none() || interface.is_none())
                .map(|request| &request.network),
        )
    }
}

impl Meaning {
    fn of<'a>(networks: impl IntoIterator<Item = &'a Network>) -> Self {
        let mut networks: Vec<Network> = networks.into_iter().cloned().collect();
        networks.sort_unstable();
        networks.dedup();
        match networks.as_slice() {
            [] => Self::NotRequested,
            [network] => Self::Namespace(network.namespace.clone().unwrap_or_default()),
            _ => Self::Ambiguous(networks),
        }
    }
}

/// Entry of the annotation in its JSON form.
#[derive(Deserialize)]
struct Element {
    name: String,
    namespace: Option<String>,
    interface: Option<String>,
}

impl Element {
    fn parse(text: &RawValue) -> Option<Self> {
        serde_json::from_str(text.get()).ok()
    }

    fn into_request(self, own: &str) -> Option<NetworkRequest> {
        let namespace = self.namespace.filter(|namespace| !namespace.is_empty());
        let network = definition(namespace.as_deref().unwrap_or(own), &self.name)?;
        Some(NetworkRequest { network, interface: self.interface.filter(|interface| !interface.is_empty()) })
    }
}

fn shorthand(text: &str, own: &str) -> Option<NetworkRequest> {
    let (name, interface) = match text.split_once('@') {
        Some((name, interface)) => (name, Some(interface.to_owned())),
        None => (text, None),
    };
    let (namespace, name) = name.split_once('/').unwrap_or((own, name));
    Some(NetworkRequest { network: definition(namespace, name)?, interface })
}

/// Returns the NetworkAttachmentDefinition with this name; `None` if the name is invalid.
pub(super) fn definition(namespace: &str, name: &str) -> Option<Network> {
    (DNS_LABEL.accepts(namespace) && DNS_SUBDOMAIN.accepts(name)).then(|| Network {
        kind: NetworkKind::NetworkAttachmentDefinition,
        namespace: Some(namespace.to_owned()),
        name: name.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(text: &str) -> NetworkRequests {
        let annotations = [(KEY.to_owned(), text.to_owned())].into();
        NetworkRequests::of(&PodAnnotations { namespace: "own", annotations: &annotations })
    }

    fn networks(text: &str) -> Vec<String> {
        let networks = requests(text).networks();
        networks
            .iter()
            .map(|network| format!("{}/{}", network.namespace.as_deref().unwrap(), network.name))
            .collect()
    }

    #[test]
    fn both_forms_name_the_same_networks() {
        let json =
            r#"[{"name":"a"},{"name":"b","namespace":"x","interface":"eth2"},{"name":"c","namespace":""}]"#;
        for text in [json, "a,x/b@eth2,c", " a , x/b@eth2,\nc "] {
            assert_eq!(networks(text), ["own/a", "own/c", "x/b"], "{text}");
        }
    }

    #[test]
    fn invalid_requests_are_ignored() {
        for text in ["", "[", "[7]", r#"[{"namespace":"x"}]"#, "x/y/z", "/a", "a/", "A", "[[]]", "{}"] {
            assert_eq!(networks(text), [""; 0], "{text}");
        }
        assert_eq!(networks(r#"[7,{"name":7},{"name":"a"}]"#), ["own/a"]);
        assert_eq!(requests(&"a,".repeat(1000)).0.len(), MAX_REQUESTS);
    }

    #[test]
    fn a_bare_name_refers_to_a_requested_network() {
        let found = |namespace: &str| Meaning::Namespace(namespace.to_owned());
        let two = "n@eth1,x/n@eth2,y/m";
        let cases = [
            (two, "n", Some("eth1"), found("own")),
            (two, "n", Some("eth2"), found("x")),
            (two, "m", Some("eth3"), found("y")),
            (two, "m", None, found("y")),
            (two, "n", Some("eth3"), Meaning::NotRequested),
            (two, "k", Some("eth1"), Meaning::NotRequested),
            ("n@eth1,x/n", "n", Some("net2"), found("x")),
            ("x/n,x/n", "n", Some("net2"), found("x")),
            ("x/n@eth1", "n", None, found("x")),
        ];
        for (text, name, interface, expected) in cases {
            assert_eq!(requests(text).meaning(name, interface), expected, "{text} {name} {interface:?}");
        }
        for (text, interface) in [("n,x/n", Some("net1")), (two, None)] {
            let Meaning::Ambiguous(networks) = requests(text).meaning("n", interface) else {
                panic!("{text}")
            };
            assert_eq!(networks.len(), 2);
        }
    }
}
