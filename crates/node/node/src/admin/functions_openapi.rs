//! An OpenAPI 3.1 document of the functions that the sender may see.
//!
//! The manifest says at which addresses a function answers, which methods it takes and who may call
//! it. A function whose code contains a file `openapi.json` describes its paths itself: these
//! appear below `/NAME`, and the names of its components get the function's name as a prefix. Other
//! people read the document, too, so nothing in the file may concern other functions or lead
//! clients to other servers.

use std::collections::HashSet;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use mote_spec::routes::RouteRule;
use mote_spec::{Access, FunctionSpec};
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;

use super::access::Seen;
use super::refused::Refused;
use crate::Node;
use crate::ports::reachable;
use crate::store_work::{blocking, internal};

/// The file in which a function describes itself, and its maximum length.
const FILE: &str = "openapi.json";
const FILE_BYTES_MAX: u64 = 256 << 10;
/// The most bytes of such files in one document. Further functions are described by their manifests.
const FILES_BYTES_MAX: u64 = 2 << 20;
/// The maximum number of documents that are made at once. A parsed file takes many times its length
/// in memory.
static MAKING: Semaphore = Semaphore::const_new(1);
/// Fields with which a description could lead clients to other servers.
const TO_OTHERS: [&str; 4] = ["servers", "callbacks", "links", "externalDocs"];
/// Fields whose keys are names.
const NAMES: [&str; 8] = [
    "properties",
    "patternProperties",
    "$defs",
    "schemas",
    "parameters",
    "responses",
    "requestBodies",
    "headers",
];
/// The fields of a path that describe methods (OpenAPI 3.1, 4.8.9).
const METHODS: [&str; 8] = ["get", "put", "post", "delete", "options", "head", "patch", "trace"];
/// The methods that are shown for a function that takes all of them.
const METHODS_SHOWN: [&str; 5] = ["get", "post", "put", "patch", "delete"];
const COMPONENTS: &str = "#/components/";

pub(super) async fn show(
    State(node): State<Arc<Node>>,
    Seen(view): Seen,
) -> Result<Json<Value>, Refused> {
    let addresses = &node.addresses;
    let at = |scheme: &str, address| json!({"url": format!("{scheme}://{}", reachable(address))});
    let http = addresses.http.map(|address| at("http", address));
    let https = addresses.https.map(|address| at("https", address));
    let servers: Vec<Value> = http.into_iter().chain(https).collect();
    let all = node.data_path.engine.list();
    let shown = all.into_iter().filter(|revision| view.shows(revision.spec.name.as_str()));
    let shown: Vec<_> = shown.collect();
    let of_node = node.clone();
    let turn = MAKING.acquire().await;
    let made = blocking(move || {
        // The work goes on if the client leaves, so the work holds the turn.
        let _turn = turn;
        let mut document = Document::new(servers);
        let mut left = FILES_BYTES_MAX;
        for revision in shown {
            let own = read(&revision.code_dir, &mut left);
            document.add(&revision.spec, of_node.config.access_of(revision.spec.access), own);
        }
        document.0
    });
    Ok(Json(made.await.map_err(|error| internal(&error))?))
}

/// Reads and checks the function's own description. `None` if it has none.
fn read(code: &Path, left: &mut u64) -> Option<Result<Value, String>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = open(code.join(FILE), flags, Mode::empty()).ok()?;
    let status = fstat(&file).ok()?;
    if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
        return None;
    }
    let length = u64::try_from(status.st_size).unwrap_or(u64::MAX);
    if length > FILE_BYTES_MAX.min(*left) {
        return Some(Err(format!("it is longer than {} KiB", FILE_BYTES_MAX >> 10)));
    }
    *left -= length;
    let mut text = Vec::new();
    std::fs::File::from(file).take(FILE_BYTES_MAX).read_to_end(&mut text).ok()?;
    let read: Result<Value, _> = serde_json::from_slice(&text);
    Some(read.map_err(|error| error.to_string()).and_then(checked))
}

/// Refuses a description that would harm the document of all functions.
fn checked(own: Value) -> Result<Value, String> {
    let Some(paths) = own["paths"].as_object() else { return Err("it has no paths".to_owned()) };
    for (path, item) in paths {
        let is_plain = |part: &str| {
            let part = match part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) {
                Some(name) => name,
                None => part,
            };
            let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
            !part.is_empty() && part.bytes().all(allowed) && part != "." && part != ".."
        };
        let rest = path.strip_prefix('/').map(|rest| rest.strip_suffix('/').unwrap_or(rest));
        if !rest.is_some_and(|rest| rest.is_empty() || rest.split('/').all(is_plain)) {
            return Err(format!("the path {path:?} is not one of plain segments after a /"));
        }
        let Some(fields) = item.as_object() else { return Err(format!("{path}: not an object")) };
        for (name, field) in fields {
            let fits = match name.as_str() {
                name if METHODS.contains(&name) => field.is_object(),
                "parameters" => field.is_array(),
                "summary" | "description" => field.is_string(),
                name => name.starts_with("x-") || TO_OTHERS.contains(&name),
            };
            if !fits {
                return Err(format!("{path}: {name} does not belong there"));
            }
        }
    }
    match foreign_reference(&own) {
        Some(target) => Err(format!("the reference {target:?} leads out of its components")),
        None => Ok(own),
    }
}

/// The first reference that does not lead to the description's own components.
fn foreign_reference(value: &Value) -> Option<&str> {
    match value {
        Value::Array(all) => all.iter().find_map(foreign_reference),
        Value::Object(fields) => fields.iter().find_map(|(name, field)| match field.as_str() {
            Some(target) if name == "$ref" && !target.starts_with(COMPONENTS) => Some(target),
            _ => foreign_reference(field),
        }),
        _ => None,
    }
}

/// Removes the fields with which a description could lead clients to other servers. If the keys of
/// an object are names that the function chose, such as names of properties, all of them stay.
fn disarm(value: &mut Value, has_names: bool) {
    match value {
        Value::Array(all) => all.iter_mut().for_each(|one| disarm(one, false)),
        Value::Object(fields) => {
            if !has_names {
                TO_OTHERS.iter().for_each(|name| drop(fields.remove(*name)));
            }
            for (name, field) in fields {
                disarm(field, !has_names && NAMES.contains(&name.as_str()));
            }
        }
        _ => {}
    }
}

struct Document(Value);

impl Document {
    fn new(servers: Vec<Value>) -> Self {
        Self(json!({
            "openapi": "3.1.0",
            "info": {
                "title": "Functions",
                "version": "1",
                "description": "The functions of this node, as their manifests and they themselves describe them.",
            },
            "servers": servers,
            "tags": [],
            "paths": {},
            "components": {"securitySchemes": {
                "key": json!({"type": "http", "scheme": "bearer", "description": "a key of the node"}),
                "basic": json!({"type": "http", "scheme": "basic", "description": "any user name, and a key of the node"}),
                "jwt": json!({"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}),
                "mtls": json!({"type": "mutualTLS"}),
            }},
        }))
    }

    fn add(&mut self, spec: &FunctionSpec, access: Access, own: Option<Result<Value, String>>) {
        let name = spec.name.as_str();
        let mut tag = json!({"name": name});
        let mut own = match own {
            None => None,
            Some(Ok(own)) => Some(own),
            Some(Err(why)) => {
                let text = format!("{FILE} of this function is not shown: {why}");
                tag["description"] = text.into();
                None
            }
        };
        if let Some(text) = own.as_ref().and_then(|own| own["info"]["description"].as_str()) {
            tag["description"] = text.into();
        }
        push(&mut self.0["tags"], tag);
        let bases: Vec<RouteRule> = std::iter::once(RouteRule {
            host: None,
            path: format!("/{name}/*"),
            methods: Vec::new(),
            redirect: None,
        })
        .chain(spec.routes().iter().filter(|rule| rule.redirect.is_none()).cloned())
        .collect();
        if let Some(own) = &mut own {
            disarm(own, false);
            rename_references(own, name);
            self.add_components(own, name);
        }
        for (at, rule) in bases.iter().enumerate() {
            let template = Template::of(&rule.path);
            if let (0, Some(paths)) =
                (at, own.as_mut().and_then(|own| own["paths"].as_object_mut()))
            {
                let mut ids = HashSet::new();
                for (path, item) in std::mem::take(paths) {
                    let path = format!("{}{}", template.fixed, path.trim_end_matches('/'));
                    self.put(&path, adopted(item, name, access, &mut ids), rule);
                }
                continue;
            }
            let methods = if rule.methods.is_empty() { &spec.methods } else { &rule.methods };
            let mut item = Map::new();
            for method in shown_methods(methods) {
                item.insert(method.clone(), operation(spec, access, &method));
            }
            self.put(&template.fixed, Value::Object(item.clone()), rule);
            if let Some(rest) = &template.rest {
                self.put(&format!("{}/{{{rest}}}", template.fixed), Value::Object(item), rule);
            }
        }
    }

    /// Puts a path into the document, with the parameters that its template names. If the path is
    /// already there for another host, that one stays.
    fn put(&mut self, path: &str, mut item: Value, rule: &RouteRule) {
        let path = if path.is_empty() { "/" } else { path };
        let Some(fields) = item.as_object_mut() else { return };
        if let Some(host) = rule.host.as_deref().filter(|host| !host.starts_with("*.")) {
            fields.insert("servers".to_owned(), json!([{"url": format!("https://{host}")}]));
        }
        let declared = fields.entry("parameters").or_insert_with(|| json!([]));
        for name in parameters(path) {
            let is_known = declared.as_array().is_some_and(|all| {
                all.iter().any(|one| one["name"] == name && one["in"] == "path")
            });
            if !is_known {
                let string = json!({"type": "string"});
                push(
                    declared,
                    json!({"name": name, "in": "path", "required": true, "schema": string}),
                );
            }
        }
        if let Some(paths) = self.0["paths"].as_object_mut() {
            paths.entry(path).or_insert(item);
        }
    }

    fn add_components(&mut self, own: &Value, function: &str) {
        for (kind, all) in own["components"].as_object().into_iter().flatten() {
            // The node decides who may call, so the node describes that itself.
            if kind == "securitySchemes" {
                continue;
            }
            for (name, component) in all.as_object().into_iter().flatten() {
                let name = format!("{function}.{name}");
                self.0["components"][kind.as_str()][name] = component.clone();
            }
        }
    }
}

fn push(list: &mut Value, item: Value) {
    if let Some(list) = list.as_array_mut() {
        list.push(item);
    }
}

/// The path of a route without an ending for any number of segments, and the name of that ending.
struct Template {
    fixed: String,
    rest: Option<String>,
}

impl Template {
    fn of(path: &str) -> Self {
        let (fixed, last) = path.rsplit_once('/').unwrap_or(("", path));
        let rest = match last {
            "*" => Some("path"),
            _ => last.strip_prefix('{').and_then(|last| last.strip_suffix("...}")),
        };
        match rest {
            Some(rest) => Self { fixed: fixed.to_owned(), rest: Some(rest.to_owned()) },
            None => Self { fixed: path.trim_end_matches('/').to_owned(), rest: None },
        }
    }
}

/// The names in braces in a path.
fn parameters(path: &str) -> impl Iterator<Item = &str> {
    path.split('{').skip(1).filter_map(|part| Some(part.split_once('}')?.0))
}

fn shown_methods(methods: &[String]) -> Vec<String> {
    if methods.is_empty() {
        return METHODS_SHOWN.map(str::to_owned).to_vec();
    }
    let lower = methods.iter().map(|method| method.to_ascii_lowercase());
    lower.filter(|method| METHODS.contains(&method.as_str())).collect()
}

/// What the manifest says about one method.
fn operation(spec: &FunctionSpec, access: Access, method: &str) -> Value {
    let mut operation = json!({
        "tags": [spec.name.as_str()],
        "responses": {"default": {"description": "the answer of the function, or problem details of the node"}},
    });
    if matches!(method, "post" | "put" | "patch") {
        let text = format!("at most {} bytes", spec.limits.body_bytes);
        operation["requestBody"] = json!({"description": text, "content": {"*/*": {}}});
    }
    if let Some(security) = security(access) {
        operation["security"] = security;
    }
    operation
}

/// What a caller has to send. OpenAPI cannot describe signatures, nor that only callers on this
/// machine are permitted.
fn security(access: Access) -> Option<Value> {
    let name = match access {
        Access::Key => "key",
        Access::Basic => "basic",
        Access::Jwt => "jwt",
        Access::Mtls => "mtls",
        _ => return None,
    };
    Some(json!([{name: []}]))
}

/// Adapts a path of the function's own description: the function becomes its tag and a part of its
/// operations' names, and the node's rule for callers is added. Each name may occur only once.
fn adopted(mut item: Value, function: &str, access: Access, ids: &mut HashSet<String>) -> Value {
    let Some(fields) = item.as_object_mut() else { return item };
    for method in METHODS {
        let Some(operation) = fields.get_mut(method).and_then(Value::as_object_mut) else {
            continue;
        };
        operation.insert("tags".to_owned(), json!([function]));
        operation.remove("security");
        let id = operation.remove("operationId");
        let id = id.and_then(|id| id.as_str().map(|id| format!("{function}.{id}")));
        if let Some(id) = id.filter(|id| ids.insert(id.clone())) {
            operation.insert("operationId".to_owned(), id.into());
        }
        if let Some(security) = security(access) {
            operation.insert("security".to_owned(), security);
        }
    }
    item
}

/// Makes references lead to the function's own components.
fn rename_references(value: &mut Value, function: &str) {
    match value {
        Value::Array(all) => all.iter_mut().for_each(|one| rename_references(one, function)),
        Value::Object(fields) => {
            for (name, field) in fields {
                let target = field.as_str().filter(|_| name == "$ref");
                let target = target.and_then(|target| target.strip_prefix(COMPONENTS));
                match target.and_then(|target| target.split_once('/')) {
                    Some((kind, own)) => {
                        *field = format!("{COMPONENTS}{kind}/{function}.{own}").into()
                    }
                    None => rename_references(field, function),
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_of_routes_become_parameters() {
        for (path, fixed, rest) in [
            ("/thermo/*", "/thermo", Some("path")),
            ("/files/{name...}", "/files", Some("name")),
            ("/rooms/{room}", "/rooms/{room}", None),
            ("/", "", None),
            ("/*", "", Some("path")),
        ] {
            let template = Template::of(path);
            assert_eq!((&*template.fixed, template.rest.as_deref()), (fixed, rest), "{path}");
        }
        assert_eq!(parameters("/a/{b}/{c}").collect::<Vec<_>>(), ["b", "c"]);
    }

    #[test]
    fn what_concerns_others_is_refused_or_removed() {
        for wrong in [
            json!({"paths": {"x/secret": {}}}),
            json!({"paths": {"/../other": {}}}),
            json!({"paths": {"//evil.example": {}}}),
            json!({"paths": {"/%2e%2e/": {}}}),
            json!({"paths": {"/{open": {}}}),
            json!({"paths": {"/a": {"get": null}}}),
            json!({"paths": {"/a": {"parameters": "x"}}}),
            json!({"paths": {"/a": {"$ref": "#/paths/~1b"}}}),
            json!({"paths": {"/a": {"get": {"x": {"$ref": "http://127.0.0.1/"}}}}}),
            json!({"paths": 1}),
        ] {
            assert!(checked(wrong.clone()).is_err(), "{wrong}");
        }
        let mut own =
            json!({"paths": {"/a": {"servers": [1], "get": {"servers": [1], "callbacks": {}}}}});
        own = checked(own).unwrap();
        disarm(&mut own, false);
        assert_eq!(own, json!({"paths": {"/a": {"get": {}}}}));
        let named = json!({"schemas": {"links": {"properties": {"servers": {"type": "string"}}}}});
        let mut same = named.clone();
        disarm(&mut same, false);
        assert_eq!(same, named);
    }

    #[test]
    fn references_lead_to_components_with_the_name_of_the_function() {
        let mut own = json!({"a": [{"$ref": "#/components/schemas/Room"}], "$ref": "other.json"});
        rename_references(&mut own, "thermo");
        let renamed =
            json!({"a": [{"$ref": "#/components/schemas/thermo.Room"}], "$ref": "other.json"});
        assert_eq!(own, renamed);
    }
}
