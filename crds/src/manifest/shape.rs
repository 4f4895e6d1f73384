//! Checks a document against a schema before serde decodes it: types, required fields, enumerations
//! and ranges of numbers.
//!
//! serde alone would stop at the first error, name the parent of a missing field, and accept a list
//! as a struct. [`crate::validate`] checks texts and rules.

use std::fmt;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use serde_json::Value;

use crate::validate::Violation;

/// Fields of every object that the schema of a kind leaves out.
const ENVELOPE: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// Checks an object. Returns the paths of fields that its schema does not have.
pub(super) fn check(document: &Value, schema: &JSONSchemaProps) -> Result<Vec<String>, Vec<Violation>> {
    let mut check = ShapeCheck::default();
    check.value(document, schema);
    check.ignored.retain(|path| !ENVELOPE.contains(&path.as_str()));
    if check.found.is_empty() { Ok(check.ignored) } else { Err(check.found) }
}

/// Recursive check of a document against a schema, with the findings so far.
#[derive(Default)]
struct ShapeCheck {
    /// Path of the value that is being checked.
    path: String,
    found: Vec<Violation>,
    ignored: Vec<String>,
}

impl ShapeCheck {
    fn value(&mut self, value: &Value, schema: &JSONSchemaProps) {
        match value {
            Value::Object(members) if is(schema, "object") => self.object(members, schema),
            Value::Array(items) if is(schema, "array") => {
                if let Some(JSONSchemaPropsOrArray::Schema(schema)) = &schema.items {
                    for (index, item) in items.iter().enumerate() {
                        self.descend(format_args!("[{index}]"), |check| check.value(item, schema));
                    }
                }
            }
            Value::String(text) if is(schema, "string") => {
                let allowed: Vec<&str> =
                    schema.enum_.iter().flatten().filter_map(|json| json.0.as_str()).collect();
                if !allowed.is_empty() && !allowed.contains(&text.as_str()) {
                    self.fail(format!("must be {}; {text:?} is not", allowed.join(" or ")));
                }
            }
            Value::Number(number) if is(schema, "integer") && !number.is_f64() => {
                let within = |number: f64| {
                    schema.minimum.is_none_or(|minimum| minimum <= number)
                        && schema.maximum.is_none_or(|maximum| number <= maximum)
                };
                if let (false, Some(minimum), Some(maximum)) =
                    (number.as_f64().is_some_and(within), schema.minimum, schema.maximum)
                {
                    self.fail(format!("must be {minimum} to {maximum}; {number} is not"));
                }
            }
            Value::Bool(_) if is(schema, "boolean") => {}
            other => {
                let expected = schema.type_.as_deref().unwrap_or("nothing");
                self.fail(format!("must be {}, not {}", with_article(expected), describe(other)));
            }
        }
    }

    fn object(&mut self, members: &serde_json::Map<String, Value>, schema: &JSONSchemaProps) {
        for name in schema.required.iter().flatten().filter(|name| !members.contains_key(*name)) {
            self.descend(format_args!(".{name}"), |check| {
                check.fail("must be set".to_owned());
            });
        }
        let properties = schema.properties.as_ref();
        for (name, member) in members {
            let property = properties.and_then(|properties| properties.get(name));
            self.descend(format_args!(".{name}"), |check| match (property, &schema.additional_properties) {
                (Some(schema), _) => check.value(member, schema),
                (None, Some(JSONSchemaPropsOrBool::Schema(schema))) => check.value(member, schema),
                (None, _) => check.ignored.push(check.path.clone()),
            });
        }
    }

    /// Runs `check` with `step` appended to the path.
    fn descend(&mut self, step: fmt::Arguments<'_>, check: impl FnOnce(&mut Self)) {
        let length = self.path.len();
        let step = step.to_string();
        self.path.push_str(if length == 0 { step.trim_start_matches('.') } else { &step });
        check(self);
        self.path.truncate(length);
    }

    fn fail(&mut self, message: String) {
        self.found.push(Violation { field: self.path.clone(), message });
    }
}

fn is(schema: &JSONSchemaProps, kind: &str) -> bool {
    schema.type_.as_deref() == Some(kind)
}

fn describe(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) => "a boolean".to_owned(),
        Value::Number(number) => format!("the number {number}"),
        Value::String(_) => "a string".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

fn with_article(kind: &str) -> String {
    match kind {
        "object" | "integer" => format!("an {kind}"),
        "array" => "a list".to_owned(),
        kind => format!("a {kind}"),
    }
}
