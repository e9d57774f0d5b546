//! Asks the linker to keep one copy of functions that are identical, where it can do that.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is = |name: &str, expected: &str| env::var(name).is_ok_and(|value| value == expected);
    // Rust links programs for this target with its own LLD. Other linkers do not know the flag.
    if is("TARGET", "x86_64-unknown-linux-gnu") && is("PROFILE", "release") {
        println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
    }
}
