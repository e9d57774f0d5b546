//! Converts schedules of other platforms to triggers of `mote.toml`.

use mote_schedule::times;
use mote_spec::manifest::{MissedName, OverlapName, ScheduleManifest};
use mote_spec::toml_reader::Lined;
use mote_spec::{EVERY_MS_MAX, EVERY_MS_MIN};
use serde_json::Value;

use super::{Described, implied, quantity, text};

impl Described {
    /// Adds a schedule from a cron expression or from `@every 10s`. Other platforms run schedules in
    /// their server's time zone, which is usually UTC. If the text cannot be read, warns and adds
    /// nothing.
    pub(super) fn add_cron(&mut self, place: &str, written: &str) -> Option<&mut ScheduleManifest> {
        if let Some(interval) = written.trim().strip_prefix("@every ") {
            return self.add_every(place, interval);
        }
        if let Err(error) = times::check_expression(written) {
            self.warn(format!("{place}: the schedule `{written}` is not used: {error}"));
            return None;
        }
        Some(self.add(ScheduleManifest { cron: implied(written.trim().to_owned()), ..none() }))
    }

    /// Adds a schedule from an interval in Go's format.
    pub(super) fn add_every(
        &mut self,
        place: &str,
        written: &str,
    ) -> Option<&mut ScheduleManifest> {
        match quantity::milliseconds(written) {
            Some(ms) if (EVERY_MS_MIN..=EVERY_MS_MAX).contains(&ms) => {
                Some(self.add(ScheduleManifest { every_ms: Some(ms), ..none() }))
            }
            _ => {
                let text = "an interval is 1s to 168h here";
                self.warn(format!("{place}: the interval `{written}` is not used: {text}"));
                None
            }
        }
    }

    fn add(&mut self, value: ScheduleManifest) -> &mut ScheduleManifest {
        self.function.schedules.push(Lined { value, line: 0 });
        &mut self.function.schedules.last_mut().expect("one was added").value
    }

    /// Sets the time zone of the schedule that was added last.
    pub(super) fn set_zone(&mut self, place: &str, zone: &str) {
        match times::zone(zone) {
            Err(times::TimesError::Zone) => {
                self.warn(format!("{place}: there is no zone `{zone}`; the schedule runs in UTC"));
            }
            _ => {
                if let Some(last) = self.function.schedules.last_mut() {
                    last.value.timezone = implied(zone.to_owned());
                }
            }
        }
    }
}

/// Returns a schedule without times. On most platforms, runs may overlap. No platform makes up for
/// missed times.
fn none() -> ScheduleManifest {
    ScheduleManifest {
        overlap: Some(OverlapName::Allow),
        missed: Some(MissedName::Skip),
        ..ScheduleManifest::default()
    }
}

/// Sets the body of a call. Text is sent unchanged; any other value is sent as JSON with its content
/// type.
pub(super) fn set_body(schedule: &mut ScheduleManifest, body: &Value) {
    match body {
        Value::Null => {}
        Value::String(text) => schedule.body = Some(text.clone()),
        other => {
            schedule.body = Some(other.to_string());
            schedule.headers.insert("content-type".to_owned(), "application/json".to_owned());
        }
    }
}

/// Reads a Nuclio trigger of the kind `cron`.
pub(super) fn nuclio(to: &mut Described, name: &str, trigger: &Value) {
    let place = format!("triggers.{name}");
    if trigger["disabled"] == true {
        return to.warn(format!("{place}: it is disabled"));
    }
    let attributes = &trigger["attributes"];
    let policy = text(&attributes["concurrencyPolicy"]).unwrap_or_default();
    if policy == "Replace" {
        to.warn(format!("{place}: concurrencyPolicy Replace: a run is not ended by the next one"));
    }
    let event = &attributes["event"];
    to.ignore_rest(
        attributes,
        &["schedule", "interval", "concurrencyPolicy", "event"],
        &format!("{place}.attributes."),
    );
    let filled = |key: &str| text(&attributes[key]).filter(|text| !text.is_empty());
    let added = match (filled("schedule"), filled("interval")) {
        (Some(cron), _) => to.add_cron(&place, &cron),
        (None, Some(interval)) => to.add_every(&place, &interval),
        (None, None) => return to.warn(format!("{place}: it has neither schedule nor interval")),
    };
    let Some(added) = added else { return };
    // The platform passes events to the function one after another.
    let allows = policy == "Allow";
    added.overlap = Some(if allows { OverlapName::Allow } else { OverlapName::Skip });
    for (name, value) in event["headers"].as_object().into_iter().flatten() {
        added.headers.insert(name.to_ascii_lowercase(), text(value).unwrap_or_default());
    }
    added.headers.insert("x-nuclio-invoke-trigger".to_owned(), "cron".to_owned());
    set_body(added, &event["body"]);
}

/// Reads the annotations of OpenFaaS' cron connector. Returns whether the annotations are for that
/// connector.
pub(super) fn openfaas(to: &mut Described, annotations: &Value) -> bool {
    if annotations["topic"].as_str() != Some("cron-function") {
        return false;
    }
    match text(&annotations["schedule"]) {
        Some(written) => {
            to.add_cron("annotation schedule", &written);
        }
        None => to.warn("annotation topic: cron-function: there is no annotation schedule"),
    }
    true
}

/// Reads Fission's `TimeTrigger`.
pub(super) fn fission(to: &mut Described, name: &str, spec: &Value) {
    let place = format!("TimeTrigger {name}");
    let written = text(&spec["cron"]).unwrap_or_default();
    let Some(added) = to.add_cron(&place, &written) else { return };
    added.headers.insert("x-fission-timer-name".to_owned(), name.to_owned());
    added.method = text(&spec["method"]).filter(|method| !method.is_empty());
    let path = text(&spec["subpath"]).filter(|path| !path.is_empty());
    added.path = path.map(|path| format!("/{}", path.trim_start_matches('/')));
}

/// Reads an OpenWhisk trigger that the package alarms fires, for a function that a rule connects to the
/// trigger. If the trigger has another feed, returns the reason why it is not supported.
pub(super) fn openwhisk(
    to: &mut Described,
    name: &str,
    feed: &str,
    inputs: &serde_json::Map<String, Value>,
) -> Result<(), String> {
    let place = format!("triggers.{name}");
    let input = |key: &str| inputs.get(key).unwrap_or(&Value::Null);
    let feed = feed.trim_start_matches('/').trim_start_matches("whisk.system/");
    let added = match feed {
        "alarms/alarm" => to.add_cron(&place, &text(input("cron")).unwrap_or_default()),
        "alarms/interval" => {
            let minutes = text(input("minutes")).unwrap_or_default();
            to.add_every(&place, &format!("{minutes}m"))
        }
        "alarms/once" => return Err("a trigger that fires once is not supported".to_owned()),
        other => return Err(format!("the feed {other} is not supported")),
    };
    if let Some(added) = added {
        // The payload is an object, or the text of an object.
        let payload = input("trigger_payload");
        let parsed = payload.as_str().and_then(|text| serde_json::from_str(text).ok());
        set_body(
            added,
            parsed.as_ref().filter(|value: &&Value| value.is_object()).unwrap_or(payload),
        );
        if let Some(zone) = text(input("timezone")) {
            to.set_zone(&place, &zone);
        }
    }
    for key in ["maxTriggers", "startDate", "stopDate", "deleteAfterFire", "strict"] {
        if let Some(value) = text(input(key)).filter(|value| value != "-1") {
            to.warn(format!("{place}: ignored: {key} {value}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use mote_spec::manifest::{FILE_NAME, Manifest};

    use super::*;

    /// Returns the functions of a manifest whose code lies next to it, and the warnings.
    fn read(file: &str, yaml: &str) -> (Vec<Described>, Vec<String>) {
        let folder = tempfile::tempdir().unwrap();
        for code in ["main.py", "handler.py", "a.py"] {
            std::fs::write(folder.path().join(code), "def main(args): return args\n").unwrap();
        }
        let path = folder.path().join(file);
        std::fs::write(&path, yaml).unwrap();
        let found = super::super::read_file(&path, folder.path()).unwrap().unwrap();
        assert!(found.left_out.is_empty(), "{:?}", found.left_out);
        (found.functions, found.warnings)
    }

    /// Describes the schedules in words. Also checks that `mote import` writes a file with the same
    /// schedules.
    fn shown(described: &Described) -> Vec<String> {
        let written = crate::render::mote_toml("x.yml", described);
        let again = Manifest::parse(FILE_NAME, &written).expect(&written);
        let values = |all: &[Lined<ScheduleManifest>]| -> Vec<ScheduleManifest> {
            let mut all: Vec<_> = all.iter().map(|one| one.value.clone()).collect();
            for one in &mut all {
                one.cron.iter_mut().chain(&mut one.timezone).for_each(|text| text.line = 0);
            }
            all
        };
        let all = values(&described.function.schedules);
        assert_eq!(values(&again.functions[0].schedules), all, "{written}");
        crate::schedules::of(&described.function).unwrap();
        let word = |one: &ScheduleManifest| {
            let when = match (&one.cron, one.every_ms) {
                (Some(cron), _) => cron.value.clone(),
                (None, ms) => format!("every {} ms", ms.unwrap()),
            };
            let zone = one.timezone.as_ref().map_or("", |zone| &zone.value);
            let call =
                [&one.method, &one.path, &one.body].map(|part| part.clone().unwrap_or_default());
            let overlap = one.overlap.unwrap();
            format!("{when} {zone} {overlap:?} {} {:?}", call.join(" "), one.headers)
        };
        all.iter().map(word).collect()
    }

    #[test]
    fn nuclio_cron_triggers() {
        let (functions, _) = read(
            "function.yaml",
            r#"
apiVersion: nuclio.io/v1
kind: NuclioFunction
metadata: {name: a}
spec:
  runtime: python:3.9
  handler: main:main
  triggers:
    b: {kind: cron, attributes: {interval: 90s, event: {body: hello, headers: {X-A: 1}}}}
    c: {kind: cron, attributes: {schedule: "0 6 * * 1-5", concurrencyPolicy: Allow, other: 1}}
    d: {kind: cron, attributes: {interval: 10ms}}
    e: {kind: cron, attributes: {schedule: "61 * * * *"}}
    f: {kind: cron, attributes: {}}
    g: {kind: kafka}
"#,
        );
        let expected = [
            "every 90000 ms  Skip   hello {\"x-a\": \"1\", \"x-nuclio-invoke-trigger\": \"cron\"}",
            "0 6 * * 1-5  Allow    {\"x-nuclio-invoke-trigger\": \"cron\"}",
        ];
        assert_eq!(shown(&functions[0]), expected);
        let expected = [
            "ignored: triggers.c.attributes.other",
            "triggers.d: the interval `10ms` is not used: an interval is 1s to 168h here",
            "triggers.e: the schedule `61 * * * *` is not used: Number out of bounds",
            "triggers.f: it has neither schedule nor interval",
            "trigger g: kind kafka is not supported yet",
        ];
        assert_eq!(functions[0].warnings, expected);
    }

    #[test]
    fn openfaas_cron_annotations() {
        let (functions, _) = read(
            "stack.yml",
            r#"
provider: {name: openfaas}
functions:
  a:
    lang: python3
    handler: .
    annotations: {topic: cron-function, schedule: "*/5 * * * *"}
  b:
    lang: python3
    handler: .
    annotations: {topic: other, schedule: "*/5 * * * *"}
"#,
        );
        assert_eq!(shown(&functions[0]), ["*/5 * * * *  Allow    {}"]);
        assert!(functions[1].function.schedules.is_empty());
        let unused = "annotation topic: other: this trigger is not supported yet";
        assert!(functions[1].warnings.iter().any(|one| one == unused));
        assert!(!functions[0].warnings.iter().any(|one| one.contains("annotation")));
        let sent = serde_json::json!({
            "service": "a", "annotations": { "topic": "cron-function", "schedule": "@hourly" },
        });
        let described = super::super::openfaas_deployment(&sent);
        assert_eq!(described.function.schedules.len(), 1);
    }

    #[test]
    fn openwhisk_alarms() {
        let (functions, warnings) = read(
            "manifest.yaml",
            r#"
packages:
  default:
    actions: {a: {function: a.py, runtime: "python:3"}}
    triggers:
      t:
        feed: /whisk.system/alarms/alarm
        inputs: {cron: "*/2 * * * *", trigger_payload: '{"n": 1}', timezone: Europe/Berlin, maxTriggers: 3}
      i: {feed: /whisk.system/alarms/interval, inputs: {minutes: 2, trigger_payload: {m: 2}}}
      o: {feed: /whisk.system/alarms/once, inputs: {date: "2026-01-01"}}
      k: {feed: /whisk.system/messaging/kafka}
      l: {feed: /whisk.system/alarms/alarm, inputs: {cron: "* * * * *"}}
    rules:
      r1: {trigger: t, action: a}
      r2: {trigger: i, action: a}
      r3: {trigger: o, action: a}
      r4: {trigger: k, action: a}
"#,
        );
        let json = "{\"content-type\": \"application/json\"}";
        let expected = [
            format!("every 120000 ms  Allow   {{\"m\":2}} {json}"),
            format!("*/2 * * * * Europe/Berlin Allow   {{\"n\":1}} {json}"),
        ];
        let mut found = shown(&functions[0]);
        found.sort_by_key(|one| !one.starts_with("every"));
        assert_eq!(found, expected);
        let mut said = functions[0].warnings.clone();
        said.sort_unstable();
        let expected = [
            "triggers.k: the feed messaging/kafka is not supported: fire it with wsk trigger fire",
            "triggers.o: a trigger that fires once is not supported: fire it with wsk trigger fire",
            "triggers.t: ignored: maxTriggers 3",
        ];
        assert_eq!(said, expected);
        assert!(warnings.iter().any(|one| one.contains("no rule connects it")), "{warnings:?}");
    }

    #[test]
    fn fission_time_triggers() {
        let (functions, warnings) = read(
            "function.yaml",
            r#"
apiVersion: fission.io/v1
kind: Environment
metadata: {name: python}
spec: {runtime: {image: fission/python-env}}
---
apiVersion: fission.io/v1
kind: Function
metadata: {name: a}
spec: {environment: {name: python}}
---
apiVersion: fission.io/v1
kind: TimeTrigger
metadata: {name: half}
spec: {cron: "@every 30s", functionref: {type: name, name: a}, method: PUT, subpath: x/y}
---
apiVersion: fission.io/v1
kind: TimeTrigger
metadata: {name: lost}
spec: {cron: "0 */30 * * * *", functionref: {type: name, name: b}}
"#,
        );
        let expected = ["every 30000 ms  Allow PUT /x/y  {\"x-fission-timer-name\": \"half\"}"];
        assert_eq!(shown(&functions[0]), expected);
        assert_eq!(warnings, ["TimeTrigger lost: there is no function b"]);
    }

    #[test]
    fn kubeless_cron_job_triggers() {
        let (functions, _) = read(
            "functions.yaml",
            r#"
apiVersion: kubeless.io/v1beta1
kind: Function
metadata: {name: a}
spec: {runtime: python3.7, handler: a.main, function: "def main(event, context): return 1"}
---
apiVersion: kubeless.io/v1beta1
kind: CronJobTrigger
metadata: {name: c}
spec: {function-name: a, schedule: "0 * * * *", payload: {n: 1}}
"#,
        );
        let expected = ["0 * * * *  Allow   {\"n\":1} {\"content-type\": \"application/json\"}"];
        assert_eq!(shown(&functions[0]), expected);
    }
}
