//! Memory that the kernel does not swap out, and does not write into a core file after a crash.
#![allow(unsafe_code)] // two system calls about memory that this module owns

use std::ffi::c_void;
use std::ops::Deref;

use rustix::mm::{Advice, madvise, mlock};

/// A value in such memory. The memory stays locked until the process ends, because another value
/// may be on the same page.
#[derive(Debug)]
pub(crate) struct Locked<T>(Box<T>);

impl<T> Locked<T> {
    /// Moves the value into locked memory. A system limit (`RLIMIT_MEMLOCK`) may prevent the lock.
    /// The value can be used even if that fails.
    pub(crate) fn new(value: T) -> Self {
        let value = Box::new(value);
        let start: *const T = &*value;
        let page = rustix::param::page_size();
        let first = start as usize / page * page;
        let bytes = (start as usize + size_of::<T>()).next_multiple_of(page) - first;
        let first = start.with_addr(first).cast_mut().cast::<c_void>();
        // SAFETY: the pages are mapped, because the value is on them, and neither call changes
        // their content.
        unsafe {
            let _ = mlock(first, bytes);
            let _ = madvise(first, bytes, Advice::LinuxDontDump);
        }
        Self(value)
    }
}

impl<T> Deref for Locked<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// Prevents core files of this process, because its memory may contain secrets. A limit of 1 also
/// keeps the kernel from starting a program for core files (`fs/coredump.c`). A limit of 0 does
/// not.
pub fn forbid_core_files() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(1), maximum: Some(1) });
}

#[cfg(test)]
mod tests {
    use super::Locked;

    #[test]
    fn the_page_of_a_value_is_locked_and_not_dumped() {
        let locked = Locked::new([7u8; 64]);
        assert_eq!(locked[63], 7);
        let address = &*locked as *const _ as usize;
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut inside = false;
        let flags = maps.lines().find(|line| {
            if let Some((range, _)) = line.split_once(' ')
                && let Some((from, to)) = range.split_once('-')
                && let (Ok(from), Ok(to)) =
                    (usize::from_str_radix(from, 16), usize::from_str_radix(to, 16))
            {
                inside = (from..to).contains(&address);
            }
            inside && line.starts_with("VmFlags:")
        });
        let flags: Vec<&str> = flags.unwrap().split_whitespace().collect();
        assert!(flags.contains(&"dd"), "not dumped: {flags:?}");
        assert!(flags.contains(&"lo"), "locked: {flags:?}");
    }
}
