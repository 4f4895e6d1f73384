//! The cluster: all objects of each kind, and the events that its watch has not delivered yet.

use std::collections::{BTreeMap, VecDeque};

use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta, OwnerReference, Time};
use kube::Resource;
use multinet_controller::slices::SliceId;
use multinet_crds::validate::validate;
use multinet_crds::{MultiNetworkEndpointSlice, MultiNetworkService, labels};
use multinet_runtime::ObjectKey;

use super::objects::{Claim, Class, CoreService, DeviceSlice, Nad, Node, Object, Pod, Template};
use super::services::Service;

/// Objects of one kind.
#[derive(Clone, Debug)]
pub(crate) struct Store<T> {
    /// Objects with their versions.
    pub(crate) objects: BTreeMap<ObjectKey, (u64, T)>,
    /// Events that the watch has not delivered.
    pub(crate) pending: VecDeque<Event<T>>,
    /// Objects as of the last delivered event.
    pub(crate) past: BTreeMap<ObjectKey, (u64, T)>,
    /// Whether the watch must list again.
    pub(crate) is_broken: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Event<T> {
    Applied(ObjectKey, u64, T),
    Deleted(ObjectKey),
}

impl<T> Default for Store<T> {
    fn default() -> Self {
        let (objects, past) = (BTreeMap::new(), BTreeMap::new());
        Self { objects, pending: VecDeque::new(), past, is_broken: true }
    }
}

impl<T: Object> Store<T> {
    pub(crate) fn get(&self, key: &ObjectKey) -> Option<&T> {
        self.objects.get(key).map(|(_, object)| object)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&ObjectKey, &T)> {
        self.objects.iter().map(|(key, (_, object))| (key, object))
    }

    fn put(&mut self, key: &ObjectKey, version: u64, object: T) {
        self.pending.push_back(Event::Applied(key.clone(), version, object.clone()));
        self.objects.insert(key.clone(), (version, object));
    }

    pub(crate) fn remove(&mut self, key: &ObjectKey) -> Option<T> {
        let (_, object) = self.objects.remove(key)?;
        self.pending.push_back(Event::Deleted(key.clone()));
        Some(object)
    }

    /// Returns the next event, which counts as delivered from now on.
    pub(crate) fn next(&mut self) -> Option<Event<T>> {
        let event = self.pending.pop_front()?;
        match &event {
            Event::Applied(key, version, object) => {
                self.past.insert(key.clone(), (*version, object.clone()));
            }
            Event::Deleted(key) => drop(self.past.remove(key)),
        }
        Some(event)
    }
}

/// All objects, with the counter of versions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cluster {
    pub(crate) services: Store<Service>,
    pub(crate) pods: Store<Pod>,
    pub(crate) claims: Store<Claim>,
    pub(crate) devices: Store<DeviceSlice>,
    pub(crate) nodes: Store<Node>,
    pub(crate) nads: Store<Nad>,
    pub(crate) classes: Store<Class>,
    pub(crate) templates: Store<Template>,
    pub(crate) core_services: Store<CoreService>,
    pub(crate) slices: Store<MultiNetworkEndpointSlice>,
    pub(crate) mirrors: Store<EndpointSlice>,
    /// Whether the optional API groups are served.
    pub(crate) has_multus: bool,
    pub(crate) has_dra: bool,
    /// Writes of the controller.
    pub(crate) writes: Vec<Write>,
    /// Number of updates and deletions that were planned on an outdated version.
    pub(crate) outdated: usize,
    version: u64,
    uids: u64,
}

/// A write of the controller: the action and the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Write {
    Create(ObjectKey),
    Update(ObjectKey),
    Delete(ObjectKey),
    /// Write of a service's status.
    Status(ObjectKey),
}

/// Response to a write without effect: 404 or 409.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refused;

impl Cluster {
    /// Creates an empty cluster that serves Multus and DRA.
    pub(crate) fn new() -> Self {
        Self { has_multus: true, has_dra: true, ..Self::default() }
    }

    pub(crate) fn uid(&mut self) -> String {
        self.uids += 1;
        format!("uid-{:04}", self.uids)
    }

    /// Creates or changes an object as its owner does.
    pub(crate) fn put<T: Object>(&mut self, key: &ObjectKey, object: T)
    where
        Self: Holds<T>,
    {
        self.version += 1;
        let version = self.version;
        let store = self.store();
        if store.get(key) != Some(&object) {
            store.put(key, version, object);
        }
    }

    /// Creates or changes a slice as a user does.
    pub(crate) fn put_slice<S: OwnedSlice>(&mut self, mut slice: S)
    where
        Self: Holds<S>,
    {
        self.version += 1;
        let version = self.version;
        if slice.meta().uid.is_none() {
            slice.meta_mut().uid = Some(self.uid());
        }
        slice.meta_mut().resource_version = Some(version.to_string());
        let key = key_of(&slice);
        self.store().put(&key, version, slice);
    }

    /// Creates a slice as the API server does.
    pub(crate) fn create<S: OwnedSlice>(&mut self, mut slice: S) -> Result<S, Refused>
    where
        Self: Holds<S>,
    {
        let key = key_of(&slice);
        drop_managed_fields(&mut slice);
        assert!(slice.meta().uid.is_none() && slice.meta().resource_version.is_none(), "{slice:?}");
        slice.check(None);
        if self.store().get(&key).is_some() {
            return Err(Refused);
        }
        slice.meta_mut().uid = Some(self.uid());
        self.writes.push(Write::Create(key.clone()));
        Ok(self.keep(key, slice))
    }

    /// Updates a slice as the API server does.
    pub(crate) fn update<S: OwnedSlice>(&mut self, mut slice: S) -> Result<S, Refused>
    where
        Self: Holds<S>,
    {
        let key = key_of(&slice);
        let Some(old) = self.store().get(&key).cloned() else { return Err(Refused) };
        drop_managed_fields(&mut slice);
        assert!(
            slice.meta().resource_version.is_some(),
            "an update without version overwrites others' changes"
        );
        if (&slice.meta().uid, &slice.meta().resource_version)
            != (&old.meta().uid, &old.meta().resource_version)
        {
            self.outdated += 1;
            return Err(Refused);
        }
        assert_is_ours(&old);
        slice.check(Some(&old));
        assert!(slice != old, "an update that changes nothing: {slice:?}");
        self.writes.push(Write::Update(key.clone()));
        Ok(self.keep(key, slice))
    }

    /// Deletes a slice as the API server does, with preconditions.
    pub(crate) fn delete<S: OwnedSlice>(&mut self, id: &SliceId) -> Result<(), Refused>
    where
        Self: Holds<S>,
    {
        let Some(old) = self.store().get(&id.key) else { return Ok(()) };
        let (uid, version) = (old.meta().uid.as_deref(), old.meta().resource_version.as_deref());
        if (uid, version) != (Some(&id.uid), Some(&id.resource_version)) {
            self.outdated += 1;
            return Err(Refused);
        }
        assert_is_ours(old);
        let mut dying = old.clone();
        self.writes.push(Write::Delete(id.key.clone()));
        if dying.meta().finalizers.is_none() {
            self.store().remove(&id.key);
        } else {
            dying.meta_mut().deletion_timestamp = Some(Time(super::clock::now()));
            self.put_slice(dying);
        }
        Ok(())
    }

    fn keep<S: OwnedSlice>(&mut self, key: ObjectKey, mut slice: S) -> S
    where
        Self: Holds<S>,
    {
        self.version += 1;
        let version = self.version;
        slice.meta_mut().resource_version = Some(version.to_string());
        self.store().put(&key, version, slice.clone());
        slice
    }

    /// Deletes objects whose owner no longer exists, as the garbage collector does.
    pub(crate) fn collect_garbage(&mut self) {
        let live: Vec<String> = self.services.iter().map(|(_, service)| service.uid.clone()).collect();
        collect(&mut self.slices, &live);
        collect(&mut self.mirrors, &live);
    }

    pub(crate) fn service_object(&self, key: &ObjectKey) -> Option<MultiNetworkService> {
        let (version, service) = self.services.objects.get(key)?;
        Some(serde_json::from_value(service.json(key, *version)).expect("a service"))
    }
}

/// Removes `managedFields`. The API server does so at the first update with an empty entry; this
/// model does it at once.
fn drop_managed_fields<S: OwnedSlice>(slice: &mut S) {
    assert_eq!(slice.meta_mut().managed_fields.take(), Some(vec![ManagedFieldsEntry::default()]));
}

fn assert_is_ours<S: OwnedSlice>(slice: &S) {
    let has_lost_labels = slice.owner().is_some() && slice.label(labels::CORE_MANAGED_BY).is_none();
    assert!(slice.service().is_some() || has_lost_labels, "it belongs to another writer: {slice:?}");
}

fn collect<S: OwnedSlice>(store: &mut Store<S>, live: &[String]) {
    let is_orphan = |slice: &S| {
        let owners: &[OwnerReference] = slice.meta().owner_references.as_deref().unwrap_or_default();
        !owners.is_empty() && owners.iter().all(|owner| !live.contains(&owner.uid))
    };
    let orphans: Vec<ObjectKey> =
        store.iter().filter(|(_, slice)| is_orphan(slice)).map(|(key, _)| key.clone()).collect();
    for key in orphans {
        store.remove(&key);
    }
}

/// A kind of slice that the controller writes.
pub(crate) trait OwnedSlice: Object + Resource<DynamicType = ()> {
    /// Panics if the API server would reject the object, or reject it as an update of `old`.
    fn check(&self, old: Option<&Self>);

    /// Returns the service that the slice belongs to; `None` if another writer manages it.
    fn service(&self) -> Option<ObjectKey>;

    fn label(&self, key: &str) -> Option<&str> {
        self.meta().labels.as_ref()?.get(key).map(String::as_str)
    }

    /// Returns the name of its controller.
    fn owner(&self) -> Option<&str> {
        let owners = self.meta().owner_references.iter().flatten();
        owners.filter(|owner| owner.controller == Some(true)).map(|owner| owner.name.as_str()).next()
    }
}

impl OwnedSlice for MultiNetworkEndpointSlice {
    fn check(&self, old: Option<&Self>) {
        let verdict = validate(self);
        assert!(verdict.is_ok(), "{verdict:?}: {self:?}");
        if let Some(old) = old {
            assert_eq!(self.spec.address_type, old.spec.address_type, "immutable");
        }
    }

    fn service(&self) -> Option<ObjectKey> {
        let is_labelled = self.label(labels::MANAGED_BY) == Some(labels::MANAGED_BY_CONTROLLER);
        let name = self.label(labels::SERVICE_NAME).filter(|_| is_labelled).or_else(|| self.owner());
        Some(ObjectKey { name: name?.to_owned(), ..key_of(self) })
    }
}

impl OwnedSlice for EndpointSlice {
    fn check(&self, old: Option<&Self>) {
        let service = |slice: &Self| {
            slice
                .metadata
                .labels
                .as_ref()
                .and_then(|labels| labels.get("kubernetes.io/service-name").cloned())
        };
        if let Some(old) = old {
            assert_eq!(self.address_type, old.address_type, "immutable");
            assert!(service(old).is_none() || service(self) == service(old), "readers file slices under it");
        }
        let addresses = self.endpoints.iter().flat_map(|endpoint| &endpoint.addresses);
        for address in addresses {
            assert!(!address.starts_with("169.254."), "the API server refuses the slice: {address}");
        }
    }

    fn service(&self) -> Option<ObjectKey> {
        let is_ours = self.label(labels::CORE_MANAGED_BY) == Some(labels::MANAGED_BY_CONTROLLER);
        let name = self.label(labels::SERVICE_NAME).or_else(|| self.owner()).filter(|_| is_ours)?;
        Some(ObjectKey { name: name.to_owned(), ..key_of(self) })
    }
}

pub(crate) fn key_of<S: Resource>(object: &S) -> ObjectKey {
    let ObjectMeta { namespace, name, .. } = object.meta();
    ObjectKey { namespace: namespace.clone().unwrap_or_default(), name: name.clone().expect("a name") }
}

/// Returns the objects of a kind.
pub(crate) trait Holds<T> {
    fn store(&mut self) -> &mut Store<T>;
}

macro_rules! holds {
    ($($field:ident: $kind:ty,)*) => {
        $(impl Holds<$kind> for Cluster {
            fn store(&mut self) -> &mut Store<$kind> {
                &mut self.$field
            }
        })*
    };
}

holds! {
    services: Service,
    pods: Pod,
    claims: Claim,
    devices: DeviceSlice,
    nodes: Node,
    nads: Nad,
    classes: Class,
    templates: Template,
    core_services: CoreService,
    slices: MultiNetworkEndpointSlice,
    mirrors: EndpointSlice,
}
