//! Reads the table of good and bad objects. The format is described in README.md beside this file.

#![allow(unreachable_pub, reason = "included by the tests that put the table to somebody")]

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};

/// The version of every object that does not say otherwise.
const API_VERSION: &str = "multinetwork.numaproj.io/v1alpha1";

/// An object and what is to be said of it.
#[derive(Debug, Clone)]
pub struct Row {
    /// File and name, for messages.
    pub name: String,
    /// What must be said against the object: the field, perhaps words of the message. Empty if it is good.
    pub complaint: Vec<String>,
    /// The object before, where the row is about a change.
    pub old: Option<Value>,
    /// The object.
    pub object: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    kind: String,
    rows: Vec<RawRow>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRow {
    name: String,
    verdict: Verdict,
    field: Option<String>,
    words: Option<String>,
    #[serde(default)]
    repeat: BTreeMap<String, usize>,
    old: Option<Value>,
    object: Value,
}

#[derive(Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Good,
    Bad,
}

/// All rows of all files in `folder`. An error, naming file and row, if the table itself is wrong.
pub fn rows(folder: &Path) -> Result<Vec<Row>, Box<dyn Error>> {
    let mut files =
        fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>, Box<dyn Error>>>()?;
    files.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    let mut rows = Vec::new();
    for path in files {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        let table: Table = serde_saphyr::from_str(&fs::read_to_string(&path)?)
            .map_err(|error| format!("{file}: {error}"))?;
        for row in table.rows {
            let name = format!("{file}: {}", row.name);
            rows.push(
                finish(row, &name, &table.kind).ok_or_else(|| format!("{name}: not as README.md says"))?,
            );
        }
    }
    Ok(rows)
}

/// A row with all that it leaves out; `None` if it makes no sense.
fn finish(row: RawRow, name: &str, kind: &str) -> Option<Row> {
    if row.field.is_some() != (row.verdict == Verdict::Bad) || row.words.is_some() && row.field.is_none() {
        return None;
    }
    let mut object = complete(row.object, kind)?;
    for (pointer, count) in row.repeat {
        repeat(&mut object, &pointer, count)?;
    }
    let old = match row.old {
        Some(old) => Some(complete(old, kind)?),
        None => None,
    };
    let complaint = row.field.into_iter().chain(row.words).collect();
    Some(Row { name: name.to_owned(), complaint, old, object })
}

impl Row {
    /// How `said` differs from what is to be said of the object, where `None` is that it is good.
    pub fn contradiction(&self, said: Option<&str>) -> Option<String> {
        let name = &self.name;
        match said {
            None if self.complaint.is_empty() => None,
            None => Some(format!("{name}: is bad ({:?}), but nothing was said", self.complaint)),
            Some(said) if self.complaint.is_empty() => Some(format!("{name}: is good, but: {said}")),
            Some(said) => {
                let missing = self.complaint.iter().find(|text| !said.contains(text.as_str()))?;
                Some(format!("{name}: nothing was said of {missing:?}, but: {said}"))
            }
        }
    }
}

fn complete(mut object: Value, kind: &str) -> Option<Value> {
    let members = object.as_object_mut()?;
    members.entry("apiVersion").or_insert_with(|| json!(API_VERSION));
    members.entry("kind").or_insert_with(|| json!(kind));
    members.entry("metadata").or_insert_with(|| json!({"name": "row"}));
    Some(object)
}

fn repeat(object: &mut Value, pointer: &str, count: usize) -> Option<()> {
    let list = object.pointer_mut(pointer)?.as_array_mut()?;
    let [item] = &list[..] else { return None };
    let item = item.clone();
    *list = (0..count).map(|index| numbered(&item, index)).collect();
    Some(())
}

fn numbered(value: &Value, index: usize) -> Value {
    match value {
        Value::String(text) => json!(text.replace('#', &index.to_string())),
        Value::Array(items) => items.iter().map(|item| numbered(item, index)).collect(),
        Value::Object(members) => {
            members.iter().map(|(name, member)| (name.clone(), numbered(member, index))).collect()
        }
        other => other.clone(),
    }
}
