//! The limits of an action: the platform's defaults, a client's values, and the permitted ranges.

use serde_json::{Map, Value, json};

use super::entities::{Entity, What};
use super::refused::Refused;

pub(super) const TIMEOUT_MS_MAX: u64 = 300_000;
const TIMEOUT_MS_MIN: u64 = 100;
const TIMEOUT_MS_DEFAULT: u64 = 60_000;
pub(super) const MEMORY_MIB_MAX: u64 = 512;
const MEMORY_MIB_MIN: u64 = 128;
const MEMORY_MIB_DEFAULT: u64 = 256;

/// Returns an action's limits with the values in `wish`. Limits that `wish` leaves out keep the values
/// of the existing action, or have the platform's defaults if the action is new.
pub(super) fn limits(
    wish: Option<&Map<String, Value>>,
    known: Option<&Entity>,
) -> Result<Value, Refused> {
    let before = match known.map(|known| &known.what) {
        Some(What::Action { limits, .. } | What::Sequence { limits, .. }) => limits.clone(),
        _ => json!({
            "timeout": TIMEOUT_MS_DEFAULT, "memory": MEMORY_MIB_DEFAULT, "logs": 10, "concurrency": 1,
        }),
    };
    let mut limits = before;
    for (key, value) in wish.into_iter().flatten() {
        limits[key] = value.clone();
    }
    let within = |key: &str, least: u64, most: u64, unit: &str| {
        let found = limits[key].as_u64().unwrap_or(0);
        if (least..=most).contains(&found) {
            return Ok(());
        }
        let text = format!("{key} {found} {unit} is not in the range of {least} to {most} {unit}.");
        Err(Refused::bad(text))
    };
    within("timeout", TIMEOUT_MS_MIN, TIMEOUT_MS_MAX, "ms")?;
    within("memory", MEMORY_MIB_MIN, MEMORY_MIB_MAX, "MB")?;
    within("concurrency", 1, 500, "")?;
    Ok(limits)
}
