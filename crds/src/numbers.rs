//! Numbers of JSON documents as the API server takes them: 5.0 is an integer.

use serde_json::Value;

/// The greatest range in which every integer has a floating-point number of its own.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// Turns floating-point numbers without a fraction into integers, throughout a document. The API server
/// does the same where the schema says integer; multinet's schemas say number nowhere.
pub(crate) fn integers_from_floats(value: &mut Value) {
    match value {
        Value::Number(number) => {
            if let Some(float) = number.as_f64().filter(|_| number.is_f64())
                && float.fract() == 0.0
                && float.abs() <= EXACT
            {
                // Exact: within ±2^53 and without a fraction.
                *number = (float as i64).into();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(integers_from_floats),
        Value::Object(members) => members.values_mut().for_each(integers_from_floats),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_integers_become_integers() {
        let mut value = json!({"a": [5.0, 5.5, -1e3, 1e300, 7], "b": "5.0", "c": null});
        integers_from_floats(&mut value);
        assert_eq!(value, json!({"a": [5, 5.5, -1000, 1e300, 7], "b": "5.0", "c": null}));
    }
}
