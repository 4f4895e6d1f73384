//! Feeds the objects of each watch into the index.

use std::collections::HashSet;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use multinet_crds::{MultiNetworkEndpointSlice, MultiNetworkService, NetworkKind};
use multinet_runtime::{Index, ObjectKey};

use super::{ClusterIndex, State};
use crate::model::{Claim, CoreService, DeviceSlice, Node, Pod};
use crate::views;

impl ClusterIndex {
    /// Changes the state under the lock.
    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
    }

    fn commit_all(&self) {
        let mut state = self.lock();
        self.publish(&mut state);
    }
}

impl State {
    /// Marks services as affected by a change that happens now.
    fn mark(&mut self, services: Vec<ObjectKey>) {
        let at = self.dirty.now();
        for service in services {
            self.dirty.mark(service, at);
        }
    }

    /// Handles mirrors' slices that the watch no longer shows. They may be deleted, or may have
    /// lost the label that the watch selects by, so the services' mirrors must be listed.
    fn mirrors_deleted(&mut self, services: Vec<ObjectKey>) {
        for service in services.iter().filter(|service| self.services.contains_key(*service)) {
            self.mirrors.require_list(service);
        }
        self.mark(services);
    }

    fn set_zone(&mut self, node: &str, zone: Option<String>) {
        if self.zones.get(node) != zone.as_ref() {
            match zone {
                Some(zone) => self.zones.insert(node.to_owned(), zone),
                None => self.zones.remove(node),
            };
            self.pods.node_changed(node, &mut self.dirty);
        }
    }

    fn forget_notices(&mut self, key: &ObjectKey) {
        if let Some(pod) = self.pods.get(key) {
            self.notified.remove(&pod.uid);
        }
    }
}

impl Index<MultiNetworkService> for ClusterIndex {
    fn apply(&self, service: MultiNetworkService) {
        self.change(|state| state.apply_service(service));
    }

    fn delete(&self, key: &ObjectKey) {
        self.change(|state| state.delete_service(key));
    }

    fn start(&self) {
        self.change(|state| {
            state.is_listing_services = true;
            // Same reason as in `OwnedSlices::start`.
            state.services.values_mut().for_each(|known| known.seen = true);
        });
    }

    fn reset(&self, live: &HashSet<ObjectKey>) {
        self.change(|state| state.retain_services(live));
    }

    fn commit(&self) {
        self.commit_all();
    }
}

impl Index<MultiNetworkEndpointSlice> for ClusterIndex {
    fn apply(&self, slice: MultiNetworkEndpointSlice) {
        self.change(|state| {
            let mut concerned = state.foreign_slices.observe(&slice);
            state.recount_foreign(&concerned);
            concerned.extend(state.slices.observe(slice));
            state.mark(concerned);
        });
    }

    fn delete(&self, key: &ObjectKey) {
        self.change(|state| {
            let mut concerned: Vec<ObjectKey> =
                state.foreign_slices.observe_deleted(key).into_iter().collect();
            state.recount_foreign(&concerned);
            concerned.extend(state.slices.observe_deleted(key));
            state.mark(concerned);
        });
    }

    fn start(&self) {
        self.change(|state| state.slices.start());
    }

    fn reset(&self, live: &HashSet<ObjectKey>) {
        self.change(|state| {
            let mut concerned = state.foreign_slices.retain(live);
            state.recount_foreign(&concerned);
            concerned.extend(state.slices.reset(live));
            state.mark(concerned);
        });
    }

    fn commit(&self) {
        self.commit_all();
    }
}

impl Index<EndpointSlice> for ClusterIndex {
    fn apply(&self, mirror: EndpointSlice) {
        self.change(|state| {
            let concerned = state.mirrors.observe(mirror);
            state.mark(concerned);
        });
    }

    fn delete(&self, key: &ObjectKey) {
        self.change(|state| {
            let concerned = state.mirrors.observe_deleted(key).into_iter().collect();
            state.mirrors_deleted(concerned);
        });
    }

    fn start(&self) {
        self.change(|state| state.mirrors.start());
    }

    fn reset(&self, live: &HashSet<ObjectKey>) {
        self.change(|state| {
            let concerned = state.mirrors.reset(live);
            state.mirrors_deleted(concerned);
        });
    }

    fn commit(&self) {
        self.commit_all();
    }
}

impl Index<views::Pod> for ClusterIndex {
    fn apply(&self, pod: views::Pod) {
        // Parse before taking the lock, since annotations may be long.
        let pod = Pod::from(pod);
        self.change(|state| state.pods.apply(pod, &mut state.dirty));
    }

    fn delete(&self, key: &ObjectKey) {
        self.change(|state| {
            state.forget_notices(key);
            state.pods.delete(key, &mut state.dirty);
        });
    }

    fn reset(&self, live: &HashSet<ObjectKey>) {
        self.change(|state| {
            state.pods.retain(live, &mut state.dirty);
            let uids: HashSet<&String> = state.pods.iter().map(|pod| &pod.uid).collect();
            state.notified.retain(|uid, _| uids.contains(uid));
        });
    }

    fn commit(&self) {
        self.commit_all();
    }
}

impl Index<views::Node> for ClusterIndex {
    fn apply(&self, node: views::Node) {
        let node = Node::from(node);
        self.change(|state| state.set_zone(&node.key.name, node.zone));
    }

    fn delete(&self, key: &ObjectKey) {
        self.change(|state| state.set_zone(&key.name, None));
    }

    fn reset(&self, live: &HashSet<ObjectKey>) {
        let names: HashSet<&str> = live.iter().map(|key| key.name.as_str()).collect();
        self.change(|state| {
            let gone: Vec<String> =
                state.zones.keys().filter(|name| !names.contains(name.as_str())).cloned().collect();
            gone.iter().for_each(|name| state.set_zone(name, None));
        });
    }

    fn commit(&self) {
        self.commit_all();
    }
}

impl Index<views::Service> for ClusterIndex {
    fn apply(&self, service: views::Service) {
        let service = CoreService::from(service);
        self.change(|state| {
            let concerned = state.references.apply_core_service(service);
            state.mark(concerned);
        });
    }

    fn delete(&self, key: &ObjectKey) {
        self.change(|state| {
            let concerned = state.references.delete_core_service(key);
            state.mark(concerned);
        });
    }

    fn reset(&self, live: &HashSet<ObjectKey>) {
        self.change(|state| {
            let concerned = state.references.retain_core_services(live);
            state.mark(concerned);
        });
    }

    fn commit(&self) {
        self.commit_all();
    }
}

impl<V: views::Version> Index<views::ResourceClaim<V>> for ClusterIndex {
    fn apply(&self, claim: views::ResourceClaim<V>) {
        let claim = Claim::from(claim);
        self.change(|state| state.pods.apply_claim(claim, &mut state.dirty));
    }

    fn delete(&self, key: &ObjectKey) {
        self.change(|state| state.pods.delete_claim(key, &mut state.dirty));
    }

    fn reset(&self, live: &HashSet<ObjectKey>) {
        self.change(|state| state.pods.retain_claims(live, &mut state.dirty));
    }

    fn commit(&self) {
        self.commit_all();
    }
}

impl<V: views::Version> Index<views::ResourceSlice<V>> for ClusterIndex {
    fn apply(&self, slice: views::ResourceSlice<V>) {
        let slice = DeviceSlice::from(slice);
        self.change(|state| state.pods.apply_devices(slice, &mut state.dirty));
    }

    fn delete(&self, key: &ObjectKey) {
        self.change(|state| state.pods.delete_devices(key, &mut state.dirty));
    }

    fn reset(&self, live: &HashSet<ObjectKey>) {
        self.change(|state| state.pods.retain_devices(live, &mut state.dirty));
    }

    fn commit(&self) {
        self.commit_all();
    }
}

/// Implements `Index` for a kind of network of which only the existence matters.
macro_rules! network_index {
    ($view:ty, $kind:ident $(, $version:ident)?) => {
        impl $(<$version: views::Version>)? Index<$view> for ClusterIndex {
            fn apply(&self, object: $view) {
                let key = ObjectKey::from(object);
                self.change(|state| {
                    let concerned = state.references.apply_network(NetworkKind::$kind, key);
                    state.mark(concerned);
                });
            }

            fn delete(&self, key: &ObjectKey) {
                self.change(|state| {
                    let concerned = state.references.delete_network(NetworkKind::$kind, key);
                    state.mark(concerned);
                });
            }

            fn reset(&self, live: &HashSet<ObjectKey>) {
                self.change(|state| {
                    let concerned = state.references.retain_networks(NetworkKind::$kind, live);
                    state.mark(concerned);
                });
            }

            fn commit(&self) {
                self.commit_all();
            }
        }
    };
}

network_index!(views::NetworkAttachmentDefinition, NetworkAttachmentDefinition);
network_index!(views::DeviceClass<V>, DeviceClass, V);
network_index!(views::ResourceClaimTemplate<V>, ResourceClaimTemplate, V);
