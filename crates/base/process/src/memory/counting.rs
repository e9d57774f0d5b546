//! The program's allocator, which can count the allocated bytes.
//!
//! The broker has to know how much memory its process has allocated, because it slows publishers
//! down while clients that do not read hold much memory. The program's other processes do not
//! count; in them, each allocation reads one flag that never changes.

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicBool, AtomicIsize, Ordering};

static COUNTS: AtomicBool = AtomicBool::new(false);
/// Bytes allocated minus bytes freed since the counting began. The number can be negative, because
/// memory that was allocated before can be freed afterwards.
static BYTES: AtomicIsize = AtomicIsize::new(0);

/// Starts counting. The counting lasts until the process ends.
pub fn begin() {
    COUNTS.store(true, Ordering::Relaxed);
}

/// Bytes that were allocated since [`begin`] and are still allocated.
pub fn allocated() -> usize {
    usize::try_from(BYTES.load(Ordering::Relaxed)).unwrap_or(0)
}

/// An allocator that, after [`begin`], counts what the wrapped allocator does.
#[derive(Debug)]
pub struct Counting<A>(pub A);

impl<A> Counting<A> {
    fn change(bytes: isize) {
        if COUNTS.load(Ordering::Relaxed) {
            BYTES.fetch_add(bytes, Ordering::Relaxed);
        }
    }
}

/// This cannot overflow, because the size of a layout is at most `isize::MAX`.
fn signed(bytes: usize) -> isize {
    bytes as isize
}

// SAFETY: every call is passed to the wrapped allocator, which keeps the contract.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Counting<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract.
        let pointer = unsafe { self.0.alloc(layout) };
        if !pointer.is_null() {
            Self::change(signed(layout.size()));
        }
        pointer
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract.
        let pointer = unsafe { self.0.alloc_zeroed(layout) };
        if !pointer.is_null() {
            Self::change(signed(layout.size()));
        }
        pointer
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract.
        unsafe { self.0.dealloc(pointer, layout) };
        Self::change(-signed(layout.size()));
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller keeps the contract.
        let moved = unsafe { self.0.realloc(pointer, layout, size) };
        if !moved.is_null() {
            Self::change(signed(size) - signed(layout.size()));
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_counts_what_is_allocated_after_the_beginning() {
        let allocator = Counting(std::alloc::System);
        let layout = Layout::from_size_align(1 << 20, 8).expect("a layout");
        // SAFETY: each pointer is used with the layout that it has, and freed once.
        unsafe {
            let before = allocator.alloc(layout);
            assert_eq!(allocated(), 0, "nothing counts yet");
            begin();
            let counted = allocator.alloc(layout);
            assert_eq!(allocated(), 1 << 20);
            let counted = allocator.realloc(counted, layout, 3 << 20);
            assert_eq!(allocated(), 3 << 20);
            allocator.dealloc(before, layout);
            assert_eq!(allocated(), 2 << 20);
            allocator.dealloc(counted, Layout::from_size_align(3 << 20, 8).expect("a layout"));
            assert_eq!(allocated(), 0, "never below zero");
        }
    }
}
