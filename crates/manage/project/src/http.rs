//! Converts `[http]` and `[[route]]` of a manifest to the rules of a spec.

use std::path::Path;

use mote_spec::manifest::{FunctionManifest, RouteManifest};
use mote_spec::routes::{Redirect, RouteRule};
use mote_spec::toml_reader::{Lined, Mistakes};
use mote_spec::{Cors, HttpRules, StaticFiles, is_below};

use crate::mistakes::{escaped, in_manifest};

/// Returns the rules for HTTP requests; `None` if the manifest of the function `name` contains no
/// rules.
pub(crate) fn rules(
    function: &FunctionManifest,
    name: &str,
) -> Result<Option<Box<HttpRules>>, Mistakes> {
    let rules = function.http_rules.clone();
    let cors = rules.cors.map(|cors| Cors {
        origins: cors.origins,
        methods: cors.methods,
        headers: cors.headers,
        expose: cors.expose,
        credentials: cors.credentials,
        max_age_s: cors.max_age_s,
    });
    let mut routes = Vec::new();
    // Every function has the path `/NAME` without a route, so that path is left out.
    let other = function.http.iter().filter(|http| http.value.strip_prefix('/') != Some(name));
    for Lined { value, line } in other {
        let rule = RouteRule { path: value.clone(), ..RouteRule::default() };
        routes.push(checked(rule, "http", *line)?);
    }
    for Lined { value, line } in &function.routes {
        let RouteManifest { host, path, methods, redirect } = value.clone();
        let redirect = redirect.map(|(to, status)| Redirect { to, status });
        routes.push(checked(RouteRule { host, path, methods, redirect }, "", *line)?);
    }
    let files = function.static_files.as_ref().map(|files| StaticFiles {
        folder: files.folder.0.trim_end_matches('/').to_owned(),
        fallback: files.fallback.as_ref().map(|(file, _)| file.clone()),
        cache_s: files.cache_s,
    });
    let compress = function.http_rules.compress;
    let headers = rules.headers;
    let node_port = rules.node_port;
    let rules = HttpRules { headers, node_port, routes, cors, compress, files };
    Ok((rules != HttpRules::default()).then(|| Box::new(rules)))
}

/// Returns the rule if it can be obeyed. `key` names the rule where the manifest does not use
/// `[[route]]`.
fn checked(rule: RouteRule, key: &str, line: usize) -> Result<RouteRule, Mistakes> {
    let Some((field, wanted)) = mote_spec::routes::mistake(&rule) else { return Ok(rule) };
    let field = if key.is_empty() { field.trim_start_matches("route.") } else { key };
    Err(in_manifest("M0303", line, &format!("{field}: {wanted}")))
}

/// Refuses `[static]` if the folder or file that it names is not in `root`, the folder of the function.
pub(crate) fn check_files(function: &FunctionManifest, root: &Path) -> Result<(), Mistakes> {
    let Some(files) = &function.static_files else { return Ok(()) };
    let (folder, line) = &files.folder;
    let folder = folder.trim_end_matches('/');
    if !is_below(folder) || !root.join(folder).is_dir() {
        let text = format!("folder: there is no folder {} next to the code", escaped(folder));
        return Err(in_manifest("M0303", *line, &text));
    }
    match &files.fallback {
        Some((file, line)) if !is_below(file) || !root.join(folder).join(file).is_file() => {
            let text = format!("fallback: there is no file {} in that folder", escaped(file));
            Err(in_manifest("M0303", *line, &text))
        }
        _ => Ok(()),
    }
}
