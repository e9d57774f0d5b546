//! Manifests, indexes and configurations of container images: whatever the bytes, they are read or
//! refused.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| mote_images::fuzzing::documents(data));
