//! Checks whether this node can run a function with a given spec.

use mote_api::Problem;
use mote_engine::Engine;
use mote_outgoing::{Outgoing, OutgoingError};
use mote_spec::policy::Balance;
use mote_spec::routes::{Segment, segments};
use mote_spec::{Access, FunctionSpec, Recipient, Runtime};

use super::{Node, schedules, secrets, wasm};
use crate::config::Config;

/// The processes and threads of an instance in Bun, which ends if it cannot start a thread. It starts
/// seven, and the first process of the sandbox counts too.
const PIDS_OF_BUN: u32 = 8;

/// Runs all checks of a spec that need no instance.
pub(super) fn check(node: &Node, spec: &FunctionSpec) -> Result<(), Problem> {
    let errors = spec.check();
    if let Some(first) = errors.first() {
        let all: Vec<String> = errors.iter().map(ToString::to_string).collect();
        return Err(Problem::new(422, "M0303", all.join("; ")).with_field(first.field));
    }
    let pids = spec.limits.pids;
    if spec.answered_by() == Runtime::Bun && pids < PIDS_OF_BUN {
        let text = format!("pids: {pids} is too few for bun, which starts {PIDS_OF_BUN}");
        let hint = format!("write pids = {PIDS_OF_BUN} or more in [limits], or leave it out");
        return Err(Problem::new(422, "M0303", text).with_field("limits.pids").with_hint(hint));
    }
    let tokens = spec.tokens.as_deref().map_or(Ok(()), mote_access::jwt::check);
    if let Err((field, problem)) = tokens {
        return Err(Problem::new(422, "M0303", format!("access.{field}: {problem}")));
    }
    if let Some(Err((field, wanted))) = spec.webhook.as_deref().map(mote_access::webhook::check) {
        return Err(Problem::new(422, "M0303", format!("access.{field}: {wanted}")));
    }
    // The node's default mode does not count, because the node may be started with another default.
    if spec.scale.balance == Balance::PerCaller && !mote_access::knows_callers(spec.access) {
        let name = &spec.name;
        let text = match spec.access {
            Access::Unset => format!("{name}: balance = \"per-caller\" needs [access] mode"),
            mode => {
                let mode = mode.as_str();
                format!("{name}: balance = \"per-caller\": the access mode {mode} names no callers")
            }
        };
        return Err(Problem::new(422, "M0303", text)
            .with_field("scale.balance")
            .with_hint("use the access mode key, basic, jwt or mtls, or balance = \"per-call\""));
    }
    let missing = match spec.runtime {
        Runtime::Python => node.opened.interpreters.python.as_ref().err(),
        Runtime::Node => node.opened.interpreters.node.as_ref().err(),
        Runtime::Bun => node.opened.interpreters.bun.as_ref().err(),
        Runtime::Deno => node.opened.interpreters.deno.as_ref().err(),
        _ => None,
    };
    let chain = match spec.runtime {
        Runtime::Chain => mote_build::shims::unpack_chain(node.opened.store.root()).err(),
        _ => None,
    };
    wasm::check(node, spec)?;
    if let Some(reason) = missing.or(chain.as_ref()) {
        let text = format!("{} cannot run here: {reason}", spec.name);
        return Err(Problem::new(422, "M0403", text).with_hint("see: mote doctor"));
    }
    if spec.limits.memory_bytes > node.data_path.memory_bytes {
        let text = format!(
            "memory: {} requested, but the node has {} for all instances",
            mote_core::fault::bytes_text(spec.limits.memory_bytes),
            mote_core::fault::rounded_bytes_text(node.data_path.memory_bytes)
        );
        let hint = "set [limits] memory, or the limit in the file of the function's platform, to less; \
                    or raise the node's setting memory";
        return Err(Problem::new(422, "M0303", text).with_field("limits.memory").with_hint(hint));
    }
    for (key, recipient) in recipients(spec) {
        if let Recipient::Url(url) = recipient
            && let Err(error @ OutgoingError::Address(_)) = node.outgoing.check_url(url)
        {
            let text = format!("{key}: {url:?}: {error}");
            return Err(Problem::new(422, "M0303", text).with_field(key));
        }
    }
    if let Err((field, wanted)) = mote_spec::routes::check(&spec.name, spec.routes()) {
        return Err(Problem::new(422, "M0303", format!("{field}: {wanted}")).with_field(field));
    }
    mote_tenants::namespaces::confined::check(node.outgoing.reach, spec)?;
    route_conflict(&node.data_path.engine, spec)?;
    node.deployed.ports.check(spec)?;
    schedules::check(spec)?;
    secrets::check(&node.data_path.engine, spec)
}

fn recipients(spec: &FunctionSpec) -> impl Iterator<Item = (&'static str, &Recipient)> {
    let rules = &spec.background;
    let all = [("async.on_success", &rules.on_success), ("async.on_failure", &rules.on_failure)];
    all.into_iter().filter_map(|(key, recipient)| Some((key, recipient.as_ref()?)))
}

/// Fails if a route of another function overlaps a route of `spec`.
pub(super) fn route_conflict(engine: &Engine, spec: &FunctionSpec) -> Result<(), Problem> {
    let Some((rule, other)) = engine.route_conflict(spec) else { return Ok(()) };
    let host = rule.host.unwrap_or_default();
    // Owners of a namespace must not learn the names of functions in other namespaces.
    let other = match other.namespace() == spec.name.namespace() {
        true => format!("the function {other}"),
        false => "another function of the node".to_owned(),
    };
    let text = format!(
        "{}: {other} already has a route at {host}{} with a common method",
        spec.name, rule.path
    );
    let hint = "remove one of the two routes, or give them different hosts, paths, or methods";
    Err(Problem::new(409, "M0422", text).with_field("route").with_hint(hint))
}

/// Returns a warning if the permitted origins have no effect.
pub(super) fn cors_warning(config: &Config, spec: &FunctionSpec) -> Option<String> {
    spec.http.as_ref()?.cors.as_ref()?;
    (config.access_of(spec.access) == Access::Local).then(|| {
        "http.cors: pages of other origins stay refused, because only this machine may call the \
         function; set [access] mode = \"public\" or \"key\""
            .to_owned()
    })
}

/// Warnings about routes without an effect: routes of `spec` that another function's name hides,
/// because paths below `/NAME` belong to the function NAME; routes of other functions that this
/// function's name hides; and routes with a host if other machines may not call the function.
pub(super) fn route_warnings(engine: &Engine, config: &Config, spec: &FunctionSpec) -> Vec<String> {
    let everywhere = |spec: &FunctionSpec| {
        let rules = spec.routes().iter().filter(|rule| rule.host.is_none());
        rules.map(|rule| rule.path.clone()).collect::<Vec<_>>()
    };
    let first = |path: &str| match segments(path).next() {
        Some(Segment::Literal(first)) => Some(first.to_owned()),
        _ => None,
    };
    let is_known = |other: &FunctionSpec| other.name.namespace() == spec.name.namespace();
    let hidden = |path: &String| {
        let other = first(path).filter(|first| first != spec.name.as_str())?;
        let other = engine.get(&other).filter(|other| is_known(&other.spec))?;
        Some(format!(
            "the route {path} has no effect, because the function {0} answers below /{0}",
            other.spec.name
        ))
    };
    let mut warnings: Vec<String> = everywhere(spec).iter().filter_map(hidden).collect();
    let host = spec.routes().iter().find_map(|rule| rule.host.as_ref());
    let host = host.filter(|_| config.access_of(spec.access) == Access::Local);
    warnings.extend(host.map(|host| {
        format!(
            "route {host}: the node will answer 403 to requests for this host, because only this machine may call the function; set [access] mode = \"public\" or \"key\""
        )
    }));
    if engine.get(spec.name.as_str()).is_none() {
        for live in engine.list().into_iter().filter(|live| is_known(&live.spec)) {
            let own = everywhere(&live.spec);
            for path in own.iter().filter(|path| first(path).as_deref() == Some(spec.name.as_str()))
            {
                let text = format!(
                    "the new function {} hides the route {path} of the function {}",
                    spec.name, live.spec.name
                );
                warnings.push(text);
            }
        }
    }
    warnings
}

/// Warnings about recipients of results and about called functions that do not work yet but may
/// work later.
pub(super) fn recipient_warnings(
    engine: &Engine,
    outgoing: &Outgoing,
    spec: &FunctionSpec,
) -> Vec<String> {
    let full = |name: &str| mote_spec::name::joined(name, spec.name.namespace());
    let warning = |(key, recipient): (&str, &Recipient)| match recipient {
        Recipient::Function(name) => {
            let name = name.split('@').next().unwrap_or(name);
            let is_there = name == spec.name.label() || engine.get(&full(name)).is_some();
            (!is_there).then(|| format!("{key}: this node has no function {name} yet"))
        }
        Recipient::Url(url) => {
            let error = outgoing.check_url(url).err()?;
            Some(format!("{key}: {url}: {error}"))
        }
        Recipient::Topic(_) => None,
    };
    let missing = |name: &&String| {
        let is_name = mote_spec::FunctionName::new(name).is_ok();
        is_name && name.as_str() != spec.name.label() && engine.get(&full(name)).is_none()
    };
    let missing: Vec<_> = spec.calls.iter().filter(missing).map(String::as_str).collect();
    let called = (!missing.is_empty())
        .then(|| format!("it may call {}, which this node does not have yet", missing.join(", ")));
    recipients(spec).filter_map(warning).chain(called).collect()
}
