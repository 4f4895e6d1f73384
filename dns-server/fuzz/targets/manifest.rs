//! Any manifest: what is admitted keeps every rule, and becomes answers without a panic.

#![no_main]

use std::collections::HashSet;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use multinet_crds::manifest::{self, Object};
use multinet_dns::answers::Answers;
use multinet_dns::state::State;
use multinet_dns::zone::{ZoneSettings, Zones};
use multinet_runtime::Index;

fuzz_target!(|text: &str| {
    // The server's own reader of files: streams, lists, line numbers, limits.
    multinet_dns::source::manifests::count_served(text.as_bytes());
    let Ok(documents) = manifest::documents(text) else { return };
    let settings = ZoneSettings { ttl: 5, ns_addresses: [].into() };
    let zones = Zones::new(vec!["z".parse().expect("a constant")], &[], &settings).expect("constants");
    let state = State::new(Arc::new(Answers::new(zones, 1)), 5, |_| {});
    for document in documents {
        let Ok(Some(manifest)) = manifest::admit(document) else { continue };
        assert!(manifest.object.validate().is_ok(), "admitted and yet not valid");
        match manifest.object {
            Object::Service(service) => Index::apply(&state, *service),
            Object::Slice(slice) => Index::apply(&state, *slice),
        }
    }
    // Nothing is retained from the list but the objects themselves: this makes all of them current.
    let live: HashSet<_> = state.objects().services.into_iter().map(|(key, _)| key).collect();
    Index::<multinet_crds::MultiNetworkService>::reset(&state, &live);
    let live: HashSet<_> = state.objects().slices.into_iter().map(|(key, _)| key).collect();
    Index::<multinet_crds::MultiNetworkEndpointSlice>::reset(&state, &live);
    Index::<multinet_crds::MultiNetworkService>::commit(&state);
    let apex = "z".parse().expect("a constant");
    let copy = state.zone_copy(&apex).expect("the zone is there");
    assert!(copy.names.iter().all(|(name, _)| name.is_within(&apex)));
});
