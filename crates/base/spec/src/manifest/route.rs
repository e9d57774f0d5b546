//! Reads `[[route]]`: hosts and paths at which a function answers.

use crate::toml_reader::TomlReader;

use super::{FunctionManifest, Lined, Section, TOP_KEYS, read_methods};

pub(super) const KEYS: [&str; 5] = ["host", "path", "methods", "redirect", "status"];
/// A permanent redirect that keeps the method and the body of the request (RFC 9110, 15.4.9).
const STATUS_DEFAULT: u16 = 308;

/// One `[[route]]`. Its host, path and redirect address are not yet checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RouteManifest {
    /// `host`, in lower case.
    pub host: Option<String>,
    /// `path`.
    pub path: String,
    /// `methods`. An empty list means all methods.
    pub methods: Vec<String>,
    /// `redirect` and `status`.
    pub redirect: Option<(String, u16)>,
}

pub(super) fn read(reader: &mut TomlReader<'_>, at: &Section<'_>, function: &mut FunctionManifest) {
    let Some((value, line)) = reader.get(at, "route") else { return };
    let Some(routes) = value.as_array() else {
        return reader.wrong_type("route", line, "sections [[route]]", value);
    };
    for route in routes {
        let line = reader.line(route.span().start);
        let Some(table) = route.get_ref().as_table() else {
            reader.wrong_type("route", line, "a section [[route]]", route.get_ref());
            continue;
        };
        let section = reader.section(table, "[[route]]", "that route");
        reader.check_keys(&section, &KEYS, &[], &TOP_KEYS);
        let host = reader.string(&section, "host", "a host, e.g. \"shop.example.org\"");
        let path = reader.string(&section, "path", "a path, e.g. \"/orders/{id}\"");
        if reader.get(&section, "path").is_none() {
            reader.mistake("M0306", line, "a [[route]] needs path, e.g. \"/orders/{id}\"", None);
        }
        let redirect = reader.string(&section, "redirect", "a path or a URL, e.g. \"/new/{id}\"");
        let status = reader.integer(&section, "status", 301..=308);
        if let (None, Some(status)) = (&redirect, &status) {
            let text = "`status` belongs to a route with redirect";
            reader.mistake("M0303", status.line, text, None);
        }
        let status = status.map_or(STATUS_DEFAULT, |status| status.value as u16);
        let value = RouteManifest {
            host: host.map(|host| host.value.to_ascii_lowercase()),
            path: path.map_or_else(String::new, |path| path.value),
            methods: read_methods(reader, &section).unwrap_or_default(),
            redirect: redirect.map(|redirect| (redirect.value, status)),
        };
        function.routes.push(Lined { value, line });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Manifest;

    fn read(text: &str) -> Result<Vec<RouteManifest>, String> {
        let manifest = Manifest::parse("mote.toml", &format!("version = 1\n{text}"));
        let mut manifest = manifest.map_err(|mistakes| mistakes.to_string())?;
        Ok(manifest.functions.remove(0).routes.into_iter().map(|route| route.value).collect())
    }

    #[test]
    fn routes_are_read_in_both_forms() {
        for label in ["route", "function.a.route"] {
            let text = format!(
                "[[{label}]]\nhost = \"Shop.example.org\"\npath = \"/orders/{{id}}\"\n\
                 methods = [\"GET\"]\n[[{label}]]\npath = \"/old\"\nredirect = \"/new\"\n\
                 [[{label}]]\npath = \"/moved\"\nredirect = \"/new\"\nstatus = 302\n"
            );
            let routes = read(&text).expect("valid");
            assert_eq!(routes[0].host.as_deref(), Some("shop.example.org"));
            assert_eq!(routes[0].methods, ["GET"]);
            assert_eq!(routes[1].redirect, Some(("/new".to_owned(), 308)));
            assert_eq!(routes[2].redirect, Some(("/new".to_owned(), 302)));
        }
    }

    #[test]
    fn mistakes_name_their_line() {
        for (text, wanted) in [
            ("[route]\npath = \"/a\"\n", "route: sections [[route]]"),
            ("[[route]]\nhost = \"a.org\"\n", "a [[route]] needs path"),
            ("[[route]]\npath = \"/a\"\nstatus = 301\n", "`status` belongs to"),
            ("[[route]]\npath = \"/a\"\nmethod = \"GET\"\n", "method"),
            ("[[route]]\npath = 1\n", "path: a path"),
            ("[[route]]\npath = \"/a\"\nredirect = \"/b\"\nstatus = 200\n", "status"),
        ] {
            let mistakes = read(text).expect_err(text);
            assert!(mistakes.contains(wanted) && mistakes.contains("line "), "{text}: {mistakes}");
        }
    }
}
