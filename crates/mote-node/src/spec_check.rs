//! Checks whether this node can run what a spec asks for.

use mote_api::Problem;
use mote_core::FunctionSpec;
use mote_core::spec::Recipient;
use mote_outgoing::OutgoingError;

use super::{Node, schedules, secrets};

/// The checks of a spec that need no instance.
pub(super) fn check(node: &Node, spec: &FunctionSpec) -> Result<(), Problem> {
    if let Some(error) = spec.check().into_iter().next() {
        return Err(Problem::new(422, "M0303", error.to_string()).with_field(error.field));
    }
    let tokens = spec.tokens.as_deref().map_or(Ok(()), mote_jwt::check);
    if let Err((field, problem)) = tokens {
        return Err(Problem::new(422, "M0303", format!("access.{field}: {problem}")));
    }
    if let Some(Err((field, wanted))) = spec.webhook.as_deref().map(mote_webhook::check) {
        return Err(Problem::new(422, "M0303", format!("access.{field}: {wanted}")));
    }
    if spec.pod_kind().is_some() && !node.pods.as_ref().is_some_and(|pods| pods.are_known()) {
        let text = format!("{}: this node has no pods", spec.name);
        return Err(Problem::new(422, "M0417", text)
            .with_field("isolation")
            .with_hint("leave isolation out: the function then runs in a sandbox"));
    }
    let missing = match spec.runtime {
        mote_core::spec::Runtime::Python => node.interpreters.python.as_ref().err(),
        mote_core::spec::Runtime::Node => node.interpreters.node.as_ref().err(),
        _ => None,
    };
    let chain = match spec.runtime {
        mote_core::spec::Runtime::Chain => mote_shims::unpack_chain(node.store.root()).err(),
        _ => None,
    };
    if let Some(reason) = missing.or(chain.as_ref()) {
        let text = format!("{} cannot run here: {reason}", spec.name);
        return Err(Problem::new(422, "M0403", text).with_hint("see: mote doctor"));
    }
    if spec.limits.memory_bytes > node.memory_bytes {
        let text = format!(
            "memory: {} requested, but the node has {} for all instances",
            mote_core::fault::bytes_text(spec.limits.memory_bytes),
            mote_core::fault::bytes_text(node.memory_bytes)
        );
        return Err(Problem::new(422, "M0303", text).with_field("limits.memory"));
    }
    for (key, recipient) in recipients(spec) {
        if let Recipient::Url(url) = recipient
            && let Err(error @ OutgoingError::Address(_)) = node.outgoing.check_url(url)
        {
            let text = format!("{key}: {url:?}: {error}");
            return Err(Problem::new(422, "M0303", text).with_field(key));
        }
    }
    schedules::check(spec)?;
    secrets::check(&node.engine, spec)
}

fn recipients(spec: &FunctionSpec) -> impl Iterator<Item = (&'static str, &Recipient)> {
    let rules = &spec.background;
    let all = [("async.on_success", &rules.on_success), ("async.on_failure", &rules.on_failure)];
    all.into_iter().filter_map(|(key, recipient)| Some((key, recipient.as_ref()?)))
}

/// Recipients of results, and functions that this one calls, that do not work now, but may later.
pub(super) fn recipient_warnings(node: &Node, spec: &FunctionSpec) -> Vec<String> {
    let warning = |(key, recipient): (&str, &Recipient)| match recipient {
        Recipient::Function(name) => {
            let name = name.split('@').next().unwrap_or(name);
            let is_there = name == spec.name.as_str() || node.engine.get(name).is_some();
            (!is_there).then(|| format!("{key}: this node has no function {name} yet"))
        }
        Recipient::Url(url) => {
            let error = node.outgoing.check_url(url).err()?;
            Some(format!("{key}: {url}: {error}"))
        }
        Recipient::Topic(_) => None,
    };
    let missing = |name: &&String| {
        let is_name = mote_core::FunctionName::new(name).is_ok();
        is_name && name.as_str() != spec.name.as_str() && node.engine.get(name).is_none()
    };
    let missing: Vec<_> = spec.calls.iter().filter(missing).map(String::as_str).collect();
    let called = (!missing.is_empty())
        .then(|| format!("it may call {}, which this node does not have yet", missing.join(", ")));
    recipients(spec).filter_map(warning).chain(called).collect()
}
