//! Transfers compared with each other: a secondary that applies a difference to any of its versions
//! gets the same zone as from a full transfer. The serial in a secondary's query is read correctly.

use std::collections::{BTreeMap, BTreeSet};

use hickory_proto::op::{Message, Query as Asked};
use hickory_proto::rr::rdata::SOA;
use hickory_proto::rr::{Name as Owner, RData, Record, RecordType};
use multinet_dns::answer::query::{Query, Question};
use multinet_dns::answer::slow::TransferKind;
use multinet_dns::answer::slow::{self, PacketAction};
use multinet_dns::secondary::transfer::{Transfer, TransferContents};
use multinet_dns::store::journal::JournalLimits;
use multinet_dns::store::name::Name;
use multinet_dns::store::state::State;
use multinet_dns::store::zone_copy::ZoneCopy;
use proptest::prelude::*;

use crate::ask::{Asker, VERTEX_ZONE, ZONE};
use crate::events::{self, World};

/// Returns the records of a transfer in order; SOA records appear as their serials.
fn records(apex: &Name, contents: TransferContents) -> Vec<Result<String, u32>> {
    let mut packet = vec![0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    packet.extend(apex.as_wire());
    packet.extend([0, 251, 0, 1]);
    let query = Query { question: Question::read(&packet).expect("a question"), edns: None };
    let mut records = Vec::new();
    for message in Transfer::new(&packet, &query, contents, None) {
        let message = Message::from_vec(&message).expect("a message");
        records.extend(message.answers.iter().map(|record| match &record.data {
            RData::SOA(soa) => Err(soa.serial),
            _ => Ok(record.to_string()),
        }));
    }
    records
}

type Zone = BTreeSet<String>;

fn whole(state: &State, apex: &Name) -> (u32, Zone) {
    read(apex, state.zone_copy(apex).expect("a zone"))
}

fn read(apex: &Name, copy: ZoneCopy) -> (u32, Zone) {
    let serial = copy.version.serial;
    let mut records = records(apex, TransferContents::Whole(copy.into()));
    assert_eq!((records.remove(0), records.pop()), (Err(serial), Some(Err(serial))));
    let mut zone = Zone::new();
    for record in records {
        let record = record.expect("an SOA within a zone");
        assert!(zone.insert(record.clone()), "sent twice: {record}");
    }
    (serial, zone)
}

/// Applies a difference strictly as a secondary does (RFC 1995 §4).
fn apply(zone: &mut Zone, mut serial: u32, newest: u32, records: &[Result<String, u32>]) {
    assert_eq!((records.first(), records.last()), (Some(&Err(newest)), Some(&Err(newest))));
    let mut is_adding = true;
    for record in &records[1..records.len() - 1] {
        match record {
            Err(soa) => {
                is_adding = !is_adding;
                assert!(is_adding || *soa == serial, "a step from {soa}, not from {serial}");
                serial = *soa;
            }
            Ok(record) if is_adding => assert!(zone.insert(record.clone()), "already there: {record}"),
            Ok(record) => assert!(zone.remove(record), "not there: {record}"),
        }
    }
    assert!(is_adding && serial == newest, "the last step leads to {serial}, not to {newest}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, max_shrink_iters: 500, ..ProptestConfig::default() })]

    #[test]
    fn differences_lead_to_the_whole_zone(events in prop::collection::vec(events::event(), 1..100)) {
        let mut world = World::default();
        let asker = Asker::new();
        let state = &asker.state;
        state.enable_journal(JournalLimits::default());
        world.sync(state);
        let apexes: Vec<Name> = [ZONE, VERTEX_ZONE, "in-addr.arpa", "ip6.arpa"].map(|apex| apex.parse().expect("a zone")).into();
        let mut versions: BTreeMap<(usize, u32), Zone> = BTreeMap::new();
        // A slow reader sees one version from beginning to end.
        let begun = apexes.clone().into_iter().map(|apex| {
            let read_at_once = whole(state, &apex);
            let copy = state.zone_copy(&apex).expect("a zone");
            (apex, copy, read_at_once)
        });
        let begun: Vec<_> = begun.collect();
        for event in &events {
            world.take(event, state);
            for (number, apex) in apexes.iter().enumerate() {
                let (newest, now) = whole(state, apex);
                let before = versions.insert((number, newest), now.clone());
                prop_assert!(before.is_none_or(|zone| zone == now), "a change under serial {}", newest);
                for (&(_, serial), before) in versions.range((number, 0)..=(number, u32::MAX)) {
                    // A difference larger than the zone is not sent, and zones are small here.
                    let Some((version, steps)) = state.zone_since(apex, serial) else { continue };
                    prop_assert_eq!(version.serial, newest);
                    let mut zone = before.clone();
                    apply(&mut zone, serial, newest, &records(apex, TransferContents::Difference(version, serial, steps)));
                    prop_assert_eq!(&zone, &now);
                }
            }
        }
        for (apex, copy, read_at_once) in begun {
            prop_assert_eq!(read(&apex, copy), read_at_once);
        }
    }
}

/// Generates names with repeated labels, so that they are compressed.
fn owner() -> impl Strategy<Value = Owner> {
    let label = prop::sample::select(&["z", "test", "ns", "a-longer-one"][..]);
    let labels = prop::collection::vec(label, 0..5);
    labels.prop_map(|labels| Owner::from_labels(labels).expect("a name"))
}

proptest! {
    #[test]
    fn the_serial_that_an_asker_has_is_read(
        apex in owner(),
        names in (owner(), owner()),
        serial: u32,
    ) {
        let mut message = Message::query();
        message.add_query(Asked::query(apex.clone(), RecordType::IXFR));
        let soa = SOA::new(names.0, names.1, serial, 1, 2, 3, 4);
        message.add_authority(Record::from_rdata(apex, 5, RData::SOA(soa)));
        let packet = message.to_vec().expect("a query");
        let Some(PacketAction::Transfer(_, wanted)) = slow::classify(&packet) else { panic!("{packet:?}") };
        prop_assert_eq!(wanted, TransferKind::Since(serial));
    }
}
