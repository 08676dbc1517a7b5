//! An answer, or a part of one, as its text.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use super::{ApiError, Code};
use crate::wire::json::Object;

/// A `T` as its text, a JSON object. Nodes measure their answers in this form. Clients pass it on with the fields that
/// only a newer node writes, and [`Encoded::read`] the fields that they know.
#[derive(Debug, Clone)]
pub struct Encoded<T> {
    text: Object,
    of: PhantomData<fn() -> T>,
}

impl<T> Encoded<T> {
    /// From text that this crate wrote.
    pub(in crate::wire) fn written(text: Object) -> Self {
        Self { text, of: PhantomData }
    }

    /// From text as another program wrote it, on one line; `None` if it is not a JSON object.
    pub fn from_text(text: &[u8]) -> Option<Self> {
        Object::read(text).map(Self::written)
    }

    /// Its length in bytes.
    pub fn size(&self) -> usize {
        self.text.size()
    }

    /// Its text.
    pub fn as_bytes(&self) -> &[u8] {
        self.text.as_bytes()
    }

    /// Its text.
    pub fn into_bytes(self) -> Vec<u8> {
        self.text.into_bytes()
    }

    /// Its text, as an answer.
    pub fn into_object(self) -> Object {
        self.text
    }

    /// The same text, which is also the text of a `U`.
    pub(super) fn cast<U>(self) -> Encoded<U> {
        Encoded::written(self.text)
    }
}

impl<T: Serialize> Encoded<T> {
    /// The text of `value`, which serde writes as an object.
    pub fn of(value: &T) -> Self {
        Self::written(Object::of(value))
    }
}

impl<T: DeserializeOwned> Encoded<T> {
    /// Parses it.
    ///
    /// # Errors
    /// 500: it is not what the contract says.
    pub fn read(&self) -> Result<T, ApiError> {
        serde_json::from_slice(self.as_bytes())
            .map_err(|error| ApiError::new(Code::Internal, format!("the answer cannot be read: {error}")))
    }
}

impl<T: JsonSchema> JsonSchema for Encoded<T> {
    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn schema_id() -> Cow<'static, str> {
        T::schema_id()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        T::json_schema(generator)
    }
}

impl<T> Serialize for Encoded<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.text.serialize(serializer)
    }
}

impl<'de, T> Deserialize<'de> for Encoded<T> {
    /// Takes any JSON, blanks included; [`Encoded::read`] shows whether it is a `T`.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        Ok(Self::written(Object::written(Box::<str>::from(text).into_string().into_bytes())))
    }
}

/// Reads an answer that has one of two shapes: `with` this field, or `without` it. As text first: serde's buffer for
/// untagged enums does not carry handlers' JSON byte for byte.
pub(super) fn by_field<'de, D: Deserializer<'de>, W: DeserializeOwned, O: DeserializeOwned, T>(
    deserializer: D,
    field: &str,
    with: fn(W) -> T,
    without: fn(O) -> T,
) -> Result<T, D::Error> {
    let text = Box::<RawValue>::deserialize(deserializer)?;
    let read = |text| {
        let fields: BTreeMap<String, Option<IgnoredAny>> = serde_json::from_str(text)?;
        match fields.get(field) {
            Some(Some(_)) => serde_json::from_str(text).map(with),
            _ => serde_json::from_str(text).map(without),
        }
    };
    read(text.get()).map_err(serde::de::Error::custom)
}
