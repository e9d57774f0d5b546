//! Returns the pages of program files that only the start of the node needed.
//!
//! Around each used page of a program, the kernel maps sixteen pages. After the start, more than
//! half of the node's resident memory is code that does not run again. Such pages are copies of the
//! file, so dropping their mapping loses nothing. The page cache keeps the pages for which it has
//! room, and a page that is used again is mapped again within a microsecond.

#![allow(unsafe_code, reason = "no safe function drops pages of a mapping")]

use std::fs;

/// A mapping of a file, as `/proc/self/smaps` shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mapping {
    start: usize,
    end: usize,
    resident_bytes: usize,
}

/// Drops the resident pages of program files, and returns their size in bytes. Takes about a
/// millisecond. Afterwards, the next use of each part of the program takes about a microsecond
/// longer.
pub(crate) fn give_back() -> usize {
    let Ok(text) = fs::read_to_string("/proc/self/smaps") else { return 0 };
    let mut bytes = 0;
    for mapping in unchanged(&text) {
        let address = mapping.start as *mut libc::c_void;
        // SAFETY: the range is a private mapping of a file that cannot be written through and holds
        // no page that differs from the file, so the kernel reads the same bytes again when they
        // are used. Such mappings of programs and libraries last as long as the process.
        let done =
            unsafe { libc::madvise(address, mapping.end - mapping.start, libc::MADV_DONTNEED) };
        if done == 0 {
            bytes += mapping.resident_bytes;
        }
    }
    bytes
}

/// Mappings of program files that cannot be written through and whose pages all equal the file. A
/// mapping of relocated data has changed pages and is left out.
fn unchanged(smaps: &str) -> Vec<Mapping> {
    let mut found = Vec::new();
    let mut current: Option<Mapping> = None;
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(first), second) = (words.next(), words.next()) else { continue };
        if let Some(name) = first.strip_suffix(':') {
            let Some(mapping) = &mut current else { continue };
            let bytes = second.and_then(|number| number.parse::<usize>().ok());
            let bytes = bytes.unwrap_or_default() << 10;
            match name {
                "Rss" => mapping.resident_bytes = bytes,
                "Anonymous" if bytes > 0 => current = None,
                // `VmFlags` is the last field of a mapping.
                "VmFlags" => found.extend(current.take()),
                _ => {}
            }
            continue;
        }
        // 5589f2020000-5589f2f2a000 r-xp 003c9000 fe:00 5686179    /usr/bin/mote
        let path = words.nth(3).unwrap_or_default();
        let is_program = matches!(second, Some("r-xp" | "r--p")) && path.starts_with('/');
        let range = first.split_once('-').filter(|_| is_program);
        current = range.and_then(|(start, end)| {
            let address = |text| usize::from_str_radix(text, 16).ok();
            Some(Mapping { start: address(start)?, end: address(end)?, resident_bytes: 0 })
        });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
1000-3000 r--p 00000000 fe:00 56 /usr/bin/mote
Rss:                   8 kB
Anonymous:             0 kB
VmFlags: rd mr mw me
3000-9000 r-xp 00002000 fe:00 56 /usr/bin/mote (deleted)
Rss:                  16 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me
9000-a000 r--p 00008000 fe:00 56 /usr/bin/mote
Rss:                   4 kB
Anonymous:             4 kB
VmFlags: rd mr mw me ac
a000-b000 rw-p 00009000 fe:00 56 /usr/bin/mote
Rss:                   4 kB
Anonymous:             0 kB
VmFlags: rd wr mr mw me ac
b000-c000 r-xp 00000000 00:00 0 [vdso]
Rss:                   4 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me de
";

    #[test]
    fn only_pages_that_the_file_still_has_are_dropped() {
        let mapping = |start, end, resident_bytes| Mapping { start, end, resident_bytes };
        let expected = [mapping(0x1000, 0x3000, 8 << 10), mapping(0x3000, 0x9000, 16 << 10)];
        assert_eq!(unchanged(SMAPS), expected);
        assert_eq!(unchanged(""), []);
    }

    #[test]
    fn the_program_goes_on_with_the_same_bytes() {
        let table: &[u8] = include_bytes!("program_pages.rs");
        let sum = |bytes: &[u8]| bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        let before = sum(table);
        assert!(give_back() > 0, "a running test has resident pages of its program");
        assert_eq!(sum(table), before);
    }
}
