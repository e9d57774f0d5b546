//! Writes a manifest of another platform as a `mote.toml`. A comment on each line names the line's
//! origin.

use std::fmt::Write as _;

use mote_spec::manifest::{
    self, MissedName, OverlapName, PolicyName, RuntimeName, ScheduleManifest,
};

use super::foreign::Described;

/// Returns the text of the `mote.toml`.
pub fn mote_toml(file: &str, described: &Described) -> String {
    let mut out = Lines::default();
    let function = &described.function;
    out.plain(&format!("# Written by `mote import` from {file}."));
    for warning in &described.warnings {
        out.plain(&format!("# Not converted: {}", warning.replace(['\n', '\r'], " ")));
    }
    out.key("version", "1", "of this file's form");
    let note = |key: &str| described.notes.get(key).map_or("", String::as_str);
    if let Some(name) = &function.name {
        out.key("name", &quoted(&name.value), "its path: /NAME");
    }
    if let Some(compat) = &function.compat {
        let word = crate::plan::compat(compat.value).as_str();
        out.key(
            "compat",
            &quoted(word),
            &format!("whose contract the code follows ({})", note("compat")),
        );
    }
    if let Some(template) = &function.template {
        out.key("template", &quoted(&template.value), note("template"));
    }
    if let Some(runtime) = &function.runtime {
        let word = match runtime.value {
            RuntimeName::Python => "python",
            RuntimeName::Node => "node",
            RuntimeName::Bun => "bun",
            RuntimeName::Deno => "deno",
            RuntimeName::Go => "go",
            RuntimeName::Exec => "exec",
            RuntimeName::Server => "server",
            RuntimeName::Chain => "chain",
            RuntimeName::Wasm => "wasm",
            RuntimeName::Rust => "rust",
        };
        out.key("runtime", &quoted(word), note("runtime"));
    }
    if let Some(image) = &function.image {
        out.key("image", &quoted(&image.value), note("image"));
    }
    if let Some(arguments) = &function.image_arguments {
        let words: Vec<String> = arguments.iter().map(|word| quoted(word)).collect();
        out.plain(&format!(
            "# Not converted: args: write command with the image's entry point and {}",
            words.join(", ")
        ));
    }
    if let Some(entry) = &function.entry {
        out.key("entry", &quoted(&entry.value), note("entry"));
    }
    if let Some(command) = &function.command {
        let words: Vec<String> = command.value.iter().map(|word| quoted(word)).collect();
        out.key("command", &format!("[{}]", words.join(", ")), note("command"));
    }
    if let Some(port) = &function.port {
        out.key("port", &port.value.to_string(), note("port"));
    }
    if !function.secrets.is_empty() {
        let names: Vec<String> = function.secrets.iter().map(|name| quoted(name)).collect();
        let from = format!(
            "{}: files in /secrets; create each with mote secret set NAME",
            note("secrets")
        );
        out.key("secrets", &format!("[{}]", names.join(", ")), &from);
    }
    limits(&mut out, described);
    scale(&mut out, described);
    let words = ["public", "key", "basic", "mtls", "local"];
    let is_mode = |word: &&str| manifest::access(word) == function.access;
    if let Some(mode) = words.into_iter().find(is_mode) {
        out.section("access");
        out.key("mode", &quoted(mode), note("access"));
    }
    if !function.egress.is_empty() {
        out.section("allow");
        let all: Vec<String> = function.egress.iter().map(|to| quoted(&to.to_string())).collect();
        out.key("net", &format!("[{}]", all.join(", ")), note("net"));
    }
    if !function.shared_state.is_empty() {
        out.section("kv");
        let all: Vec<String> = function.shared_state.iter().map(|name| quoted(name)).collect();
        out.key("shared", &format!("[{}]", all.join(", ")), note("shared"));
    }
    if !(function.env.is_empty() && function.secret_env.is_empty()) {
        out.section("env");
        for (name, value) in &function.env {
            out.key(name, &quoted(value), note("env"));
        }
        for (name, secret) in &function.secret_env {
            let from = format!("{}; create it: mote secret set {secret}", note("env"));
            out.key(name, &format!("{{ secret = {} }}", quoted(secret)), &from);
        }
    }
    for (route, origin) in function.routes.iter().zip(&described.routes) {
        let route = &route.value;
        out.section("[route]");
        if let Some(host) = &route.host {
            out.key("host", &quoted(host), &origin.object);
        }
        out.key("path", &quoted(&route.path), &origin.object);
        if !route.methods.is_empty() {
            let methods: Vec<String> = route.methods.iter().map(|one| quoted(one)).collect();
            out.key("methods", &format!("[{}]", methods.join(", ")), &origin.object);
        }
    }
    for schedule in &function.schedules {
        trigger(&mut out, &schedule.value);
    }
    out.text
}

fn trigger(out: &mut Lines, schedule: &ScheduleManifest) {
    out.section("[trigger]");
    let mut key = |key: &str, value: Option<String>| {
        if let Some(value) = value {
            out.key(key, &value, "");
        }
    };
    key("cron", schedule.cron.as_ref().map(|cron| quoted(&cron.value)));
    key("every", schedule.every_ms.map(duration));
    key("timezone", schedule.timezone.as_ref().map(|zone| quoted(&zone.value)));
    let missed = schedule.missed.map(|missed| match missed {
        MissedName::Skip => "skip",
        MissedName::RunOnce => "run-once",
        MissedName::RunAll => "run-all",
    });
    key("missed", missed.map(quoted));
    key("jitter", schedule.jitter_ms.map(duration));
    let overlap = schedule.overlap.map(|overlap| match overlap {
        OverlapName::Skip => "skip",
        OverlapName::Queue => "queue",
        OverlapName::Allow => "allow",
    });
    key("overlap", overlap.map(quoted));
    key("method", schedule.method.as_deref().map(quoted));
    key("path", schedule.path.as_deref().map(quoted));
    let field = |(name, value): (&String, &String)| format!("{} = {}", quoted(name), quoted(value));
    let fields: Vec<String> = schedule.headers.iter().map(field).collect();
    key("headers", (!fields.is_empty()).then(|| format!("{{ {} }}", fields.join(", "))));
    key("body", schedule.body.as_deref().map(quoted));
}

fn limits(out: &mut Lines, described: &Described) {
    let limits = &described.function.limits;
    let note = |key: &str| described.notes.get(key).map_or("", String::as_str);
    let rows = [
        ("memory", limits.memory_bytes.map(size)),
        ("timeout", limits.timeout_ms.map(duration)),
        ("init_timeout", limits.init_timeout_ms.map(duration)),
        ("concurrency", limits.concurrency.map(|number| number.to_string())),
        ("cpu", limits.cpu_millis.map(|millis| (f64::from(millis) / 1000.0).to_string())),
    ];
    out.rows("limits", &rows, note);
}

fn scale(out: &mut Lines, described: &Described) {
    let scale = &described.function.scale;
    let note = |key: &str| described.notes.get(key).map_or("", String::as_str);
    let policy = scale.policy.map(|policy| {
        quoted(match policy {
            PolicyName::Auto => "auto",
            PolicyName::Concurrency => "concurrency",
            PolicyName::Rps => "rps",
            PolicyName::Cpu => "cpu",
            PolicyName::Memory => "memory",
            PolicyName::Knative => "knative",
            PolicyName::Hpa => "hpa",
            PolicyName::OpenFaas => "openfaas",
        })
    });
    let rows = [
        ("min", scale.min.map(|number| number.to_string())),
        ("max", scale.max.map(|number| number.to_string())),
        ("idle", scale.idle_timeout_ms.map(duration)),
        ("policy", policy),
        ("target", scale.target.map(|number| number.to_string())),
    ];
    out.rows("scale", &rows, note);
}

#[derive(Default)]
struct Lines {
    text: String,
}

impl Lines {
    fn plain(&mut self, line: &str) {
        let _ = writeln!(self.text, "{line}");
    }

    fn key(&mut self, key: &str, value: &str, note: &str) {
        let note = note.replace(['\n', '\r'], " ");
        let comment = if note.is_empty() { String::new() } else { format!("  # {note}") };
        let _ = writeln!(self.text, "{key} = {value}{comment}");
    }

    fn section(&mut self, name: &str) {
        let _ = writeln!(self.text, "\n[{name}]");
    }

    fn rows<'n>(
        &mut self,
        section: &str,
        rows: &[(&str, Option<String>)],
        note: impl Fn(&str) -> &'n str,
    ) {
        if rows.iter().any(|(_, value)| value.is_some()) {
            self.section(section);
        }
        for (key, value) in rows {
            if let Some(value) = value {
                self.key(key, value, note(key));
            }
        }
    }
}

/// Returns a TOML string. TOML has the same escapes as JSON, except for DEL.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

fn size(bytes: u64) -> String {
    if bytes.is_multiple_of(1 << 20) {
        format!("\"{}MiB\"", bytes >> 20)
    } else {
        format!("\"{bytes}B\"")
    }
}

fn duration(ms: u64) -> String {
    if ms.is_multiple_of(1000) { format!("\"{}s\"", ms / 1000) } else { format!("\"{ms}ms\"") }
}
