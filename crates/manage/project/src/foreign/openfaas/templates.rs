//! OpenFaaS' templates, by the names that `lang` has in `stack.yml`.
//!
//! An official template may have variants for a processor or a base image, which run like the template
//! itself. Every other name belongs to a user's own template, whose contract can only be inferred from
//! its handler.

use std::path::Path;

use mote_spec::TEMPLATE_GO_CLASSIC;
use mote_spec::manifest::{PlatformName, RuntimeName};

use super::super::super::contract;
use super::super::super::probe::Folder;

/// Endings of official names that change the image but not the contract.
const VARIANTS: [&str; 8] =
    ["-armhf", "-arm64", "-debian", "-alpine", "-slim", "-distroless", "-inproc", "-express"];

/// An official template. It determines how its handlers are called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Template {
    pub(super) runtime: RuntimeName,
    /// The value of `template`, if the language alone does not determine the contract.
    pub(super) name: Option<&'static str>,
}

/// The kinds of templates that a `lang` can name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Named {
    Official(Template),
    /// A template whose handler receives a complete Express app.
    Service,
    /// A user's own template. Its language has official templates, of which this is the nearest.
    Own(&'static str),
    /// Another language, or a program with `fprocess`.
    Other,
}

const fn template(runtime: RuntimeName, name: Option<&'static str>) -> Named {
    Named::Official(Template { runtime, name })
}

/// Returns the template that `lang` names. `lang` must be in lower case.
pub(super) fn named(lang: &str) -> Named {
    let mut base = lang;
    while let Some(shorter) = VARIANTS.iter().find_map(|variant| base.strip_suffix(variant)) {
        base = shorter;
    }
    let is_digit = |c: char| c.is_ascii_digit() || c == '.';
    if let Some(rest) = base.strip_prefix("python") {
        return match rest.trim_start_matches(is_digit) {
            _ if rest.starts_with('2') => Named::Other,
            "" => template(RuntimeName::Python, Some("python3")),
            "-flask" => template(RuntimeName::Python, Some("python3-flask")),
            "-http" => template(RuntimeName::Python, Some("python3-http")),
            _ => Named::Own("python3-http"),
        };
    }
    if let Some(rest) = base.strip_prefix("node") {
        return match rest.trim_start_matches(is_digit) {
            // This is the oldest template. Its handlers take (context, callback).
            "" if rest.is_empty() => template(RuntimeName::Node, Some("node")),
            "" => template(RuntimeName::Node, None),
            _ if base.ends_with("-service") => Named::Service,
            _ => Named::Own("node22"),
        };
    }
    match base {
        TEMPLATE_GO_CLASSIC => template(RuntimeName::Go, Some(TEMPLATE_GO_CLASSIC)),
        "golang-http" | "golang-middleware" => template(RuntimeName::Go, None),
        _ if base == "golang" || base.starts_with("golang-") || base.starts_with("go-") => {
            Named::Own("golang-middleware")
        }
        _ => Named::Other,
    }
}

/// Finds the official template whose handlers have the same arguments as the handler in a folder. Also
/// returns those arguments as text. `handle(req)` is not enough to decide, because several templates
/// use it with different requests.
pub(super) fn by_handler(folder: &Path) -> Option<(Template, String)> {
    let found = contract::infer(&Folder::read(folder).ok()?)?;
    let function = found.function;
    let runtime = function.runtime?.value;
    let is_open_faas = function.compat.is_some_and(|one| one.value == PlatformName::OpenFaas);
    let name = match function.template.as_ref().map(|one| &*one.value) {
        None => None,
        Some("python3-http") => Some("python3-http"),
        Some("node") => Some("node"),
        Some(TEMPLATE_GO_CLASSIC) => Some(TEMPLATE_GO_CLASSIC),
        Some(_) => return None,
    };
    is_open_faas.then_some((Template { runtime, name }, found.why))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(lang: &str, expected: Named) {
        assert_eq!(named(lang), expected, "{lang}");
    }

    #[test]
    fn variants_of_official_templates_have_the_contract_of_the_template() {
        use RuntimeName::{Go, Node, Python};
        for (langs, runtime, name) in [
            ("python python3 python3-armhf python-armhf python3-debian", Python, Some("python3")),
            (
                "python3-flask python3-flask-armhf python3-flask-debian",
                Python,
                Some("python3-flask"),
            ),
            (
                "python3-http python3-http-armhf python3.12-http-debian",
                Python,
                Some("python3-http"),
            ),
            ("node node-armhf node-arm64", Node, Some("node")),
            ("node10 node12-debian node22 node10-express node8-express-armhf", Node, None),
            ("go go-armhf", Go, Some("go")),
            ("golang-http golang-http-armhf golang-middleware-distroless", Go, None),
            ("golang-middleware-inproc golang-middleware-armhf", Go, None),
        ] {
            for lang in langs.split(' ') {
                check(lang, template(runtime, name));
            }
        }
    }

    #[test]
    fn names_that_only_begin_like_official_ones() {
        for lang in ["python3-fastapi", "python3-fastapi-debian", "python3-http-es", "pythonista"] {
            check(lang, Named::Own("python3-http"));
        }
        for lang in ["node-armhf-multiarch", "node10-lambda", "nodejs"] {
            check(lang, Named::Own("node22"));
        }
        for lang in ["golang-es", "golang", "golang-cloudevents", "go-custom"] {
            check(lang, Named::Own("golang-middleware"));
        }
        check("node10-express-service", Named::Service);
        for lang in ["python27", "python2-flask", "dockerfile", "gopher", "rust", ""] {
            check(lang, Named::Other);
        }
    }
}
