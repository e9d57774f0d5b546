//! The arguments of an OpenWhisk action when `mote` itself calls it, and the translation of the
//! action's result.
//!
//! An action is called in one of two ways: as a web action, or by the platform's own API with the
//! arguments alone. The sandbox that runs actions as programs and OpenWhisk's API share these
//! rules. The rules are pure: this module must not know of sockets, files, clocks or processes.
//! Start reading at [`arguments`].

use crate::base64;
use crate::invocation::headers;
use crate::wire::Invoke;
use serde_json::{Map, Value};

/// Field that the platform's API sets to the id of the activation. If the field is present, the
/// body holds only the arguments, and the result is not interpreted as an HTTP answer.
pub const ACTIVATION: &[u8] = b"x-mote-activation";

/// An HTTP answer, as the action's result describes it.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    /// 200 to 599.
    pub status: u16,
    /// A header block.
    pub fields: Vec<u8>,
    /// The whole body.
    pub body: Vec<u8>,
}

impl Answer {
    fn json(status: u16, value: &Value) -> Self {
        let fields = b"content-type\napplication/json\n".to_vec();
        Self { status, fields, body: value.to_string().into_bytes() }
    }

    fn error(status: u16, text: &str) -> Self {
        Self::json(status, &serde_json::json!({ "error": text }))
    }
}

/// The id of the activation; `None` unless the platform's API made the call.
pub fn activation(request: &Invoke<'_>) -> Option<String> {
    header(request, ACTIVATION)
}

fn header(request: &Invoke<'_>, wanted: &[u8]) -> Option<String> {
    let mut all = headers(request.headers);
    let (_, value) = all.find(|(name, _)| *name == wanted)?;
    Some(String::from_utf8_lossy(value).into_owned())
}

/// The value with which the action is called. It is an array if the previous action of a sequence
/// returned an array. If the body does not match its content type, the error is the answer to send.
pub fn called_with(request: &Invoke<'_>, body: &[u8], defaults: &str) -> Result<Value, Answer> {
    if body.first() == Some(&b'[') && activation(request).is_some() {
        return serde_json::from_slice(body).map_err(|_| malformed());
    }
    arguments(request, body, defaults).map(Value::Object)
}

fn malformed() -> Answer {
    Answer::error(400, "The request content was malformed.")
}

/// The arguments of the action as an object. If the body does not match its content type, the error
/// is the answer to send.
pub fn arguments(
    request: &Invoke<'_>,
    body: &[u8],
    defaults: &str,
) -> Result<Map<String, Value>, Answer> {
    let mut args: Map<String, Value> = serde_json::from_str(defaults).unwrap_or_default();
    if activation(request).is_some() {
        if !body.is_empty() {
            let given: Map<String, Value> =
                serde_json::from_slice(body).map_err(|_| malformed())?;
            args.extend(given);
        }
        return Ok(args);
    }
    let reserved = || {
        let text = "Request defines parameters that are not allowed (e.g., reserved properties).";
        Answer::error(400, text)
    };
    let mut given = Map::new();
    put_parameters(&mut given, request.query);
    put_given(&mut args, given).map_err(|Reserved| reserved())?;
    let mut fields = Map::new();
    for (name, value) in headers(request.headers) {
        let name = String::from_utf8_lossy(name).into_owned();
        let value = String::from_utf8_lossy(value);
        let joined = match fields.get(&name).and_then(Value::as_str) {
            Some(known) => format!("{known}, {value}"),
            None => value.into_owned(),
        };
        fields.insert(name, joined.into());
    }
    let kind = fields.get("content-type").and_then(Value::as_str).unwrap_or("").to_owned();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    args.insert("__ow_method".into(), text(request.method).to_lowercase().into());
    args.insert("__ow_headers".into(), fields.into());
    let path = if request.path == b"/" { String::new() } else { text(request.path) };
    args.insert("__ow_path".into(), path.into());
    if !request.query.is_empty() {
        args.insert("__ow_query".into(), text(request.query).into());
    }
    if body.is_empty() {
        return Ok(args);
    }
    let media = media_type(&kind);
    if media.is_empty() || media == "application/json" {
        match serde_json::from_slice(body) {
            Ok(Value::Object(given)) => {
                put_given(&mut args, given).map_err(|Reserved| reserved())?;
                return Ok(args);
            }
            // The platform passes on any other JSON unchanged.
            Ok(other) if !media.is_empty() => {
                args.insert("__ow_body".into(), other);
                return Ok(args);
            }
            Err(_) if !media.is_empty() => return Err(malformed()),
            _ => {}
        }
    }
    if media == "application/x-www-form-urlencoded" {
        let mut given = Map::new();
        put_parameters(&mut given, body);
        put_given(&mut args, given).map_err(|Reserved| reserved())?;
    } else if is_textual(&media) {
        args.insert("__ow_body".into(), text(body).into());
    } else {
        args.insert("__ow_body".into(), base64::encode(body).into());
    }
    Ok(args)
}

/// Translates the last line of the action's output to an answer. `raw` is set if the platform's API
/// reads the answer.
pub fn answer(line: &[u8], raw: bool) -> Answer {
    let result = match serde_json::from_slice::<Value>(line) {
        Ok(result @ (Value::Object(_) | Value::Array(_))) => result,
        _ => return Answer::error(502, "The action did not return a dictionary or array."),
    };
    let error = result.get("error");
    let inner = error.filter(|error| !raw && error.get("statusCode").is_some());
    if let (Some(error), None) = (error, inner) {
        return Answer::json(502, &serde_json::json!({ "error": error }));
    }
    let web = inner.unwrap_or(&result);
    let is_answer = ["statusCode", "headers", "body"].iter().any(|key| web.get(key).is_some());
    if raw || !is_answer { Answer::json(200, &result) } else { web_answer(web) }
}

fn web_answer(web: &Value) -> Answer {
    let mut fields = Vec::new();
    let mut kind = None;
    for (name, value) in web["headers"].as_object().into_iter().flatten() {
        let name = name.to_lowercase();
        let all = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        for one in all {
            let text = shown(one);
            if name == "content-type" {
                kind = Some(text.clone());
            }
            if !text.contains(['\n', '\r', '\0']) && !name.contains(['\n', '\r', '\0']) {
                fields.extend_from_slice(format!("{name}\n{text}\n").as_bytes());
            }
        }
    }
    let mut typed = |kind: &str| {
        fields.extend_from_slice(format!("content-type\n{kind}\n").as_bytes());
    };
    let body = match (&web["body"], &kind) {
        (Value::Null, _) => Vec::new(),
        (Value::String(text), None) => {
            typed("text/html; charset=UTF-8");
            text.clone().into_bytes()
        }
        (Value::String(text), Some(kind)) if !is_textual(kind) => {
            base64::decode(text.as_bytes()).unwrap_or_else(|| text.clone().into_bytes())
        }
        (Value::String(text), Some(_)) => text.clone().into_bytes(),
        (other, kind) => {
            if kind.is_none() {
                typed("application/json");
            }
            other.to_string().into_bytes()
        }
    };
    let said = shown(&web["statusCode"]).parse().ok();
    let status = said.filter(|status| (200..=599).contains(status));
    Answer { status: status.unwrap_or(if body.is_empty() { 204 } else { 200 }), fields, body }
}

fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn media_type(kind: &str) -> String {
    kind.split(';').next().unwrap_or("").trim().to_lowercase()
}

fn is_textual(kind: &str) -> bool {
    let kind = media_type(kind);
    ["text/", "application/json", "application/javascript", "application/xml"]
        .iter()
        .any(|start| kind.starts_with(start))
        || kind.ends_with("+json")
        || kind.ends_with("+xml")
}

/// The caller set a parameter that only the platform may set.
struct Reserved;

/// Adds the caller's parameters. Names that begin with `__ow_` are refused, because actions trust
/// them as the platform's information about the request.
fn put_given(args: &mut Map<String, Value>, given: Map<String, Value>) -> Result<(), Reserved> {
    if given.keys().any(|name| name.starts_with("__ow_")) {
        return Err(Reserved);
    }
    args.extend(given);
    Ok(())
}

/// Adds the parameters of a query or form.
fn put_parameters(args: &mut Map<String, Value>, text: &[u8]) {
    for pair in text.split(|byte| *byte == b'&').filter(|pair| !pair.is_empty()) {
        let mut halves = pair.splitn(2, |byte| *byte == b'=');
        let mut half = || decoded(halves.next().unwrap_or(b""));
        let name = half();
        let value = half();
        args.insert(name, value.into());
    }
}

fn decoded(text: &[u8]) -> String {
    let spaced: Vec<u8> =
        text.iter().map(|byte| if *byte == b'+' { b' ' } else { *byte }).collect();
    percent_encoding::percent_decode(&spaced).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn invoke<'a>(query: &'a [u8], headers: &'a [u8]) -> Invoke<'a> {
        Invoke {
            sent_ns: 0,
            id: 1,
            remaining_ms: 1000,
            trigger: 1,
            method: b"POST",
            path: b"/a",
            query,
            headers,
            body: b"",
        }
    }

    fn check(query: &[u8], fields: &[u8], body: &[u8], expected: &str) {
        let mut args = arguments(&invoke(query, fields), body, r#"{"d":1}"#).unwrap();
        args.remove("__ow_headers");
        assert_eq!(Value::Object(args).to_string(), expected);
    }

    #[test]
    fn arguments_of_an_action() {
        check(
            b"a=1+2&b=%C3%A4",
            b"",
            b"",
            r#"{"__ow_method":"post","__ow_path":"/a","__ow_query":"a=1+2&b=%C3%A4","a":"1 2","b":"ä","d":1}"#,
        );
        check(
            b"",
            b"content-type\napplication/json\n",
            b"{\"d\":2}",
            r#"{"__ow_method":"post","__ow_path":"/a","d":2}"#,
        );
        check(
            b"",
            b"content-type\nimage/png\n",
            &[0, 255],
            r#"{"__ow_body":"AP8=","__ow_method":"post","__ow_path":"/a","d":1}"#,
        );
        check(b"", b"x-mote-activation\n1\n", b"{\"e\":3}", r#"{"d":1,"e":3}"#);
        let form = b"content-type\napplication/x-www-form-urlencoded\n";
        for (query, fields, body) in [
            (&b""[..], &b"content-type\napplication/json\n"[..], &br#"{"__ow_user":"a"}"#[..]),
            (b"", b"", br#"{"__ow_method":"get"}"#),
            (b"", form, b"a=1&__ow_headers=x"),
            (b"__ow_body=x", b"", b""),
        ] {
            let refused = arguments(&invoke(query, fields), body, "");
            assert_eq!(refused.map_err(|answer| answer.status), Err(400), "only the platform's");
        }
        let named = &b"x-mote-activation\n1\n"[..];
        let array = called_with(&invoke(b"", named), b"[1,2]", r#"{"d":1}"#);
        assert_eq!(array, Ok(serde_json::json!([1, 2])));
        assert_eq!(called_with(&invoke(b"", named), b"[1", "").map_err(|bad| bad.status), Err(400));
        let bad = arguments(&invoke(b"", b"content-type\napplication/json\n"), b"{", "");
        assert_eq!(bad.unwrap_err().status, 400);
    }

    #[test]
    fn results_as_answers() {
        let check = |line: &str, status: u16, body: &[u8]| {
            let found = answer(line.as_bytes(), false);
            assert_eq!((found.status, found.body.as_slice()), (status, body), "{line}");
        };
        check(r#"{"a":1}"#, 200, br#"{"a":1}"#);
        check("[1]", 200, b"[1]");
        check("words", 502, br#"{"error":"The action did not return a dictionary or array."}"#);
        check(r#"{"error":"no"}"#, 502, br#"{"error":"no"}"#);
        check(r#"{"error":{"statusCode":404,"body":"x"}}"#, 404, b"x");
        check(r#"{"statusCode":201}"#, 201, b"");
        check(r#"{"body":""}"#, 204, b"");
        check(r#"{"headers":{"Content-Type":"image/png"},"body":"AP8="}"#, 200, &[0, 255]);
        let raw = answer(br#"{"statusCode":404}"#, true);
        assert_eq!((raw.status, raw.body.as_slice()), (200, &br#"{"statusCode":404}"#[..]));
    }
}
