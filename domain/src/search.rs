//! What a run is found by beside its tags: the values at those places of its payload that its type declares. They are
//! copied as the run is made, so that nobody reads the payload to find it. A payload is read once for each place, and
//! not at all if its type declares none.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// How many places a type may declare.
pub const PLACES_MAX: usize = 8;
/// The longest place, in bytes.
pub const PLACE_MAX: usize = 256;
/// The longest value that is copied, in bytes: nobody searches for a longer one, and every record carries them.
pub const VALUE_MAX: usize = 256;

/// A place in a payload: a JSON pointer, such as `/order/id`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonPointer {
    text: String,
    steps: Vec<String>,
}

impl JsonPointer {
    /// Reads a JSON pointer.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > PLACE_MAX {
            return Err(format!("has {} bytes, {PLACE_MAX} are allowed", text.len()));
        }
        let Some(steps) = text.strip_prefix('/') else {
            return Err("does not begin with /, as in /order/id".to_owned());
        };
        let unescaped = |step: &str| {
            let is_pointer = step.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
            is_pointer.then(|| step.replace("~1", "/").replace("~0", "~"))
        };
        let steps = steps.split('/').map(unescaped).collect::<Option<_>>();
        let steps = steps.ok_or("has a ~ that neither 0 nor 1 follows; ~0 stands for ~, and ~1 for /")?;
        Ok(Self { text: text.to_owned(), steps })
    }

    /// The text, number, `true` or `false` that stands there, a number as it is written.
    fn value(&self, payload: &[u8]) -> Option<String> {
        let mut at: &RawValue = serde_json::from_slice(payload).ok()?;
        for step in &self.steps {
            at = PathSegment(step).deserialize(&mut serde_json::Deserializer::from_str(at.get())).ok()??;
        }
        match at.get().as_bytes().first()? {
            b'"' => serde_json::from_str(at.get()).ok(),
            b'{' | b'[' | b'n' => None,
            _ => Some(at.get().to_owned()),
        }
    }
}

impl fmt::Display for JsonPointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The values at these places, each once. A value that is empty or longer than [`VALUE_MAX`] is left out.
pub fn values(places: &[JsonPointer], payload: &[u8]) -> Vec<String> {
    let mut values = Vec::new();
    for value in places.iter().filter_map(|place| place.value(payload)) {
        if !value.is_empty() && value.len() <= VALUE_MAX && !values.contains(&value) {
            values.push(value);
        }
    }
    values
}

/// One step into an object or a list; anything else has nothing there.
struct PathSegment<'s>(&'s str);

impl<'de> DeserializeSeed<'de> for PathSegment<'_> {
    type Value = Option<&'de RawValue>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

/// A key as it is meant, borrowed where it has no escapes.
#[derive(Deserialize)]
struct Key<'k>(#[serde(borrow)] Cow<'k, str>);

impl<'de> Visitor<'de> for PathSegment<'_> {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or a list")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(Key(key)) = map.next_key()? {
            if key == self.0 {
                found = Some(map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let (mut found, mut at) = (None, 0_usize);
        let wanted = self.0.parse().ok();
        while let Some(entry) = list.next_element()? {
            found = found.or_else(|| (wanted == Some(at)).then_some(entry));
            at += 1;
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(places: &[&str], payload: &str) -> Vec<String> {
        let places: Vec<JsonPointer> = places.iter().map(|place| JsonPointer::parse(place).unwrap()).collect();
        values(&places, payload.as_bytes())
    }

    #[test]
    fn values_are_found_as_they_were_written() {
        let payload = r#"{"order":{"id":12345678901234567890123,"note":"a\"bä","paid":true,"none":null,"":"blank"},
            "items":[{"sku":"x-1"},{"sku":"x-2"}],"a/b":{"m~n":1.50},"5":{"0":"zero"},"twice":1,"twice":2}"#;
        let one = |place: &str| of(&[place], payload).pop();
        for (place, value) in [
            ("/order/id", "12345678901234567890123"),
            ("/order/note", "a\"bä"),
            ("/order/paid", "true"),
            ("/order/", "blank"),
            ("/items/1/sku", "x-2"),
            ("/a~1b/m~0n", "1.50"),
            ("/5/0", "zero"),
            ("/twice", "2"),
        ] {
            assert_eq!(one(place).as_deref(), Some(value), "{place}");
        }
        for nothing in ["/order", "/items", "/order/none", "/items/2/sku", "/items/x", "/order/id/x", "/order/note/0"] {
            assert_eq!(one(nothing), None, "{nothing}");
        }
        assert_eq!(of(&["/items/1/sku", "/twice", "/items/1/sku"], payload), ["x-2", "2"]);
    }

    #[test]
    fn what_is_no_json_too_long_or_empty_has_no_value() {
        let deep = format!("{}1{}", r#"{"a":"#.repeat(100_000), "}".repeat(100_000));
        let long = |bytes: usize| format!(r#"{{"a":"{}"}}"#, "x".repeat(bytes));
        let all = ["", "{", "null", "7", r#"{"a":""}"#, r#"{"a":1"#, r#"{"a":1} x"#, &deep, &long(VALUE_MAX + 1)];
        for payload in all {
            assert_eq!(of(&["/a"], payload), Vec::<String>::new(), "{}", &payload[..payload.len().min(40)]);
        }
        assert_eq!(of(&["/a"], &long(VALUE_MAX))[0].len(), VALUE_MAX);
        assert_eq!(values(&[JsonPointer::parse("/a").unwrap()], b"{\"a\":\"\xff\"}"), Vec::<String>::new());
    }

    #[test]
    fn what_is_no_pointer_is_refused_with_the_reason() {
        let long = format!("/{}", "x".repeat(PLACE_MAX));
        for (text, reason) in [
            ("order", "does not begin with /"),
            ("", "does not begin with /"),
            ("/a~2", "has a ~ that neither"),
            ("/a~", "has a ~ that neither"),
            (&long, "has 257 bytes"),
        ] {
            let error = JsonPointer::parse(text).unwrap_err();
            assert!(error.starts_with(reason), "{text}: {error}");
        }
    }
}
