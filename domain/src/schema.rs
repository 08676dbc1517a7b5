//! Values that are written as text or as a number: their forms, for the API's document, and how a text is read.

/// Gives a type its schema.
macro_rules! schema {
    ($type:ident $json:tt) => {
        impl schemars::JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }

            fn inline_schema() -> bool {
                true
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!($json)
            }
        }
    };
}

/// Says how types are read from a text.
macro_rules! reads {
    ($($type:ident),+ => |$text:ident| $read:expr) => {$(
        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <smol_str::SmolStr as serde::Deserialize>::deserialize(deserializer)?;
                let $text = text.as_str();
                $read.map_err(serde::de::Error::custom)
            }
        }
    )+};
}

pub(crate) use {reads, schema};
