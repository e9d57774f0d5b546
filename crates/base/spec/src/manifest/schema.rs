//! The JSON Schema of `mote.toml`, for editors.
//!
//! The schema follows the lists of keys by which the manifest is read, so a key of the reader cannot
//! be missing. It checks types, words and forms; ranges and rules between keys stay with the reader.

use serde_json::{Map, Value, json};

use super::access::{ACCESSES, OF_CERTIFICATES, OF_TOKENS, OF_WEBHOOKS, SCHEMES};
use super::background::RETRIES;
use super::mqtt::{ACKNOWLEDGES, CONNECTION_KEYS, MQTT_KEYS, ORDERS, SESSIONS, VERSIONS};
use super::schedule::{MISSED, OVERLAPS};
use super::{
    ALLOW_KEYS, BALANCES, FUNCTION_KEYS, FUNCTIONS_MAX, KV_KEYS, LIMIT_KEYS, PLATFORMS, POLICIES,
    SCALE_KEYS, STARTS, background, files, http, route, schedule, static_files,
};

/// The keys of a trigger with `http` or `coap`.
pub(super) const FRONT_KEYS: [&str; 5] = ["http", "coap", "title", "rt", "ct"];
/// The keys of `[build]`.
pub(super) const BUILD_KEYS: [&str; 1] = ["command"];

/// Returns the schema, in draft 7, which the editors' TOML extensions read.
pub fn schema() -> Value {
    let mut keys = properties("", &FUNCTION_KEYS);
    keys.insert(
        "version".to_owned(),
        said(json!({"const": 1}), "The version of this format. Always 1."),
    );
    let mut of_section = keys.clone();
    of_section.remove("name");
    of_section.remove("version");
    let function = json!({
        "type": "object",
        "description": "Functions that share this folder, by their names.",
        "minProperties": 1,
        "maxProperties": FUNCTIONS_MAX,
        "propertyNames": {"pattern": NAME},
        "additionalProperties": {
            "type": "object",
            "additionalProperties": false,
            "properties": of_section,
        },
    });
    keys.insert("function".to_owned(), function);
    json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "mote.toml",
        "description": "How mote runs a function. Every key but version is optional.",
        "type": "object",
        "required": ["version"],
        "additionalProperties": false,
        "properties": keys,
        "if": {"required": ["function"]},
        "then": {"propertyNames": {"enum": ["version", "function"]}},
    })
}

const NAME: &str = "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$";
const SIZE: &str = "^[0-9]+ *(B|KiB|MiB|GiB)$";
const DURATION: &str = "^[0-9]+ *(ms|s|m|h)$";
const RATE: &str = "^[0-9]+/(s|m|h)$";

/// The properties of a section, one for each of its keys.
fn properties(section: &str, keys: &[&str]) -> Map<String, Value> {
    let property = |key: &&str| ((*key).to_owned(), property(section, key).unwrap_or_default());
    keys.iter().map(property).collect()
}

fn section(label: &str, text: &str, keys: &[&str]) -> Value {
    json!({
        "type": "object",
        "description": text,
        "additionalProperties": false,
        "properties": properties(label, keys),
    })
}

fn said(mut value: Value, text: &str) -> Value {
    value["description"] = text.into();
    value
}

fn string(text: &str) -> Value {
    json!({"type": "string", "description": text})
}

fn like(pattern: &str, text: &str) -> Value {
    json!({"type": "string", "pattern": pattern, "description": text})
}

fn integer(least: u64, most: u64, text: &str) -> Value {
    json!({"type": "integer", "minimum": least, "maximum": most, "description": text})
}

fn boolean(text: &str) -> Value {
    json!({"type": "boolean", "description": text})
}

fn strings(text: &str) -> Value {
    json!({"type": "array", "items": {"type": "string"}, "description": text})
}

fn words<T>(words: &[(&str, T)], text: &str) -> Value {
    let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
    json!({"enum": words, "description": text})
}

/// A table such as `{ secret = "NAME" }`.
fn secret(text: &str) -> Value {
    json!({
        "type": "object",
        "required": ["secret"],
        "additionalProperties": false,
        "properties": {"secret": {"type": "string"}},
        "description": text,
    })
}

/// The property for one key; `None` if there is none for it.
fn property(section: &str, key: &str) -> Option<Value> {
    match section {
        "" => of_function(key),
        "limits" => of_limits(key),
        "scale" => of_scale(key),
        "allow" => of_allow(key),
        "kv" => Some(match key {
            "shared" => strings("Names of shared namespaces of state that the function may use."),
            "quota" => like(SIZE, "How much state the function may keep, e.g. \"16MiB\"."),
            _ => return None,
        }),
        "async" => of_async(key),
        "mqtt" | "connection" => of_mqtt(key),
        "access" => of_access(key),
        "http" => of_http(key),
        "cors" => of_cors(key),
        "static" => Some(match key {
            "folder" => string("The folder with the files, e.g. \"public\"."),
            "fallback" => string("The file for requests of pages that match no file."),
            "cache" => like(DURATION, "How long clients may keep a file. Default: \"0s\"."),
            _ => return None,
        }),
        "files" => Some(match key {
            "data" => like(SIZE, "Size of the folder /data, 16MiB to 1024GiB, e.g. \"256MiB\"."),
            _ => return None,
        }),
        "folder" => Some(match key {
            "from" => string("A folder of the host that the node's operator has shared."),
            "read_only" => said(json!({"const": true}), "The function can only read it."),
            _ => return None,
        }),
        "route" => of_route(key),
        "build" => Some(match key {
            "command" => string("A shell command that runs in the folder before it is packed."),
            _ => return None,
        }),
        "trigger" => of_front(key).or_else(|| of_mqtt(key)).or_else(|| of_schedule(key)),
        _ => None,
    }
}

fn of_function(key: &str) -> Option<Value> {
    let methods = "Permitted methods, in upper case. Default: all.";
    Some(match key {
        "name" => like(NAME, "The function's name. Default: the name of the folder."),
        "runtime" => said(
            json!({"enum": ["python", "node", "bun", "deno", "go", "rust", "wasm", "exec", "server", "chain"]}),
            "How the function runs. Default: inferred from the files.",
        ),
        "image" => {
            string("A container image: its name, or the path of an archive, e.g. \"./a.tar\".")
        }
        "compat" => words(&PLATFORMS, "The platform for which the code was written."),
        "template" => string("The contract of the platform, if it has several."),
        "port" => integer(1, 65_535, "The port of a server. Default: 8080, or that of the image."),
        "protocol" => said(json!({"enum": ["http1", "h2c"]}), "What a server speaks."),
        "entry" => string("module:object, a file, file:export, or a Go function."),
        "command" => said(
            json!({"type": "array", "minItems": 1, "items": {"type": "string"}}),
            "Program and arguments of exec and server.",
        ),
        "methods" => strings(methods),
        "secrets" => strings("Names of secrets that the function reads as files in /secrets."),
        "services" => boolean("Whether a program has the node's services at $MOTE_SERVICES."),
        "writable" => boolean("Whether an instance may write to its copy of the code."),
        "limits" => self::section("limits", "What one instance may use.", &LIMIT_KEYS),
        "scale" => self::section("scale", "How many instances there are.", &SCALE_KEYS),
        "env" => json!({
            "type": "object",
            "description": "Environment variables. A value is a string, or { secret = \"NAME\" }.",
            "propertyNames": {"pattern": "^[A-Za-z_][A-Za-z0-9_]*$", "not": {"pattern": "^(MOTE_.*|PORT)$"}},
            "additionalProperties": {"anyOf": [{"type": "string"}, secret("The value of a secret.")]},
        }),
        "trigger" => triggers(),
        "route" => json!({
            "type": "array",
            "description": "Paths at which the function answers over HTTP.",
            "items": required(&["path"], self::section("route", "A path.", &route::KEYS)),
        }),
        "allow" => self::section("allow", "What the function may reach.", &ALLOW_KEYS),
        "kv" => self::section("kv", "The state that the function keeps.", &KV_KEYS),
        "build" => self::section("build", "What runs before packing.", &BUILD_KEYS),
        "async" => self::section("async", "How accepted invocations are run.", &background::KEYS),
        "mqtt" => self::section("connection", "The broker to publish at.", &CONNECTION_KEYS),
        "access" => {
            let keys: Vec<&str> = ["mode"]
                .into_iter()
                .chain(OF_TOKENS)
                .chain(OF_CERTIFICATES)
                .chain(OF_WEBHOOKS)
                .collect();
            required(&["mode"], self::section("access", "Who may call the function.", &keys))
        }
        "http" => self::section("http", "Rules for HTTP requests.", &http::KEYS),
        "static" => {
            let section =
                self::section("static", "Files that the node serves.", &static_files::KEYS);
            required(&["folder"], section)
        }
        "files" => {
            let mut section = self::section("files", "Folders of the function.", &files::KEYS);
            let text = "A folder of the host, which the function reads at /mnt/NAME.";
            let folder = self::section("folder", text, &files::FOLDER_KEYS);
            section["propertyNames"] = json!({"pattern": "^[a-z0-9_-]{1,63}$"});
            section["additionalProperties"] = required(&["from"], folder);
            section
        }
        _ => return None,
    })
}

fn required(keys: &[&str], mut section: Value) -> Value {
    section["required"] = keys.into();
    section
}

fn triggers() -> Value {
    let keys: Vec<&str> =
        FRONT_KEYS.into_iter().chain(["mqtt"]).chain(MQTT_KEYS).chain(schedule::KEYS).collect();
    let mut trigger = section("trigger", "What calls the function.", &keys);
    let one = |key: &str| json!({"required": [key]});
    trigger["oneOf"] = ["http", "coap", "mqtt", "cron", "every"].map(one).as_slice().into();
    json!({"type": "array", "items": trigger, "description": "What calls the function."})
}

fn of_limits(key: &str) -> Option<Value> {
    const MOST: u64 = 1_000_000;
    Some(match key {
        "memory" => {
            like(SIZE, "Memory of one instance, 4MiB to 512GiB. Default: \"64MiB\" or more.")
        }
        "timeout" => like(DURATION, "Deadline of one call, waiting included. Default: \"10s\"."),
        "init_timeout" => like(DURATION, "Time until an instance is ready. Default: \"10s\"."),
        "concurrency" => integer(1, 4096, "Concurrent calls in one instance."),
        "cpu" => said(json!({"type": "number", "minimum": 0.01, "maximum": 1024}), "CPU cores."),
        "pids" => integer(4, 32_768, "Processes and threads. Default: 64."),
        "body" => like(SIZE, "Size of a request body, 1KiB to 1GiB. Default: \"6MiB\"."),
        "disk" => like(SIZE, "Size of /tmp, which is in memory. Default: \"16MiB\"."),
        "stream_idle" => like(DURATION, "Longest silence of a stream. Default: \"5m\"."),
        "rate" => like(RATE, "Calls from outside, e.g. \"100/s\". Default: no limit."),
        "burst" => integer(1, MOST, "Calls that may come at once after a pause."),
        "caller_rate" => like(RATE, "The same for each caller."),
        "caller_burst" => integer(1, MOST, "The same for each caller."),
        "calls_at_once" => integer(1, 100_000, "Unfinished calls from outside."),
        "caller_calls_at_once" => integer(1, 100_000, "The same for each caller."),
        _ => return None,
    })
}

fn of_scale(key: &str) -> Option<Value> {
    Some(match key {
        "min" => integer(0, 1000, "Minimum number of instances. Default: 0."),
        "max" => integer(1, 1000, "Maximum number of instances. Default: the number of cores."),
        "idle" => like(DURATION, "Longest time between a call and the instance's stop."),
        "queue" => integer(0, 100_000, "Calls that may wait. Default: 1024."),
        "policy" => words(&POLICIES, "The rule for the number of instances. Default: \"auto\"."),
        "target" => integer(1, 1_000_000, "The value per instance that the rule maintains."),
        "start" => words(&STARTS, "Whether an instance exists before the first call."),
        "balance" => words(&BALANCES, "How the instance for a call is chosen."),
        "pause" => like(DURATION, "An idle instance is paused after this time."),
        "spare" => integer(0, 100, "Instances that are kept loaded and paused."),
        _ => return None,
    })
}

fn of_allow(key: &str) -> Option<Value> {
    Some(match key {
        "net" => strings("Destinations: host:port, udp://host:port, *:port, or *."),
        "functions" => strings("Names of functions that it may call, or *."),
        "mqtt" => strings("Filters of the topics to which it may publish."),
        _ => return None,
    })
}

fn of_async(key: &str) -> Option<Value> {
    let one_of = ["function", "url", "topic"].map(|key| json!({"required": [key]}));
    let recipient = |text: &str| {
        json!({
            "type": "object",
            "description": text,
            "additionalProperties": false,
            "properties": {
                "function": {"type": "string"},
                "url": {"type": "string", "pattern": "^https?://"},
                "topic": {"type": "string"},
                "qos": {"type": "integer", "minimum": 0, "maximum": 2},
                "retain": {"type": "boolean"},
            },
            "oneOf": one_of,
        })
    };
    let retry = RETRIES.iter().map(|(word, _)| *word).collect::<Vec<_>>();
    Some(match key {
        "attempts" => integer(1, 100, "Attempts in total."),
        "backoff" => like(DURATION, "The pause before the second attempt."),
        "backoff_max" => like(DURATION, "The longest pause."),
        "retry" => json!({
            "type": "array",
            "items": {"enum": retry},
            "description": "The failures after which an invocation is tried again.",
        }),
        "max_age" => like(DURATION, "An older invocation is given up."),
        "concurrency" => integer(1, 64, "Accepted invocations that run at once."),
        "on_success" => recipient("Who receives the result."),
        "on_failure" => recipient("Where the node reports an invocation that has failed for good."),
        _ => return None,
    })
}

fn of_front(key: &str) -> Option<Value> {
    Some(match key {
        "http" => like("^/", "The same as a [[route]] with this path."),
        "coap" => string("The name of the function."),
        "title" | "rt" => string("A link attribute in /.well-known/core."),
        "ct" => integer(0, 65_535, "The number of a CoAP content format."),
        _ => return None,
    })
}

fn of_mqtt(key: &str) -> Option<Value> {
    Some(match key {
        "mqtt" => string("A topic filter, e.g. \"sensors/+/temp\"."),
        "broker" => like("^(mqtts?://.+|local)$", "mqtt://HOST, mqtts://HOST or local."),
        "qos" => integer(0, 2, "Quality of service. Default: 1."),
        "version" => words(&VERSIONS, "Version of MQTT. Default: \"5\"."),
        "username" => string("User name at the broker."),
        "password" => secret("Password at the broker."),
        "ca" => secret("Authorities that must have signed the broker's certificate (PEM)."),
        "certificate" => secret("The client's certificate (PEM)."),
        "key" => secret("The key of the client's certificate (PEM)."),
        "session" => words(&SESSIONS, "Whether the broker keeps messages for the node."),
        "inflight" => integer(1, 4096, "Messages that may be unacknowledged. Default: 64."),
        "acknowledge" => words(&ACKNOWLEDGES, "When a message is acknowledged."),
        "order" => words(&ORDERS, "Whether messages of a topic run one after another."),
        "reply" => string("Topic for answers. {1} is what the first wildcard matched."),
        _ => return None,
    })
}

fn of_schedule(key: &str) -> Option<Value> {
    Some(match key {
        "cron" => string("A cron expression, e.g. \"*/5 * * * *\", or @daily."),
        "every" => like(DURATION, "An interval, 1s to 168h."),
        "timezone" => string("A zone for cron, e.g. \"Europe/Berlin\". Default: \"UTC\"."),
        "missed" => words(&MISSED, "What happens to times that passed while the node was off."),
        "jitter" => like(DURATION, "All runs are delayed by a time up to this one."),
        "overlap" => words(&OVERLAPS, "What happens if the previous run has not ended."),
        "method" => like("^[A-Z]{1,24}$", "Method of the call. Default: \"POST\"."),
        "path" => like("^/", "Path of the call. Default: \"/\"."),
        "headers" => json!({
            "type": "object",
            "additionalProperties": {"type": "string"},
            "description": "Header fields of the call.",
        }),
        "body" => string("Body of the call."),
        _ => return None,
    })
}

fn of_access(key: &str) -> Option<Value> {
    Some(match key {
        "mode" => words(&ACCESSES, "Who may call the function from outside of the node."),
        "issuer" => string("jwt: the claim iss."),
        "audience" => string("jwt: one of the claim aud."),
        "keys" => string("jwt: a file of the project, or an address."),
        "claims" => json!({
            "type": "object",
            "additionalProperties": {"type": ["string", "integer", "boolean"]},
            "description": "jwt: claims that a token must have.",
        }),
        "callers" => strings("mtls: accepted names in certificates."),
        "scheme" => words(&SCHEMES, "webhook: how requests are signed."),
        "secret" => string("webhook: the name of the secret."),
        "window" => like(DURATION, "webhook: how old a signature may be. Default: \"5m\"."),
        "header" => string("hmac: the field with the signature."),
        "prefix" => string("hmac: the text before the signature."),
        "encoding" => said(json!({"enum": ["hex", "base64"]}), "hmac: how it is encoded."),
        "algorithm" => said(json!({"enum": ["sha256", "sha512"]}), "hmac: the hash function."),
        "timestamp" => string("hmac: the field with the time."),
        "signed" => string("hmac: what is signed, e.g. \"{timestamp}.{body}\"."),
        _ => return None,
    })
}

fn of_http(key: &str) -> Option<Value> {
    let cors = || section("cors", "What pages of other origins may do.", &http::CORS_KEYS);
    Some(match key {
        "methods" => strings("Permitted methods, in upper case. Default: all."),
        "headers" => strings("Fields that a request must have."),
        "body_max" => like(SIZE, "Size of a request body. The same as body of [limits]."),
        "compress" => boolean("Whether answers are compressed."),
        "node_port" => integer(1, 65_535, "A TCP port that belongs to this function alone."),
        "cors" => required(&["origins"], cors()),
        _ => return None,
    })
}

fn of_cors(key: &str) -> Option<Value> {
    Some(match key {
        "origins" => strings("Origins, e.g. \"https://app.example\", or *."),
        "methods" => strings("Methods that pages may use."),
        "headers" => strings("Fields that pages may send."),
        "expose" => strings("Fields of answers that pages may read."),
        "credentials" => boolean("Whether pages may send credentials."),
        "max_age" => like(DURATION, "How long browsers keep this, up to 24h."),
        _ => return None,
    })
}

fn of_route(key: &str) -> Option<Value> {
    Some(match key {
        "host" => string("The host, e.g. \"shop.example.org\". Default: every host."),
        "path" => like("^/", "The path, e.g. \"/orders/{id}\"."),
        "methods" => strings("Methods of this route. Default: all."),
        "redirect" => string("A path or a URL to which clients are redirected."),
        "status" => said(json!({"enum": [301, 302, 303, 307, 308]}), "Default: 308."),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{FILE_NAME, Manifest};

    /// Calls `look` with each object of the schema that has properties.
    fn objects(value: &Value, look: &mut dyn FnMut(&Map<String, Value>)) {
        match value {
            Value::Object(map) => {
                if let Some(Value::Object(properties)) = map.get("properties") {
                    look(properties);
                }
                map.values().for_each(|value| objects(value, look));
            }
            Value::Array(all) => all.iter().for_each(|value| objects(value, look)),
            _ => {}
        }
    }

    #[test]
    fn each_key_of_the_reader_has_a_property() {
        let mut keys = 0;
        objects(&schema(), &mut |properties| {
            for (key, property) in properties {
                keys += 1;
                let is_written = property.as_object().is_some_and(|map| !map.is_empty());
                assert!(is_written, "{key}: the schema does not know it");
            }
        });
        assert!(keys > 200, "only {keys} keys");
    }

    /// Writes every property into a manifest. The reader would report a key that it does not know.
    #[test]
    fn each_property_is_a_key_of_the_reader() {
        let schema = schema();
        let unknown = |source: &str| {
            let mistakes = Manifest::parse(FILE_NAME, source).err().map(|error| error.0);
            mistakes.unwrap_or_default().into_iter().find(|mistake| {
                matches!(mistake.code, "M0302" | "M0304") || mistake.text.contains("not supported")
            })
        };
        let names = |value: &Value| -> Vec<String> {
            value["properties"].as_object().expect("properties").keys().cloned().collect()
        };
        let triggers = ["http", "coap", "mqtt", "cron"].map(|key| format!("{key} = \"/x\"\n"));
        for key in names(&schema) {
            let value = &schema["properties"][&key];
            let (section, keys) = match value["type"].as_str() {
                Some("object") if value["properties"].is_object() => {
                    (format!("[{key}]"), names(value))
                }
                Some("array") if value["items"]["properties"].is_object() => {
                    (format!("[[{key}]]"), names(&value["items"]))
                }
                _ => {
                    assert_eq!(unknown(&format!("version = 1\n{key} = 0\n")), None, "{key}");
                    continue;
                }
            };
            for inner in keys {
                let line = format!("{inner} = 0\n");
                let source = format!("version = 1\n{section}\n{line}");
                let found = match (section.as_str(), unknown(&source)) {
                    // What a trigger may have depends on its kind.
                    ("[[trigger]]", found @ Some(_)) => {
                        let mut kinds = triggers.iter().map(|kind| format!("{source}{kind}"));
                        found.filter(|_| kinds.all(|source| unknown(&source).is_some()))
                    }
                    (_, found) => found,
                };
                assert_eq!(found, None, "{section} {inner}");
            }
        }
    }
}
