//! Wakes a sleeping worker on the processor of the thread that hands it an invocation.
//!
//! The kernel likes to wake a process on a processor that does nothing. But that processor sleeps
//! as well: waking it costs up to 20 µs in a virtual machine, and the thread then sleeps until the
//! answer wakes it in the same way. While only one worker has anything to do, thread and worker
//! take turns anyway, and do so fastest on one processor.
//!
//! The worker may run on that processor alone only for the moment in which it is woken. It does not
//! run in this moment, because the thread that wakes it does. What it runs on later is the kernel's
//! choice again. If the moment takes so long that the worker may have run, and the machine has
//! started any process or thread since the last time, the worker's threads are looked through,
//! because one that it has started would keep the restriction.

use std::cell::Cell;

use mote_core::backend::InstanceControl;
use mote_process::clock::now_ns;
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// A wake-up takes less than this, in nanoseconds: 10 to 20 µs in a virtual machine. If the worker
/// runs meanwhile and starts a thread or a process, it takes more.
const MOMENT_NS: u64 = 40_000;
/// A worker's first wake-ups are left to the kernel. Functions ask at their start on how many
/// processors they may run, and a worker that displaces this thread at once would see one.
const FIRST: u32 = 64;

/// A worker's program that can be woken nearby.
#[derive(Debug)]
pub(crate) struct Nearby {
    program: Pid,
    /// The processors on which the program may run.
    all: CpuSet,
    /// The newest process of the machine when the threads were last looked through.
    newest: Cell<Option<u32>>,
    /// How many of the first wake-ups are left.
    first: Cell<u32>,
}

impl Nearby {
    /// `None` if there is no choice, or if the program is not known. Reads one small file.
    pub(crate) fn new(control: &dyn InstanceControl) -> Option<Self> {
        let program = Pid::from_raw(i32::try_from(control.program()?).ok()?)?;
        let all = sched_getaffinity(Some(program)).ok()?;
        (all.count() > 1).then_some(Self {
            program,
            all,
            newest: Cell::new(None),
            first: Cell::new(FIRST),
        })
    }

    /// Calls `wake`, which wakes the program if it sleeps. Returns `None` without calling it if the
    /// program has ended or chosen its processors itself.
    pub(crate) fn wake<R>(&self, wake: impl FnOnce() -> R) -> Option<R> {
        if let Some(left) = self.first.get().checked_sub(1) {
            self.first.set(left);
            return Some(wake());
        }
        if sched_getaffinity(Some(self.program)).ok()? != self.all {
            return None;
        }
        let mut here = CpuSet::new();
        here.set(sched_getcpu());
        let began_ns = now_ns();
        sched_setaffinity(Some(self.program), &here).ok()?;
        let result = wake();
        // Fails only if the program has ended.
        let _ = sched_setaffinity(Some(self.program), &self.all);
        if now_ns().saturating_sub(began_ns) > MOMENT_NS {
            let newest = newest_process();
            if newest.is_none() || newest != self.newest.replace(newest) {
                self.free(self.program, here);
            }
        }
        Some(result)
    }

    /// Frees the threads and children of a process that have inherited the restriction.
    fn free(&self, process: Pid, here: CpuSet) {
        let tasks = format!("/proc/{}/task", process.as_raw_nonzero());
        for task in std::fs::read_dir(tasks).into_iter().flatten().flatten() {
            let Some(thread) = pid(task.file_name().to_str()) else { continue };
            if sched_getaffinity(Some(thread)).is_ok_and(|set| set == here) {
                let _ = sched_setaffinity(Some(thread), &self.all);
            }
            let children = std::fs::read_to_string(task.path().join("children"));
            for child in children.unwrap_or_default().split_whitespace() {
                let Some(child) = pid(Some(child)) else { continue };
                if sched_getaffinity(Some(child)).is_ok_and(|set| set == here) {
                    self.free(child, here);
                }
            }
        }
    }
}

/// The number of the newest process or thread that this process can see (proc(5),
/// `/proc/loadavg`).
fn newest_process() -> Option<u32> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().last()?.parse().ok()
}

fn pid(text: Option<&str>) -> Option<Pid> {
    Pid::from_raw(text?.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use mote_core::backend::{BoxFuture, Exit, Usage};

    use super::*;

    struct Control(u32);

    impl InstanceControl for Control {
        fn kill(&self) {}
        fn set_background(&self, _: bool) {}
        fn set_paused(&self, _: bool) -> bool {
            false
        }
        fn pid(&self) -> Option<u32> {
            None
        }
        fn program(&self) -> Option<u32> {
            Some(self.0)
        }
        fn usage(&self) -> Option<Usage> {
            None
        }
        fn exited(&self) -> BoxFuture<Exit> {
            unreachable!("nobody waits for it")
        }
    }

    /// A process that sleeps until its input ends.
    fn sleeper() -> Child {
        let mut command = Command::new("cat");
        command.stdin(Stdio::piped()).spawn().expect("cat runs")
    }

    #[test]
    fn a_new_process_shows_in_the_number_of_the_newest() {
        let before = newest_process();
        assert!(before.is_some());
        std::thread::spawn(|| ()).join().expect("it ends");
        assert_ne!(newest_process(), before);
    }

    #[test]
    fn a_program_has_all_its_processors_before_and_after_it_is_woken() {
        let mut child = sleeper();
        let pid = Pid::from_child(&child);
        let all = sched_getaffinity(Some(pid)).expect("its processors");
        let Some(nearby) = Nearby::new(&Control(child.id())) else {
            assert_eq!(all.count(), 1, "there is no choice");
            child.kill().expect("it ends");
            child.wait().expect("it has ended");
            return;
        };
        for _ in 0..FIRST {
            assert!(nearby.wake(|| ()).is_some(), "one of the first");
        }
        let count = nearby.wake(|| sched_getaffinity(Some(pid)).expect("its processors").count());
        assert_eq!(count, Some(1));
        assert_eq!(sched_getaffinity(Some(pid)).expect("its processors"), all);

        let mut own = CpuSet::new();
        own.set(sched_getcpu());
        sched_setaffinity(Some(pid), &own).expect("it chooses");
        assert_eq!(nearby.wake(|| ()), None, "its choice counts");
        assert_eq!(sched_getaffinity(Some(pid)).expect("its processors"), own);

        drop(child.stdin.take());
        child.wait().expect("it has ended");
        assert_eq!(nearby.wake(|| ()), None, "it has ended");
    }
}
