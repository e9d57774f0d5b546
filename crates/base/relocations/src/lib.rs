//! Applies the packed relocations of a program before anything else of it runs.
//!
//! A program that the kernel loads at a random address contains a list of its own pointers, to which
//! the loader adds that address. The usual list takes 24 bytes for each of them. The packed one (RELR)
//! takes a bit, but the C library reads it only from version 2.36 on, and refuses a program that has
//! it and must also run with an older one. So the linker writes the packed list under the tags that
//! Android once used, which no C library reads, and makes [`mote_start`] the first function of the
//! program (`crates/cli/mote/build.rs`). It applies the list, and continues where a program usually
//! begins. It must not know anything else (`docs/decisions/0055-smaller-binary.md`).
//!
//! When this code runs, no pointer in a constant of the program is valid yet. It uses none: it
//! contains no text, cannot panic, and calls no function through a table.

#![no_std]
#![allow(
    unsafe_code,
    reason = "it is the loader's work: it changes memory by addresses from the file"
)]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use core::arch::{asm, naked_asm};

/// Address and bytes of the packed list, in the dynamic section.
const DT_ANDROID_RELR: usize = 0x6fff_e000;
const DT_ANDROID_RELRSZ: usize = 0x6fff_e001;
/// The part of the program that is made read-only once it is relocated.
const PT_GNU_RELRO: u32 = 0x6474_e552;
const PAGE_BYTES: usize = 4096;
const PROT_READ: usize = 1;
const PROT_WRITE: usize = 2;
const SYS_MPROTECT: usize = 10;

/// The beginning of the file, of which only the place of its segments is needed.
#[repr(C)]
struct Header {
    identification: [u64; 2],
    kind_and_version: u64,
    entry: usize,
    segments: usize,
    sections: usize,
    flags: u32,
    bytes: u16,
    segment_bytes: u16,
    segment_count: u16,
}

#[repr(C)]
struct Segment {
    kind: u32,
    flags: u32,
    offset: usize,
    address: usize,
    physical_address: usize,
    file_bytes: usize,
    memory_bytes: usize,
    alignment: usize,
}

#[repr(C)]
struct Dynamic {
    tag: usize,
    value: usize,
}

/// The first function of a program. The stack is that of a new program, and `rdx` has a function
/// that the C library wants to know.
///
/// # Safety
///
/// Only the loader may jump here.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mote_start() -> ! {
    naked_asm!(
        "mov r12, rdx",
        "lea rdi, [rip + __ehdr_start]",
        "lea rsi, [rip + _DYNAMIC]",
        "call {relocate}",
        "mov rdx, r12",
        "jmp _start",
        relocate = sym relocate,
    )
}

/// Relocates the program whose file begins at `header`.
///
/// # Safety
///
/// Both arguments belong to this program, which nothing has relocated by its packed list yet.
unsafe extern "C" fn relocate(header: *const Header, mut dynamic: *const Dynamic) {
    let base = header as usize;
    let (mut list, mut bytes) = (0, 0);
    // SAFETY: the dynamic section ends with an entry of tag 0. The segments are as many as the
    // header says, and belong to the first one, which is in memory. The list is in memory, too, and
    // names words of the program, of which those in the protected part are writable while it is
    // applied.
    unsafe {
        while (*dynamic).tag != 0 {
            match (*dynamic).tag {
                DT_ANDROID_RELR => list = (*dynamic).value,
                DT_ANDROID_RELRSZ => bytes = (*dynamic).value,
                _ => {}
            }
            dynamic = dynamic.add(1);
        }
        if bytes == 0 {
            return;
        }
        let mut segment = base.wrapping_add((*header).segments) as *const Segment;
        let (mut start, mut end) = (0, 0);
        for _ in 0..(*header).segment_count {
            if (*segment).kind == PT_GNU_RELRO {
                start = base.wrapping_add((*segment).address);
                end = start.wrapping_add((*segment).memory_bytes);
            }
            segment = segment.add(1);
        }
        // The loader protects whole pages.
        let (start, end) = (start & !(PAGE_BYTES - 1), end & !(PAGE_BYTES - 1));
        protect(start, end, PROT_READ | PROT_WRITE);
        apply(base.wrapping_add(list) as *const usize, bytes / size_of::<usize>(), base);
        protect(start, end, PROT_READ);
    }
}

/// Adds `base` to each word that the packed list names. A word of the list is the address of the
/// next word to change, or, if its lowest bit is set, it says which of the 63 words behind the last
/// ones change.
///
/// # Safety
///
/// The list has `count` words, and what it names is memory that may be changed.
unsafe fn apply(mut list: *const usize, count: usize, base: usize) {
    let mut place = base as *mut usize;
    for _ in 0..count {
        // SAFETY: this is one of the `count` words, or a word that the list names.
        unsafe {
            let mut word = *list;
            list = list.add(1);
            if word & 1 == 0 {
                place = base.wrapping_add(word) as *mut usize;
                *place = (*place).wrapping_add(base);
                place = place.wrapping_add(1);
                continue;
            }
            let mut next = place;
            word >>= 1;
            while word != 0 {
                if word & 1 == 1 {
                    *next = (*next).wrapping_add(base);
                }
                next = next.wrapping_add(1);
                word >>= 1;
            }
            place = place.wrapping_add(usize::BITS as usize - 1);
        }
    }
}

/// Changes the protection of whole pages. Ends the program if the kernel refuses it: it cannot run
/// without its relocations, and must not run with constants that can be changed.
///
/// # Safety
///
/// The pages belong to this program.
unsafe fn protect(start: usize, end: usize, protection: usize) {
    let mut result = SYS_MPROTECT;
    // SAFETY: the call changes no memory and no register but those that it names.
    unsafe {
        asm!(
            "syscall",
            inout("rax") result,
            in("rdi") start,
            in("rsi") end.wrapping_sub(start),
            in("rdx") protection,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
        if result != 0 {
            asm!("ud2", options(noreturn));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The memory after the list was applied, if each word was 0 before, in units of the base.
    fn relocated<const WORDS: usize>(list: &[usize]) -> [usize; WORDS] {
        let mut memory = [0; WORDS];
        let base = memory.as_mut_ptr() as usize;
        // SAFETY: each list of these tests names words of `memory` only.
        unsafe { apply(list.as_ptr(), list.len(), base) };
        memory.map(|word| word / base)
    }

    #[test]
    fn words_are_named_by_addresses_and_bits() {
        assert_eq!(relocated([].as_slice()), [0; 4]);
        assert_eq!(relocated(&[8]), [0, 1, 0, 0]);
        assert_eq!(relocated(&[0, 16]), [1, 0, 1, 0]);
        // Behind the word at 8: not the next one, but the two after it.
        assert_eq!(relocated(&[8, 0b1101]), [0, 1, 0, 1, 1, 0]);
        // A second map of bits continues 63 words later.
        let mut expected = [0; 72];
        for word in [0, 1, 63, 64, 66] {
            expected[word] = 1;
        }
        assert_eq!(relocated(&[0, 1 << 63 | 0b11, 0b1011]), expected);
    }
}
