//! A service and its pods, as they change.

use std::collections::{BTreeMap, BTreeSet};

use multinet_controller::mirror::DesiredMirror;
use multinet_controller::slices::{Desired, Group, Owner};
use multinet_crds::{Endpoint, EndpointConditions, IpFamily, NetworkReference, Port, TargetReference};
use proptest::prelude::*;

/// Networks that the service may have.
const NETWORKS: u8 = 3;

/// Networks, each with two families.
const GROUPS: u8 = NETWORKS * 2;

/// One endpoint: its group and its number there.
pub(crate) type Spot = (u8, u16);

/// A change of the service or its pods.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Add(Spot),
    Remove(Spot),
    /// Another state of the same endpoint.
    Touch(Spot),
    /// Another hostname: another endpoint.
    Rename(Spot),
    /// The first so many endpoints of a group exist.
    Fill(u8, u16),
    Clear(u8),
    /// The service gets or loses a network.
    Network(u8),
    /// A network gets another alias.
    Alias(u8),
    /// Two networks swap their aliases.
    Swap,
    Ports,
    Label,
    /// The service is deleted and created again.
    Recreate,
    Limit(usize),
}

fn spot() -> impl Strategy<Value = Spot> {
    // Some more often than others, so that one endpoint meets several changes.
    (0..GROUPS, prop_oneof![0..2_u16, 0..20_u16])
}

/// A change of one endpoint.
pub(crate) fn small_change() -> impl Strategy<Value = Change> {
    prop_oneof![
        spot().prop_map(Change::Add),
        spot().prop_map(Change::Remove),
        spot().prop_map(Change::Touch),
        spot().prop_map(Change::Rename),
    ]
}

/// A change of which endpoints there are.
pub(crate) fn change_of_endpoints() -> impl Strategy<Value = Change> {
    prop_oneof![
        6 => small_change(),
        2 => (0..GROUPS, 0..20_u16).prop_map(|(group, count)| Change::Fill(group, count)),
        1 => (0..GROUPS).prop_map(Change::Clear),
        1 => (0..NETWORKS).prop_map(Change::Network),
    ]
}

/// Any change.
pub(crate) fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        8 => change_of_endpoints(),
        1 => (0..NETWORKS).prop_map(Change::Alias),
        1 => Just(Change::Swap),
        1 => Just(Change::Ports),
        1 => Just(Change::Label),
        1 => Just(Change::Recreate),
        1 => (1..8_usize).prop_map(Change::Limit),
    ]
}

/// What varies of an endpoint.
#[derive(Clone, Debug, Default)]
struct Pod {
    name: u32,
    state: u32,
}

/// A service and its pods.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) limit: usize,
    networks: BTreeSet<u8>,
    aliases: [String; NETWORKS as usize],
    pods: BTreeMap<Spot, Pod>,
    ports: u16,
    label: u32,
    uid: u32,
    clock: u32,
    reversed: bool,
}

impl Default for World {
    fn default() -> Self {
        Self {
            limit: 3,
            networks: [0, 1].into(),
            aliases: ["rail0", "rail1", "rail2"].map(str::to_owned),
            pods: BTreeMap::new(),
            ports: 1,
            label: 0,
            uid: 0,
            clock: 0,
            reversed: false,
        }
    }
}

impl World {
    /// Whether the endpoint of a small change exists, and is one of the service's.
    pub(crate) fn has(&self, change: &Change) -> bool {
        match change {
            Change::Add(spot) | Change::Remove(spot) | Change::Touch(spot) | Change::Rename(spot) => {
                // An endpoint on a network that is not the service's might as well exist: nothing comes of it.
                match self.networks.contains(&(spot.0 / 2)) {
                    true => self.pods.contains_key(spot),
                    false => matches!(change, Change::Add(_)),
                }
            }
            _ => false,
        }
    }

    /// The endpoints that are the service's.
    pub(crate) fn spots(&self) -> Vec<Spot> {
        self.pods.keys().filter(|spot| self.networks.contains(&(spot.0 / 2))).copied().collect()
    }

    /// Whether a group has no endpoints.
    pub(crate) fn is_empty(&self, group: u8) -> bool {
        self.pods.range((group, 0)..=(group, u16::MAX)).next().is_none()
    }

    pub(crate) fn add(&mut self, group: u8, number: u16) {
        self.pods.entry((group, number)).or_default();
    }

    pub(crate) fn remove(&mut self, group: u8, number: u16) {
        self.pods.remove(&(group, number));
    }

    pub(crate) fn take(&mut self, change: &Change) {
        self.clock += 1;
        match change {
            Change::Add((group, number)) => self.add(*group, *number),
            Change::Remove((group, number)) => self.remove(*group, *number),
            Change::Touch(spot) => {
                if let Some(pod) = self.pods.get_mut(spot) {
                    pod.state = self.clock;
                }
            }
            Change::Rename(spot) => {
                if let Some(pod) = self.pods.get_mut(spot) {
                    pod.name = self.clock;
                }
            }
            Change::Fill(group, count) => (0..*count).for_each(|number| self.add(*group, number)),
            Change::Clear(group) => self.pods.retain(|spot, _| spot.0 != *group),
            Change::Network(network) => {
                if !self.networks.remove(network) {
                    self.networks.insert(*network);
                }
            }
            Change::Alias(network) => self.aliases[usize::from(*network)] = format!("alias{}", self.clock),
            Change::Swap => self.aliases.swap(0, 1),
            Change::Ports => self.ports = self.ports % 3 + 1,
            Change::Label => self.label += 1,
            Change::Recreate => self.uid += 1,
            Change::Limit(limit) => self.limit = *limit,
        }
    }

    /// The same, listed backwards.
    pub(crate) fn reversed(&self) -> Self {
        Self { reversed: true, ..self.clone() }
    }

    pub(crate) fn owner(&self) -> Owner {
        Owner {
            namespace: "vision".to_owned(),
            name: "infer".to_owned(),
            uid: format!("service-{}", self.uid),
        }
    }

    pub(crate) fn labels(&self) -> BTreeMap<String, String> {
        match self.label {
            0 => BTreeMap::new(),
            label => [("label".to_owned(), label.to_string())].into(),
        }
    }

    pub(crate) fn ports(&self) -> Vec<Port> {
        (0..self.ports - 1)
            .map(|port| Port { name: format!("p{port}"), port: 80 + port, ..Port::default() })
            .collect()
    }

    pub(crate) fn desired(&self) -> Desired {
        let groups = (self.networks.iter())
            .flat_map(|network| IpFamily::ALL.map(|family| (*network, family)))
            .map(|(network, family)| Group {
                network: self.network(network),
                family,
                endpoints: self.endpoints(network, family),
            })
            .collect();
        Desired { owner: self.owner(), labels: self.labels(), ports: self.ports(), groups }
    }

    pub(crate) fn mirror(&self) -> DesiredMirror {
        let mut endpoints = Vec::new();
        for (network, family) in
            self.networks.iter().flat_map(|network| IpFamily::ALL.map(|family| (*network, family)))
        {
            endpoints.extend(self.endpoints(network, family).into_iter().map(|endpoint| (family, endpoint)));
        }
        // Another label is another core Service here.
        let service = format!("mirror-{}", self.label % 2);
        DesiredMirror { owner: self.owner(), service, ports: self.ports(), endpoints }
    }

    fn network(&self, network: u8) -> NetworkReference {
        NetworkReference {
            name: format!("net-{network}"),
            namespace: Some("infra".to_owned()),
            alias: Some(self.aliases[usize::from(network)].clone()),
            ..NetworkReference::default()
        }
    }

    fn endpoints(&self, network: u8, family: IpFamily) -> Vec<Endpoint> {
        let group = network * 2 + u8::from(family == IpFamily::Ipv6);
        let mut endpoints: Vec<_> = (self.pods.range((group, 0)..=(group, u16::MAX)))
            .map(|((_, number), pod)| pod.endpoint(network, family, *number))
            .collect();
        if self.reversed {
            endpoints.reverse();
        }
        endpoints
    }
}

impl Pod {
    fn endpoint(&self, network: u8, family: IpFamily, number: u16) -> Endpoint {
        let address = match family {
            IpFamily::Ipv4 => format!("10.{network}.{}.{}", number / 256, number % 256),
            IpFamily::Ipv6 => format!("fd00:{network}::{:x}", 0xa000 + u32::from(number)),
        };
        let ready = self.state.is_multiple_of(2);
        Endpoint {
            addresses: vec![address],
            conditions: EndpointConditions {
                ready: Some(ready),
                serving: Some(ready),
                terminating: Some(false),
            },
            hostname: (self.name > 0).then(|| format!("host-{}", self.name)),
            zone: Some(format!("zone-{}", self.state)),
            target_ref: Some(TargetReference {
                kind: Some("Pod".to_owned()),
                namespace: Some("vision".to_owned()),
                name: Some(format!("pod-{number}")),
                uid: Some(format!("pod-{number}-{}", self.state)),
            }),
            ..Endpoint::default()
        }
    }
}
