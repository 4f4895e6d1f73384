//! Feeds the objects of each watch into the index.

use std::collections::HashSet;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use multinet_crds::{MultiNetworkEndpointSlice, MultiNetworkService, NetworkKind};
use multinet_runtime::{Index, ObjectKey};

use super::{ClusterIndex, State};
use crate::model::{Claim, CoreService, DeviceSlice, Node, Pod};
use crate::views;

/// The objects of kind `K` in the state. Every change marks the affected services as dirty.
trait Objects<K> {
    /// Form in which objects are kept. They are converted before the lock is taken, since
    /// annotations may be long.
    type Kept: From<K>;

    /// Adds or replaces an object.
    fn put(&mut self, object: Self::Kept);

    /// Removes an object.
    fn remove(&mut self, key: &ObjectKey);

    /// Begins a list, in which the watch shows all objects again.
    fn start(&mut self) {}

    /// Ends a list: removes the objects that are not in `live`, the keys in the list.
    fn retain(&mut self, live: &HashSet<ObjectKey>);
}

impl<K> Index<K> for ClusterIndex
where
    State: Objects<K>,
{
    fn apply(&self, object: K) {
        let object = <State as Objects<K>>::Kept::from(object);
        Objects::<K>::put(&mut *self.lock(), object);
    }

    fn delete(&self, key: &ObjectKey) {
        Objects::<K>::remove(&mut *self.lock(), key);
    }

    fn start(&self) {
        Objects::<K>::start(&mut *self.lock());
    }

    fn reset(&self, live: &HashSet<ObjectKey>) {
        Objects::<K>::retain(&mut *self.lock(), live);
    }

    fn commit(&self) {
        self.publish(&mut self.lock());
    }
}

impl State {
    /// Handles mirrors' slices that the watch no longer shows. They may be deleted, or may have
    /// lost the label that the watch selects by, so the services' mirrors must be listed.
    fn mirrors_deleted(&mut self, services: Vec<ObjectKey>) {
        for service in services.iter().filter(|service| self.services.contains_key(*service)) {
            self.mirrors.require_list(service);
        }
        self.dirty.mark_now(services);
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
}

impl Objects<MultiNetworkService> for State {
    type Kept = MultiNetworkService;

    fn put(&mut self, service: MultiNetworkService) {
        self.apply_service(service);
    }

    fn remove(&mut self, key: &ObjectKey) {
        self.delete_service(key);
    }

    fn start(&mut self) {
        self.is_listing_services = true;
        // Same reason as in `OwnedSlices::start`.
        self.services.values_mut().for_each(|known| known.seen = true);
    }

    fn retain(&mut self, live: &HashSet<ObjectKey>) {
        self.retain_services(live);
    }
}

impl Objects<MultiNetworkEndpointSlice> for State {
    type Kept = MultiNetworkEndpointSlice;

    fn put(&mut self, slice: MultiNetworkEndpointSlice) {
        let mut concerned = self.foreign_slices.observe(&slice);
        self.recount_foreign(&concerned);
        concerned.extend(self.slices.observe(slice));
        self.dirty.mark_now(concerned);
    }

    fn remove(&mut self, key: &ObjectKey) {
        let mut concerned: Vec<ObjectKey> = self.foreign_slices.observe_deleted(key).into_iter().collect();
        self.recount_foreign(&concerned);
        concerned.extend(self.slices.observe_deleted(key));
        self.dirty.mark_now(concerned);
    }

    fn start(&mut self) {
        self.slices.start();
    }

    fn retain(&mut self, live: &HashSet<ObjectKey>) {
        let mut concerned = self.foreign_slices.retain(live);
        self.recount_foreign(&concerned);
        concerned.extend(self.slices.reset(live));
        self.dirty.mark_now(concerned);
    }
}

impl Objects<EndpointSlice> for State {
    type Kept = EndpointSlice;

    fn put(&mut self, mirror: EndpointSlice) {
        self.dirty.mark_now(self.mirrors.observe(mirror));
    }

    fn remove(&mut self, key: &ObjectKey) {
        let concerned = self.mirrors.observe_deleted(key);
        self.mirrors_deleted(concerned.into_iter().collect());
    }

    fn start(&mut self) {
        self.mirrors.start();
    }

    fn retain(&mut self, live: &HashSet<ObjectKey>) {
        let concerned = self.mirrors.reset(live);
        self.mirrors_deleted(concerned);
    }
}

impl Objects<views::PodView> for State {
    type Kept = Pod;

    fn put(&mut self, pod: Pod) {
        self.pods.apply(pod, &mut self.dirty);
    }

    fn remove(&mut self, key: &ObjectKey) {
        if let Some(pod) = self.pods.get(key) {
            self.notified.remove(&pod.uid);
        }
        self.pods.delete(key, &mut self.dirty);
    }

    fn retain(&mut self, live: &HashSet<ObjectKey>) {
        self.pods.retain(live, &mut self.dirty);
        let uids: HashSet<&String> = self.pods.iter().map(|pod| &pod.uid).collect();
        self.notified.retain(|uid, _| uids.contains(uid));
    }
}

impl Objects<views::NodeView> for State {
    type Kept = Node;

    fn put(&mut self, node: Node) {
        self.set_zone(&node.key.name, node.zone);
    }

    fn remove(&mut self, key: &ObjectKey) {
        self.set_zone(&key.name, None);
    }

    fn retain(&mut self, live: &HashSet<ObjectKey>) {
        let names: HashSet<&str> = live.iter().map(|key| key.name.as_str()).collect();
        let known = self.zones.keys().filter(|name| !names.contains(name.as_str()));
        let gone: Vec<String> = known.cloned().collect();
        gone.iter().for_each(|name| self.set_zone(name, None));
    }
}

impl Objects<views::ServiceView> for State {
    type Kept = CoreService;

    fn put(&mut self, service: CoreService) {
        self.dirty.mark_now(self.references.apply_core_service(service));
    }

    fn remove(&mut self, key: &ObjectKey) {
        self.dirty.mark_now(self.references.delete_core_service(key));
    }

    fn retain(&mut self, live: &HashSet<ObjectKey>) {
        self.dirty.mark_now(self.references.retain_core_services(live));
    }
}

impl<V: views::Version> Objects<views::ResourceClaim<V>> for State {
    type Kept = Claim;

    fn put(&mut self, claim: Claim) {
        self.pods.apply_claim(claim, &mut self.dirty);
    }

    fn remove(&mut self, key: &ObjectKey) {
        self.pods.delete_claim(key, &mut self.dirty);
    }

    fn retain(&mut self, live: &HashSet<ObjectKey>) {
        self.pods.retain_claims(live, &mut self.dirty);
    }
}

impl<V: views::Version> Objects<views::ResourceSlice<V>> for State {
    type Kept = DeviceSlice;

    fn put(&mut self, slice: DeviceSlice) {
        self.pods.apply_devices(slice, &mut self.dirty);
    }

    fn remove(&mut self, key: &ObjectKey) {
        self.pods.delete_devices(key, &mut self.dirty);
    }

    fn retain(&mut self, live: &HashSet<ObjectKey>) {
        self.pods.retain_devices(live, &mut self.dirty);
    }
}

/// View of an object that describes a network, of which only the existence matters.
trait NetworkView {
    const KIND: NetworkKind;
}

impl NetworkView for views::NetworkAttachmentDefinition {
    const KIND: NetworkKind = NetworkKind::NetworkAttachmentDefinition;
}

impl<V: views::Version> NetworkView for views::DeviceClass<V> {
    const KIND: NetworkKind = NetworkKind::DeviceClass;
}

impl<V: views::Version> NetworkView for views::ResourceClaimTemplate<V> {
    const KIND: NetworkKind = NetworkKind::ResourceClaimTemplate;
}

impl<N: NetworkView> Objects<N> for State
where
    ObjectKey: From<N>,
{
    type Kept = ObjectKey;

    fn put(&mut self, network: ObjectKey) {
        self.dirty.mark_now(self.references.apply_network(N::KIND, network));
    }

    fn remove(&mut self, key: &ObjectKey) {
        self.dirty.mark_now(self.references.delete_network(N::KIND, key));
    }

    fn retain(&mut self, live: &HashSet<ObjectKey>) {
        self.dirty.mark_now(self.references.retain_networks(N::KIND, live));
    }
}
