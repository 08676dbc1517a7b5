//! JSON written by hand, for texts that every job needs; and the JSON of clients and handlers, carried byte for byte.
//!
//! JSON that clients and handlers send never becomes a tree of values here: that would round numbers, refuse deep
//! nesting, and sort fields.

use std::collections::BTreeMap;
use std::fmt;

use longshore_domain::Timestamp;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

/// Reads what may be any JSON: a payload, a result, progress. So `null` is one, too; a field that is not there needs a
/// default.
pub(crate) fn any_json<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(deserializer).map(Some)
}

/// Writes parts as they are: names and other texts that the domain has checked, which JSON need not escape.
pub(super) fn text(out: &mut Vec<u8>, parts: &[&str]) {
    parts.iter().for_each(|part| out.extend_from_slice(part.as_bytes()));
}

pub(super) fn number(out: &mut Vec<u8>, number: u64) {
    // The encoder's own integer writer, which needs neither a formatter nor memory.
    json(out, &number);
}

/// Writes `,"name":` and a time, if there is one.
pub(super) fn time(out: &mut Vec<u8>, name: &str, at: Option<Timestamp>) {
    if let Some(at) = at {
        text(out, &[r#",""#, name, r#"":""#]);
        out.extend_from_slice(&at.text());
        out.push(b'"');
    }
}

/// Writes a text in quotes. Most need no escaping, which is checked here many bytes at a time; serde checks each alone.
pub(super) fn quoted(out: &mut Vec<u8>, value: &str) {
    let plain = value.bytes().fold(true, |plain, byte| plain & (byte >= b' ') & (byte != b'"') & (byte != b'\\'));
    if plain {
        text(out, &["\"", value, "\""]);
    } else {
        json(out, value);
    }
}

/// Writes `,"name":` and a value.
pub(super) fn field<T: Serialize + ?Sized>(out: &mut Vec<u8>, name: &str, value: &T) {
    text(out, &[r#",""#, name, r#"":"#]);
    json(out, value);
}

/// The same, if there is a value.
pub(super) fn maybe<T: Serialize>(out: &mut Vec<u8>, name: &str, value: Option<&T>) {
    if let Some(value) = value {
        field(out, name, value);
    }
}

/// Writes a value that may need escaping, or is rare.
pub(super) fn json<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    // Writing to memory cannot fail, and what is written here has no map with keys that are not text.
    let _ = serde_json::to_writer(out, value);
}

/// Reads JSON and removes the blanks between its tokens; numbers and texts stay as they were sent, however long or
/// deep. `None` if it is not JSON. The result has no line break, so that it fits into a line of the event log.
pub fn compact(bytes: &[u8]) -> Option<Box<RawValue>> {
    let value: Box<RawValue> = serde_json::from_slice(bytes).ok()?;
    let is_blank = |byte: u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
    if !value.get().bytes().any(is_blank) {
        return Some(value);
    }
    let mut kept = String::with_capacity(value.get().len());
    let (mut rest, mut in_text) = (value.get(), false);
    // Within a text up to its closing quote; outside of one up to the next blank or opening quote.
    while !rest.is_empty() {
        let stops = |byte: u8| if in_text { matches!(byte, b'"' | b'\\') } else { is_blank(byte) || byte == b'"' };
        let at = rest.bytes().position(stops).unwrap_or(rest.len());
        kept.push_str(&rest[..at]);
        // The character after a backslash belongs to the text, even if it is a quote.
        let taken = match rest.as_bytes().get(at) {
            Some(b'\\') => 2,
            Some(_) => 1,
            None => 0,
        };
        let (token, behind) = rest[at..].split_at(taken);
        if token == "\"" {
            in_text = !in_text;
        }
        if in_text || token == "\"" {
            kept.push_str(token);
        }
        rest = behind;
    }
    RawValue::from_string(kept).ok()
}

/// A JSON object, built field by field; a [`RawValue`] is copied as it is.
#[derive(Debug, Clone)]
pub struct Object(Vec<u8>);

impl Default for Object {
    fn default() -> Self {
        Self(b"{}".to_vec())
    }
}

impl Object {
    /// An object from its text, which this crate wrote.
    pub(super) fn written(text: Vec<u8>) -> Self {
        Self(text)
    }

    /// An object from its text, as another node wrote it; `None` if it is not an object.
    pub(super) fn read(text: &[u8]) -> Option<Self> {
        let text = Box::<str>::from(compact(text)?).into_string().into_bytes();
        text.starts_with(b"{").then_some(Self(text))
    }

    /// An object from a value that serde writes as one.
    pub(super) fn of<T: Serialize + ?Sized>(value: &T) -> Self {
        let mut text = Vec::new();
        json(&mut text, value);
        Self(text)
    }

    /// The same with the fields of `more`, which serde writes as an object, too, after its own.
    pub(super) fn and<T: Serialize + ?Sized>(mut self, more: &T) -> Self {
        let more = Self::of(more);
        if more.size() > 2 {
            self.0.pop();
            if self.0.len() > 1 {
                self.0.push(b',');
            }
            self.0.extend_from_slice(&more.0[1..]);
        }
        self
    }

    /// The same with one field more.
    pub(super) fn with<T: Serialize + ?Sized>(self, name: &str, value: &T) -> Self {
        self.and(&BTreeMap::from([(name, value)]))
    }

    /// Its length in bytes.
    pub fn size(&self) -> usize {
        self.0.len()
    }

    /// Its text.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Its text.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

impl Serialize for Object {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let raw: &RawValue = serde_json::from_slice(&self.0).map_err(serde::ser::Error::custom)?;
        raw.serialize(serializer)
    }
}

/// The fields of an object, in their order, each with its text.
pub struct OrderedFields(pub Vec<(String, Box<RawValue>)>);

impl OrderedFields {
    /// Objects of those fields that each of `which` takes; the first that does gets it.
    pub(super) fn sorted<const N: usize>(self, which: [&dyn Fn(&str) -> bool; N]) -> [Vec<u8>; N] {
        let mut texts = [const { Vec::new() }; N];
        for (name, value) in self.0 {
            let Some(at) = which.iter().position(|takes| takes(&name)) else { continue };
            let text = &mut texts[at];
            text.push(if text.is_empty() { b'{' } else { b',' });
            json(text, &name);
            text.push(b':');
            text.extend_from_slice(value.get().as_bytes());
        }
        texts.map(|mut text| {
            text.extend_from_slice(if text.is_empty() { b"{}" } else { b"}" });
            text
        })
    }
}

impl<'de> Deserialize<'de> for OrderedFields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FieldsVisitor;

        impl<'de> Visitor<'de> for FieldsVisitor {
            type Value = OrderedFields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<OrderedFields, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(OrderedFields(fields))
            }
        }

        deserializer.deserialize_map(FieldsVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn compacted(text: &str) -> Option<String> {
        compact(text.as_bytes()).map(|value| value.get().to_owned())
    }

    #[test]
    fn blanks_go_and_all_else_stays() {
        let text = "\t{ \"a b\" : [ 1e999 ,\r\n 0.10 ], \"q\\\" \\\\\" : \"x \\\" y\" } \n";
        assert_eq!(compacted(text).unwrap(), r#"{"a b":[1e999,0.10],"q\" \\":"x \" y"}"#);
        for none in ["", "{", "1 2", "{}\n{}", "nul", "\"a\nb\""] {
            assert_eq!(compacted(none), None, "{none}");
        }
    }

    #[test]
    fn no_depth_is_too_deep() {
        let deep = format!("{}{}", "[ ".repeat(100_000), "] ".repeat(100_000));
        assert_eq!(compacted(&deep).unwrap().len(), 200_000);
    }

    /// JSON with blanks wherever they are allowed, and the same without.
    fn drawn() -> impl Strategy<Value = (String, String)> {
        let same = |text: String| (text.clone(), text);
        let leaf = prop_oneof![
            Just("null".to_owned()).prop_map(same),
            "-?[1-9][0-9]{0,40}(\\.[0-9]{1,30})?(e[+-]?[1-9][0-9]{0,3})?".prop_map(same),
            any::<String>().prop_map(move |text| same(serde_json::to_string(&text).unwrap())),
        ];
        let blank = "[ \t\r\n]{0,2}";
        leaf.prop_recursive(6, 40, 5, move |inner| {
            let item = (inner, any::<String>(), blank, blank);
            (proptest::collection::vec(item, 0..5), any::<bool>()).prop_map(|(items, is_object)| {
                let (mut wide, mut narrow) = (Vec::new(), Vec::new());
                for ((loose, tight), name, before, after) in items {
                    let name = serde_json::to_string(&name).unwrap();
                    let (left, right) =
                        if is_object { (format!("{name}{before}:"), format!("{name}:")) } else { Default::default() };
                    wide.push(format!("{before}{left}{after}{loose}{after}"));
                    narrow.push(format!("{right}{tight}"));
                }
                let (open, close) = if is_object { ('{', '}') } else { ('[', ']') };
                (format!("{open}{}{close}", wide.join(",")), format!("{open}{}{close}", narrow.join(",")))
            })
        })
    }

    proptest! {
        #[test]
        fn only_blanks_between_tokens_are_lost((wide, narrow) in drawn()) {
            prop_assert_eq!(compacted(&wide).unwrap(), narrow.clone());
            let object = Object::default().with("before", &1).with("raw", &compact(wide.as_bytes()).unwrap());
            let text = String::from_utf8(object.into_bytes()).unwrap();
            prop_assert_eq!(text, format!(r#"{{"before":1,"raw":{narrow}}}"#));
        }
    }
}
