//! JSON Schemas of payloads. Compiled once; a schema reaches neither files nor the network. Errors say where a payload
//! is wrong and what was wanted there, and never repeat what stands there: it may be secret, and of any size.

use std::path::{Path, PathBuf};

use jsonschema::Validator;
use longshore_domain::admission::PayloadSchema;
use serde_json::Value;

/// So many wrong fields are named.
const SHOWN: usize = 3;
/// So many bytes of each.
const SHOWN_BYTES: usize = 300;

/// A compiled schema of any draft since 4, 2020-12 where `$schema` does not say; `format` is checked.
#[derive(Debug)]
pub struct JsonSchema(Validator);

/// Why there is no schema.
#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    /// The file cannot be read.
    #[error("{} cannot be read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is not JSON.
    #[error("it is not JSON: {0}")]
    Json(#[source] serde_json::Error),
    /// It is not a schema.
    #[error("it is no JSON Schema: {0}")]
    Schema(String),
    /// The same, of a file.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: Box<SchemaError>,
    },
}

impl JsonSchema {
    /// Compiles a schema.
    ///
    /// # Errors
    /// It is not JSON, not a schema, or refers to another document.
    pub fn new(text: &str) -> Result<Self, SchemaError> {
        let schema: Value = serde_json::from_str(text).map_err(SchemaError::Json)?;
        let compiled = jsonschema::options().should_validate_formats(true).build(&schema);
        compiled
            .map(Self)
            .map_err(|error| SchemaError::Schema(at(&error.instance_path().to_string(), &error.to_string())))
    }

    /// Compiles the schema in a file.
    ///
    /// # Errors
    /// The file cannot be read, or as [`Self::new`].
    pub fn read(path: &Path) -> Result<Self, SchemaError> {
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|source| SchemaError::Read { path: path.to_owned(), source })?;
        Self::new(&text).map_err(|source| SchemaError::File { path: path.to_owned(), source: Box::new(source) })
    }
}

impl PayloadSchema for JsonSchema {
    fn check(&self, payload: &[u8]) -> Result<(), String> {
        let payload: Value = serde_json::from_slice(payload).map_err(|error| format!("is not JSON: {error}"))?;
        let mut errors = self.0.iter_errors(&payload);
        let text = errors
            .by_ref()
            .take(SHOWN)
            .map(|error| at(&error.instance_path().to_string(), &error.masked().to_string()));
        let mut text = text.collect::<Vec<_>>().join("; ");
        if text.is_empty() {
            return Ok(());
        }
        if errors.next().is_some() {
            text.push_str("; and more");
        }
        Err(text)
    }
}

/// `/items/0/price: what is wrong`, of bounded length; without a path, the whole is wrong.
fn at(path: &str, what: &str) -> String {
    let mut text = if path.is_empty() { what.to_owned() } else { format!("{path}: {what}") };
    if text.len() > SHOWN_BYTES {
        text.truncate(text.floor_char_boundary(SHOWN_BYTES));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDER: &str = r#"{
        "type": "object", "required": ["to"], "additionalProperties": false,
        "properties": {
            "to": {"type": "string", "format": "email"},
            "items": {"type": "array", "items": {"type": "object", "properties": {"price": {"type": "number"}}}}
        }
    }"#;

    #[test]
    fn an_error_says_where_and_why_and_repeats_nothing() {
        let schema = JsonSchema::new(ORDER).unwrap();
        let check = |payload: &str| schema.check(payload.as_bytes());
        assert_eq!(check(r#"{"to":"a@example.org","items":[{"price":1.5}]}"#), Ok(()));
        let wrong = check(r#"{"to":"a@example.org","items":[{"price":1},{"price":"secret"}]}"#).unwrap_err();
        assert_eq!(wrong, r#"/items/1/price: value is not of type "number""#);
        assert!(check("{}").unwrap_err().contains(r#""to" is a required property"#));
        assert!(check(r#"{"to":"nobody"}"#).unwrap_err().starts_with("/to: "), "formats are checked");
        assert!(check("").unwrap_err().starts_with("is not JSON: "));
        let many = format!(r#"{{"to":1,"items":[{}]}}"#, vec![r#"{"price":"x"}"#; 50].join(","));
        let wrong = check(&many).unwrap_err();
        assert!(wrong.ends_with("; and more") && wrong.len() < 4 * SHOWN_BYTES, "{wrong}");
    }

    #[test]
    fn what_is_no_schema_or_lies_elsewhere_is_refused() {
        assert!(matches!(JsonSchema::new("{"), Err(SchemaError::Json(_))));
        for text in [r#"{"type":"nmber"}"#, r#"{"$ref":"http://example.org/a"}"#, r#"{"$ref":"file:///etc/a.json"}"#] {
            assert!(matches!(JsonSchema::new(text), Err(SchemaError::Schema(_))), "{text}");
        }
    }
}
