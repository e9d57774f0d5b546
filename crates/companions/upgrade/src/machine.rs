//! Checks whether a release runs on this machine.

use std::process::Command;

use crate::failure::{Failure, UNFIT};
use crate::release::Release;

pub(crate) fn check(release: &Release) -> Result<(), Failure> {
    let uname = rustix::system::uname();
    let machine = uname.machine().to_string_lossy();
    let kernel = uname.release().to_string_lossy();
    // A 64-bit processor can run a 32-bit system. This program was then built for 32 bits, so the
    // release must be for 32 bits, too.
    let is_32_bit = cfg!(target_arch = "arm") && matches!(&*machine, "aarch64" | "armv8l");
    let machine = if is_32_bit { "armv7l".into() } else { machine };
    if machine != release.architecture {
        let text =
            format!("the archive is for {}, and this machine is {machine}", release.architecture);
        return Err(Failure::new(UNFIT, text, format!("use the archive for {machine}")));
    }
    if numbers(&kernel) < numbers(&release.kernel) {
        let text = format!(
            "mote {} needs Linux {} or newer, and this kernel is {kernel}",
            release.version, release.kernel
        );
        return Err(Failure::new(UNFIT, text, "update the kernel or the distribution first"));
    }
    // Static programs need no C library.
    if release.glibc.is_empty() {
        return Ok(());
    }
    let said = Command::new("getconf").arg("GNU_LIBC_VERSION").output();
    let said = said.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let said = said.unwrap_or_default();
    let Some(glibc) = said.trim().strip_prefix("glibc ") else {
        let text = "getconf does not say which GNU C library this system has";
        return Err(Failure::new(
            UNFIT,
            text,
            "use the archive whose name ends in linux-musl.tar.gz",
        ));
    };
    if numbers(glibc) < numbers(&release.glibc) {
        let text = format!(
            "mote {} needs glibc {} or newer, and this system has {glibc}",
            release.version, release.glibc
        );
        return Err(Failure::new(
            UNFIT,
            text,
            "use the archive whose name ends in linux-musl.tar.gz",
        ));
    }
    Ok(())
}

/// The first three numbers of a version such as `6.1.0-30-amd64`.
fn numbers(version: &str) -> [u64; 3] {
    let end = version.find(|one: char| !one.is_ascii_digit() && one != '.');
    let mut parts =
        version[..end.unwrap_or(version.len())].split('.').map(|part| part.parse().unwrap_or(0));
    std::array::from_fn(|_| parts.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::numbers;

    #[test]
    fn versions_of_kernels_and_libraries() {
        assert_eq!(numbers("6.1.0-30-amd64"), [6, 1, 0]);
        assert_eq!(numbers("2.36"), [2, 36, 0]);
        assert_eq!(numbers("5.12+"), [5, 12, 0]);
        assert_eq!(numbers("unknown"), [0, 0, 0]);
        assert!(numbers("5.9") < numbers("5.12"));
    }
}
