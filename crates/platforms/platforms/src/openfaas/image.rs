//! Finds the code that an `image` means: code that is already on the node, or a container image.
//!
//! `mote deploy` uploads code to a node, and `faas-cli deploy` selects which of that code runs and
//! how. The rules apply in this order. `mote://NAME` is the code of the function NAME. A name that
//! `stack.yml` gave to a function with code means that function. The last part of the image's name
//! may be the name of such a function. `alpine`, `functions/alpine` and similar images with an
//! `fprocess` are programs of this machine. Every other image is pulled. Tags and digests are
//! compared only by the registry.

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
    let has_code = |function: &&Function| function.spec.image.is_none();
    let same = |function: &&Function| {
        has_code(function)
            && Shown::of(function).image.is_some_and(|known| repository(&known) == wanted)
    };
    let last = wanted.rsplit('/').next().unwrap_or_default();
    if let Some(function) = all.iter().find(same).or_else(|| named(last).filter(has_code)) {
        return of(function);
    }
    if last == PROGRAMS && has_process {
        let text = b"This function runs a program of the machine.\n".to_vec();
        return Ok(Code::Files(vec![("about.txt".to_owned(), text)]));
    }
    match image.trim() {
        "" => Err("image: the deployment names none".to_owned()),
        _ => Ok(Code::Image),
    }
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

    use mote_spec::{FunctionImage, FunctionSpec, Runtime};

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
        let mut pulled = function("pulled", Some("ghcr.io/me/pulled:1"));
        pulled.spec.image = Some(Box::new(FunctionImage::named("ghcr.io/me/pulled:1")));
        let all = [function("a", None), function("b", Some("ghcr.io:443/me/other:1.0")), pulled];
        for (image, expected) in [
            ("mote://a", Some("a")),
            ("mote://c", None),
            ("a", Some("a")),
            ("a:latest", Some("a")),
            ("localhost:5000/me/a:1@sha256:00", Some("a")),
            ("ghcr.io:443/me/other:2.0", Some("b")),
            ("ghcr.io/me/other", Some("an image")),
            ("functions/alpine:latest", Some("an image")),
            ("ghcr.io/me/pulled:2", Some("an image")),
            ("", None),
        ] {
            let found = match code(image, false, &all) {
                Ok(Code::Of(name)) => Some(name.to_string()),
                Ok(Code::Image) => Some("an image".to_owned()),
                _ => None,
            };
            assert_eq!(found.as_deref(), expected, "{image}");
        }
        assert!(matches!(code("functions/alpine:latest", true, &all), Ok(Code::Files(_))));
    }
}
