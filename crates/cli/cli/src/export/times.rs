//! Converts schedules to the times of CronJobs.

use mote_spec::When;

const MINUTE_MS: u64 = 60_000;

/// Returns the expression and the zone of a CronJob with the same times. If no CronJob can have these
/// times, returns the reason.
pub(crate) fn cron(when: &When) -> Result<(String, Option<&str>), String> {
    match when {
        When::Cron { expression, timezone } => {
            let cannot = |why: &str| Err(format!("the schedule `{expression}`: {why}"));
            if expression.starts_with('@') {
                return Ok((expression.clone(), Some(timezone)));
            }
            let mut fields: Vec<&str> = expression.split_whitespace().collect();
            if fields.len() == 6 {
                if fields[0] != "0" {
                    return cannot("a CronJob has no seconds");
                }
                fields.remove(0);
            }
            if fields.len() != 5 || fields.iter().any(|field| field.contains(['L', 'W', '#'])) {
                return cannot("a CronJob cannot express it");
            }
            // In a CronJob, Sunday can be written only as 0.
            match fields[4] {
                "7" => fields[4] = "0",
                day if day.contains('7') => return cannot("write Sunday as 0"),
                _ => {}
            }
            Ok((fields.join(" "), Some(timezone)))
        }
        When::Every { ms } => {
            let minutes = ms / MINUTE_MS;
            let text = match minutes {
                _ if !ms.is_multiple_of(MINUTE_MS) => None,
                1 => Some("* * * * *".to_owned()),
                1..60 if 60_u64.is_multiple_of(minutes) => Some(format!("*/{minutes} * * * *")),
                60 => Some("0 * * * *".to_owned()),
                1440 => Some("0 0 * * *".to_owned()),
                _ if minutes.is_multiple_of(60) && 1440_u64.is_multiple_of(minutes) => {
                    Some(format!("0 */{} * * *", minutes / 60))
                }
                _ => None,
            };
            // A node counts the multiples of an interval in UTC, so the CronJob must use UTC.
            text.map(|text| (text, Some("Etc/UTC"))).ok_or_else(|| {
                format!("the schedule every {} s: a CronJob cannot express it", *ms as f64 / 1e3)
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_keep_their_times_or_say_why_not() {
        let text = |when: &When| match cron(when) {
            Ok((text, zone)) => format!("{text} ({})", zone.unwrap_or("-")),
            Err(why) => why,
        };
        for (expression, expected) in [
            ("*/5 * * * *", "*/5 * * * * (Europe/Berlin)"),
            ("@hourly", "@hourly (Europe/Berlin)"),
            ("0 30 6 * * mon-fri", "30 6 * * mon-fri (Europe/Berlin)"),
            ("0 6 * * 7", "0 6 * * 0 (Europe/Berlin)"),
            ("0 6 * * 5-7", "the schedule `0 6 * * 5-7`: write Sunday as 0"),
            ("30 * * * * *", "the schedule `30 * * * * *`: a CronJob has no seconds"),
            ("0 6 L * *", "the schedule `0 6 L * *`: a CronJob cannot express it"),
        ] {
            let timezone = "Europe/Berlin".to_owned();
            assert_eq!(text(&When::Cron { expression: expression.to_owned(), timezone }), expected);
        }
        for (seconds, expected) in [
            (60, "* * * * * (Etc/UTC)"),
            (300, "*/5 * * * * (Etc/UTC)"),
            (3_600, "0 * * * * (Etc/UTC)"),
            (21_600, "0 */6 * * * (Etc/UTC)"),
            (86_400, "0 0 * * * (Etc/UTC)"),
            (10, "the schedule every 10 s: a CronJob cannot express it"),
            (420, "the schedule every 420 s: a CronJob cannot express it"),
        ] {
            assert_eq!(text(&When::Every { ms: seconds * 1_000 }), expected);
        }
    }
}
