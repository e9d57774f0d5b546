//! Warnings of a deploy about who may call a function.

use mote_access::Guard;
use mote_spec::name::kept;
use mote_spec::{Access, FunctionSpec};
use mote_tenants::namespaces::flag;

use super::Node;
use crate::config::Config;

/// Returns a warning with a remedy if no caller can call the function, or if only callers on this
/// machine can although other machines reach the node.
pub(super) fn warning(node: &Node, spec: &FunctionSpec) -> Option<String> {
    let name = spec.name.as_str();
    match node.config.access_of(spec.access) {
        Access::Key | Access::Basic if !node.callers.guard.opens(name) => Some(format!(
            "no key opens {name} yet; make one: mote key create CALLER --function {}{}",
            spec.name.label(),
            flag(spec.name.namespace())
        )),
        Access::Local if node.config.lan && spec.access == Access::Unset => Some(format!(
            "other machines cannot call {name}; to open it, deploy it with a mote.toml that has a \
             section [access] with mode = \"key\" or mode = \"public\", or with mote deploy --access"
        )),
        Access::Webhook => {
            let secret = &spec.webhook.as_ref()?.secret;
            let kept = kept(secret, spec.name.namespace());
            node.data_path.engine.secrets().value_bytes(&kept).is_none().then(|| {
                format!(
                    "this node has no secret {secret}, so {name} refuses all requests; set it: \
                     mote secret set {secret}{}",
                    flag(spec.name.namespace())
                )
            })
        }
        Access::Mtls if !node.checks_certificates() => {
            Some(match node.config.checks_certificates() {
                true => format!(
                    "{name} refuses all requests: CoAP over DTLS cannot ask clients for \
                     certificates, because this node has no certificate with a key on the curve \
                     P-256 or P-384 and at most 4 KiB; add one to the folder in the setting \
                     certificates"
                ),
                false => format!(
                    "this node checks no certificates of clients, so {name} refuses all requests; \
                     turn on https, coap_tls or coap_dtls, and name the authorities in client_ca"
                ),
            })
        }
        Access::Jwt => node.callers.guard.issuers().warning(spec.tokens.as_ref()?, &node.outgoing),
        _ => None,
    }
}

/// Returns a warning if a deploy changes who may call the function.
pub(super) fn change(
    config: &Config,
    before: &FunctionSpec,
    after: &FunctionSpec,
) -> Option<String> {
    let name = &after.name;
    let [before, now] = [before, after].map(|spec| config.access_of(spec.access).as_str());
    (before != now).then(|| format!("the access mode of {name} changes from {before} to {now}"))
}

/// Returns a warning if callers receive 503 because the keys of the function's issuer are not known
/// yet.
pub(super) fn unknown_issuer(guard: &Guard, spec: &FunctionSpec) -> Option<String> {
    let reason = guard.issuers().unknown(spec.tokens.as_ref()?)?;
    Some(format!("callers of {} receive 503 (M0528) for now: {reason}", spec.name))
}
