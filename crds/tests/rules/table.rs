//! Reads the table of valid and invalid objects. README.md beside this file describes its format.

#![allow(unreachable_pub, reason = "other crates' tests include this file")]

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};

/// Default of an object's apiVersion.
const API_VERSION: &str = "multinetwork.numaproj.io/v1alpha1";

/// Object and the expected verdict on it.
#[derive(Debug, Clone)]
pub struct Row {
    /// File and name, for messages.
    pub name: String,
    /// Texts that the message about the object must contain: the field, and optionally words. Empty
    /// if the object is valid.
    pub complaint: Vec<String>,
    /// Object before the change, if the row is about one.
    pub old: Option<Value>,
    /// Object to check.
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

/// Returns all rows of all files in `folder`.
///
/// # Errors
///
/// An error that names file and row, if the table itself is wrong.
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
                finish(row, &name, &table.kind)
                    .ok_or_else(|| format!("{name}: not in the format of README.md"))?,
            );
        }
    }
    Ok(rows)
}

/// Completes a row with its defaults; `None` if its fields contradict each other.
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
    /// Returns how a verdict differs from the expected one, if it does. `message` is that about the
    /// object; `None` if it was accepted.
    pub fn contradiction(&self, message: Option<&str>) -> Option<String> {
        let name = &self.name;
        match message {
            None if self.complaint.is_empty() => None,
            None => Some(format!("{name}: is invalid ({:?}), but was accepted", self.complaint)),
            Some(message) if self.complaint.is_empty() => {
                Some(format!("{name}: is valid, but was refused: {message}"))
            }
            Some(message) => {
                let missing = self.complaint.iter().find(|text| !message.contains(text.as_str()))?;
                Some(format!("{name}: the message lacks {missing:?}: {message}"))
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
