//! Finds the function that answers at a host and a path. The routes of all functions are in one
//! table.
//!
//! A path is compared segment by segment. Fixed text is tried before a parameter, and a parameter
//! before a pattern for the rest of the path. If one branch has no match, the search tries the next
//! branch. The exact host is tried first. Then the `*.` hosts are tried, longest first. The search
//! visits each node of the tree at most once, so its work is limited by the number of routes.

use std::borrow::Cow;
use std::collections::HashMap;

use percent_encoding::percent_decode;

use super::lookup::{Among, Asked, Found};
use super::rule::RouteRule;
use super::rules::{Segment, segments};
use crate::name::FunctionName;

/// The routes of all functions of a node.
#[derive(Debug, Default)]
pub struct RouteTable {
    everywhere: Tree,
    hosts: HashMap<String, Tree>,
    /// The endings of `*.` hosts, each with its leading dot (`.example.org`), longest first.
    endings: Vec<(String, Tree)>,
}

/// The routes whose paths share the same beginning.
#[derive(Debug, Default)]
struct Tree {
    literals: HashMap<Vec<u8>, Tree>,
    one: Option<Box<Tree>>,
    here: Vec<Entry>,
    rest: Vec<Entry>,
}

/// The routes that a search accepts.
#[derive(Debug, Clone, Copy)]
struct Wanted<'a> {
    /// Routes with this method.
    method: &'a [u8],
    /// Routes of the function with this name; `None` for the routes of all functions.
    of: Option<&'a [u8]>,
}

#[derive(Debug)]
struct Entry {
    function: FunctionName,
    rule: RouteRule,
}

impl RouteTable {
    /// Adds the routes in order. Stops at the first route that overlaps a route in the table, even
    /// one of the same function. Returns that route, and the name of the function whose route it
    /// overlaps. Routes that were added before stay in the table.
    pub fn add(
        &mut self,
        function: &FunctionName,
        rules: &[RouteRule],
    ) -> Result<(), (RouteRule, FunctionName)> {
        for rule in rules {
            let tree = match rule.host.as_deref().map(|host| (host, host.strip_prefix('*'))) {
                None => &mut self.everywhere,
                Some((host, None)) => self.hosts.entry(host.to_owned()).or_default(),
                Some((_, Some(ending))) => {
                    let at = self.endings.iter().position(|(other, _)| other == ending);
                    let at = at.unwrap_or_else(|| {
                        let longer = |(other, _): &(String, Tree)| other.len() > ending.len();
                        let at = self.endings.partition_point(longer);
                        self.endings.insert(at, (ending.to_owned(), Tree::default()));
                        at
                    });
                    &mut self.endings[at].1
                }
            };
            let entries = tree.entries(&rule.path);
            if let Some(other) = entries.iter().find(|other| overlap(&other.rule, rule)) {
                return Err((rule.clone(), other.function.clone()));
            }
            entries.push(Entry { function: function.clone(), rule: rule.clone() });
        }
        Ok(())
    }

    /// Whether any route names a host.
    pub fn has_hosts(&self) -> bool {
        !self.hosts.is_empty() || !self.endings.is_empty()
    }

    /// Finds the route of a request.
    pub fn find(&self, asked: &Asked<'_>) -> Found {
        match asked.among {
            Among::Hosts => self.find_at_host(asked),
            Among::BelowName | Among::Everywhere => {
                let mut others = Vec::new();
                let found = self.everywhere.search(asked, &mut others);
                found.unwrap_or_else(|| of_others(others))
            }
        }
    }

    fn find_at_host(&self, asked: &Asked<'_>) -> Found {
        let Ok(host) = str::from_utf8(asked.host) else { return Found::Nothing };
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
            _ => host,
        };
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        if name.split('.').any(str::is_empty) {
            return Found::Nothing;
        }
        let exact = self.hosts.get(&name);
        let endings = self.endings.iter().filter(|(ending, _)| name.ends_with(ending.as_str()));
        let mut all = exact.into_iter().chain(endings.map(|(_, tree)| tree));
        let mut others = Vec::new();
        let found = all.find_map(|tree| tree.search(asked, &mut others));
        found.unwrap_or_else(|| of_others(others))
    }
}

fn of_others(mut methods: Vec<String>) -> Found {
    methods.sort_unstable();
    methods.dedup();
    if methods.is_empty() { Found::Nothing } else { Found::OtherMethod(methods) }
}

fn permits(rule: &RouteRule, method: &[u8]) -> bool {
    let has = |wanted: &[u8]| rule.methods.iter().any(|other| other.as_bytes() == wanted);
    rule.methods.is_empty() || has(method) || (method == b"HEAD" && has(b"GET"))
}

fn overlap(a: &RouteRule, b: &RouteRule) -> bool {
    let takes_some = |one: &RouteRule, other: &RouteRule| {
        other.methods.iter().any(|method| permits(one, method.as_bytes()))
    };
    a.methods.is_empty() || b.methods.is_empty() || takes_some(a, b) || takes_some(b, a)
}

impl Tree {
    /// The list of routes with this path. Makes the list if it does not exist.
    fn entries(&mut self, path: &str) -> &mut Vec<Entry> {
        let mut at = self;
        for segment in segments(path) {
            at = match segment {
                Segment::Literal(text) => at.literals.entry(text.into()).or_default(),
                Segment::One(_) => at.one.get_or_insert_default(),
                Segment::Rest(_) => return &mut at.rest,
            };
        }
        &mut at.here
    }

    /// Finds the route of a request in this tree. `others` collects the methods of routes that
    /// match the path but not the method.
    fn search(&self, asked: &Asked<'_>, others: &mut Vec<String>) -> Option<Found> {
        let path = asked.path.strip_prefix(b"/").unwrap_or(asked.path);
        let path = path.strip_suffix(b"/").unwrap_or(path);
        let mut all = Vec::new();
        if !asked.first.is_empty() || !path.is_empty() {
            all.push(asked.first);
        }
        if !path.is_empty() {
            all.extend(path.split(|byte| *byte == b'/'));
        }
        let entry = match (asked.among, all.split_first()) {
            (Among::BelowName, Some((first, below))) => {
                let wanted = Wanted { method: asked.method, of: Some(first) };
                self.literals.get(*first)?.entry(below, wanted, others)?
            }
            _ => self.entry(&all, Wanted { method: asked.method, of: None }, others)?,
        };
        let parameters = parameters(&entry.rule, &all);
        Some(match &entry.rule.redirect {
            None => Found::Function(entry.function.clone(), query(&parameters)),
            Some(redirect) => {
                let to = filled(&redirect.to, &parameters);
                Found::Redirect(entry.function.clone(), to, redirect.status)
            }
        })
    }

    fn entry(
        &self,
        path: &[&[u8]],
        wanted: Wanted<'_>,
        others: &mut Vec<String>,
    ) -> Option<&Entry> {
        let of = |entries: &'_ [Entry], others: &mut Vec<String>| -> Option<usize> {
            let is_of = |entry: &Entry| {
                wanted.of.is_none_or(|name| entry.function.as_str().as_bytes() == name)
            };
            let is_wanted = |entry: &Entry| is_of(entry) && permits(&entry.rule, wanted.method);
            let found = entries.iter().position(is_wanted);
            if found.is_none() {
                others.extend(entries.iter().flat_map(|entry| entry.rule.methods.clone()));
            }
            found
        };
        let Some((first, below)) = path.split_first() else {
            return match of(&self.here, others) {
                Some(at) => Some(&self.here[at]),
                None => of(&self.rest, others).map(|at| &self.rest[at]),
            };
        };
        let text: Cow<'_, [u8]> = percent_decode(first).into();
        let literal = self.literals.get(text.as_ref());
        if let Some(found) = literal.and_then(|tree| tree.entry(below, wanted, others)) {
            return Some(found);
        }
        // An empty segment cannot be the value of a parameter.
        let one = self.one.as_ref().filter(|_| !first.is_empty());
        if let Some(found) = one.and_then(|tree| tree.entry(below, wanted, others)) {
            return Some(found);
        }
        of(&self.rest, others).map(|at| &self.rest[at])
    }
}

/// The names of the parameters, with their values as they occur in the path.
fn parameters<'r>(rule: &'r RouteRule, path: &[&[u8]]) -> Vec<(&'r str, Vec<u8>)> {
    let named = segments(&rule.path).enumerate().filter_map(|(at, part)| match part {
        Segment::Literal(_) => None,
        Segment::One(name) => Some((name, path.get(at)?.to_vec())),
        Segment::Rest(name) => Some((name, path.get(at..).unwrap_or_default().join(&b'/'))),
    });
    named.collect()
}

/// Writes the parameters as a query. In a query, some signs separate parameters or mean a space. A
/// path may contain such signs, so they are encoded.
fn query(parameters: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut text = Vec::new();
    for (name, value) in parameters {
        if !text.is_empty() {
            text.push(b'&');
        }
        text.extend_from_slice(name.as_bytes());
        text.push(b'=');
        for byte in value {
            match byte {
                b'&' => text.extend_from_slice(b"%26"),
                b'=' => text.extend_from_slice(b"%3D"),
                b'+' => text.extend_from_slice(b"%2B"),
                other => text.push(*other),
            }
        }
    }
    text
}

/// Inserts the parameters into the target of a redirect. If the path would begin with two slashes,
/// only one is kept, because browsers would take the next segment for a host.
fn filled(to: &str, parameters: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut text = Vec::new();
    let mut rest = to;
    while let Some(at) = rest.find('{') {
        let end = rest[at..].find('}').map_or(rest.len(), |end| at + end);
        text.extend_from_slice(&rest.as_bytes()[..at]);
        let value = parameters.iter().find(|(name, _)| *name == &rest[at + 1..end]);
        if let Some((_, value)) = value {
            text.extend_from_slice(value);
        }
        rest = rest.get(end + 1..).unwrap_or_default();
    }
    text.extend_from_slice(rest.as_bytes());
    if text.starts_with(b"//") {
        let slashes = text.iter().take_while(|byte| **byte == b'/').count();
        text.drain(..slashes - 1);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routes::Redirect;

    use crate::routes::mistake;

    fn rule(host: Option<&str>, path: &str, methods: &[&str]) -> RouteRule {
        let rule = RouteRule {
            host: host.map(str::to_owned),
            path: path.to_owned(),
            methods: methods.iter().map(|word| (*word).to_owned()).collect(),
            redirect: None,
        };
        assert_eq!(mistake(&rule), None);
        rule
    }

    fn name(text: &str) -> FunctionName {
        FunctionName::new(text).expect("a name")
    }

    fn table(all: &[(&str, RouteRule)]) -> RouteTable {
        let mut table = RouteTable::default();
        for (function, rule) in all {
            table.add(&name(function), std::slice::from_ref(rule)).expect("no conflict");
        }
        table
    }

    fn asked<'a>(host: &'a str, method: &'a str, path: &'a str) -> Asked<'a> {
        let rest = path.strip_prefix('/').expect("a path");
        let (first, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, "/"),
        };
        Asked {
            among: Among::Everywhere,
            host: host.as_bytes(),
            first: first.as_bytes(),
            path: path.as_bytes(),
            method: method.as_bytes(),
        }
    }

    /// Describes the result as text.
    fn shown(found: Found) -> String {
        match found {
            Found::Nothing => "-".to_owned(),
            Found::OtherMethod(methods) => format!("405 {}", methods.join(",")),
            Found::Function(name, query) => {
                format!("{name} {}", String::from_utf8_lossy(&query)).trim_end().to_owned()
            }
            Found::Redirect(_, to, status) => format!("{status} {}", String::from_utf8_lossy(&to)),
        }
    }

    #[test]
    fn the_nearest_route_is_found() {
        let table = table(&[
            ("root", rule(None, "/", &[])),
            ("list", rule(None, "/orders", &["GET"])),
            ("make", rule(None, "/orders", &["POST"])),
            ("one", rule(None, "/orders/{id}", &[])),
            ("new", rule(None, "/orders/new", &["GET"])),
            ("lines", rule(None, "/orders/{id}/lines", &[])),
            ("deep", rule(None, "/orders/new/{what}", &[])),
            ("files", rule(None, "/files/{path...}", &[])),
            ("at", rule(None, "/@me", &[])),
            ("at", rule(None, "/at/{x}", &[])),
            ("other", rule(None, "/at/7/x", &[])),
            ("other", rule(None, "/at/7", &[])),
        ]);
        for (request, expected) in [
            ("GET /", "root"),
            ("GET /orders", "list"),
            ("HEAD /orders/", "list"),
            ("POST /orders", "make"),
            ("PUT /orders", "405 GET,POST"),
            ("GET /orders/17", "one id=17"),
            ("GET /orders/new", "new"),
            // The route that begins with fixed text does not accept the method, so the search goes
            // on.
            ("POST /orders/new", "one id=new"),
            ("GET /orders/new/lines", "deep what=lines"),
            ("GET /orders/17/lines", "lines id=17"),
            ("GET /orders/a%20b%26c", "one id=a%20b%26c"),
            ("GET /orders/a&b=c+d", "one id=a%26b%3Dc%2Bd"),
            ("GET /orders/17/other", "-"),
            ("GET /files", "files path="),
            ("GET /files/", "files path="),
            ("GET /files/a/b%2fc//d", "files path=a/b%2fc//d"),
            ("GET /%6frders/17", "one id=17"),
            ("GET /%40me", "at"),
            ("GET /nothing", "-"),
            ("GET //orders", "-"),
            ("GET /orders//lines", "-"),
        ] {
            let (method, path) = request.split_once(' ').expect("two words");
            assert_eq!(shown(table.find(&asked("a", method, path))), expected, "{request}");
        }
        for (path, expected) in [
            ("/orders/17", "-"),
            ("/at/7", "at x=7"),
            ("/at/7/x", "-"),
            ("/files/a", "files path=a"),
            ("/x", "-"),
            ("/", "root"),
        ] {
            let asked = Asked { among: Among::BelowName, ..asked("a", "GET", path) };
            assert_eq!(shown(table.find(&asked)), expected, "{path}");
        }
        assert!(!table.has_hosts());
    }

    #[test]
    fn hosts_come_before_endings_and_long_endings_first() {
        let table = table(&[
            ("any", rule(None, "/x", &[])),
            ("exact", rule(Some("shop.example.org"), "/", &[])),
            ("wide", rule(Some("*.example.org"), "/{rest...}", &[])),
            ("wider", rule(Some("*.org"), "/x", &[])),
        ]);
        assert!(table.has_hosts());
        for (host, path, expected) in [
            ("shop.example.org", "/", "exact"),
            ("SHOP.Example.org.:8080", "/", "exact"),
            ("shop.example.org", "/a", "wide rest=a"),
            ("a.b.example.org", "/", "wide rest="),
            ("example.org", "/x", "wider"),
            ("example.org", "/", "-"),
            (".example.org", "/", "-"),
            ("a..example.org", "/", "-"),
            ("notexample.org", "/", "-"),
            ("localhost", "/x", "-"),
            ("\u{e9}.example.org", "/", "wide rest="),
        ] {
            let asked = Asked { among: Among::Hosts, ..asked(host, "GET", path) };
            let found = shown(table.find(&asked));
            assert_eq!(found, expected, "{host}{path}");
        }
        assert_eq!(shown(table.find(&asked("localhost", "GET", "/x"))), "any");
    }

    #[test]
    fn redirects_take_parameters_and_never_lead_to_another_host() {
        let to = |to: &str, status, path| RouteRule {
            redirect: Some(Redirect { to: to.to_owned(), status }),
            ..rule(None, path, &[])
        };
        let table = table(&[
            ("a", to("/new/{id}?from=old", 308, "/old/{id}")),
            ("b", to("/{path}", 301, "/moved/{path...}")),
            ("c", to("https://example.org/{path}", 302, "/out/{path...}")),
        ]);
        for (path, expected) in [
            ("/old/17", "308 /new/17?from=old"),
            ("/moved/a/b", "301 /a/b"),
            ("/moved//evil.example/a", "301 /evil.example/a"),
            ("/moved", "301 /"),
            ("/out//x", "302 https://example.org//x"),
        ] {
            assert_eq!(shown(table.find(&asked("a", "GET", path))), expected, "{path}");
        }
    }

    #[test]
    fn the_same_place_belongs_to_one_function() {
        let mut table = RouteTable::default();
        table.add(&name("a"), &[rule(None, "/x/{id}", &["GET"])]).expect("free");
        table.add(&name("b"), &[rule(None, "/x/{other}", &["POST"])]).expect("another method");
        table.add(&name("b"), &[rule(Some("b.org"), "/x/{id}", &[])]).expect("another host");
        // GET includes HEAD.
        table.add(&name("c"), &[rule(None, "/x/{id}", &["HEAD"])]).expect_err("taken");
        let (rule, other) =
            table.add(&name("c"), &[rule(None, "/x/{n}/", &[])]).expect_err("taken");
        assert_eq!((rule.path.as_str(), other.as_str()), ("/x/{n}/", "a"));
    }
}
