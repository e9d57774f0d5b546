//! Asks the linker for smaller programs, where it can make them: one copy of functions that are
//! identical, and packed relocations, which the crate `mote-relocations` applies.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is = |name: &str, expected: &str| env::var(name).is_ok_and(|value| value == expected);
    // Rust links programs for this target with its own LLD. Other linkers do not know the flags.
    if is("TARGET", "x86_64-unknown-linux-gnu") && is("PROFILE", "release") {
        for flag in
            ["--icf=all", "--pack-dyn-relocs=relr", "--use-android-relr-tags", "--entry=mote_start"]
        {
            println!("cargo::rustc-link-arg-bins=-Wl,{flag}");
        }
    }
}
