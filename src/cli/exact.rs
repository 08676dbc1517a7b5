//! JSON that handlers sent, shown byte for byte within our events: results and progress. The API's answers have types
//! that carry such JSON as it is; an event is shown whatever its fields are.
//!
//! A tree of values would round the numbers, sort the fields and refuse deep nesting. So the handler's JSON stands in
//! our trees as one text, marked by a character of private use; the functions that write and show it remove the mark
//! again.

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// Begins a text that holds JSON.
const MARK: char = '\u{f8ff}';

/// Fields with JSON from handlers.
const THEIRS: [&str; 2] = ["progress", "result"];

/// Reads an event; JSON from handlers stays as it was written. The rest must not be nested too deep to be an event.
pub(crate) fn read(text: &str) -> Result<Value, serde_json::Error> {
    if let Ok(fields) = serde_json::from_str::<BTreeMap<String, &RawValue>>(text) {
        let read = |(name, value): (String, &RawValue)| {
            let value = if THEIRS.contains(&name.as_str()) {
                Value::String(format!("{MARK}{}", value.get()))
            } else {
                read(value.get())?
            };
            Ok((name, value))
        };
        return fields.into_iter().map(read).collect::<Result<Map<_, _>, _>>().map(Value::Object);
    }
    if let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(text) {
        return items.into_iter().map(|item| read(item.get())).collect();
    }
    Ok(match serde_json::from_str(text)? {
        // A text that happens to begin with the mark does not hold JSON.
        Value::String(text) => Value::String(text.trim_start_matches(MARK).to_owned()),
        other => other,
    })
}

/// Writes a tree; JSON from handlers as it was.
pub(crate) fn write(value: &Value) -> String {
    match (value, held(value)) {
        (_, Some(json)) => json.to_owned(),
        (Value::Array(items), _) => format!("[{}]", items.iter().map(write).collect::<Vec<_>>().join(",")),
        (Value::Object(fields), _) => {
            let field = |(name, value): (&String, &Value)| format!("{}:{}", Value::from(name.as_str()), write(value));
            format!("{{{}}}", fields.iter().map(field).collect::<Vec<_>>().join(","))
        }
        (other, _) => other.to_string(),
    }
}

/// Formats JSON for people, unless that would change it.
pub(crate) fn laid_out(json: &str) -> String {
    let unchanged = |value: &Value| {
        let text = value.to_string();
        text == json
    };
    let value = serde_json::from_str::<Value>(json).ok().filter(unchanged);
    value.and_then(|value| serde_json::to_string_pretty(&value).ok()).unwrap_or_else(|| json.to_owned())
}

fn held(value: &Value) -> Option<&str> {
    value.as_str()?.strip_prefix(MARK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn json_of_handlers_stays_as_it_is_and_the_rest_is_read() {
        let deep = format!("{}{}", "[".repeat(500), "]".repeat(500));
        for theirs in ["1e999", "12345678901234567890123", "0.10", r#"{"b":1,"a":[ 2]}"#, "null", r#""x""#, &deep] {
            let text = format!(r#"{{"entries":[{{"attempt":2,"result":{theirs},"run_id":"r"}}]}}"#);
            let read = read(&text).unwrap();
            assert_eq!((&read["entries"][0]["attempt"], &read["entries"][0]["run_id"]), (&json!(2), &json!("r")));
            assert_eq!(write(&read), text);
        }
        assert!(read("{").is_err());
    }

    #[test]
    fn a_text_cannot_pass_for_json() {
        let hostile = json!({"message": format!("{MARK}}}\n{{\"forged\":1")});
        let read = read(&hostile.to_string()).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&write(&read)).unwrap()["message"], "}\n{\"forged\":1");
    }

    #[test]
    fn it_is_laid_out_only_where_that_changes_nothing() {
        assert_eq!(laid_out(r#"{"a":1,"b":[2]}"#), "{\n  \"a\": 1,\n  \"b\": [\n    2\n  ]\n}");
        for same in [r#"{"b":1,"a":0.10}"#, "1e999", "12345678901234567890123"] {
            assert_eq!(laid_out(same), same);
        }
    }
}
