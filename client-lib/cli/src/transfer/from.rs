//! The addresses that may send or fetch, as `--from` says.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use clap::Args;
use futures::StreamExt as _;
use ipnet::IpNet;
use multinet_client::resolve::Question;
use multinet_client::{Change, Resolver};
use parking_lot::RwLock;

use crate::common::DnsArgs;

/// Port in questions for a service's addresses, which do not depend on it.
const ANY_PORT: &str = "1";

/// Value of `--from`: the addresses that may send or fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Network(IpNet),
    /// The addresses of a service's pods, which DNS knows by the service's name.
    Service(String),
}

/// Flags of the subcommands that serve other programs' transfers.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct FromArgs {
    /// Accept only peers on this network, with this address, or in the pods of this service; may be
    /// repeated. A service's addresses are followed in DNS; while they are not known, none is
    /// accepted
    #[arg(
        long,
        value_name = "CIDR|SERVICE",
        env = "MULTINET_FROM",
        value_delimiter = ',',
        help_heading = "Network"
    )]
    pub(super) from: Vec<Origin>,
}

/// All values of `--from`, with the addresses of the services. A clone is another handle.
#[derive(Clone, Debug)]
struct Origins {
    all: Arc<[(Origin, Known)]>,
    /// Verb for messages: send or fetch.
    may: &'static str,
}

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

/// Returns a function that checks whether `--from` lets the program at an address do this. `None`
/// if there is no `--from`.
///
/// # Errors
///
/// If no DNS server is known, and there are services to follow.
pub(super) fn admission(
    origins: &[Origin],
    dns: &DnsArgs,
    may: &'static str,
) -> anyhow::Result<Option<impl Fn(IpAddr) -> Result<(), String> + Send + Sync + 'static>> {
    if origins.is_empty() {
        return Ok(None);
    }
    let all = Origins::new(origins, may);
    if origins.iter().any(|origin| matches!(origin, Origin::Service(_))) {
        all.follow(&dns.resolver()?);
    }
    Ok(Some(move |address| all.admit(address)))
}

impl Origins {
    fn new(origins: &[Origin], may: &'static str) -> Self {
        Self { all: origins.iter().map(|origin| (origin.clone(), Known::default())).collect(), may }
    }

    /// Follows the addresses of the services, for as long as the runtime runs.
    fn follow(&self, resolver: &Resolver) {
        for (place, (origin, _)) in self.all.iter().enumerate() {
            let Origin::Service(name) = origin else { continue };
            let (origins, mut changes) = (self.clone(), resolver.watch(name, ANY_PORT));
            tokio::spawn(async move {
                while let Some(change) = changes.next().await {
                    origins.update(place, change);
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
        if let Some((_, known)) = self.all.get(place) {
            *known.write() = addresses;
        }
    }

    /// Checks that `--from` lets the program at this address send or fetch.
    ///
    /// # Errors
    ///
    /// The reason why it may not, which it is told.
    fn admit(&self, address: IpAddr) -> Result<(), String> {
        let mut unknown = Vec::new();
        for (origin, known) in &*self.all {
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
        let may = self.may;
        let refusal = format!("{address} may not {may} here: it is not among those that --from allows");
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
    async fn a_service_whose_addresses_are_not_known_admits_no_peer() {
        let origins = Origins::new(&["10.9.0.0/24", "infer"].map(|text| text.parse().unwrap()), "send");
        let [rack, pod, stranger] = ["10.9.0.7", "10.0.0.5", "10.0.0.6"].map(|ip| ip.parse().unwrap());
        origins.admit(rack).unwrap();
        let refused = origins.admit(pod).unwrap_err();
        assert!(
            refused.ends_with("--from allows, and DNS does not tell the addresses of infer"),
            "{refused}"
        );

        let resolver = Resolver::builder().servers(["127.0.0.1:9".parse().unwrap()]).build().unwrap();
        let resolved = resolver.resolve("10.0.0.5", ANY_PORT).await.unwrap();
        origins.update(1, Change::Endpoints(resolved));
        origins.admit(pod).unwrap();
        let refused = origins.admit(stranger).unwrap_err();
        assert!(refused.ends_with("it is not among those that --from allows"), "{refused}");

        let error = resolver.resolve("a b", ANY_PORT).await.unwrap_err();
        origins.update(1, Change::Held { since: std::time::Instant::now(), error: error.clone() });
        origins.admit(pod).unwrap();
        origins.update(1, Change::Lost { error });
        assert!(origins.admit(pod).is_err());
    }
}
