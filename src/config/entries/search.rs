//! The places in the payloads of a type whose values its runs are found by.

use longshore_domain::search::{JsonPointer, PLACES_MAX};
use toml::Value;

use crate::config::kind::{Kind, refuse, text};

/// JSON pointers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Places(pub(crate) Vec<JsonPointer>);

impl Kind for Places {
    fn noun() -> String {
        format!("a list of at most {PLACES_MAX} JSON pointers such as [\"/order/id\"]")
    }

    fn read(value: &Value) -> Result<Self, String> {
        let Some(entries) = value.as_array().filter(|entries| entries.len() <= PLACES_MAX) else {
            return refuse(value, &Self::noun());
        };
        let place = |entry: &Value| {
            let text = text(entry, "a JSON pointer such as \"/order/id\"")?;
            JsonPointer::parse(text).map_err(|reason| format!("{text:?} {reason}"))
        };
        entries.iter().map(place).collect::<Result<_, _>>().map(Self)
    }

    fn write(&self) -> Option<Value> {
        let places: Vec<Value> = self.0.iter().map(|place| Value::String(place.to_string())).collect();
        (!places.is_empty()).then_some(Value::Array(places))
    }
}

#[cfg(test)]
mod tests {
    use crate::config::tests::{load, settings};
    use longshore_domain::JobType;

    #[test]
    fn a_type_declares_where_its_values_are_and_others_pay_nothing() {
        let policies = settings("[types.order]\nsearch = [\"/order/id\", \"/by\"]").policies;
        let values = |job_type: &str| {
            policies.searched(&JobType::parse(job_type).unwrap(), br#"{"order":{"id":7},"by":"anna"}"#)
        };
        assert_eq!((values("order"), values("other")), (vec!["7".to_owned(), "anna".to_owned()], Vec::new()));
    }

    #[test]
    fn what_is_no_place_is_a_mistake_with_its_field_and_reason() {
        let nine = format!("[{}]", ["\"/a\""; 9].join(","));
        for (written, says) in [
            ("[\"order\"]", "does not begin with /"),
            ("[\"/a~2\"]", "has a ~ that neither 0 nor 1 follows"),
            ("\"/order/id\"", "is not a list of at most 8 JSON pointers"),
            ("[7]", "is not a JSON pointer"),
            (nine.as_str(), "is not a list of at most 8"),
        ] {
            let error = load(&format!("[types.a]\nsearch = {written}"), &[]).unwrap_err();
            assert!(error.contains("types.a.search") && error.contains(says), "{written}: {error}");
        }
    }
}
