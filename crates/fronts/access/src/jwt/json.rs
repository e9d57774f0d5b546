//! Reads JSON objects in which no name occurs twice (RFC 7519, 4; RFC 8725, 2.4). With a repeated
//! name, two readers could see different values.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Reads a JSON object. It must fill all of `bytes`.
pub fn parse(bytes: &[u8]) -> Option<Map<String, Value>> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = Strict.deserialize(&mut reader).ok()?;
    reader.end().ok()?;
    match value {
        Value::Object(members) => Some(members),
        _ => None,
    }
}

/// Reads any value, and refuses objects in which a name occurs twice.
struct Strict;

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON without repeated names")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(item) = items.next_element_seed(Strict)? {
            all.push(item);
        }
        Ok(Value::Array(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut all = Map::new();
        while let Some(name) = members.next_key::<String>()? {
            let value = members.next_value_seed(Strict)?;
            if all.insert(name, value).is_some() {
                return Err(A::Error::custom("a repeated name"));
            }
        }
        Ok(Value::Object(all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_plain_object_is_read() {
        let source = r#"{"a":[1,-2,0.5,true,null,"x"],"b":{"c":"A"}}"#;
        let expected: Value = serde_json::from_str(source).expect("valid");
        assert_eq!(parse(source.as_bytes()).map(Value::Object), Some(expected));
        let deep = format!("{{\"a\":{}1{}}}", "[".repeat(1_000), "]".repeat(1_000));
        for wrong in [
            "",
            "1",
            "[]",
            "null",
            "\"a\"",
            "{",
            "{}x",
            "{} {}",
            "{}\0",
            "{'a':1}",
            "{\"a\":1,}",
            r#"{"a":1,"a":1}"#,
            r#"{"a":1,"\u0061":2}"#,
            r#"{"a":{"b":1,"b":1}}"#,
            r#"{"a":[{"b":1,"b":1}]}"#,
            r#"{"a":1e999}"#,
            r#"{"a":NaN}"#,
            "\u{feff}{}",
            &deep,
        ] {
            assert_eq!(parse(wrong.as_bytes()), None, "{wrong}");
        }
        assert_eq!(parse(b"{\"a\":\"\xff\"}"), None);
        assert_eq!(parse(b"{\"a\":\"\xed\xa0\x80\"}"), None, "a surrogate");
        assert_eq!(parse(br#"{"a":"\ud800"}"#), None, "half a pair");
    }
}
