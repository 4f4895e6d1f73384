//! Watches, which deliver events to the controller late, twice, or not at all.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Debug;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use multinet_controller::index::ClusterIndex;
use multinet_controller::work::OptionalApi;
use multinet_crds::MultiNetworkEndpointSlice;
use multinet_runtime::{Guarded, Index, ObjectKey};

use super::cluster::{Cluster, Event, Holds};
use super::expected::Sources;
use super::objects::{Claim, Class, CoreService, DeviceSlice, Nad, Node, Object, Pod, Template};
use super::order::Order;
use super::services::Service;

/// A kind of object that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Services,
    Pods,
    Claims,
    Devices,
    Nodes,
    Nads,
    Classes,
    Templates,
    CoreServices,
    Slices,
    Mirrors,
}

impl Kind {
    pub(crate) const ALL: [Self; 11] = [
        Self::Services,
        Self::Pods,
        Self::Claims,
        Self::Devices,
        Self::Nodes,
        Self::Nads,
        Self::Classes,
        Self::Templates,
        Self::CoreServices,
        Self::Slices,
        Self::Mirrors,
    ];

    fn api(self) -> Option<OptionalApi> {
        match self {
            Self::Nads => Some(OptionalApi::Multus),
            Self::Claims | Self::Devices | Self::Classes | Self::Templates => Some(OptionalApi::Dra),
            _ => None,
        }
    }
}

/// Objects that the controller has learned of, and the order in which it learned of addresses.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) services: BTreeMap<ObjectKey, Service>,
    pub(crate) pods: BTreeMap<ObjectKey, Pod>,
    claims: BTreeMap<ObjectKey, Claim>,
    devices: BTreeMap<ObjectKey, DeviceSlice>,
    nodes: BTreeMap<ObjectKey, Node>,
    nads: BTreeMap<ObjectKey, Nad>,
    classes: BTreeMap<ObjectKey, Class>,
    templates: BTreeMap<ObjectKey, Template>,
    core_services: BTreeMap<ObjectKey, CoreService>,
    pub(crate) slices: BTreeMap<ObjectKey, MultiNetworkEndpointSlice>,
    mirrors: BTreeMap<ObjectKey, EndpointSlice>,
    pub(crate) order: Order,
}

impl Told {
    pub(crate) fn sources(&self) -> Sources<'_> {
        Sources {
            pods: self.pods.iter().collect(),
            claims: self.claims.iter().collect(),
            devices: Vec::new(),
        }
    }

    fn follow(&mut self) {
        let mut order = std::mem::take(&mut self.order);
        order.follow(&self.sources(), &self.services);
        self.order = order;
    }
}

/// Returns the delivered objects of a kind.
pub(crate) trait Knows<T> {
    fn known(&mut self) -> &mut BTreeMap<ObjectKey, T>;
}

macro_rules! knows {
    ($($field:ident: $kind:ty,)*) => {
        $(impl Knows<$kind> for Told {
            fn known(&mut self) -> &mut BTreeMap<ObjectKey, $kind> {
                &mut self.$field
            }
        })*
    };
}

knows! {
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

/// Calls a generic method for a kind.
macro_rules! of_kind {
    ($kind:expr, $watches:ident.$method:ident($($argument:expr),*)) => {
        match $kind {
            Kind::Services => $watches.$method::<Service>($($argument),*),
            Kind::Pods => $watches.$method::<Pod>($($argument),*),
            Kind::Claims => $watches.$method::<Claim>($($argument),*),
            Kind::Devices => $watches.$method::<DeviceSlice>($($argument),*),
            Kind::Nodes => $watches.$method::<Node>($($argument),*),
            Kind::Nads => $watches.$method::<Nad>($($argument),*),
            Kind::Classes => $watches.$method::<Class>($($argument),*),
            Kind::Templates => $watches.$method::<Template>($($argument),*),
            Kind::CoreServices => $watches.$method::<CoreService>($($argument),*),
            Kind::Slices => $watches.$method::<MultiNetworkEndpointSlice>($($argument),*),
            Kind::Mirrors => $watches.$method::<EndpointSlice>($($argument),*),
        }
    };
}

/// All watches of a controller.
pub(crate) struct Watches<'a> {
    pub(crate) cluster: &'a mut Cluster,
    pub(crate) told: &'a mut Told,
    pub(crate) index: &'a ClusterIndex,
}

impl Watches<'_> {
    /// Returns whether this kind is watched.
    fn is_on(&self, kind: Kind) -> bool {
        match kind.api() {
            None => true,
            Some(OptionalApi::Multus) => self.cluster.has_multus,
            Some(OptionalApi::Dra) => self.cluster.has_dra,
        }
    }

    /// Delivers the next events of a kind, or all objects if the watch is broken.
    pub(crate) fn deliver(&mut self, kind: Kind, count: usize) {
        if self.is_on(kind) {
            of_kind!(kind, self.deliver_events(count));
        }
    }

    /// Delivers all pending events. Returns whether there were any.
    pub(crate) fn deliver_all(&mut self) -> bool {
        let mut any = false;
        for kind in Kind::ALL {
            if self.is_on(kind) && of_kind!(kind, self.has_news()) {
                any = true;
                self.deliver(kind, usize::MAX);
            }
        }
        any
    }

    /// Breaks the watch, so that it must list again.
    pub(crate) fn break_watch(&mut self, kind: Kind) {
        of_kind!(kind, self.break_off());
    }

    /// Lists a kind again. The list precedes the watch's position by `ahead` events, and may break
    /// off half-way.
    pub(crate) fn list(&mut self, kind: Kind, ahead: usize, breaks_off: bool) {
        if self.is_on(kind) {
            of_kind!(kind, self.relist(ahead, breaks_off));
        }
    }

    /// Delivers an unchanged object again.
    pub(crate) fn repeat(&mut self, kind: Kind, place: usize) {
        if self.is_on(kind) {
            of_kind!(kind, self.redeliver(place));
        }
    }

    /// Adds or removes an optional API group.
    pub(crate) fn serve(&mut self, api: OptionalApi, is_served: bool) {
        match api {
            OptionalApi::Multus => self.cluster.has_multus = is_served,
            OptionalApi::Dra => self.cluster.has_dra = is_served,
        }
        for kind in Kind::ALL.into_iter().filter(|kind| kind.api() == Some(api)) {
            self.break_watch(kind);
        }
        self.index.set_served(api, is_served.then_some("v1"));
        if api == OptionalApi::Dra && !is_served {
            self.told.claims.clear();
            self.told.devices.clear();
            self.told.follow();
        }
    }

    fn deliver_events<T: Object>(&mut self, count: usize)
    where
        Cluster: Holds<T>,
        Told: Knows<T>,
        ClusterIndex: Index<T::View>,
        T::View: Debug,
    {
        if self.cluster.store().is_broken {
            return self.relist::<T>(usize::MAX, false);
        }
        for _ in 0..count {
            let Some(event) = Holds::<T>::store(self.cluster).next() else { break };
            match event {
                Event::Applied(key, version, object) => self.apply(&key, version, object),
                Event::Deleted(key) => {
                    Index::<T::View>::delete(self.index, &key);
                    Knows::<T>::known(self.told).remove(&key);
                    self.told.follow();
                }
            }
        }
        Index::<T::View>::commit(self.index);
    }

    fn relist<T: Object>(&mut self, ahead: usize, breaks_off: bool)
    where
        Cluster: Holds<T>,
        Told: Knows<T>,
        ClusterIndex: Index<T::View>,
        T::View: Debug,
    {
        let store = Holds::<T>::store(self.cluster);
        for _ in 0..ahead {
            if store.next().is_none() {
                break;
            }
        }
        let objects: Vec<_> = store.past.iter().map(|(key, object)| (key.clone(), object.clone())).collect();
        store.is_broken = breaks_off;
        let told = if breaks_off { objects.len() / 2 } else { objects.len() };
        Index::<T::View>::start(self.index);
        for (key, (version, object)) in objects.iter().take(told) {
            self.apply(key, *version, object.clone());
        }
        if !breaks_off {
            let live: HashSet<ObjectKey> = objects.into_iter().map(|(key, _)| key).collect();
            Index::<T::View>::reset(self.index, &live);
            Knows::<T>::known(self.told).retain(|key, _| live.contains(key));
            self.told.follow();
        }
        Index::<T::View>::commit(self.index);
    }

    fn redeliver<T: Object>(&mut self, place: usize)
    where
        Cluster: Holds<T>,
        Told: Knows<T>,
        ClusterIndex: Index<T::View>,
        T::View: Debug,
    {
        let store = Holds::<T>::store(self.cluster);
        let again = store.past.iter().nth(place % store.past.len().max(1));
        if let Some((key, (version, object))) = again.filter(|_| !store.is_broken) {
            let (key, version, object) = (key.clone(), *version, object.clone());
            self.apply(&key, version, object);
            Index::<T::View>::commit(self.index);
        }
    }

    fn has_news<T>(&mut self) -> bool
    where
        Cluster: Holds<T>,
    {
        let store = Holds::<T>::store(self.cluster);
        store.is_broken || !store.pending.is_empty()
    }

    fn break_off<T>(&mut self)
    where
        Cluster: Holds<T>,
    {
        Holds::<T>::store(self.cluster).is_broken = true;
    }

    /// Decodes the object as the watch does, and delivers it.
    fn apply<T: Object>(&mut self, key: &ObjectKey, version: u64, object: T)
    where
        Told: Knows<T>,
        ClusterIndex: Index<T::View>,
        T::View: Debug,
    {
        let text = object.json(key, version).to_string();
        let view = match serde_json::from_str::<Guarded<T::View>>(&text) {
            Ok(Guarded::Good(view)) => view,
            other => panic!("{text} is decoded as {other:?}"),
        };
        Index::<T::View>::apply(self.index, view);
        self.told.known().insert(key.clone(), object);
        self.told.follow();
    }
}
