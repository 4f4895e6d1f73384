//! Parsing of files into documents. Pure.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::{
    Options, SnippetMode, Spanned, UserMessageFormatter, alias_limits, budget, options, render_options,
};

use crate::limits::manifests::{MAX_NODES, MAX_REPEATED};

/// A YAML or JSON document of a file. Empty documents are left out.
#[derive(Debug)]
pub(super) struct Document {
    /// Number of the document in its file, from 1. Empty documents do not count.
    pub(super) number: usize,
    /// Line of the file on which the document begins, from 1.
    pub(super) line: u64,
    pub(super) value: Value,
}

/// Parses all documents of a file in YAML or JSON. Resolves anchors, aliases and merge keys. A
/// duplicate key is an error. An error message names the problem and where it is.
pub(super) fn parse(bytes: &[u8]) -> Result<Vec<Document>, String> {
    // JSON documents may follow each other without separators; in YAML's flow style they may not.
    let seems_json = bytes.trim_ascii_start().first().is_some_and(|first| b"{[".contains(first));
    let json_error = match seems_json.then(|| parse_json(bytes)) {
        Some(Ok(documents)) => return Ok(documents),
        Some(Err(error)) => Some(error),
        None => None,
    };
    parse_yaml(bytes).map_err(|yaml_error| match json_error {
        // The parser that got further understood the file's intended format.
        Some(json_error) if json_error.position > yaml_error.position => json_error.message,
        _ => yaml_error.message,
    })
}

/// A syntax error in a file, with the line and column where it was found.
struct Malformed {
    message: String,
    position: (u64, u64),
}

fn parse_yaml(bytes: &[u8]) -> Result<Vec<Document>, Malformed> {
    let documents: Vec<Spanned<Value>> =
        serde_saphyr::from_slice_multiple_with_options(bytes, yaml_options()).map_err(|error| {
            let formatter = UserMessageFormatter;
            let options = render_options! { formatter: &formatter, snippets: SnippetMode::Off };
            let position = error.location().map_or((0, 0), |location| (location.line(), location.column()));
            Malformed { message: error.render_with_options(options), position }
        })?;
    let documents = documents.into_iter().enumerate().map(|(position, document)| Document {
        number: position + 1,
        line: document.referenced.line(),
        value: document.value,
    });
    Ok(documents.collect())
}

/// Returns options that limit the number of values. The parser's own limits on events and documents
/// are too low, since many slices in one file are not an attack.
fn yaml_options() -> Options {
    options! {
        with_snippet: false,
        emit_comments: false,
        alias_limits: alias_limits! { max_total_replayed_events: MAX_REPEATED },
        budget: budget! {
            max_nodes: MAX_NODES,
            max_events: usize::MAX,
            max_documents: usize::MAX,
        },
    }
}

fn parse_json(bytes: &[u8]) -> Result<Vec<Document>, Malformed> {
    let mut documents = Vec::new();
    let mut stream = serde_json::Deserializer::from_slice(bytes).into_iter::<Unique>();
    let (mut line, mut counted) = (1, 0);
    loop {
        let gap = bytes[stream.byte_offset()..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        let begin = stream.byte_offset() + gap;
        let Some(value) = stream.next() else {
            return Ok(documents);
        };
        let Unique(value) = value.map_err(|error| Malformed {
            position: (error.line() as u64, error.column() as u64),
            message: error.to_string(),
        })?;
        line += bytes[counted..begin].iter().filter(|&&byte| byte == b'\n').count() as u64;
        counted = begin;
        if !value.is_null() {
            documents.push(Document { number: documents.len() + 1, line, value });
        }
    }
}

/// A JSON value that rejects duplicate keys. serde_json itself would keep the last one.
struct Unique(Value);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UniqueVisitor).map(Self)
    }
}

struct UniqueVisitor;

impl<'de> Visitor<'de> for UniqueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(Unique(value)) = seq.next_element()? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut values = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            if values.contains_key(&key) {
                return Err(de::Error::custom(format_args!("duplicate key `{key}`")));
            }
            let Unique(value) = map.next_value()?;
            values.insert(key, value);
        }
        Ok(Value::Object(values))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parsed(text: &str) -> Result<Vec<(usize, u64, Value)>, String> {
        let documents = parse(text.as_bytes())?;
        Ok(documents.into_iter().map(|document| (document.number, document.line, document.value)).collect())
    }

    #[test]
    fn a_document_has_a_number_and_a_line() {
        let cases = [
            ("", vec![]),
            ("# only a comment\n---\n---\nnull\n", vec![]),
            (
                "a: 1\n---\n# b\nb: 2\n---\n---\nc: 3\n",
                vec![(1, 1, json!({"a": 1})), (2, 4, json!({"b": 2})), (3, 7, json!({"c": 3}))],
            ),
            ("\u{feff}a: 1\n", vec![(1, 1, json!({"a": 1}))]),
            ("a: &x [1]\nb: *x\n", vec![(1, 1, json!({"a": [1], "b": [1]}))]),
            ("just text", vec![(1, 1, json!("just text"))]),
            ("{\n\t\"a\": -1\n}", vec![(1, 1, json!({"a": -1}))]),
            (
                "{\"a\": 1}{\"b\": 0.5}\n\n {\"c\": [true, null, \"\\ud83d\\ude00\"]}\n",
                vec![
                    (1, 1, json!({"a": 1})),
                    (2, 1, json!({"b": 0.5})),
                    (3, 3, json!({"c": [true, null, "😀"]})),
                ],
            ),
            (
                "{a: 1, b: [x]}\n---\nc: 2\n",
                vec![(1, 1, json!({"a": 1, "b": ["x"]})), (2, 3, json!({"c": 2}))],
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(parsed(text), Ok(expected), "{text:?}");
        }
    }

    #[test]
    fn an_error_names_line_and_column() {
        let cases = [
            ("a: 1\nb: [\n", "line 2, column 4"),
            ("a: 1\n---\nb: c: d\n", "line 3, column 5"),
            ("a: 1\na: 2\n", "duplicate mapping key `a` is not allowed here at line 2, column 1"),
            ("a:\n\t- b\n", "tabs"),
            ("a: *b\n", "line 1, column 4"),
            ("{\"a\": 1,\n \"a\": 2}", "duplicate key `a` at line 2 column 4"),
            ("{\"a\": 1,\n \"b\" 2}", "line 2"),
            ("a: \u{0}\n", "line 1, column 4"),
        ];
        for (text, expected) in cases {
            let error = parsed(text).unwrap_err();
            assert!(error.contains(expected), "{text:?}: {error}");
            assert!(!error.contains('\n'), "{text:?}: {error}");
        }
        assert!(parse(b"a: \xff\n").unwrap_err().contains("UTF-8"));
    }

    #[test]
    fn a_file_that_expands_too_far_is_refused() {
        let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for level in 1..12 {
            let below = vec![format!("*a{}", level - 1); 10].join(", ");
            bomb.push_str(&format!("a{level}: &a{level} [{below}]\n"));
        }
        let error = parsed(&bomb).unwrap_err();
        assert!(error.contains("too complex") && error.contains("line"), "{error}");
        let deep = "[".repeat(10_000);
        assert!(parsed(&deep).is_err());
        assert!(parsed(&format!("x: {deep}")).is_err());
    }
}
