//! The addresses that may send, as `--from` says.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use futures::StreamExt as _;
use ipnet::IpNet;
use multinet_client::resolve::Question;
use multinet_client::{Change, Resolver};
use parking_lot::RwLock;

/// Port in questions for a service's addresses, which do not depend on it.
const ANY_PORT: &str = "1";

/// Value of `--from`: the addresses that may send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Network(IpNet),
    /// The addresses of a service's pods, which DNS knows by the service's name.
    Service(String),
}

/// All values of `--from`, with the addresses of the services. A clone is another handle.
#[derive(Clone, Debug)]
pub(super) struct Senders(Arc<[(Origin, Known)]>);

/// Addresses of a service's pods; `None` while they are not known.
type Known = RwLock<Option<BTreeSet<IpAddr>>>;

impl FromStr for Origin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(network) = text.parse() {
            return Ok(Self::Network(network));
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self::Network(address.into()));
        }
        match Question::parse(text, ANY_PORT) {
            Ok(_) if !text.contains('/') => Ok(Self::Service(text.to_owned())),
            _ => Err("write a network as 192.168.111.0/24, an address, or the name of a service".to_owned()),
        }
    }
}

impl Senders {
    pub(super) fn new(origins: &[Origin]) -> Self {
        Self(origins.iter().map(|origin| (origin.clone(), Known::default())).collect())
    }

    /// Returns whether any value of `--from` is the name of a service.
    pub(super) fn names_services(&self) -> bool {
        self.0.iter().any(|(origin, _)| matches!(origin, Origin::Service(_)))
    }

    /// Follows the addresses of the services, for as long as the runtime runs.
    pub(super) fn follow(&self, resolver: &Resolver) {
        for (place, (origin, _)) in self.0.iter().enumerate() {
            let Origin::Service(name) = origin else { continue };
            let (senders, mut changes) = (self.clone(), resolver.watch(name, ANY_PORT));
            tokio::spawn(async move {
                while let Some(change) = changes.next().await {
                    senders.update(place, change);
                }
            });
        }
    }

    /// Updates the addresses of the service that is the value of `--from` at this place.
    fn update(&self, place: usize, change: Change) {
        let addresses = match change {
            Change::Endpoints(now) => {
                let all = now.endpoints.iter().flat_map(|endpoint| &endpoint.addresses);
                Some(all.map(|address| address.ip).collect())
            }
            Change::Lost { .. } => None,
            // The last addresses still hold.
            _ => return,
        };
        if let Some((_, known)) = self.0.get(place) {
            *known.write() = addresses;
        }
    }

    /// Checks that `--from` lets the program at this address send.
    ///
    /// # Errors
    ///
    /// The reason why it may not send, which its sender is told.
    pub(super) fn admit(&self, address: IpAddr) -> Result<(), String> {
        let mut unknown = Vec::new();
        for (origin, known) in &*self.0 {
            let is_in = match origin {
                Origin::Network(network) => network.contains(&address),
                Origin::Service(name) => {
                    let known = known.read();
                    if known.is_none() {
                        unknown.push(name.as_str());
                    }
                    known.as_ref().is_some_and(|known| known.contains(&address))
                }
            };
            if is_in {
                return Ok(());
            }
        }
        let refusal = format!("{address} may not send here: it is not among those that --from allows");
        Err(match &unknown[..] {
            [] => refusal,
            unknown => format!("{refusal}, and DNS does not tell the addresses of {}", unknown.join(", ")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_an_address_or_a_service_is_parsed() {
        let network = |text: &str| Origin::Network(text.parse().unwrap());
        let cases = [
            ("192.168.111.0/24", Ok(network("192.168.111.0/24"))),
            ("192.168.111.7", Ok(network("192.168.111.7/32"))),
            ("fd00:111::/64", Ok(network("fd00:111::/64"))),
            ("fd00:111::7", Ok(network("fd00:111::7/128"))),
            ("infer.vision.svc.multinet", Ok(Origin::Service("infer.vision.svc.multinet".to_owned()))),
            ("192.168.111.0/33", Err(())),
            ("infer/24", Err(())),
            ("a b", Err(())),
            ("", Err(())),
        ];
        for (text, expected) in cases {
            assert_eq!(text.parse::<Origin>().map_err(|_| ()), expected, "{text}");
        }
    }

    #[tokio::test]
    async fn a_service_whose_addresses_are_not_known_admits_no_sender() {
        let senders = Senders::new(&["10.9.0.0/24", "infer"].map(|text| text.parse().unwrap()));
        let [rack, pod, stranger] = ["10.9.0.7", "10.0.0.5", "10.0.0.6"].map(|ip| ip.parse().unwrap());
        senders.admit(rack).unwrap();
        let refused = senders.admit(pod).unwrap_err();
        assert!(
            refused.ends_with("--from allows, and DNS does not tell the addresses of infer"),
            "{refused}"
        );

        let resolver = Resolver::builder().servers(["127.0.0.1:9".parse().unwrap()]).build().unwrap();
        let resolved = resolver.resolve("10.0.0.5", ANY_PORT).await.unwrap();
        senders.update(1, Change::Endpoints(resolved));
        senders.admit(pod).unwrap();
        let refused = senders.admit(stranger).unwrap_err();
        assert!(refused.ends_with("it is not among those that --from allows"), "{refused}");

        let error = resolver.resolve("a b", ANY_PORT).await.unwrap_err();
        senders.update(1, Change::Held { since: std::time::Instant::now(), error: error.clone() });
        senders.admit(pod).unwrap();
        senders.update(1, Change::Lost { error });
        assert!(senders.admit(pod).is_err());
    }
}
