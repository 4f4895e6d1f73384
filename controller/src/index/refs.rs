//! Objects that services refer to: networks, and Services to mirror to.

use std::collections::{BTreeSet, HashMap, HashSet};

use multinet_crds::{MultiNetworkServiceSpec, NetworkKind};
use multinet_runtime::ObjectKey;

use super::missing;
use crate::model::{CoreService, Network};
use crate::multimap::MultiMap;
use crate::status::Unresolved;
use crate::work::OptionalApi;

/// Existing networks and core Services, and the services that refer to them.
#[derive(Debug, Default)]
pub(super) struct References {
    networks: HashMap<NetworkKind, KnownNetworks>,
    core_services: HashMap<ObjectKey, CoreService>,
    by_network: MultiMap<Network, ObjectKey>,
    by_mirror: MultiMap<ObjectKey, ObjectKey>,
    /// The networks and the mirror that each service refers to.
    services: HashMap<ObjectKey, (Vec<Network>, Option<ObjectKey>)>,
}

/// Existing objects of one kind that describes networks.
#[derive(Debug, Default)]
struct KnownNetworks {
    /// Whether the API server serves the kind; `None` before its first list of API groups.
    is_served: Option<bool>,
    /// Whether all objects of the kind have been listed. Before that, a missing one counts as
    /// existing.
    is_listed: bool,
    objects: HashSet<ObjectKey>,
}

impl References {
    /// Records the networks and the mirror that the spec of a service refers to.
    pub(super) fn insert(&mut self, service: &ObjectKey, spec: &MultiNetworkServiceSpec) {
        self.remove(service);
        let networks: BTreeSet<Network> = spec
            .networks
            .iter()
            .map(|reference| Network::referenced(reference, &service.namespace))
            .collect();
        for network in &networks {
            self.by_network.insert(network.clone(), service.clone());
        }
        let mirror = spec.mirror.as_ref().map(|mirror| service.beside(&mirror.service_name));
        if let Some(mirror) = &mirror {
            self.by_mirror.insert(mirror.clone(), service.clone());
        }
        self.services.insert(service.clone(), (networks.into_iter().collect(), mirror));
    }

    /// Removes the references of a service to networks and to a mirror.
    pub(super) fn remove(&mut self, service: &ObjectKey) {
        let Some((networks, mirror)) = self.services.remove(service) else { return };
        for network in &networks {
            self.by_network.remove(network, service);
        }
        if let Some(mirror) = &mirror {
            self.by_mirror.remove(mirror, service);
        }
    }

    /// Returns the references of a service that cannot be resolved. A network that has not been
    /// listed yet counts as existing.
    pub(super) fn unresolved(&self, service: &ObjectKey) -> Vec<Unresolved> {
        let Some((networks, mirror)) = self.services.get(service) else { return Vec::new() };
        let networks = networks.iter().filter_map(|network| self.unresolved_network(network, service));
        let mirror = mirror.iter().filter_map(|mirror| match self.core_services.get(mirror) {
            None => Some(Unresolved::NoMirror(mirror.name.clone())),
            Some(service) => service.unusable.map(|why| Unresolved::UnusableMirror(mirror.name.clone(), why)),
        });
        networks.chain(mirror).collect()
    }

    /// Returns whether a core Service exists and may have a mirror.
    pub(super) fn is_usable(&self, mirror: &ObjectKey) -> bool {
        self.core_services.get(mirror).is_some_and(|service| service.unusable.is_none())
    }

    /// Records whether an optional API group is served. Returns the services that refer to its
    /// kinds.
    pub(super) fn set_served(&mut self, api: OptionalApi, is_served: bool) -> Vec<ObjectKey> {
        let kinds: &[NetworkKind] = match api {
            OptionalApi::Multus => &[NetworkKind::NetworkAttachmentDefinition],
            OptionalApi::Dra => &[NetworkKind::DeviceClass, NetworkKind::ResourceClaimTemplate],
        };
        for kind in kinds {
            let known = self.networks.entry(*kind).or_default();
            known.is_served = Some(is_served);
            if !is_served {
                known.is_listed = false;
                known.objects.clear();
            }
        }
        let networks = self.by_network.keys().filter(|network| kinds.contains(&network.kind));
        networks.flat_map(|network| self.by_network.of(network)).cloned().collect()
    }

    /// Records that a network exists. Returns the services that refer to it, unless it was known.
    pub(super) fn apply_network(&mut self, kind: NetworkKind, key: ObjectKey) -> Vec<ObjectKey> {
        let concerned = self.referring_to(kind, &key);
        let is_new = self.networks.entry(kind).or_default().objects.insert(key);
        if is_new { concerned } else { Vec::new() }
    }

    /// Records that a network was deleted. Returns the services that refer to it.
    pub(super) fn delete_network(&mut self, kind: NetworkKind, key: &ObjectKey) -> Vec<ObjectKey> {
        let was_there = self.networks.entry(kind).or_default().objects.remove(key);
        if was_there { self.referring_to(kind, key) } else { Vec::new() }
    }

    /// Removes all networks of a kind that are not in `live`. Returns the affected services.
    pub(super) fn retain_networks(&mut self, kind: NetworkKind, live: &HashSet<ObjectKey>) -> Vec<ObjectKey> {
        let known = self.networks.entry(kind).or_default();
        let was_listed = std::mem::replace(&mut known.is_listed, true);
        let gone: Vec<ObjectKey> = known.objects.extract_if(|key| !live.contains(key)).collect();
        if was_listed {
            return gone.iter().flat_map(|key| self.referring_to(kind, key)).collect();
        }
        // Before the first list, missing networks counted as existing. All references to the kind
        // must be checked.
        let networks = self.by_network.keys().filter(|network| network.kind == kind);
        networks.flat_map(|network| self.by_network.of(network)).cloned().collect()
    }

    /// Adds or replaces a core Service. Returns the services that are mirrored to it.
    pub(super) fn apply_core_service(&mut self, service: CoreService) -> Vec<ObjectKey> {
        let key = service.key.clone();
        let is_same = self.core_services.get(&key) == Some(&service);
        self.core_services.insert(key.clone(), service);
        if is_same { Vec::new() } else { self.by_mirror.of(&key).cloned().collect() }
    }

    /// Removes a core Service. Returns the services that were mirrored to it.
    pub(super) fn delete_core_service(&mut self, key: &ObjectKey) -> Vec<ObjectKey> {
        self.core_services.remove(key);
        self.by_mirror.of(key).cloned().collect()
    }

    /// Removes all core Services that are not in `live`. Returns the services that were mirrored to
    /// them.
    pub(super) fn retain_core_services(&mut self, live: &HashSet<ObjectKey>) -> Vec<ObjectKey> {
        let gone = missing(self.core_services.keys(), live);
        gone.iter().flat_map(|key| self.delete_core_service(key)).collect()
    }

    fn unresolved_network(&self, network: &Network, service: &ObjectKey) -> Option<Unresolved> {
        // The schema cannot express this rule, since it does not see the service's namespace.
        let is_template = network.kind == NetworkKind::ResourceClaimTemplate;
        if is_template && network.namespace.as_ref() != Some(&service.namespace) {
            return Some(Unresolved::ForeignTemplate(network.clone()));
        }
        let known = self.networks.get(&network.kind)?;
        let key = object_key(network);
        match known.is_served {
            Some(false) => Some(Unresolved::NotServed(network.clone())),
            _ if known.is_listed && !known.objects.contains(&key) => {
                Some(Unresolved::NoNetwork(network.clone()))
            }
            _ => None,
        }
    }

    fn referring_to(&self, kind: NetworkKind, key: &ObjectKey) -> Vec<ObjectKey> {
        let namespace = kind.is_namespaced().then(|| key.namespace.clone());
        let network = Network { kind, namespace, name: key.name.clone() };
        self.by_network.of(&network).cloned().collect()
    }
}

fn object_key(network: &Network) -> ObjectKey {
    ObjectKey { namespace: network.namespace.clone().unwrap_or_default(), name: network.name.clone() }
}
