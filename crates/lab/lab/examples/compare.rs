//! Compares policies on the five families of demand.
//!
//! `cargo run -p mote-lab --release --example compare [START_MS [SEED [FAMILY]]]`
//!
//! Arrivals, run times, start times and limits are the same for every policy. Presets have their
//! documented defaults. Ratios below 1 are in favour of `auto`.

use mote_lab::{Report, families, simulate, table};

fn main() {
    let mut args = std::env::args().skip(1);
    let start_ms = args.next().and_then(|text| text.parse().ok()).unwrap_or(50.0);
    let seed = args.next().and_then(|text| text.parse().ok()).unwrap_or(11);
    let only = args.next();
    println!("starts of {start_ms} ms, seed {seed}");
    for name in families::FAMILIES {
        if only.as_deref().is_some_and(|only| only != name) {
            continue;
        }
        let reports: Vec<_> = families::policies()
            .into_iter()
            .filter_map(|policy| families::family(name, policy, seed, start_ms))
            .map(|scenario| simulate(&scenario))
            .collect();
        println!("\n{name}\n{}", table(&reports));
        let Some((auto, presets)) = reports.split_first() else { continue };
        for preset in presets {
            println!("{}", against(auto, preset));
        }
    }
}

fn against(auto: &Report, preset: &Report) -> String {
    let answered = preset.answered as f64 / preset.offered.max(1) as f64;
    format!(
        "auto / {:<9} mean wait {:.2}, p99 {:.2}, instance-seconds {:.2}, starts {:.1}, cost {:.2}{}",
        preset.policy,
        auto.wait.mean_ms / preset.wait.mean_ms,
        auto.wait.p99_ms / preset.wait.p99_ms,
        auto.instance_seconds / preset.instance_seconds,
        auto.starts as f64 / preset.starts as f64,
        auto.cost_s / preset.cost_s,
        if answered < 0.99 {
            format!(" (it answered {:.0} %)", answered * 100.0)
        } else {
            String::new()
        },
    )
}
