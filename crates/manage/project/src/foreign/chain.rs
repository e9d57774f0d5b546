//! Reads a chain from a single file. A chain is a workflow in the language of the CNCF project
//! Serverless Workflow.

use mote_spec::manifest::RuntimeName;
use mote_spec::toml_reader::Mistakes;
use serde_json::Value;

use super::super::mistakes::mistake;
use super::{Described, Foreign, Source, label, set, text};

pub(super) fn read(file: &str, document: &Value, source: &str) -> Result<Foreign, Mistakes> {
    let name = text(&document["document"]["name"]).unwrap_or_default();
    let mut to = Described::default();
    set(&mut to.function.name, label(&name));
    set(&mut to.function.runtime, RuntimeName::Chain);
    set(&mut to.function.entry, file.to_owned());
    to.note("runtime", "document.dsl");
    if !document["schedule"].is_null() {
        schedule(&mut to, &document["schedule"])
            .map_err(|text| mistake("M0303", format!("{file}: schedule: {text}"), None))?;
    }
    to.source = Source::Inside(vec![(file.to_owned(), source.as_bytes().to_vec())]);
    Ok(Foreign { functions: vec![to], ..Foreign::default() })
}

fn schedule(to: &mut Described, schedule: &Value) -> Result<(), String> {
    let Some(members) = schedule.as_object() else {
        return Err("expected cron or every, as in { every: { minutes: 10 } }".to_owned());
    };
    for (key, value) in members {
        let added = match (key.as_str(), value) {
            ("cron", Value::String(written)) => to.add_cron("cron", written).is_some(),
            ("every", Value::Object(parts)) => {
                let mut written = String::new();
                for (unit, value) in parts {
                    let unit = match unit.as_str() {
                        "milliseconds" => "ms",
                        "seconds" => "s",
                        "minutes" => "m",
                        "hours" => "h",
                        other => {
                            return Err(format!("every: {other} is not a unit of an interval"));
                        }
                    };
                    written += &format!("{value}{unit}");
                }
                to.add_every("every", &written).is_some()
            }
            ("every", Value::String(written)) => {
                let written = written.to_lowercase();
                to.add_every("every", written.trim_start_matches("pt")).is_some()
            }
            ("cron" | "every", _) => return Err(format!("{key}: {value} is not usable")),
            _ => {
                return Err(format!(
                    "{key} has no meaning here; it has cron and every, and mote.toml has more triggers"
                ));
            }
        };
        if !added {
            return Err(to.warnings.pop().unwrap_or_default());
        }
        // A chain has the defaults of `mote`'s schedules, not those of other platforms.
        if let Some(last) = to.function.schedules.last_mut() {
            (last.value.overlap, last.value.missed) = (None, None);
        }
    }
    Ok(())
}
