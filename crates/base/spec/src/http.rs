//! What the HTTP fronts require of requests to a function, and what they tell browsers.

use serde::{Deserialize, Serialize};

use crate::routes::RouteRule;

/// The maximum number of entries of one list, and the maximum number of bytes in one entry.
const LIST_MAX: usize = 64;
const ENTRY_BYTES_MAX: usize = 255;
/// Longest time for which a browser may remember the answer to a preflight request: a day.
pub const CORS_AGE_S_MAX: u32 = 86_400;

/// The rules for HTTP requests. Methods and the size of the body are not included, because these
/// rules also apply to CoAP.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpRules {
    /// Names, in lower case, of header fields that a request must have.
    pub headers: Vec<String>,
    /// A TCP port of the node on which the function answers at every path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_port: Option<std::num::NonZeroU16>,
    /// Hosts and paths at which the function answers in addition to `/NAME`. This type does not
    /// check whether they are valid.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<RouteRule>,
    /// What browsers may do with the function's answers. With `None`, the function itself tells
    /// browsers.
    pub cors: Option<Cors>,
    /// Whether answers are compressed for clients that accept compressed answers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub compress: bool,
    /// Files that the node serves itself.
    #[serde(default, rename = "static", skip_serializing_if = "Option::is_none")]
    pub files: Option<StaticFiles>,
}

/// Files next to the code of a function that the node serves itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StaticFiles {
    /// The folder that contains the files, as a path below the folder of the code.
    pub folder: String,
    /// The file in the folder that browsers receive if a page does not exist.
    pub fallback: Option<String>,
    /// Seconds for which clients may keep a file without asking again.
    pub cache_s: u32,
}

/// Says which pages of other origins may call the function, and how (Fetch standard, CORS
/// protocol).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cors {
    /// Origins in the form that browsers use, or `*`.
    pub origins: Vec<String>,
    /// Methods that pages may use.
    pub methods: Vec<String>,
    /// Names, in lower case, of header fields that pages may send.
    pub headers: Vec<String>,
    /// Names, in lower case, of header fields of an answer that pages may read.
    pub expose: Vec<String>,
    /// Whether browsers send cookies and other credentials.
    pub credentials: bool,
    /// Seconds for which browsers may remember the answer to a preflight request.
    pub max_age_s: Option<u32>,
}

impl HttpRules {
    /// Returns the key with a wrong value, and the rule that the value breaks.
    pub(super) fn mistake(&self) -> Option<(&'static str, &'static str)> {
        if !are_names(&self.headers, false) {
            return Some(("http.headers", "at most 64 names of fields in lower case"));
        }
        if let Some(files) = &self.files {
            if !is_below(&files.folder) {
                return Some(("static.folder", "a folder of the function such as public"));
            }
            if !files.fallback.as_deref().is_none_or(is_below) {
                return Some(("static.fallback", "a file of that folder such as index.html"));
            }
        }
        let cors = self.cors.as_ref()?;
        let is_any = |list: &[String]| list.iter().any(|entry| entry == "*");
        let is_origin = |origin: &String| origin == "*" || is_origin(origin);
        if !is_list(&cors.origins) || cors.origins.is_empty() || !cors.origins.iter().all(is_origin)
        {
            return Some((
                "http.cors.origins",
                "1 to 64 origins such as https://app.example, or *: as browsers write them, without path, capital letters or usual port",
            ));
        }
        let is_method = |text: &String| text.bytes().all(|byte| byte.is_ascii_uppercase());
        if !is_list(&cors.methods) || !cors.methods.iter().all(is_method) {
            return Some(("http.cors.methods", "upper-case words such as GET"));
        }
        if !are_names(&cors.headers, true) || !are_names(&cors.expose, true) {
            return Some(("http.cors", "headers and expose: at most 64 names in lower case"));
        }
        let lists = [&cors.origins, &cors.headers, &cors.expose];
        if cors.credentials && lists.into_iter().any(|list| is_any(list)) {
            return Some(("http.cors", "credentials and \"*\" exclude each other"));
        }
        let is_valid = cors.max_age_s.is_none_or(|age| age <= CORS_AGE_S_MAX);
        (!is_valid).then_some(("http.cors.max_age", "at most 24h"))
    }
}

/// Whether a text is an origin in the form that browsers use: scheme, host and port in lower case,
/// without the usual port of the scheme. An origin in any other form would never match.
pub fn is_origin(text: &str) -> bool {
    let Some((scheme, authority)) = text.split_once("://") else { return false };
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (authority, None),
    };
    let is_plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-._".contains(&b);
    let is_host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok_and(|parsed| {
            // Browsers write an origin in its shortest form.
            parsed.to_string() == address
        }),
        None => !host.is_empty() && host.bytes().all(is_plain),
    };
    let is_port = port.is_none_or(|port| {
        let usual = matches!((scheme, port), ("http", "80") | ("https", "443"));
        !usual && port.parse::<u16>().is_ok_and(|number| number.to_string() == port)
    });
    let is_scheme = scheme.bytes().all(|b| is_plain(b) || b == b'+') && !scheme.is_empty();
    is_scheme && is_host && is_port
}

/// Whether a relative path stays below the folder at which it starts.
pub fn is_below(path: &str) -> bool {
    let is_name = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('\0');
    path.len() <= ENTRY_BYTES_MAX && path.split('/').all(is_name)
}

/// Whether a text is the name of a field (RFC 9110, 5.1) in lower case.
fn is_field_name(text: &str) -> bool {
    let is_tchar = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    !text.is_empty() && text.bytes().all(|b| is_tchar(b) && !b.is_ascii_uppercase())
}

fn is_list(list: &[String]) -> bool {
    let is_entry = |entry: &String| (1..=ENTRY_BYTES_MAX).contains(&entry.len());
    list.len() <= LIST_MAX && list.iter().all(is_entry)
}

fn are_names(list: &[String], any: bool) -> bool {
    is_list(list) && list.iter().all(|name| is_field_name(name) && (any || name != "*"))
}
