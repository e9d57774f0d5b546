//! A chain in one file: a workflow of the CNCF Serverless Workflow language.

use mote_api::manifest::RuntimeName;
use serde_json::Value;

use super::{Described, Foreign, Source, label, set, text};

pub(super) fn read(file: &str, document: &Value, source: &str) -> Foreign {
    let name = text(&document["document"]["name"]).unwrap_or_default();
    let mut to = Described::default();
    set(&mut to.function.name, label(&name));
    set(&mut to.function.runtime, RuntimeName::Chain);
    set(&mut to.function.entry, file.to_owned());
    to.note("runtime", "document.dsl");
    schedule(&mut to, &document["schedule"]);
    to.source = Source::Inside(vec![(file.to_owned(), source.as_bytes().to_vec())]);
    Foreign { functions: vec![to], ..Foreign::default() }
}

fn schedule(to: &mut Described, schedule: &Value) {
    if let Some(written) = schedule["cron"].as_str() {
        to.add_cron("schedule.cron", written);
    }
    match &schedule["every"] {
        Value::Null => {}
        Value::Object(parts) => {
            let written: String = parts
                .iter()
                .map(|(unit, value)| {
                    let unit = match unit.as_str() {
                        "milliseconds" => "ms",
                        "seconds" => "s",
                        "minutes" => "m",
                        "hours" => "h",
                        other => other,
                    };
                    format!("{value}{unit}")
                })
                .collect();
            to.add_every("schedule.every", &written);
        }
        other => {
            let written = text(other).unwrap_or_default().to_lowercase();
            to.add_every("schedule.every", written.trim_start_matches("pt"));
        }
    }
    for key in ["after", "on"] {
        if !schedule[key].is_null() {
            to.warn(format!("schedule.{key} has no meaning here; use a trigger of the function"));
        }
    }
}
