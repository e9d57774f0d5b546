//! The switches of distributions that permit user namespaces.

use crate::sys;

/// Whether this user may create user namespaces, as far as files of the kernel say so. If not, the
/// reason.
pub(crate) fn switches() -> Result<(), String> {
    let read = |path: &str| std::fs::read_to_string(path).map(|text| text.trim().to_owned()).ok();
    if !std::path::Path::new("/proc/self/ns/user").exists() {
        return Err("not in this kernel".to_owned());
    }
    if read("/proc/sys/user/max_user_namespaces").as_deref() == Some("0") {
        return Err("user.max_user_namespaces is 0".to_owned());
    }
    for (path, off) in [
        ("/proc/sys/kernel/unprivileged_userns_clone", "0"),
        ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1"),
    ] {
        if !sys::is_root() && read(path).as_deref() == Some(off) {
            return Err(format!("{path} is {off}"));
        }
    }
    Ok(())
}
