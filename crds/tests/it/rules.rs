//! The table of good and bad objects, put to the rules as Rust functions. That the API server says the same is
//! proved where there is one.

#[path = "../rules/table.rs"]
mod table;

use std::collections::BTreeSet;
use std::path::Path;

use multinet_crds::manifest::{self, Object};
use serde_json::Value;

use self::table::Row;

fn rows() -> Vec<Row> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rules");
    table::rows(&folder).unwrap_or_else(|error| panic!("{error}"))
}

/// Everything that is said against the row's object, or its change.
fn complaints(row: &Row) -> Result<(), String> {
    let object = admit(row.object.clone())?;
    if let Some(old) = &row.old {
        let old = admit(old.clone()).unwrap_or_else(|said| panic!("{}: old: {said}", row.name));
        object.validate_update(&old).map_err(|violations| {
            violations.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
        })?;
    }
    Ok(())
}

fn admit(document: Value) -> Result<Object, String> {
    let manifest = manifest::admit(document).map_err(|rejected| rejected.to_string())?;
    manifest.map(|manifest| manifest.object).ok_or_else(|| "not of our API group".to_owned())
}

#[test]
fn functions_say_what_the_table_says() {
    let rows = rows();
    let wrong: Vec<String> =
        rows.iter().filter_map(|row| row.contradiction(complaints(row).err().as_deref())).collect();
    assert!(wrong.is_empty(), "{} of {} rows:\n{}", wrong.len(), rows.len(), wrong.join("\n"));
}

#[test]
fn rows_have_names_of_their_own() {
    let mut names = BTreeSet::new();
    for row in rows() {
        assert!(names.insert(row.name.clone()), "{} occurs twice", row.name);
    }
    assert!(names.len() > 250, "only {} rows", names.len());
}

/// What was read and written again is the same object: nothing is lost, and defaults are stable.
#[test]
fn good_objects_survive_being_written() {
    for row in rows().into_iter().filter(|row| row.complaint.is_empty()) {
        let object = admit(row.object).unwrap_or_else(|said| panic!("{said}"));
        let written = match &object {
            Object::Service(service) => serde_json::json!(service),
            Object::Slice(slice) => serde_json::json!(slice),
        };
        assert_eq!(admit(written).as_ref(), Ok(&object), "{}", row.name);
    }
}
