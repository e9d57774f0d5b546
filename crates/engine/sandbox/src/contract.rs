//! The contracts for programs that run once per invocation. A contract determines the program's
//! environment and arguments, and what happens with its error output and exit code. There is
//! `mote`'s own contract, and there are those of the platforms that `mote` replaces. The module is
//! pure; [`crate::program_run`] carries a contract out.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::time::{SystemTime, UNIX_EPOCH};

use mote_core::invocation::headers;
use mote_core::path;
use mote_core::wire::{Invoke, Load};
use mote_core::{InvocationId, Trigger};
use mote_spec::Platform;

/// See the module's documentation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Contract {
    Mote,
    /// The answer consists of both outputs and the exit status.
    TinyFaas {
        pass_status: bool,
    },
    /// The classic watchdog of OpenFaaS. Both outputs form the answer, and a failing exit status
    /// becomes 500.
    Watchdog {
        combine_output: bool,
        content_type: Option<String>,
        cgi_headers: bool,
    },
    /// The forking modes of the newer watchdog of OpenFaaS, in which the error output is the log.
    /// `whole` is the mode `serializing`, in which the answer waits for the program's end.
    Streaming {
        content_type: Option<String>,
        whole: bool,
    },
    /// Nuclio's shell runtime.
    Nuclio,
    /// Fission's binary environment.
    Fission,
    /// An OpenWhisk action, with JSON as input and output. The program runs once per call or, with
    /// `stays`, reads one call per line.
    Action {
        stays: bool,
        defaults: String,
        version: String,
    },
}

impl Contract {
    /// Whether a program of this contract starts only when its input is complete. Programs under
    /// `mote`'s own contract or a streaming watchdog read the input as it arrives.
    pub(crate) fn takes_whole_bodies(&self) -> bool {
        !matches!(self, Contract::Mote | Contract::Streaming { whole: false, .. })
    }
}

/// The answer if a program exits with a code other than 0.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) status: u16,
    /// The first line of the answer.
    pub(crate) line: String,
    /// Whether the program's output follows the line.
    pub(crate) with_output: bool,
}

impl Contract {
    pub(crate) fn of(load: &Load) -> Self {
        let says = |name: &str| load.env.get(name).map(String::as_str);
        let is = |name: &str, word: &str| says(name).is_some_and(|v| v.eq_ignore_ascii_case(word));
        let content_type = says("content_type").map(str::to_owned);
        match load.compat {
            Some(Platform::TinyFaas) => {
                Contract::TinyFaas { pass_status: is("TINYFAAS_PASS_STATUS", "1") }
            }
            Some(Platform::OpenFaas) if is("mode", "streaming") || is("mode", "serializing") => {
                Contract::Streaming { content_type, whole: is("mode", "serializing") }
            }
            Some(Platform::OpenFaas) => Contract::Watchdog {
                combine_output: !is("combine_output", "false"),
                content_type,
                cgi_headers: !is("cgi_headers", "false"),
            },
            Some(Platform::Nuclio) => Contract::Nuclio,
            Some(Platform::Fission) => Contract::Fission,
            Some(Platform::OpenWhisk) => Contract::Action {
                stays: load.template.as_deref() == Some("actionloop"),
                defaults: says("OPENWHISK_PARAMETERS").unwrap_or("{}").to_owned(),
                version: format!("0.0.{}", load.revision),
            },
            _ => Contract::Mote,
        }
    }

    /// Whether error output becomes part of the answer.
    pub(crate) fn combines_output(&self) -> bool {
        match self {
            Contract::TinyFaas { .. } | Contract::Nuclio => true,
            Contract::Watchdog { combine_output, .. } => *combine_output,
            Contract::Mote
            | Contract::Streaming { .. }
            | Contract::Action { .. }
            | Contract::Fission => false,
        }
    }

    /// Whether an answer is held until the program's end, provided that it fits. The answer is held
    /// because the exit status decides it.
    pub(crate) fn holds_answer(&self) -> bool {
        !matches!(self, Contract::Mote | Contract::Streaming { whole: false, .. })
    }

    /// The answer for an exit code other than 0. With `None`, an error without the program's output
    /// is sent.
    pub(crate) fn failure(&self, code: i32) -> Option<Failure> {
        let line = format!("exit status {code}");
        match self {
            Contract::TinyFaas { pass_status } => {
                let status = if *pass_status { 500 } else { 200 };
                Some(Failure { status, line, with_output: false })
            }
            Contract::Watchdog { .. } => {
                Some(Failure { status: 500, line: line + "\n", with_output: true })
            }
            Contract::Mote
            | Contract::Streaming { .. }
            | Contract::Nuclio
            | Contract::Action { .. } => None,
            Contract::Fission => {
                let line = format!("failed to wait for subprocess: {line}");
                Some(Failure { status: 500, line, with_output: false })
            }
        }
    }

    /// The log line for the start of an invocation's program.
    pub(crate) fn start_line(&self) -> Option<&'static str> {
        matches!(self, Contract::Watchdog { .. }).then_some("Forking fprocess.")
    }

    /// The log line for the program's end. The line has the exit code, unless a signal ended the
    /// program.
    pub(crate) fn end_line(
        &self,
        code: Option<i32>,
        written: usize,
        took_ns: u64,
    ) -> Option<String> {
        let seconds = took_ns as f64 / 1e9;
        match (self, code) {
            (Contract::Watchdog { .. }, Some(0)) => {
                Some(format!("Wrote {written} Bytes - Duration: {seconds:.6}s"))
            }
            (Contract::Watchdog { .. }, Some(code)) => {
                Some(format!("exit status {code} - Duration: {seconds:.6}s"))
            }
            _ => None,
        }
    }

    /// The media type of an answer, if the contract prescribes one regardless of the content.
    pub(crate) fn content_type(&self, request: &Invoke<'_>) -> Option<Vec<u8>> {
        match self {
            Contract::TinyFaas { .. } | Contract::Nuclio => {
                Some(b"text/plain; charset=utf-8".to_vec())
            }
            Contract::Watchdog { content_type, .. } | Contract::Streaming { content_type, .. } => {
                let own = content_type.as_ref().map(|kind| kind.as_bytes().to_vec());
                own.or_else(|| header(request, b"content-type").map(<[u8]>::to_vec))
            }
            Contract::Mote | Contract::Action { .. } | Contract::Fission => None,
        }
    }

    /// The arguments that replace those of the command. Only some contracts let the caller set
    /// them.
    pub(crate) fn arguments(&self, request: &Invoke<'_>) -> Option<Vec<String>> {
        if *self != Contract::Nuclio {
            return None;
        }
        let text = std::str::from_utf8(header(request, b"x-nuclio-arguments")?).ok()?;
        Some(text.split_whitespace().map(str::to_owned).collect())
    }

    /// Adds the facts about the invocation as environment variables. `body_bytes` is known if the
    /// whole body has arrived.
    pub(crate) fn push_facts(
        &self,
        env: &mut Vec<CString>,
        invoke: &Invoke<'_>,
        function: &str,
        body_bytes: Option<usize>,
    ) {
        let mut facts = Facts(env);
        match self {
            Contract::Mote => facts.mote(invoke, function),
            Contract::TinyFaas { .. } => {}
            Contract::Watchdog { cgi_headers: false, .. } => {}
            Contract::Watchdog { .. } | Contract::Streaming { .. } => {
                facts.watchdog(invoke, body_bytes);
            }
            Contract::Nuclio => facts.nuclio(invoke, function),
            Contract::Fission => facts.fission(invoke, body_bytes),
            Contract::Action { version, .. } => {
                for (name, value) in action_facts(invoke, function, version) {
                    facts.push(&format!("__OW_{}", name.to_uppercase()), value.as_bytes());
                }
            }
        }
    }
}

fn header<'a>(request: &Invoke<'a>, wanted: &[u8]) -> Option<&'a [u8]> {
    headers(request.headers).find(|(name, _)| *name == wanted).map(|(_, value)| value)
}

/// The facts about an activation, under the names that ActionLoop's lines use.
pub(crate) fn action_facts(
    invoke: &Invoke<'_>,
    function: &str,
    version: &str,
) -> [(&'static str, String); 7] {
    let id = String::from_utf8_lossy(&InvocationId(invoke.id).text()).into_owned();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
    let deadline = now + u128::from(invoke.remaining_ms);
    [
        ("namespace", "_".to_owned()),
        ("action_name", format!("/_/{function}")),
        ("action_version", version.to_owned()),
        ("activation_id", mote_core::openwhisk_action::activation(invoke).unwrap_or(id)),
        ("transaction_id", "0".to_owned()),
        ("deadline", deadline.to_string()),
        ("api_key", String::new()),
    ]
}

struct Facts<'e>(&'e mut Vec<CString>);

impl Facts<'_> {
    fn push(&mut self, name: &str, value: &[u8]) {
        let mut text = Vec::with_capacity(name.len() + 1 + value.len());
        text.extend_from_slice(name.as_bytes());
        text.push(b'=');
        text.extend_from_slice(value);
        // The protocol forbids NUL in heads; a fact that contains one is left out.
        self.0.extend(CString::new(text));
    }

    /// Adds every header field as a variable under `prefix`; `letters` converts its name. The
    /// values of fields with the same name are joined.
    ///
    /// Some fields are left out, because a program must not take one field for another that a proxy
    /// may have set. Names with characters other than letters, digits and dashes are left out,
    /// because in variables `_` stands for the dash (RFC 9110, 17.10). Names that would repeat a
    /// fact are left out, too, and so is `HTTP_PROXY`, which programs read as the proxy to use.
    fn push_headers(&mut self, prefix: &str, invoke: &Invoke<'_>, letters: fn(&[u8]) -> String) {
        let mut fields: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        let is_plain = |name: &[u8]| name.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'-');
        for (name, value) in headers(invoke.headers).filter(|(name, _)| is_plain(name)) {
            let joined = fields.entry(letters(name)).or_default();
            if !joined.is_empty() {
                joined.extend_from_slice(b", ");
            }
            joined.extend_from_slice(value);
        }
        for (name, value) in fields {
            let variable = format!("{prefix}{name}=");
            let is_there = |fact: &CString| fact.as_bytes().starts_with(variable.as_bytes());
            if variable != "HTTP_PROXY=" && !self.0.iter().any(is_there) {
                self.push(variable.trim_end_matches('='), &value);
            }
        }
    }

    fn mote(&mut self, invoke: &Invoke<'_>, function: &str) {
        self.push("MOTE_METHOD", invoke.method);
        self.push("MOTE_PATH", invoke.path);
        self.push("MOTE_QUERY", invoke.query);
        self.push("MOTE_INVOCATION", &InvocationId(invoke.id).text());
        self.push("MOTE_TRIGGER", trigger(invoke).as_bytes());
        self.push("MOTE_FUNCTION", function.as_bytes());
        self.push("MOTE_DEADLINE_MS", invoke.remaining_ms.to_string().as_bytes());
        self.push_headers("MOTE_HEADER_", invoke, |name| {
            name.iter()
                .map(|byte| match byte.to_ascii_uppercase() {
                    letter if letter.is_ascii_alphanumeric() => char::from(letter),
                    _ => '_',
                })
                .collect()
        });
    }

    fn watchdog(&mut self, invoke: &Invoke<'_>, body_bytes: Option<usize>) {
        self.push("Http_Method", invoke.method);
        // The path is decoded, as that platform's server does.
        self.push("Http_Path", &path::decoded(invoke.path));
        if !invoke.query.is_empty() {
            self.push("Http_Query", invoke.query);
        }
        if let Some(length) = body_bytes {
            for name in ["Http_ContentLength", "Http_Content_Length"] {
                self.push(name, length.to_string().as_bytes());
            }
        }
        self.push_headers("Http_", invoke, |name| {
            let mut first = true;
            name.iter()
                .map(|byte| {
                    let letter = if first { byte.to_ascii_uppercase() } else { *byte };
                    first = !letter.is_ascii_alphanumeric();
                    if first { '_' } else { char::from(letter) }
                })
                .collect()
        });
    }

    fn fission(&mut self, invoke: &Invoke<'_>, body_bytes: Option<usize>) {
        let mut uri = invoke.path.to_vec();
        if !invoke.query.is_empty() {
            uri.push(b'?');
            uri.extend_from_slice(invoke.query);
        }
        let length = body_bytes.map_or_else(|| "-1".to_owned(), |bytes| bytes.to_string());
        self.push("REQUEST_METHOD", invoke.method);
        self.push("REQUEST_URI", &uri);
        self.push("CONTENT_LENGTH", length.as_bytes());
        // Each field is added twice: with the dash, as that platform does, and in a form that a
        // shell can read.
        self.push_headers("HTTP_", invoke, |name| String::from_utf8_lossy(name).to_uppercase());
        self.push_headers("HTTP_", invoke, |name| {
            String::from_utf8_lossy(name).to_uppercase().replace('-', "_")
        });
    }

    fn nuclio(&mut self, invoke: &Invoke<'_>, function: &str) {
        let kind = header(invoke, b"content-type").unwrap_or_default();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        self.push("NUCLIO_FUNCTION_NAME", function.as_bytes());
        self.push("NUCLIO_EVENT_ID", &InvocationId(invoke.id).text());
        self.push("NUCLIO_TRIGGER_CLASS", b"sync");
        self.push("NUCLIO_TRIGGER_KIND", trigger(invoke).as_bytes());
        self.push("NUCLIO_TRIGGER_NAME", format!("default-{}", trigger(invoke)).as_bytes());
        self.push("NUCLIO_EVENT_CONTENT_TYPE", kind);
        self.push("NUCLIO_EVENT_TIMESTAMP", utc_text(now).as_bytes());
        self.push("NUCLIO_EVENT_PATH", &path::decoded(invoke.path));
        self.push("NUCLIO_EVENT_URL", invoke.path);
        self.push("NUCLIO_EVENT_METHOD", invoke.method);
        self.push("NUCLIO_EVENT_SHARD_ID", b"0");
        self.push("NUCLIO_EVENT_NUM_SHARDS", b"1");
        for name in ["NUCLIO_EVENT_TYPE", "NUCLIO_EVENT_TYPE_VERSION", "NUCLIO_EVENT_VERSION"] {
            self.push(name, b"");
        }
    }
}

fn trigger(invoke: &Invoke<'_>) -> &'static str {
    Trigger::from_wire(invoke.trigger).map_or("unknown", Trigger::as_str)
}

/// Seconds since 1970 as RFC 3339 in UTC.
fn utc_text(unix_s: u64) -> String {
    let time = i64::try_from(unix_s).ok().and_then(|s| jiff::Timestamp::from_second(s).ok());
    time.unwrap_or(jiff::Timestamp::MAX).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(contract: &Contract, head: &[u8], path: &[u8], query: &[u8]) -> Vec<String> {
        let invoke = Invoke {
            sent_ns: 0,
            id: 1,
            remaining_ms: 1000,
            trigger: 1,
            method: b"POST",
            path,
            query,
            headers: head,
            body: b"abc",
        };
        let mut env = Vec::new();
        contract.push_facts(&mut env, &invoke, "f", Some(3));
        env.into_iter().map(|text| text.into_string().unwrap()).collect()
    }

    #[test]
    fn the_watchdog_exports_the_request() {
        let load = load(Some(Platform::OpenFaas), &[]);
        let found = variables(
            &Contract::of(&load),
            b"x-forwarded-for\n10.0.0.1\ncontent-type\ntext/plain\nx-a\n1\nx-a\n2\n",
            b"/sub%20way",
            b"a=1",
        );
        for wanted in [
            "Http_Method=POST",
            "Http_Path=/sub way",
            "Http_Query=a=1",
            "Http_ContentLength=3",
            "Http_Content_Type=text/plain",
            "Http_X_Forwarded_For=10.0.0.1",
            "Http_X_A=1, 2",
        ] {
            assert!(found.iter().any(|one| one == wanted), "{wanted}: {found:?}");
        }
        let off = Contract::of(&self::load(Some(Platform::OpenFaas), &[("cgi_headers", "false")]));
        assert!(variables(&off, b"", b"/", b"").is_empty());
    }

    #[test]
    fn a_field_does_not_pass_for_another_one_or_for_a_fact() {
        let head = b"x_device\nevil\nx-device\ngood\nx.device\nevil\nmethod\nevil\nproxy\nevil\n";
        for (compat, variable) in [
            (None, "MOTE_HEADER_X_DEVICE"),
            (Some(Platform::OpenFaas), "Http_X_Device"),
            (Some(Platform::Fission), "HTTP_X_DEVICE"),
        ] {
            let found = variables(&Contract::of(&load(compat, &[])), head, b"/", b"");
            let evil: Vec<_> = found.iter().filter(|one| one.ends_with("evil")).collect();
            let harmless = [
                "MOTE_HEADER_METHOD=evil",
                "MOTE_HEADER_PROXY=evil",
                "Http_Proxy=evil",
                "HTTP_METHOD=evil",
            ];
            assert!(evil.iter().all(|one| harmless.contains(&one.as_str())), "{found:?}");
            assert!(found.contains(&format!("{variable}=good")), "{found:?}");
        }
    }

    fn load(compat: Option<Platform>, env: &[(&str, &str)]) -> Load {
        Load {
            function: "f".into(),
            revision: 1,
            code_dir: "/function".into(),
            packages_dir: None,
            entry: String::new(),
            concurrency: None,
            env: env.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect(),
            memory_bytes: None,
            command: Vec::new(),
            compat,
            template: None,
            services: Vec::new(),
            seed: false,
        }
    }

    #[test]
    fn exit_codes_by_contract() {
        let failure = |compat, env: &[(&str, &str)]| Contract::of(&load(compat, env)).failure(3);
        assert_eq!(failure(None, &[]), None);
        assert_eq!(failure(Some(Platform::Nuclio), &[]), None);
        assert_eq!(failure(Some(Platform::OpenFaas), &[("mode", "streaming")]), None);
        let holds = |mode| Contract::of(&load(Some(Platform::OpenFaas), &[("mode", mode)]));
        assert!(holds("serializing").holds_answer(), "its exit code decides the status");
        assert!(!holds("streaming").holds_answer());
        let classic = failure(Some(Platform::OpenFaas), &[]).unwrap();
        assert_eq!((classic.status, classic.line.as_str()), (500, "exit status 3\n"));
        let tiny = failure(Some(Platform::TinyFaas), &[]).unwrap();
        assert_eq!((tiny.status, tiny.with_output), (200, false));
        let passed = failure(Some(Platform::TinyFaas), &[("TINYFAAS_PASS_STATUS", "1")]).unwrap();
        assert_eq!(passed.status, 500);
    }

    #[test]
    fn dates() {
        assert_eq!(utc_text(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc_text(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(utc_text(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(utc_text(1_798_761_599), "2026-12-31T23:59:59Z");
    }
}
