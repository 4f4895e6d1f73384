//! Applies the rules as Rust functions to the table of valid and invalid objects. `tests/cluster`
//! applies those of the API server to the same table.

#[path = "../rules/table.rs"]
mod table;

use std::collections::BTreeSet;
use std::path::Path;

use multinet_crds::manifest::{self, Object};
use multinet_crds::validate::{Violation, validate};
use multinet_crds::{MultiNetworkService, NetworkReference};
use serde_json::Value;

use self::table::Row;

fn rows() -> Vec<Row> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rules");
    table::rows(&folder).unwrap_or_else(|error| panic!("{error}"))
}

fn admit(document: Value) -> Result<Object, String> {
    let kind = document["kind"].as_str().unwrap_or_default().parse();
    let kind = kind.unwrap_or_else(|_| panic!("unknown kind: {document}"));
    let violations = |all: Vec<Violation>| all.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    manifest::admit(kind, document).map(|manifest| manifest.object).map_err(violations)
}

#[test]
fn functions_agree_with_the_table() {
    let rows = rows();
    let of_creates = rows.iter().filter(|row| row.old.is_none());
    let wrong: Vec<String> =
        of_creates.filter_map(|row| row.contradiction(admit(row.object.clone()).err().as_deref())).collect();
    assert!(wrong.is_empty(), "{} of {} rows:\n{}", wrong.len(), rows.len(), wrong.join("\n"));
}

#[test]
fn names_of_rows_are_unique() {
    let mut names = BTreeSet::new();
    for row in rows() {
        assert!(names.insert(row.name.clone()), "{} occurs twice", row.name);
    }
    assert!(names.len() > 250, "only {} rows", names.len());
}

/// An object that is serialised and decoded again stays the same: no field is lost, and defaults
/// are stable.
#[test]
fn valid_objects_survive_serialisation() {
    for row in rows().into_iter().filter(|row| row.complaint.is_empty()) {
        let object = admit(row.object).unwrap_or_else(|error| panic!("{error}"));
        let written = match &object {
            Object::Service(service) => serde_json::json!(service),
            Object::Slice(slice) => serde_json::json!(slice),
        };
        assert_eq!(admit(written).as_ref(), Ok(&object), "{}", row.name);
    }
}

/// With a comparison of each network with each, this takes minutes.
#[test]
fn a_long_list_of_networks_is_checked_once() {
    let network = |index| NetworkReference { name: format!("n{index}"), ..NetworkReference::default() };
    let networks: Vec<_> = (0..100_000).map(network).collect();
    let spec = serde_json::json!({"networks": networks});
    let service = MultiNetworkService::new("many", serde_json::from_value(spec).unwrap());
    let violations = validate(&service).unwrap_err();
    assert_eq!(violations.len(), 1, "{violations:?}");
    assert_eq!(violations[0].message, "must have 1 to 16 items, not 100000");
}
