//! What people do to slices that are not theirs.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use proptest::prelude::*;

use crate::kinds::Kind;
use crate::store::Store;

/// An edit of some slice.
#[derive(Clone, Debug)]
pub(crate) struct Edit {
    what: What,
    slice: usize,
    other: usize,
}

#[derive(Clone, Copy, Debug)]
enum What {
    DropEndpoint,
    RepeatEndpoint,
    /// An endpoint stands in another slice too, whatever that is of.
    CopyEndpoint,
    MoveEndpoint,
    CopyAllEndpoints,
    Stale,
    OtherNotation,
    SecondAddress,
    NoAddress,
    Unwanted,
    Reverse,
    Empty,
    Unlabel,
    Label,
    Unown,
    OtherOwner,
    ClearPorts,
    OtherAlias,
    OtherNetwork,
    Annotate,
    Remove,
    Terminate,
    CopySlice,
    CopySliceEmpty,
}

/// Any edit.
pub(crate) fn edit() -> impl Strategy<Value = Edit> {
    use What::*;
    let what = prop::sample::select(vec![
        DropEndpoint,
        RepeatEndpoint,
        CopyEndpoint,
        MoveEndpoint,
        CopyAllEndpoints,
        Stale,
        OtherNotation,
        SecondAddress,
        NoAddress,
        Unwanted,
        Reverse,
        Empty,
        Unlabel,
        Label,
        Unown,
        OtherOwner,
        ClearPorts,
        OtherAlias,
        OtherNetwork,
        Annotate,
        Remove,
        Terminate,
        CopySlice,
        CopySliceEmpty,
    ]);
    (what, 0..40_usize, 0..40_usize).prop_map(|(what, slice, other)| Edit { what, slice, other })
}

impl Edit {
    /// Makes the edit, if there is what it is about.
    pub(crate) fn make<K: Kind>(&self, store: &mut Store<K>) {
        match self.what {
            What::Remove => store.remove(self.slice),
            What::CopySlice | What::CopySliceEmpty => {
                if let Some(mut slice) = store.nth(self.slice) {
                    if matches!(self.what, What::CopySliceEmpty) {
                        slice.endpoints_mut().clear();
                    }
                    slice.meta_mut().deletion_timestamp = None;
                    store.copy(slice);
                }
            }
            What::CopyEndpoint | What::MoveEndpoint | What::CopyAllEndpoints => self.spread(store),
            _ => store.edit(self.slice, |slice| self.change(slice)),
        }
    }

    /// Puts endpoints of one slice into another.
    fn spread<K: Kind>(&self, store: &mut Store<K>) {
        let Some(mut from) = store.nth(self.slice).map(|slice| slice.endpoints().to_vec()) else {
            return;
        };
        if !matches!(self.what, What::CopyAllEndpoints) {
            from.truncate(1);
        }
        if matches!(self.what, What::MoveEndpoint) {
            store.edit(self.slice, |slice| drop(slice.endpoints_mut().drain(..from.len())));
        }
        store.edit(self.other, |slice| slice.endpoints_mut().extend(from));
    }

    fn change<K: Kind>(&self, slice: &mut K) {
        let count = slice.endpoints().len();
        if let Some(place) = self.other.checked_rem(count) {
            self.change_endpoint::<K>(slice.endpoints_mut(), place);
        }
        let metadata = slice.meta_mut();
        match self.what {
            What::Unlabel => metadata.labels = None,
            What::Label => {
                metadata.labels.get_or_insert_default().insert("by-hand".to_owned(), String::new());
            }
            What::Unown => metadata.owner_references = None,
            What::OtherOwner => metadata.owner_references.get_or_insert_default().push(other_owner()),
            What::Annotate => {
                metadata
                    .annotations
                    .get_or_insert_default()
                    .insert("note".to_owned(), self.other.to_string());
            }
            What::Terminate => metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH)),
            What::ClearPorts => slice.clear_ports(),
            What::OtherAlias => slice.set_network("net-0", &format!("by-hand{}", self.other)),
            What::OtherNetwork => {
                let network = self.other % 3;
                slice.set_network(&format!("net-{network}"), &format!("rail{network}"));
            }
            _ => {}
        }
    }

    fn change_endpoint<K: Kind>(&self, endpoints: &mut Vec<K::Endpoint>, place: usize) {
        let addresses = K::addresses_mut(&mut endpoints[place]);
        match self.what {
            What::OtherNotation => addresses.iter_mut().for_each(|address| *address = address.to_uppercase()),
            What::SecondAddress => addresses.push("10.9.9.9".to_owned()),
            What::NoAddress => addresses.clear(),
            What::Unwanted => *addresses = vec![format!("10.8.0.{}", self.other)],
            What::Stale => *K::zone_mut(&mut endpoints[place]) = Some("by-hand".to_owned()),
            What::DropEndpoint => drop(endpoints.remove(place)),
            What::RepeatEndpoint => endpoints.push(endpoints[place].clone()),
            What::Reverse => endpoints.reverse(),
            What::Empty => endpoints.clear(),
            _ => {}
        }
    }
}

fn other_owner() -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: "ConfigMap".to_owned(),
        name: "by-hand".to_owned(),
        uid: "by-hand".to_owned(),
        controller: Some(true),
        block_owner_deletion: None,
    }
}
