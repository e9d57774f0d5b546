//! Reads the schedules of a manifest and checks their expressions and time zones.

use std::sync::Arc;

use mote_schedule::times::{self, TimesError};
use mote_spec::manifest::{FunctionManifest, MissedName, OverlapName, ScheduleManifest};
use mote_spec::toml_reader::{Lined, Mistakes};
use mote_spec::{Missed, Overlap, Schedule, ScheduledCall, TIMEZONE_DEFAULT, When};

use super::mistakes::{escaped, in_manifest};

/// Returns the schedules of a function for its spec.
pub(crate) fn of(function: &FunctionManifest) -> Result<Vec<Arc<Schedule>>, Mistakes> {
    let mut mistakes = Vec::new();
    let mut schedules = Vec::new();
    for one in &function.schedules {
        match schedule(one) {
            Ok(schedule) => schedules.push(Arc::new(schedule)),
            Err(Mistakes(found)) => mistakes.extend(found),
        }
    }
    if mistakes.is_empty() { Ok(schedules) } else { Err(Mistakes(mistakes)) }
}

fn schedule(Lined { value, line }: &Lined<ScheduleManifest>) -> Result<Schedule, Mistakes> {
    let mut schedule = Schedule::new(when(value, *line)?);
    schedule.missed = match value.missed {
        Some(MissedName::RunOnce) => Missed::RunOnce,
        Some(MissedName::RunAll) => Missed::RunAll,
        Some(MissedName::Skip) | None => Missed::Skip,
    };
    schedule.overlap = match value.overlap {
        Some(OverlapName::Queue) => Overlap::Queue,
        Some(OverlapName::Allow) => Overlap::Allow,
        Some(OverlapName::Skip) | None => Overlap::Skip,
    };
    schedule.jitter_ms = value.jitter_ms.unwrap_or(0);
    let defaults = ScheduledCall::default();
    schedule.call = ScheduledCall {
        method: value.method.clone().unwrap_or(defaults.method),
        path: value.path.clone().unwrap_or(defaults.path),
        headers: value.headers.clone(),
        body: value.body.clone().unwrap_or(defaults.body),
    };
    match schedule.check().into_iter().next() {
        Some(error) => Err(in_manifest("M0303", *line, &error.to_string())),
        None => Ok(schedule),
    }
}

fn when(schedule: &ScheduleManifest, line: usize) -> Result<When, Mistakes> {
    if let Some(ms) = schedule.every_ms {
        return Ok(When::Every { ms });
    }
    let Some(cron) = &schedule.cron else {
        return Err(in_manifest("M0306", line, "a schedule needs cron or every"));
    };
    times::check_expression(&cron.value).map_err(|error| {
        let text = format!("cron: {error}; found \"{}\"", escaped(&cron.value));
        let mut mistakes = in_manifest("M0303", cron.line, &text);
        mistakes.0[0].hint = hint(&cron.value);
        mistakes
    })?;
    let zone = schedule.timezone.as_ref();
    if let Some(zone) = zone {
        // This machine may have no time zones, while the node has them. The node checks the zone again.
        if let Err(error @ TimesError::Zone) = times::zone(&zone.value) {
            let text = format!("timezone: {error}; found \"{}\"", escaped(&zone.value));
            let mut mistakes = in_manifest("M0303", zone.line, &text);
            let zones = times::zones();
            let near = mote_spec::nearest(&zone.value, zones.iter().map(String::as_str));
            mistakes.0[0].hint = Some(match near {
                Some(near) => format!("did you mean \"{near}\"?"),
                None => "write the name of an IANA zone, e.g. \"Europe/Berlin\"".to_owned(),
            });
            return Err(mistakes);
        }
    }
    let timezone = zone.map_or_else(|| TIMEZONE_DEFAULT.to_owned(), |zone| zone.value.clone());
    Ok(When::Cron { expression: cron.value.trim().to_owned(), timezone })
}

/// Suggests the right form of an expression that is not a valid cron expression here.
fn hint(expression: &str) -> Option<String> {
    if let Some(interval) = expression.trim().strip_prefix("@every ") {
        return Some(format!("write every = \"{}\" instead of cron", escaped(interval.trim())));
    }
    if expression.trim() == "@reboot" {
        return Some("a function that runs when the node starts is not supported".to_owned());
    }
    // Quartz writes seconds as the first field and a year as the last.
    let fields: Vec<&str> = expression.split_whitespace().collect();
    (fields.len() == 7)
        .then(|| format!("without the year: \"{}\"", escaped(&fields[..6].join(" "))))
}

#[cfg(test)]
mod tests {
    use mote_spec::manifest::{FILE_NAME, Manifest};

    use super::*;

    fn read(section: &str) -> Result<Vec<Arc<Schedule>>, Mistakes> {
        let source = format!("version = 1\n[[trigger]]\n{section}\n");
        of(&Manifest::parse(FILE_NAME, &source).unwrap().functions[0])
    }

    #[test]
    fn defaults_are_those_of_the_reference() {
        let all = read("cron = \" @hourly \"\n[[trigger]]\nevery = \"90s\"").unwrap();
        let expression = "@hourly".to_owned();
        let timezone = "UTC".to_owned();
        assert_eq!(*all[0], Schedule::new(When::Cron { expression, timezone }));
        assert_eq!(*all[1], Schedule::new(When::Every { ms: 90_000 }));
        let Schedule { missed, jitter_ms, overlap, call, .. } = &*all[1];
        assert_eq!((*missed, *jitter_ms, *overlap), (Missed::Skip, 0, Overlap::Skip));
        assert_eq!((&*call.method, &*call.path, &*call.body), ("POST", "/", ""));
    }

    #[test]
    fn mistakes_in_expressions_and_zones_have_their_lines() {
        let check = |section: &str, expected: &str| {
            assert_eq!(read(section).unwrap_err().to_string(), expected, "{section}");
        };
        check(
            "cron = \"* * * *\"",
            "error[M0303]: mote.toml: cron: five fields, or six with seconds first, not 4; found \"* * * *\" (line 3)",
        );
        check(
            "cron = \"0 0 30 2 *\"",
            "error[M0303]: mote.toml: cron: no date ever matches it; found \"0 0 30 2 *\" (line 3)",
        );
        check(
            "cron = \"@every 5s\"",
            "error[M0303]: mote.toml: cron: five fields, or six with seconds first, not 2; found \"@every 5s\" (line 3)\n  write every = \"5s\" instead of cron",
        );
        check(
            "cron = \"0 0 12 1 1 ? 2030\"",
            "error[M0303]: mote.toml: cron: five fields, or six with seconds first, not 7; found \"0 0 12 1 1 ? 2030\" (line 3)\n  without the year: \"0 0 12 1 1 ?\"",
        );
        check(
            "cron = \"61 * * * *\"\n[[trigger]]\ncron = \"@hourly\"\ntimezone = \"Europe/Berlni\"",
            "error[M0303]: mote.toml: cron: Number out of bounds; found \"61 * * * *\" (line 3)\nerror[M0303]: mote.toml: timezone: no zone of this name; found \"Europe/Berlni\" (line 6)\n  did you mean \"Europe/Berlin\"?",
        );
        check(
            "every = \"5s\"\nheaders = { \"a b\" = \"1\" }",
            "error[M0303]: mote.toml: trigger.headers: at most 32 fields; names do not begin with mote-, mqtt- or coap- (line 2)",
        );
    }
}
