//! Checks a document against a schema before serde decodes it: types, required fields, enumerations
//! and ranges of numbers.
//!
//! serde alone would stop at the first error, name the parent of a missing field, and accept a list
//! as a struct. [`crate::validate`] checks texts and rules.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use serde_json::Value;

use crate::validate::Violation;
use crate::validate::check::Check;

/// Fields of every object that the schema of a kind leaves out.
const ENVELOPE: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// Checks an object. Returns the paths of fields that its schema does not have.
pub(super) fn check(document: &Value, schema: &JSONSchemaProps) -> Result<Vec<String>, Vec<Violation>> {
    let (mut check, mut ignored) = (Check::default(), Vec::new());
    value(&mut check, document, schema, &mut ignored);
    check.finish()?;
    ignored.retain(|path| !ENVELOPE.contains(&path.as_str()));
    Ok(ignored)
}

fn value(check: &mut Check, value: &Value, schema: &JSONSchemaProps, ignored: &mut Vec<String>) {
    match value {
        Value::Object(members) if is(schema, "object") => object(check, members, schema, ignored),
        Value::Array(items) if is(schema, "array") => {
            if let Some(JSONSchemaPropsOrArray::Schema(schema)) = &schema.items {
                for (index, item) in items.iter().enumerate() {
                    check.entry(index, |check| self::value(check, item, schema, ignored));
                }
            }
        }
        Value::String(text) if is(schema, "string") => {
            let allowed: Vec<&str> =
                schema.enum_.iter().flatten().filter_map(|json| json.0.as_str()).collect();
            if !allowed.is_empty() && !allowed.contains(&text.as_str()) {
                check.fail(format!("must be {}; {text:?} is not", allowed.join(" or ")));
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
                check.fail(format!("must be {minimum} to {maximum}; {number} is not"));
            }
        }
        Value::Bool(_) if is(schema, "boolean") => {}
        other => {
            let expected = schema.type_.as_deref().unwrap_or("nothing");
            check.fail(format!("must be {}, not {}", with_article(expected), describe(other)));
        }
    }
}

fn object(
    check: &mut Check,
    members: &serde_json::Map<String, Value>,
    schema: &JSONSchemaProps,
    ignored: &mut Vec<String>,
) {
    for name in schema.required.iter().flatten().filter(|name| !members.contains_key(*name)) {
        check.field(name, |check| check.fail("must be set"));
    }
    let properties = schema.properties.as_ref();
    for (name, member) in members {
        let property = properties.and_then(|properties| properties.get(name));
        check.field(name, |check| match (property, &schema.additional_properties) {
            (Some(schema), _) => value(check, member, schema, ignored),
            (None, Some(JSONSchemaPropsOrBool::Schema(schema))) => value(check, member, schema, ignored),
            (None, _) => ignored.push(check.path().to_owned()),
        });
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
