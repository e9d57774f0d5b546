//! Converts hosts and paths of other platforms to routes of `mote.toml`. They come from Fission's and
//! Kubeless' `HTTPTrigger`, from Nuclio's ingresses, and from `Ingress`, `FunctionIngress` and
//! `DomainMapping` objects in the same file.
//!
//! The readers collect the routes that objects ask for. When all functions of the file are known,
//! [`settle`] checks these routes and warns about those that cannot be used.

use std::mem;

use mote_spec::FunctionName;
use mote_spec::manifest::RouteManifest;
use mote_spec::routes::{RouteRule, RouteTable};
use mote_spec::toml_reader::Lined;
use serde_json::Value;

use super::{Described, Foreign, group, object_name, text};

/// A route that an object asks for.
#[derive(Debug)]
pub struct Converted {
    /// The name of the object in messages.
    pub object: String,
    pub route: RouteManifest,
}

impl Described {
    pub(super) fn want(
        &mut self,
        object: &str,
        host: Option<&str>,
        path: &str,
        methods: &[String],
    ) {
        let route = RouteManifest {
            host: host.map(str::to_ascii_lowercase),
            path: format!("/{}", path.trim_start_matches('/')),
            methods: methods.to_vec(),
            redirect: None,
        };
        self.routes.push(Converted { object: object.to_owned(), route });
    }

    /// Returns whether clients reach the function at this path without a route.
    pub(super) fn has_path(&self, host: Option<&str>, path: &str) -> bool {
        host.is_none() && path.trim_matches('/') == self.name()
    }

    /// Warns that the function receives the whole path. The platform would cut `path` off before the
    /// call.
    fn warn_of_whole_path(&mut self, object: &str, path: &str) {
        if path.trim_matches('/').is_empty() {
            return;
        }
        self.warn(format!(
            "{object}: the function receives the whole path, with {path} at its beginning"
        ));
    }
}

type Reader = fn(&mut Foreign, &Value);

fn reader(document: &Value) -> Option<Reader> {
    Some(match (group(document), document["kind"].as_str()?) {
        ("fission.io", "HTTPTrigger") => fission,
        ("kubeless.io", "HTTPTrigger") => kubeless,
        ("networking.k8s.io", "Ingress") => ingress,
        ("openfaas.com", "FunctionIngress") => function_ingress,
        ("serving.knative.dev", "DomainMapping") => domain_mapping,
        _ => return None,
    })
}

/// Returns whether [`objects`] reads this object. If so, no other reader needs to warn about it.
pub(super) fn is_read(document: &Value) -> bool {
    reader(document).is_some()
}

/// Reads the routes that objects ask for and adds them to the functions that the objects name.
pub(super) fn objects(found: &mut Foreign, all: &[Value]) {
    for document in all {
        if let Some(read) = reader(document) {
            read(found, document);
        }
    }
}

/// Moves the permitted routes into the functions' manifests, and warns about the others.
pub(super) fn settle(found: &mut Foreign) {
    let mut table = RouteTable::default();
    for described in &mut found.functions {
        // If the function has no name, its folder's name is used later. It is then the only function of
        // its file.
        let name = FunctionName::new(described.name())
            .unwrap_or_else(|_| FunctionName::new("unnamed").expect("a valid name"));
        let mut rules: Vec<RouteRule> = Vec::new();
        for one in mem::take(&mut described.routes) {
            let RouteManifest { host, path, methods, .. } = one.route.clone();
            let rule = RouteRule { host, path, methods, redirect: None };
            // Two objects may ask for the same route, for example a trigger and its ingress.
            if rules.contains(&rule) {
                continue;
            }
            rules.push(rule.clone());
            let wrong = match mote_spec::routes::check(&name, &rules) {
                Err((_, wanted)) => Some(wanted.to_owned()),
                Ok(()) => table
                    .add(&name, std::slice::from_ref(&rule))
                    .err()
                    .map(|(_, other)| format!("the function {other} has this route")),
            };
            if let Some(wrong) = wrong {
                rules.pop();
                let object = &one.object;
                let shown = mote_spec::routes::text(&rule);
                let instead = "use /NAME, or import it and write another path in mote.toml";
                described.warn(format!("{object}: {shown} cannot be a route: {wrong}; {instead}"));
                continue;
            }
            described.function.routes.push(Lined { value: one.route.clone(), line: 0 });
            described.routes.push(one);
        }
    }
}

/// Returns a text unless it is empty.
fn filled(value: &Value) -> Option<String> {
    text(value).filter(|text| !text.is_empty())
}

/// Returns a host; `None` if the host is `*`, which stands for all hosts.
fn host(value: &Value) -> Option<String> {
    filled(value).filter(|host| host != "*")
}

/// Returns the pattern for a path and all paths below it. An ingress may write the path as a regular
/// expression.
fn below(path: &str) -> String {
    let start = ["(.*)", ".*", "*"].iter().find_map(|end| path.strip_suffix(end)).unwrap_or(path);
    format!("{}/*", start.trim_end_matches("(/|$)").trim_end_matches('/'))
}

/// Returns whether an ingress changes the path of requests.
fn rewrites(annotations: &Value) -> bool {
    let keys = annotations.as_object().into_iter().flatten();
    keys.into_iter().any(|(key, _)| key.ends_with("/rewrite-target"))
}

/// Reads a Fission trigger: an exact path, which may have parameters, or a prefix.
fn fission(found: &mut Foreign, document: &Value) {
    let object = object_name(document);
    let spec = &document["spec"];
    let mut function = text(&spec["functionref"]["name"]).unwrap_or_default();
    let weights = spec["functionref"]["functionweights"].as_object();
    if let Some(most) = weights.and_then(|all| all.iter().max_by_key(|(_, share)| share.as_u64())) {
        function.clone_from(most.0);
        let names: Vec<&str> = weights.into_iter().flatten().map(|(name, _)| &**name).collect();
        found.warnings.push(format!(
            "{object}: all requests reach {function}, without shares for {}: deploy these as \
             revisions of one function, and share its requests with mote traffic {function}",
            names.join(", ")
        ));
    }
    let Some(to) = found.named(&object, &function) else { return };
    let known = "relativeurl prefix keepPrefix host method methods functionref createingress \
        ingressconfig routeConfig";
    let known: Vec<&str> = known.split_whitespace().collect();
    to.ignore_rest(spec, &known, &format!("{object}: spec."));
    let ingress = Some(&spec["ingressconfig"]).filter(|_| spec["createingress"] == true);
    let prefix = filled(&spec["prefix"]);
    let outer = ingress.filter(|one| rewrites(&one["annotations"])).map(|one| filled(&one["path"]));
    let (path, is_prefix) = match (outer.flatten(), &prefix, filled(&spec["relativeurl"])) {
        (Some(path), ..) => (path, true),
        (_, Some(prefix), _) => (prefix.clone(), true),
        (.., Some(path)) => (path, false),
        _ => return to.warn(format!("{object}: it has neither relativeurl nor prefix")),
    };
    let mut methods: Vec<String> =
        spec["methods"].as_array().into_iter().flatten().filter_map(text).collect();
    if let Some(method) = filled(&spec["method"]).filter(|one| !methods.contains(one)) {
        methods.push(method);
    }
    methods.iter_mut().for_each(|method| method.make_ascii_uppercase());
    let names = spec["routeConfig"]["hostnames"].as_array().into_iter().flatten();
    let mut hosts: Vec<Option<String>> = names.map(host).collect();
    if hosts.is_empty() {
        hosts.push(host(&spec["host"]).or_else(|| host(&ingress?["host"])));
    }
    let keeps = is_prefix && spec["keepPrefix"] == true;
    let (path, notes) = pattern(&path);
    for note in notes {
        to.warn(format!("{object}: {note}"));
    }
    hosts.retain(|host| keeps || !to.has_path(host.as_deref(), &path));
    if is_prefix && !keeps && !hosts.is_empty() {
        to.warn_of_whole_path(&object, &path);
    }
    let path = if is_prefix { below(&path) } else { path };
    for host in &hosts {
        to.want(&object, host.as_deref(), &path, &methods);
    }
}

/// Converts a path with `{name}` and `{name:expression}` to the path of a route. Also returns notes on
/// the differences.
fn pattern(written: &str) -> (String, Vec<String>) {
    let mut notes = Vec::new();
    let mut depth = 0_usize;
    let parts: Vec<&str> = written
        .split(|letter| {
            match letter {
                '{' => depth += 1,
                '}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            letter == '/' && depth == 0
        })
        .collect();
    let converted = parts.iter().enumerate().map(|(at, part)| {
        let Some(inside) = only_parameter(part) else { return (*part).to_owned() };
        let (name, expression) = inside.split_once(':').unwrap_or((inside, "[^/]+"));
        let is_good = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let short = name.to_lowercase().replace(|letter| !is_good(letter), "_");
        if short != name.to_lowercase() {
            notes.push(format!("the parameter {name} is named {short}"));
        }
        let is_last = at + 1 == parts.len();
        let is_any = matches!(expression, ".*" | ".+");
        let is_exact = matches!(expression, "[^/]+" | "[^/]*") || is_any && is_last;
        if !is_exact {
            notes.push(format!("{{{inside}}} matches any text: check {short} in the function"));
        }
        // If an expression permits a `/`, the parameter stands for several segments.
        let is_rest = is_any || expression.contains('/') && !expression.contains("[^");
        if is_rest && is_last { format!("{{{short}...}}") } else { format!("{{{short}}}") }
    });
    let path = converted.collect::<Vec<_>>().join("/");
    (path, notes)
}

/// Returns the text between the braces, if the segment consists of one parameter only.
fn only_parameter(part: &str) -> Option<&str> {
    let inside = part.strip_prefix('{')?.strip_suffix('}')?;
    let mut depth = 0_i32;
    let is_closed = inside.chars().any(|letter| {
        depth += i32::from(letter == '{') - i32::from(letter == '}');
        depth < 0
    });
    (!is_closed).then_some(inside)
}

/// Reads a Kubeless trigger: a host, and the path below which requests reach the function.
fn kubeless(found: &mut Foreign, document: &Value) {
    let object = object_name(document);
    let spec = &document["spec"];
    let function = text(&spec["function-name"]).unwrap_or_default();
    let Some(to) = found.named(&object, &function) else { return };
    let known = ["function-name", "host-name", "path", "gateway", "tls", "tls-secret"];
    to.ignore_rest(spec, &known, &format!("{object}: spec."));
    let host = host(&spec["host-name"]);
    let path = filled(&spec["path"]).unwrap_or_default();
    if host.is_some() || !(path.is_empty() || to.has_path(None, &path)) {
        to.want(&object, host.as_deref(), &below(&path), &[]);
    }
}

/// Reads the ingresses of a Nuclio trigger of the kind `http`.
pub(super) fn nuclio(to: &mut Described, place: &str, ingresses: &Value) {
    for (name, one) in ingresses.as_object().into_iter().flatten() {
        let object = format!("{place}.{name}");
        let host = host(&one["host"]);
        if host.is_none() && filled(&one["hostTemplate"]).is_some() {
            to.warn(format!("{object}: mote does not fill in a hostTemplate: write host instead"));
            continue;
        }
        for key in ["annotations", "authenticationMode", "authentication", "secretName"] {
            if !one[key].is_null() && one[key] != "none" {
                to.warn(format!("ignored: {object}.{key}"));
            }
        }
        let paths = one["paths"].as_array();
        if paths.is_none() && !one["paths"].is_null() {
            to.warn(format!("{object}: paths is not a list, so it has no route"));
            continue;
        }
        let mut paths: Vec<String> = paths.into_iter().flatten().filter_map(text).collect();
        if paths.is_empty() && host.is_some() {
            paths.push("/".to_owned());
        }
        for path in paths {
            let path = if one["pathType"] == "Exact" { path } else { below(&path) };
            if !to.has_path(host.as_deref(), &path) {
                to.want(&object, host.as_deref(), &path, &[]);
            }
        }
    }
}

/// Reads a Kubernetes ingress: the rules whose services are functions of the file.
fn ingress(found: &mut Foreign, document: &Value) {
    let object = object_name(document);
    let rewrites = rewrites(&document["metadata"]["annotations"]);
    for rule in document["spec"]["rules"].as_array().into_iter().flatten() {
        let host = host(&rule["host"]);
        for one in rule["http"]["paths"].as_array().into_iter().flatten() {
            let backend = &one["backend"];
            let service =
                text(&backend["service"]["name"]).or_else(|| text(&backend["serviceName"]));
            let service = service.unwrap_or_default();
            // Nuclio puts a prefix before the names of its services.
            let own = service.strip_prefix("nuclio-").filter(|_| !found.has(&service));
            let Some(to) = found.named(&object, own.unwrap_or(&service)) else { continue };
            let path = filled(&one["path"]).unwrap_or_else(|| "/".to_owned());
            if rewrites {
                to.warn_of_whole_path(&object, &path);
            }
            let path = if one["pathType"] == "Exact" { path } else { below(&path) };
            if !to.has_path(host.as_deref(), &path) {
                to.want(&object, host.as_deref(), &path, &[]);
            }
        }
    }
    if document["spec"]["defaultBackend"].is_object() {
        found.warnings.push(format!("ignored: {object}: spec.defaultBackend"));
    }
}

/// Reads an OpenFaaS ingress: a domain, and a path that the platform cuts off.
fn function_ingress(found: &mut Foreign, document: &Value) {
    let object = object_name(document);
    let spec = &document["spec"];
    let function = text(&spec["function"]).unwrap_or_default();
    let Some(to) = found.named(&object, &function) else { return };
    let path = filled(&spec["path"]).unwrap_or_else(|| "/".to_owned());
    let domain = host(&spec["domain"]);
    to.warn_of_whole_path(&object, below(&path).trim_end_matches("/*"));
    to.want(&object, domain.as_deref(), &below(&path), &[]);
}

/// Reads a Knative domain mapping, whose name is the host.
fn domain_mapping(found: &mut Foreign, document: &Value) {
    let object = object_name(document);
    let service = text(&document["spec"]["ref"]["name"]).unwrap_or_default();
    let Some(to) = found.named(&object, &service) else { return };
    to.want(&object, filled(&document["metadata"]["name"]).as_deref(), "/*", &[]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_become_paths_of_routes() {
        for (written, expected, notes) in [
            ("/orders/{id}", "/orders/{id}", ""),
            (
                "/{userId}/{item-no}",
                "/{userid}/{item_no}",
                "the parameter item-no is named item_no",
            ),
            ("/files/{path:.*}", "/files/{path...}", ""),
            ("/{a:[^/]+}/b", "/{a}/b", ""),
            ("/{a:.+}/b", "/{a}/b", "{a:.+} matches any text: check a in the function"),
            (
                "/o/{id:[0-9]{3}}",
                "/o/{id}",
                "{id:[0-9]{3}} matches any text: check id in the function",
            ),
            (
                "/b/{html:[a-z./]+}",
                "/b/{html...}",
                "{html:[a-z./]+} matches any text: check html in the function",
            ),
            // These texts are not valid paths of routes. A later check refuses them.
            ("/{a}-{b}", "/{a}-{b}", ""),
            ("/x{a", "/x{a", ""),
        ] {
            assert_eq!(pattern(written), (expected.to_owned(), lines(notes)), "{written}");
        }
    }

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn prefixes_of_ingresses_become_rests() {
        for (path, expected) in [
            ("/", "/*"),
            ("", "/*"),
            ("/a", "/a/*"),
            ("/a/", "/a/*"),
            ("/a/.*", "/a/*"),
            ("/v1/a/(.*)", "/v1/a/*"),
            ("/a(/|$)(.*)", "/a/*"),
        ] {
            assert_eq!(below(path), expected, "{path}");
        }
    }
}
