//! Tests the rules for HTTP requests, and the limit on simultaneous calls, in specs.

use mote_spec::{
    CORS_AGE_S_MAX, Cors, FunctionName, FunctionSpec, HttpRules, Rate, Rates, Runtime, is_origin,
};

/// Returns the key of the manifest whose rule is broken.
fn mistake(rules: HttpRules) -> Option<&'static str> {
    let name = FunctionName::new("f").expect("a name");
    let mut spec = FunctionSpec::with_defaults(name, Runtime::Python, "app:handle");
    spec.http = Some(Box::new(rules));
    spec.check().first().map(|error| error.field)
}

#[test]
fn origins_are_as_browsers_write_them() {
    for text in [
        "https://app.example",
        "http://127.0.0.1:8080",
        "http://[::1]:3000",
        "http://[::1]",
        "https://a-b.example:8443",
        "capacitor://localhost",
    ] {
        assert!(is_origin(text), "{text}");
    }
    for text in [
        "",
        "*",
        "null",
        "app.example",
        "https://",
        "https://app.example/",
        "https://App.example",
        "https://app.example:443",
        "http://app.example:80",
        "http://app.example:080",
        "http://app.example:",
        "https://user@app.example",
        "https://*.app.example",
        "http://[0:0::1]",
        "https://a b",
        "https://a\n",
    ] {
        assert!(!is_origin(text), "{text}");
    }
}

#[test]
fn contradicting_rules_are_refused() {
    let cors = Cors { origins: vec!["*".into()], ..Cors::default() };
    let mistake = |cors| mistake(HttpRules { cors: Some(cors), ..HttpRules::default() });
    assert_eq!(mistake(cors.clone()), None);
    assert!(mistake(Cors { credentials: true, ..cors.clone() }).is_some());
    assert!(mistake(Cors { max_age_s: Some(CORS_AGE_S_MAX + 1), ..cors.clone() }).is_some());
    assert!(mistake(Cors { headers: vec!["X-A".into()], ..cors.clone() }).is_some());
    assert!(mistake(Cors { expose: vec!["a b".into()], ..cors.clone() }).is_some());
    assert!(mistake(Cors { methods: vec!["get".into()], ..cors }).is_some());
    assert!(mistake(Cors::default()).is_some(), "no origin");
    let rules = HttpRules { headers: vec!["x\ny".into()], ..HttpRules::default() };
    assert!(self::mistake(rules).is_some());
}

#[test]
fn rates_and_calls_at_once_have_ranges() {
    let name = FunctionName::new("f").expect("a name");
    let mut spec = FunctionSpec::with_defaults(name, Runtime::Python, "app:handle");
    for (calls, is_valid) in [(0, false), (1, true), (100_000, true), (100_001, false)] {
        spec.rates = Rates { caller_at_once: Some(calls), ..Rates::NONE };
        assert_eq!(spec.check().is_empty(), is_valid, "{calls}");
    }
    let none = Rate { calls: 0, period_ms: 1_000, burst: 1 };
    for rate in [none, Rate { calls: 1, period_ms: 0, ..none }] {
        spec.rates = Rates { caller: Some(rate), ..Rates::NONE };
        assert_eq!(spec.check().first().map(|error| error.field), Some("limits.rate"));
    }
}
