//! JSON schemas of values that are written as text or as a number: their forms, for the API's document.

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

pub(crate) use schema;
