//! Descriptions of records as text and as JSON.
//!
//! Invariant: a record is one line in either form.

use polymux_fs::{Description, Field, FieldValue};
use serde_json::{Map, Value, json};

/// A key as a few words.
pub fn key_text(description: &Description) -> String {
    let mut words = vec![description.kind.to_owned()];
    words.extend(description.ino.map(|ino| format!("ino={ino}")));
    words.extend(description.key.iter().map(field_text));
    words.join(" ")
}

/// A key for programs.
pub fn key_json(description: &Description) -> Value {
    let mut object = Map::new();
    object.insert("kind".to_owned(), json!(description.kind));
    object.insert("letter".to_owned(), json!(description.letter));
    if let Some(ino) = description.ino {
        object.insert("ino".to_owned(), json!(ino.get()));
    }
    put_fields(&mut object, &description.key);
    Value::Object(object)
}

/// A whole record as a line.
pub fn record_text(description: &Description) -> String {
    let letter = description.letter.unwrap_or('?');
    let mut text = format!("{letter} {}", key_text(description));
    if let Some(problem) = &description.problem {
        text.push_str(&format!(": DAMAGED: {}", crate::output::one_line(problem)));
    } else if !description.value.is_empty() {
        let fields: Vec<String> = description.value.iter().map(field_text).collect();
        text.push_str(&format!(": {}", fields.join(" ")));
    }
    text
}

/// A whole record for programs.
pub fn record_json(description: &Description) -> String {
    let mut value = Map::new();
    put_fields(&mut value, &description.value);
    let record = json!({ "key": key_json(description), "value": value, "problem": description.problem });
    record.to_string()
}

fn put_fields(object: &mut Map<String, Value>, fields: &[Field]) {
    for (name, value) in fields {
        object.insert((*name).to_owned(), value_json(value));
    }
}

fn value_json(value: &FieldValue) -> Value {
    match value {
        FieldValue::Number(number) => json!(number),
        FieldValue::Text(text) => json!(text),
        FieldValue::List(items) => {
            let item = |fields: &Vec<Field>| {
                let mut object = Map::new();
                put_fields(&mut object, fields);
                Value::Object(object)
            };
            Value::Array(items.iter().map(item).collect())
        }
    }
}

fn field_text((name, value): &Field) -> String {
    match value {
        FieldValue::Number(number) => format!("{name}={number}"),
        FieldValue::Text(text) if text.is_empty() || text.contains([' ', '=', '"']) => format!("{name}=\"{text}\""),
        FieldValue::Text(text) => format!("{name}={text}"),
        FieldValue::List(items) => {
            let item = |fields: &Vec<Field>| fields.iter().map(field_text).collect::<Vec<_>>().join(" ");
            format!("{name}=[{}]", items.iter().map(item).collect::<Vec<_>>().join("; "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn description() -> Description {
        let object = vec![("tier", FieldValue::Number(1)), ("object", FieldValue::Text("0a".to_owned()))];
        Description {
            letter: Some('d'),
            kind: "directory entry",
            ino: Some(polymux_types::Ino(1)),
            key: vec![("name", FieldValue::Text("a b".to_owned()))],
            value: vec![("cookie", FieldValue::Number(16)), ("objects", FieldValue::List(vec![object]))],
            problem: None,
        }
    }

    #[test]
    fn a_record_is_one_line_of_text_and_one_of_json() {
        let text = record_text(&description());
        assert_eq!(text, "d directory entry ino=1 name=\"a b\": cookie=16 objects=[tier=1 object=0a]");
        let json: Value = serde_json::from_str(&record_json(&description())).unwrap();
        assert_eq!(json["key"]["name"], "a b");
        assert_eq!(json["value"]["objects"][0]["tier"], 1);
    }

    #[test]
    fn a_damaged_record_says_so() {
        let damaged = Description { problem: Some("its checksum\ndoes not match".to_owned()), ..description() };
        assert!(record_text(&damaged).ends_with("DAMAGED: its checksum; does not match"));
    }
}
