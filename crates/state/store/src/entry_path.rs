//! Rules for paths inside an archive or a code tree.

/// Longest path component in bytes. Every supported file system allows this length.
pub(crate) const NAME_BYTES_MAX: usize = 255;
pub(crate) const DEPTH_MAX: usize = 32;

/// The reason for refusing a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PathFault {
    Leaves,
    TooLong,
    TooDeep,
    NotUtf8,
    Control,
    Empty,
}

impl PathFault {
    pub(crate) fn text(self) -> &'static str {
        match self {
            PathFault::Leaves => "path leaves the function",
            PathFault::TooLong => "name is longer than 255 bytes",
            PathFault::TooDeep => "path is deeper than 32 folders",
            PathFault::NotUtf8 => "name is not UTF-8",
            PathFault::Control => "name has a control character",
            PathFault::Empty => "name is empty",
        }
    }
}

/// Returns the path in normal form: components joined by `/`, and empty for the root itself (`.` or
/// `./`).
///
/// Windows' ways to leave a folder (`..\\x`, `C:x`) are refused as well, because an archive must
/// mean the same on every system.
pub(crate) fn normal(raw: &[u8]) -> Result<String, PathFault> {
    if raw.is_empty() {
        return Err(PathFault::Empty);
    }
    let text = std::str::from_utf8(raw).map_err(|_| PathFault::NotUtf8)?;
    let bytes = text.as_bytes();
    let has_drive = bytes.len() >= 2 && bytes[1] == b':' && bytes[0].is_ascii_alphabetic();
    if text.starts_with('/') || text.contains('\\') || has_drive {
        return Err(PathFault::Leaves);
    }
    if text.split('/').any(|part| part == "..") || text.contains('\0') {
        return Err(PathFault::Leaves);
    }
    if text.chars().any(char::is_control) {
        return Err(PathFault::Control);
    }
    let parts: Vec<&str> =
        text.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if parts.iter().any(|part| part.len() > NAME_BYTES_MAX) {
        return Err(PathFault::TooLong);
    }
    if parts.len() > DEPTH_MAX {
        return Err(PathFault::TooDeep);
    }
    Ok(parts.join("/"))
}

/// Whether a symbolic link at `path` may point to `target`.
///
/// The target may contain `..` only at its start, at most once for each folder that is above the
/// link and inside the tree. No entry is written through a link, so those folders are real. So
/// every link ends inside the tree, even if its path leads through another link.
pub(crate) fn link_stays_inside(path: &str, target: &str) -> bool {
    if target.is_empty()
        || target.len() > 1024
        || target.starts_with('/')
        || target.contains('\\')
        || target.chars().any(char::is_control)
    {
        return false;
    }
    let folders = path.split('/').count() - 1;
    let parts: Vec<&str> =
        target.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    let ups = parts.iter().take_while(|part| **part == "..").count();
    ups <= folders && parts[ups..].iter().all(|part| *part != "..")
}

/// Text for messages: escaped and cut.
pub(crate) fn shown(raw: &[u8]) -> String {
    let text = String::from_utf8_lossy(raw);
    let mut out: String = text.chars().take(64).flat_map(char::escape_debug).collect();
    if text.chars().nth(64).is_some() {
        out.push('\u{2026}');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        for (raw, expected) in [
            ("a/b.py", Ok("a/b.py")),
            ("./a//b/", Ok("a/b")),
            ("./", Ok("")),
            ("a/./b", Ok("a/b")),
            ("..x", Ok("..x")),
            ("", Err(PathFault::Empty)),
            ("../x", Err(PathFault::Leaves)),
            ("a/../b", Err(PathFault::Leaves)),
            ("/etc/passwd", Err(PathFault::Leaves)),
            ("..\\x", Err(PathFault::Leaves)),
            ("C:x", Err(PathFault::Leaves)),
            ("a\0b", Err(PathFault::Leaves)),
            ("a\nb", Err(PathFault::Control)),
        ] {
            assert_eq!(normal(raw.as_bytes()), expected.map(str::to_owned), "{raw:?}");
        }
        assert_eq!(normal(b"\xff"), Err(PathFault::NotUtf8));
        assert_eq!(normal("x".repeat(256).as_bytes()), Err(PathFault::TooLong));
        assert_eq!(normal("d/".repeat(33).as_bytes()), Err(PathFault::TooDeep));
    }

    #[test]
    fn links() {
        for (path, target, stays) in [
            ("l", "a", true),
            ("d/l", "../a", true),
            ("d/e/l", "../../a/b", true),
            ("l", ".", true),
            ("l", "..", false),
            ("l", "../a", false),
            ("d/l", "../../a", false),
            ("l", "/etc/passwd", false),
            ("l", "a/../../b", false),
            ("d/l", "a/..", false),
            ("l", "", false),
            ("l", "a\\b", false),
        ] {
            assert_eq!(link_stays_inside(path, target), stays, "{path} -> {target}");
        }
    }
}
