//! Finds the code that an `image` means. A node has no registry, so an image stands for code that is
//! already on the node.
//!
//! `mote deploy` uploads code to a node, and `faas-cli deploy` selects which of that code runs and how.
//! The rules apply in this order: `mote://NAME` is the code of the function NAME; a name that
//! `stack.yml` gave to a function means that function; otherwise the last part of the image's name is
//! the name of a function. Tags and digests are not compared. `alpine`, `functions/alpine` and similar
//! images with an `fprocess` are programs of this machine.

use crate::compat::node::{Code, Function};
use mote_spec::FunctionName;

use super::types::Shown;

/// The prefix of an image that names a function of the node.
const SCHEME: &str = "mote://";
/// The image that stands for programs of this machine.
const PROGRAMS: &str = "alpine";

/// Returns the code that `image` names among all functions of a namespace. If there is no such code,
/// returns the reason.
pub(crate) fn code(image: &str, has_process: bool, all: &[Function]) -> Result<Code, String> {
    let named = |name: &str| {
        let is_it = |known: &FunctionName| known.label() == name || known.as_str() == name;
        all.iter().find(|function| is_it(&function.spec.name))
    };
    let of = |function: &Function| Ok(Code::Of(function.spec.name.clone()));
    if let Some(name) = image.strip_prefix(SCHEME) {
        return match named(name) {
            Some(function) => of(function),
            None => Err(format!("image {SCHEME}{}: no such function", cut(name))),
        };
    }
    let wanted = repository(image);
    let same = |function: &&Function| {
        Shown::of(function).image.is_some_and(|known| repository(&known) == wanted)
    };
    let last = wanted.rsplit('/').next().unwrap_or_default();
    if let Some(function) = all.iter().find(same).or_else(|| named(last)) {
        return of(function);
    }
    if last == PROGRAMS && has_process {
        let text = b"This function runs a program of the machine.\n".to_vec();
        return Ok(Code::Files(vec![("about.txt".to_owned(), text)]));
    }
    let name = if FunctionName::new(last).is_ok() { last } else { "NAME" };
    Err(format!(
        "image {}: its code is not on this node, which has no registry. Deploy the code with mote deploy \
         stack.yml, or with mote deploy FOLDER --name {name}, and repeat this deploy",
        cut(image)
    ))
}

/// Returns the name of an image without its tag and digest.
fn repository(image: &str) -> &str {
    let name = image.split_once('@').map_or(image, |(name, _)| name);
    let after_host = name.rfind('/').map_or(0, |at| at + 1);
    match name[after_host..].find(':') {
        Some(at) => &name[..after_host + at],
        None => name,
    }
}

fn cut(text: &str) -> String {
    text.chars().take(128).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use mote_spec::{FunctionSpec, Runtime};

    use super::*;

    fn function(name: &str, image: Option<&str>) -> Function {
        let name = FunctionName::new(name).expect("a name");
        let mut spec = FunctionSpec::with_defaults(name, Runtime::Python, "handler:handle");
        if let Some(image) = image {
            let json = format!("{{\"image\": \"{image}\"}}");
            spec.annotations = BTreeMap::from([(Shown::KEY.to_owned(), json)]);
        }
        Function {
            spec,
            revision: 1,
            created_unix_ms: 0,
            instances: 0,
            ready: 0,
            instance_ids: Vec::new(),
            http_url: None,
            calls: 0,
            memory_bytes: 0,
            failure: None,
        }
    }

    #[test]
    fn images_name_code() {
        let all = [function("a", None), function("b", Some("ghcr.io:443/me/other:1.0"))];
        for (image, expected) in [
            ("mote://a", Some("a")),
            ("mote://c", None),
            ("a", Some("a")),
            ("a:latest", Some("a")),
            ("localhost:5000/me/a:1@sha256:00", Some("a")),
            ("ghcr.io:443/me/other:2.0", Some("b")),
            ("ghcr.io/me/other", None),
            ("functions/alpine:latest", None),
            ("", None),
        ] {
            let found = match code(image, false, &all) {
                Ok(Code::Of(name)) => Some(name.to_string()),
                _ => None,
            };
            assert_eq!(found.as_deref(), expected, "{image}");
        }
        assert!(matches!(code("functions/alpine:latest", true, &all), Ok(Code::Files(_))));
    }
}
