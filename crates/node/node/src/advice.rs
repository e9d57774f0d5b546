//! Advice to the owner on changes to a function's manifest, based on what the node has seen of a
//! revision.
//!
//! A pure function decides from a few counters ([`Seen`]). Each rule needs a sample that is long
//! enough, so that a function that was just deployed gets no advice based on its first minutes.

use mote_api::types::Advice;
use mote_engine::Revision;
use mote_engine::revision::seen::Seen;
use mote_spec::quantity::{duration_text, size_text};
use mote_spec::{FunctionSpec, StartPolicy};

const SECOND_NS: u64 = 1_000_000_000;
const HOUR_NS: u64 = 3_600 * SECOND_NS;
/// The shortest time for which a revision must have been observed: in general, and for observations
/// that depend on the time of day.
const SAMPLE_NS: u64 = HOUR_NS;
const DAY_NS: u64 = 24 * HOUR_NS;
/// How many calls are needed to judge how much memory a function needs.
const CALLS_MIN: u64 = 100;
/// A memory limit is too high if it is this many times the peak, and lowering it frees at least
/// [`FREED_BYTES_MIN`].
const MEMORY_FACTOR: u64 = 4;
const FREED_BYTES_MIN: u64 = 64 << 20;
/// Proposed limits are multiples of this, because peaks vary.
const MEMORY_STEP: u64 = 32 << 20;
/// A processor limit is too low if it held the instances back for at least this part of the time in
/// which they ran or could have run, and for at least this long.
const HELD_PERCENT: u64 = 20;
const HELD_NS_MIN: u64 = 10 * SECOND_NS;
/// How many calls must have waited for a start, or been refused, before a change is worthwhile.
const STARTS_MIN: u64 = 10;
const REFUSED_MIN: u64 = 10;
/// If the first start after a restart of the node takes at least this long, `start = "warm"` is
/// worthwhile.
const SLOW_START_NS: u64 = SECOND_NS / 2;

/// The advice for a revision, the most urgent first. Reads a few small files for each instance.
pub(crate) fn of(revision: &Revision) -> Vec<Advice> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    advice(&revision.spec, &revision.seen(), u32::try_from(cores).unwrap_or(1))
}

/// Whether calls fail or are slow without the change. All other advice saves memory or starts.
pub(crate) fn is_urgent(advice: &Advice) -> bool {
    matches!(advice.code.as_str(), "memory-low" | "queue-full" | "cpu-low")
}

fn advice(spec: &FunctionSpec, seen: &Seen, cores: u32) -> Vec<Advice> {
    let all = [
        memory_low(spec, seen),
        queue_full(spec, seen, cores),
        cpu_low(spec, seen, cores),
        idle_short(spec, seen).or_else(|| min_zero(spec, seen)),
        start_cold(spec, seen),
        memory_high(spec, seen),
        min_unused(spec, seen),
    ];
    all.into_iter().flatten().collect()
}

fn advise(code: &str, text: String, section: &str, change: String) -> Option<Advice> {
    Some(Advice { code: code.to_owned(), text, section: section.to_owned(), change })
}

/// A duration in words, without the parts that are too small to matter.
fn over(ns: u64) -> String {
    let minutes = ns / (60 * SECOND_NS);
    match minutes {
        0 => "less than a minute".to_owned(),
        1..120 => format!("{minutes} min"),
        120..2_880 => format!("{} h", minutes / 60),
        _ => format!("{} days", minutes / 1_440),
    }
}

/// A limit in the form in which `mote.toml` has it. Proposed limits are whole MiB if the present
/// one is.
fn memory_line(bytes: u64) -> String {
    match bytes % (1 << 20) {
        0 => format!("memory = \"{}MiB\"", bytes >> 20),
        _ => format!("memory = \"{}KiB\"", bytes >> 10),
    }
}

fn stepped(bytes: u64) -> u64 {
    bytes.div_ceil(MEMORY_STEP).max(1) * MEMORY_STEP
}

fn memory_low(spec: &FunctionSpec, seen: &Seen) -> Option<Advice> {
    if seen.memory_stops == 0 {
        return None;
    }
    let (limit, times, over) = (spec.limits.memory_bytes, seen.memory_stops, over(seen.age_ns));
    let text = format!(
        "in {over}, {} the memory limit of {}",
        if times == 1 { "1 instance reached".into() } else { format!("{times} instances reached") },
        size_text(limit)
    );
    advise("memory-low", text, "limits", memory_line(2 * limit))
}

fn memory_high(spec: &FunctionSpec, seen: &Seen) -> Option<Advice> {
    let (limit, peak) = (spec.limits.memory_bytes, seen.memory_peak_bytes);
    let wanted = stepped(2 * peak);
    let is_clear = seen.age_ns >= SAMPLE_NS && seen.calls >= CALLS_MIN && seen.memory_stops == 0;
    if !is_clear
        || peak == 0
        || limit < MEMORY_FACTOR * peak
        || limit.saturating_sub(wanted) < FREED_BYTES_MIN
    {
        return None;
    }
    let text = format!(
        "no instance used more than {} of {} in {} and {} calls; the node reserves the whole limit \
         for each instance",
        size_text(peak.div_ceil(1 << 20) << 20),
        size_text(limit),
        over(seen.age_ns),
        seen.calls
    );
    advise("memory-high", text, "limits", memory_line(wanted))
}

fn cpu_low(spec: &FunctionSpec, seen: &Seen, cores: u32) -> Option<Advice> {
    let limit = spec.limits.cpu_millis?;
    let wanted = (2 * limit).min(1_000 * cores);
    let all_ns = seen.cpu_ns + seen.held_back_ns;
    let percent = 100 * seen.held_back_ns / all_ns.max(1);
    if percent < HELD_PERCENT || seen.held_back_ns < HELD_NS_MIN || wanted <= limit {
        return None;
    }
    let number = |millis: u32| f64::from(millis) / 1_000.0;
    let text = format!(
        "the processor limit of {} held instances back for {percent} % of the time in which they \
         wanted to run ({} of the last {})",
        number(limit),
        duration_text(seen.held_back_ns / 1_000_000_000 * 1_000),
        over(seen.age_ns)
    );
    advise("cpu-low", text, "limits", format!("cpu = {:?}", number(wanted)))
}

fn min_unused(spec: &FunctionSpec, seen: &Seen) -> Option<Advice> {
    let kept = spec.scale.min;
    let unused = u32::try_from(seen.unused_for_a_day).unwrap_or(u32::MAX).min(kept);
    if unused == 0 || seen.age_ns < DAY_NS {
        return None;
    }
    let text = format!(
        "{unused} of the {kept} instances that min keeps ran for more than a day and served no call",
    );
    advise("min-unused", text, "scale", format!("min = {}", kept - unused))
}

/// Calls waited for a start soon after the last instance had stopped because of `idle`.
fn idle_short(spec: &FunctionSpec, seen: &Seen) -> Option<Advice> {
    let idle_ms = spec.scale.idle_timeout_ms;
    let mut avoided = 0;
    for (bucket, starts) in seen.starts_by_idle_ms {
        avoided += starts;
        let is_most = 2 * avoided >= seen.cold_starts && avoided >= STARTS_MIN;
        if bucket > idle_ms && is_most && seen.age_ns >= SAMPLE_NS {
            let text = format!(
                "{avoided} of {} starts for which a call waited in {} would not have happened with \
                 a longer idle time than {}; an idle instance keeps its memory ({})",
                seen.cold_starts,
                over(seen.age_ns),
                duration_text(idle_ms),
                size_text(spec.limits.memory_bytes)
            );
            let change = format!("idle = \"{}m\"", bucket / 60_000);
            return advise("idle-short", text, "scale", change);
        }
    }
    None
}

fn min_zero(spec: &FunctionSpec, seen: &Seen) -> Option<Advice> {
    let is_clear = seen.age_ns >= SAMPLE_NS && seen.starts_from_zero >= STARTS_MIN;
    if spec.scale.floor() > 0 || !is_clear {
        return None;
    }
    let text = format!(
        "{} calls waited for a start in {}, because no instance was there; one that stays keeps its \
         memory ({})",
        seen.starts_from_zero,
        over(seen.age_ns),
        size_text(spec.limits.memory_bytes)
    );
    advise("min-zero", text, "scale", "min = 1".to_owned())
}

fn start_cold(spec: &FunctionSpec, seen: &Seen) -> Option<Advice> {
    let took_ns = seen.first_start_ns.filter(|ns| *ns >= SLOW_START_NS)?;
    if spec.scale.start != StartPolicy::Cold || spec.scale.floor() > 0 {
        return None;
    }
    let text = format!(
        "after the start of the node, the first call waited {} for an instance",
        duration_text(took_ns / 1_000_000)
    );
    advise("start-cold", text, "scale", "start = \"warm\"".to_owned())
}

fn queue_full(spec: &FunctionSpec, seen: &Seen, cores: u32) -> Option<Advice> {
    if seen.queue_refusals < REFUSED_MIN {
        return None;
    }
    let max = spec.scale.max.unwrap_or(cores.max(spec.scale.min));
    let text = format!(
        "{} calls were refused in {}: the queue (at most {}) was full, with at most {max} {}",
        seen.queue_refusals,
        over(seen.age_ns),
        spec.scale.queue,
        if max == 1 { "instance" } else { "instances" }
    );
    let change = match max < 1_000 {
        true => format!("max = {}", (2 * max).min(1_000)),
        false => format!("queue = {}", (2 * spec.scale.queue).clamp(16, 100_000)),
    };
    advise("queue-full", text, "scale", change)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(manifest: &str) -> FunctionSpec {
        let name = mote_spec::FunctionName::new("f").unwrap();
        let mut spec = FunctionSpec::with_defaults(name, mote_spec::Runtime::Python, "app:handle");
        for line in manifest.lines().map(str::trim).filter(|line| !line.is_empty()) {
            match line.split_once(" = ").unwrap() {
                ("memory", mib) => spec.limits.memory_bytes = mib.parse::<u64>().unwrap() << 20,
                ("cpu", millis) => spec.limits.cpu_millis = Some(millis.parse().unwrap()),
                ("min", min) => spec.scale.min = min.parse().unwrap(),
                ("idle", ms) => spec.scale.idle_timeout_ms = ms.parse().unwrap(),
                (key, _) => panic!("{key}"),
            }
        }
        spec
    }

    fn check(manifest: &str, change: impl Fn(&mut Seen), expected: &[(&str, &str)]) {
        let mut seen = Seen { age_ns: 3 * HOUR_NS, calls: 1_000, ..Seen::default() };
        change(&mut seen);
        let all = advice(&spec(manifest), &seen, 4);
        let found: Vec<_> =
            all.iter().map(|one| (one.code.as_str(), one.change.as_str())).collect();
        assert_eq!(found, expected, "{all:?}");
    }

    #[test]
    fn a_function_that_fits_its_settings_gets_no_advice() {
        check("memory = 128", |_| {}, &[]);
        check("memory = 128", |seen| seen.memory_peak_bytes = 60 << 20, &[]);
        check("memory = 128\ncpu = 500", |seen| seen.cpu_ns = HOUR_NS, &[]);
    }

    #[test]
    fn memory() {
        let high = [("memory-high", "memory = \"96MiB\"")];
        check("memory = 512", |seen| seen.memory_peak_bytes = 40 << 20, &high);
        let few = |seen: &mut Seen| (seen.memory_peak_bytes, seen.calls) = (40 << 20, 99);
        check("memory = 512", few, &[]);
        let short =
            |seen: &mut Seen| (seen.memory_peak_bytes, seen.age_ns) = (40 << 20, HOUR_NS - 1);
        check("memory = 512", short, &[]);
        check(
            "memory = 128",
            |seen| seen.memory_peak_bytes = 20 << 20,
            &[("memory-high", "memory = \"64MiB\"")],
        );
        let low = [("memory-low", "memory = \"256MiB\"")];
        check("memory = 128", |seen| seen.memory_stops = 1, &low);
    }

    #[test]
    fn processor() {
        let held =
            |seen: &mut Seen| (seen.cpu_ns, seen.held_back_ns) = (60 * SECOND_NS, 40 * SECOND_NS);
        check("memory = 128\ncpu = 500", held, &[("cpu-low", "cpu = 1.0")]);
        check("memory = 128\ncpu = 4000", held, &[]);
        let little = |seen: &mut Seen| (seen.cpu_ns, seen.held_back_ns) = (0, 9 * SECOND_NS);
        check("memory = 128\ncpu = 500", little, &[]);
    }

    #[test]
    fn starts() {
        let soon = |seen: &mut Seen| {
            (seen.cold_starts, seen.starts_from_zero) = (20, 20);
            seen.starts_by_idle_ms[1].1 = 12;
        };
        check("memory = 128\nidle = 300000", soon, &[("idle-short", "idle = \"60m\"")]);
        let late = |seen: &mut Seen| (seen.cold_starts, seen.starts_from_zero) = (20, 20);
        check("memory = 128", late, &[("min-zero", "min = 1")]);
        check("memory = 128\nmin = 1", late, &[]);
        let slow = |seen: &mut Seen| seen.first_start_ns = Some(2 * SECOND_NS);
        check("memory = 128", slow, &[("start-cold", "start = \"warm\"")]);
    }

    #[test]
    fn instances_and_queue() {
        let unused = |seen: &mut Seen| (seen.unused_for_a_day, seen.age_ns) = (2, 2 * DAY_NS);
        check("memory = 128\nmin = 3", unused, &[("min-unused", "min = 1")]);
        check("memory = 128\nmin = 3", |seen| seen.unused_for_a_day = 2, &[]);
        check("memory = 128", |seen| seen.queue_refusals = 10, &[("queue-full", "max = 8")]);
    }
}
