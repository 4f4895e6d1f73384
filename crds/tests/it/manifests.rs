//! Checks that `deploy/crds` matches the types. `UPDATE=1` rewrites it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

#[test]
fn deployed_definitions_are_the_generated_ones() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/crds");
    let generated: BTreeMap<String, String> = multinet_crds::crd_manifests().unwrap().into_iter().collect();
    if std::env::var_os("UPDATE").is_some() {
        for (name, manifest) in &generated {
            fs::write(folder.join(name), manifest).unwrap();
        }
    }
    let deployed: BTreeMap<String, String> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .map(|path| {
            (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read_to_string(&path).unwrap())
        })
        .collect();
    assert!(
        deployed.keys().eq(generated.keys()),
        "{:?} in deploy/crds, {:?} generated",
        deployed.keys(),
        generated.keys()
    );
    for (name, manifest) in generated {
        assert!(deployed[&name] == manifest, "deploy/crds/{name} is out of date: run `make crds`");
    }
}

#[test]
fn definitions_decode_to_what_was_encoded() {
    let crds = multinet_crds::all_crds();
    for (crd, (name, manifest)) in crds.iter().zip(multinet_crds::crd_manifests().unwrap()) {
        let read = serde_saphyr::from_str(&manifest).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(*crd, read, "{name}");
    }
}

#[test]
fn every_list_and_text_is_bounded() {
    for crd in multinet_crds::all_crds() {
        let schema = crd.spec.versions[0].schema.clone().unwrap().open_api_v3_schema.unwrap();
        bounded(&crd.spec.names.kind, &serde_json::json!(schema));
    }
}

/// A rule that reads the whole list for each item costs the API server quadratic time on every
/// write.
#[test]
fn no_rule_compares_all_items_of_a_long_list() {
    const FEW: u64 = 16;
    fn check(path: &str, schema: &serde_json::Value) {
        let rules = schema["x-kubernetes-validations"].as_array();
        for rule in rules.into_iter().flatten().filter_map(|rule| rule["rule"].as_str()) {
            let is_long = schema["maxItems"].as_u64().is_some_and(|most| most > FEW);
            assert!(!is_long || rule.matches("self").count() == 1, "{path}: {rule}");
        }
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            check(&format!("{path}.{name}"), property);
        }
        schema.get("items").into_iter().for_each(|items| check(&format!("{path}[]"), items));
    }
    for crd in multinet_crds::all_crds() {
        let schema = crd.spec.versions[0].schema.clone().unwrap().open_api_v3_schema.unwrap();
        check(&crd.spec.names.kind, &serde_json::json!(schema));
    }
}

/// Panics at a text, list, map or integer without a bound, and at a field that has no description
/// or is nullable.
fn bounded(path: &str, schema: &serde_json::Value) {
    let has = |key: &str| schema.get(key).is_some();
    let bound = match schema["type"].as_str() {
        Some("string") => has("maxLength") || has("enum") || has("format"),
        Some("array") => has("maxItems") && has("x-kubernetes-list-type"),
        Some("integer") => has("minimum"),
        Some("object") => has("properties") || has("maxProperties") || path.ends_with(".metadata"),
        Some("boolean") => true,
        other => panic!("{path} has the type {other:?}"),
    };
    assert!(bound, "{path} has no bound: {schema}");
    assert!(!has("nullable") || path.ends_with(".status"), "{path} is nullable");
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        assert!(
            property.get("description").is_some() || ["metadata", "status"].contains(&name.as_str()),
            "{path}.{name} has no description"
        );
        bounded(&format!("{path}.{name}"), property);
    }
    for inner in ["items", "additionalProperties"] {
        if let Some(schema) = schema.get(inner) {
            bounded(&format!("{path}[]"), schema);
        }
    }
}
