//! Integers in JSON documents as the API server reads them: 5.0 is one.

use serde_json::Value;

/// Greatest number below which every integer is exact as a floating-point number: 2^53.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// Turns floating-point numbers without a fraction into integers, throughout a document. The API
/// server does so where the schema has the type integer. multinet's schemas never have the type
/// number, so that this function does not look at the schema.
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
    fn floats_with_a_fraction_stay_floats() {
        let mut value = json!({"a": [5.0, 5.5, -1e3, 1e300, 7], "b": "5.0", "c": null});
        integers_from_floats(&mut value);
        assert_eq!(value, json!({"a": [5, 5.5, -1000, 1e300, 7], "b": "5.0", "c": null}));
    }
}
