//! The few files of /proc that an instance can read, other than those about processes.
//!
//! These files tell programs how much memory and how many processors they have. The texts are
//! generated here, with the instance's own limits. They reveal only two facts about the host: the
//! number of processors, and the second in which the machine was booted. Both can also be read with
//! system calls that every program needs. Pure, except for [`Machine::look`].

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::sys;

/// The folder of the texts in an instance's root. They are mounted over the files of /proc.
pub(crate) const DIR: &str = "/var/lib/proc";
/// The file whose text depends on the instance's limits.
const MEMORY: &str = "meminfo";

/// The facts about the machine that the texts show.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Machine {
    /// The number of processors that an instance may use.
    pub(crate) processors: usize,
    /// The time at which the machine was booted, in seconds since 1970. The kernel counts the start
    /// times of processes from that moment.
    pub(crate) booted_s: u64,
    /// The memory limit of the instance. Without it, the texts do not show memory.
    pub(crate) memory_bytes: Option<u64>,
}

impl Machine {
    /// Asks the kernel for the facts. Does not block.
    pub(crate) fn look(memory_bytes: Option<u64>) -> Self {
        Self { processors: sys::processors(), booted_s: sys::booted_s(), memory_bytes }
    }
}

pub(crate) fn texts(machine: Machine) -> Vec<(&'static str, String)> {
    let mut texts = vec![
        ("cpuinfo", cpuinfo(machine.processors)),
        ("stat", stat(machine)),
        ("vmstat", "pswpin 0\npswpout 0\n".to_owned()),
        ("filesystems", "nodev\tproc\nnodev\ttmpfs\n".to_owned()),
    ];
    texts.extend(machine.memory_bytes.map(|bytes| (MEMORY, meminfo(bytes))));
    texts
}

/// The path and text of the generated file that shows an instance its memory.
pub(crate) fn memory_file(bytes: u64) -> (PathBuf, String) {
    (PathBuf::from(DIR).join(MEMORY), meminfo(bytes))
}

/// The file shows the whole limit as free, because it is written once, before the program runs.
fn meminfo(bytes: u64) -> String {
    const NONE: [&str; 11] = [
        "Buffers",
        "Cached",
        "SwapCached",
        "Active",
        "Inactive",
        "SwapTotal",
        "SwapFree",
        "Shmem",
        "Slab",
        "SReclaimable",
        "SUnreclaim",
    ];
    let mut text = String::new();
    let mut line = |name: &str, kib: u64| {
        text.push_str(&format!("{:<15} {kib:>8} kB\n", format!("{name}:")));
    };
    for name in ["MemTotal", "MemFree", "MemAvailable"] {
        line(name, bytes >> 10);
    }
    for name in NONE {
        line(name, 0);
    }
    text
}

fn cpuinfo(processors: usize) -> String {
    let one = |number: usize| {
        format!(
            "processor\t: {number}\nphysical id\t: 0\nsiblings\t: {processors}\n\
             core id\t\t: {number}\ncpu cores\t: {processors}\n\n"
        )
    };
    (0..processors).map(one).collect()
}

/// The file shows all processor times as 0, because the host's times would reveal the activity of
/// others.
fn stat(machine: Machine) -> String {
    const TIMES: &str = " 0 0 0 0 0 0 0 0 0 0\n";
    let mut text = format!("cpu {TIMES}");
    for number in 0..machine.processors {
        text.push_str(&format!("cpu{number}{TIMES}"));
    }
    text.push_str(&format!(
        "intr 0\nctxt 0\nbtime {}\nprocesses 0\nprocs_running 1\nprocs_blocked 0\n\
         softirq 0 0 0 0 0 0 0 0 0 0 0\n",
        machine.booted_s
    ));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_texts_have_the_forms_of_the_kernel() {
        let memory_bytes = Some(64 << 20);
        let machine = Machine { processors: 2, booted_s: 1_700_000_000, memory_bytes };
        let made = texts(machine);
        let of = |wanted: &str| made.iter().find(|(name, _)| *name == wanted).unwrap().1.as_str();
        assert!(of("meminfo").starts_with("MemTotal:          65536 kB\nMemFree:"));
        assert!(of("stat").starts_with("cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 0 "), "{}", of("stat"));
        assert!(of("stat").contains("\nbtime 1700000000\n"));
        assert_eq!(of("cpuinfo").matches("processor\t: ").count(), 2);
        let untold = Machine { memory_bytes: None, ..machine };
        assert!(texts(untold).iter().all(|(name, _)| *name != "meminfo"));
    }
}
