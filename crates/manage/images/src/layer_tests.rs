//! Hostile layers, in one table. Whatever a layer contains, nothing outside its folder changes.

use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::PathBuf;

use mote_store::tar::{BLOCK, header};

use super::*;
use crate::test_tar::{Tar, changed, gzip, tar, zstd};

enum Expected {
    /// The layer is refused with a message that contains this.
    Refused(&'static str),
    /// The folder contains exactly these nodes; see [`list`].
    Kept(&'static [&'static str]),
}
use Expected::{Kept, Refused};

/// Two files, and a folder with a link to each, stand next to the layer's folder. `OUT` in the table
/// stands for their folder.
struct Place {
    outer: tempfile::TempDir,
    root: PathBuf,
    aside: PathBuf,
}

impl Place {
    fn new() -> Self {
        let outer = tempfile::tempdir().unwrap();
        let path = outer.path();
        std::fs::create_dir_all(path.join("victim/below")).unwrap();
        std::fs::write(path.join("victim/file"), "untouched").unwrap();
        std::fs::create_dir_all(path.join("layer/root")).unwrap();
        std::fs::create_dir_all(path.join("layer/aside")).unwrap();
        std::os::unix::fs::symlink("victim", path.join("link")).unwrap();
        Self { root: path.join("layer/root"), aside: path.join("layer/aside"), outer }
    }

    /// Makes the two folders anew.
    fn empty(&self) {
        for folder in [&self.root, &self.aside] {
            mote_store::remove_tree(folder).unwrap();
            std::fs::create_dir(folder).unwrap();
        }
    }

    /// Everything outside the two folders, with modes and times.
    fn outside(&self) -> Vec<String> {
        let mut all = Vec::new();
        let mut folders = vec![self.outer.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).unwrap() {
                let path = entry.unwrap().path();
                let meta = path.symlink_metadata().unwrap();
                let is_layer = path == self.root || path == self.aside;
                if meta.is_dir() && !is_layer {
                    folders.push(path.clone());
                }
                let (mode, links) = (meta.mode(), if meta.is_dir() { 0 } else { meta.nlink() });
                let is_above = path.ends_with("layer"); // its time changes between the cases
                let time = if is_layer || is_above { 0 } else { meta.mtime_nsec() };
                let text = std::fs::read_to_string(&path).unwrap_or_default();
                let mode = if is_layer { 0 } else { mode };
                all.push(format!("{} {mode:o} {links} {time} {text}", path.display()));
            }
        }
        all.sort();
        all
    }

    fn run(&self, bytes: &[u8], limits: (u64, u64)) -> Result<Contents, String> {
        let budget = Budget { bytes: limits.0.into(), entries: limits.1.into() };
        let mut input = bytes;
        let never = AtomicBool::new(false);
        unpack(&mut input, &self.root, &self.aside, &budget, &never)
            .map_err(|error| crate::ImageError::layer(1, error).to_string())
    }
}

/// The nodes below a folder, sorted: `f MODE PATH CONTENT`, `d MODE PATH`, `d MODE PATH opaque`,
/// `l PATH -> TARGET`, `gone PATH`.
fn list(root: &Path) -> Vec<String> {
    let mut all = Vec::new();
    let mut folders = vec![root.to_owned()];
    let mut first = true;
    while let Some(folder) = folders.pop() {
        let below = folder.strip_prefix(root).unwrap().as_os_str().as_bytes().to_vec();
        let name = String::from_utf8_lossy(&below).escape_debug().to_string();
        let mode = folder.metadata().unwrap().permissions().mode() & 0o7777;
        let is_opaque = attributes(&folder).iter().any(|name| name == "user.overlay.opaque");
        let opaque = if is_opaque { " opaque" } else { "" };
        if !first || is_opaque || mode != 0o755 {
            all.push(format!("d {mode:o} {name}{opaque}"));
        }
        first = false;
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let below = path.strip_prefix(root).unwrap().as_os_str().as_bytes().to_vec();
            let name = String::from_utf8_lossy(&below).escape_debug().to_string();
            let meta = path.symlink_metadata().unwrap();
            let kind = meta.file_type();
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_symlink() {
                let target = std::fs::read_link(&path).unwrap();
                all.push(format!("l {name} -> {}", target.display()));
            } else if kind.is_char_device() {
                assert_eq!(meta.rdev(), 0, "{name}: only the marker of overlayfs");
                all.push(format!("gone {name}"));
            } else {
                assert!(kind.is_file(), "{name}");
                assert_eq!(attributes(&path), Vec::<String>::new(), "{name}");
                let mode = meta.permissions().mode() & 0o7777;
                let content = std::fs::read(&path).unwrap();
                let content = if content.len() > 40 {
                    format!("({} bytes)", content.len())
                } else {
                    String::from_utf8_lossy(&content).escape_debug().to_string()
                };
                all.push(format!("f {mode:o} {name} {content}"));
            }
        }
    }
    all.sort();
    all
}

fn attributes(path: &Path) -> Vec<String> {
    let mut names = vec![0_u8; 4096];
    let count = rustix::fs::llistxattr(path, &mut names[..]).unwrap();
    names[..count]
        .split(|byte| *byte == 0)
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .filter(|name| !name.is_empty() && name != "trusted.overlay.opaque")
        .filter(|name| name != "security.selinux")
        .collect()
}

/// A layer whose header for the file `f` is broken or unusual.
fn with(changes: &[(usize, &[u8])], content: &[u8]) -> Tar {
    tar().raw(changed(header(b'0', b"f", b"", content.len() as u64, 0o644), changes), content)
}

fn file_then(bytes: usize, cut: usize) -> Vec<u8> {
    let all = tar().bytes("a", &vec![b'x'; bytes]).end();
    all[..cut].to_vec()
}

/// A sparse file in the old format: 4 bytes at 0 and 4 bytes at 1,000.
fn gnu_sparse(real_size: &[u8], second: &[u8]) -> Tar {
    let mut map = Vec::new();
    map.extend_from_slice(b"00000000000\x0000000000004\0");
    map.extend_from_slice(second);
    let head = header(b'S', b"f", b"", 8, 0o644);
    let head = changed(head, &[(257, b"ustar  \0"), (386, &map), (483, real_size)]);
    tar().raw(head, b"headtail")
}

fn sparse_1_0(map: &str, size: &str) -> Tar {
    let mut content = map.as_bytes().to_vec();
    content.resize(content.len().next_multiple_of(BLOCK), 0);
    content.extend_from_slice(b"headtail");
    tar()
        .pax(&[
            ("GNU.sparse.major", b"1"),
            ("GNU.sparse.minor", b"0"),
            ("GNU.sparse.name", b"f"),
            ("GNU.sparse.realsize", size.as_bytes()),
        ])
        .bytes("GNUSparseFile.0/f", &content)
}

#[rustfmt::skip]
fn cases(out: &str) -> Vec<(&'static str, Vec<u8>, Expected)> {
    let deep = |count: usize| "d/".repeat(count) + "f";
    let marker = [(257, &b"ustar\x0000"[..])];
    vec![
        // Paths.
        ("up", tar().file("../x", "").end(), Refused("path leaves the layer")),
        ("up in the middle", tar().file("a/../../x", "").end(), Refused("path leaves the layer")),
        ("up and down", tar().dir("a").file("a/../x", "").end(), Refused("path leaves the layer")),
        ("up as a folder", tar().dir("a/..").end(), Refused("path leaves the layer")),
        ("up as a link", tar().symlink("../x", "y").end(), Refused("path leaves the layer")),
        ("only up", tar().file("..", "").end(), Refused("path leaves the layer")),
        ("up in a long name", tar().long(b'L', b"../../x").file("x", "").end(), Refused("path leaves the layer")),
        ("up in a record", tar().pax(&[("path", b"a/../../x")]).file("x", "").end(), Refused("path leaves the layer")),
        ("absolute", tar().file("/etc/passwd", "x").end(), Kept(&["d 755 etc", "f 644 etc/passwd x"])),
        ("absolute to us", tar().file(&format!("{out}/victim/file")[..95.min(out.len() + 12)], "x").end(), Kept(&[])),
        ("two slashes", tar().file("//x", "").end(), Kept(&["f 644 x "])),
        ("dots", tar().file("./a/./b", "").end(), Kept(&["d 755 a", "f 644 a/b "])),
        ("a file as the root", tar().file("./", "").end(), Kept(&["d 744 "])),
        ("a link as the root", tar().symlink(".", "/").end(), Refused("only a folder can be the root")),
        ("no name", tar().entry(b'0', b"", b"", b"x").end(), Refused("only a folder can be the root")),
        ("the root's mode", tar().mode(b'5', "./", 0o7711).end(), Kept(&["d 1711 "])),
        ("a NUL", tar().pax(&[("path", b"a\0b")]).file("x", "").end(), Refused("name contains a NUL")),
        ("a long name", tar().pax(&[("path", &[b'a'; 256])]).file("x", "").end(), Refused("longer than 255 bytes")),
        ("a long path", tar().pax(&[("path", "dd/".repeat(1366).as_bytes())]).file("x", "").end(), Refused("longer than 4,096 bytes")),
        ("a deep path", tar().pax(&[("path", deep(257).as_bytes())]).file("x", "").end(), Refused("deeper than 256 folders")),
        ("not UTF-8", tar().entry(b'0', b"\xff", b"", b"").end(), Kept(&["f 644 \u{fffd} "])),
        ("a line feed", tar().file("a\nb", "").end(), Kept(&["f 644 a\\nb "])),
        ("backslashes", tar().file("..\\x", "").end(), Kept(&["f 644 ..\\\\x "])),
        ("three dots", tar().file(".../x", "").end(), Kept(&["d 755 ...", "f 644 .../x "])),
        // Symbolic links.
        ("through an absolute link", tar().symlink("d", &format!("{out}/victim")).file("d/file", "x").end(), Refused("through a link")),
        ("through a relative link", tar().symlink("d", "../../victim").file("d/file", "x").end(), Refused("through a link")),
        ("through two links", tar().symlink("a", "b").symlink("b", "../../victim").file("a/x", "").end(), Refused("through a link")),
        ("through an inner link", tar().dir("usr/lib").symlink("lib", "usr/lib").file("lib/x", "").end(), Refused("through a link")),
        ("through a link in the middle", tar().symlink("a", "../..").file("a/victim/file", "x").end(), Refused("through a link")),
        ("a folder through a link", tar().symlink("d", "../../victim").dir("d/new").end(), Refused("through a link")),
        ("through itself", tar().symlink("l", "l").file("l/x", "").end(), Refused("through a link")),
        ("through a file", tar().file("a", "").file("a/b", "").end(), Refused("through a link or a file")),
        ("a link to us, replaced", tar().symlink("f", "../../victim/file").file("f", "x").end(), Kept(&["f 644 f x"])),
        ("a link to us, made a folder", tar().symlink("d", "../../victim").dir("d").file("d/x", "").end(), Kept(&["d 755 d", "f 644 d/x "])),
        ("a link to us, with a mode", tar().symlink("d", "../../victim").mode(b'5', "d", 0o777).end(), Kept(&["d 777 d"])),
        ("a folder, made a link to us", tar().dir("d").file("d/x", "").symlink("d", "../../victim").file("d/y", "").end(), Refused("through a link")),
        ("a folder on the way, made a link", tar().file("a/b/c", "").symlink("a", "../../victim").file("a/b/c", "x").end(), Refused("through a link")),
        ("any target", tar().symlink("l", "/proc/self/fd/3").symlink("m", "../../..").end(), Kept(&["l l -> /proc/self/fd/3", "l m -> ../../.."])),
        ("no target", tar().symlink("l", "").end(), Refused("link without a target")),
        ("a long target", tar().long(b'K', &[b'a'; 4096]).symlink("l", "x").end(), Refused("longer than 4,095 bytes")),
        ("a NUL in a target", tar().pax(&[("linkpath", b"a\0b")]).symlink("l", "x").end(), Refused("link without a target")),
        // Hard links.
        ("a hard link", tar().file("a", "x").hardlink("b", "a").end(), Kept(&["f 644 a x", "f 644 b x"])),
        ("a hard link, rooted", tar().file("d/a", "x").hardlink("b", "/d/a").end(), Kept(&["d 755 d", "f 644 b x", "f 644 d/a x"])),
        ("a hard link up", tar().hardlink("b", "../../victim/file").end(), Refused("path leaves the layer")),
        ("a hard link to us", tar().hardlink("b", &format!("{out}/victim/file")[..95.min(out.len() + 12)]).end(), Refused("not earlier in the layer")),
        ("a hard link to the machine", tar().hardlink("b", "/etc/passwd").end(), Refused("not earlier in the layer")),
        ("a hard link to nothing", tar().hardlink("b", "a").end(), Refused("not earlier in the layer")),
        ("a hard link without a target", tar().hardlink("b", "").end(), Refused("not earlier in the layer")),
        ("a hard link through a link", tar().symlink("d", "../../victim").hardlink("b", "d/file").end(), Refused("through a link")),
        ("a hard link to a link, replaced", tar().symlink("s", "../../victim/file").hardlink("h", "s").file("h", "x").end(), Kept(&["f 644 h x", "l s -> ../../victim/file"])),
        ("a hard link to a folder", tar().dir("d").hardlink("b", "d").end(), Refused("hard link to a folder")),
        ("a hard link to itself", tar().file("a", "x").hardlink("a", "a").end(), Kept(&["f 644 a x"])),
        ("a hard link to what was deleted", tar().file(".wh.a", "").hardlink("b", "a").end(), Refused("not earlier in the layer")),
        ("a hard link to a device", tar().device(b'4', "sda").hardlink("b", "sda").end(), Refused("not earlier in the layer")),
        ("one name of two, replaced", tar().file("a", "x").hardlink("b", "a").file("b", "y").end(), Kept(&["f 644 a x", "f 644 b y"])),
        ("a hard link with content", tar().file("a", "x").raw(header(b'1', b"b", b"a", 0, 0o777), b"").file("c", "").end(), Kept(&["f 644 a x", "f 644 b x", "f 644 c "])),
        ("a hard link over its folder", tar().file("d/a", "x").hardlink("d", "d/a").end(), Kept(&["f 644 d x"])),
        // Deleted names.
        ("deleted", tar().file("d/.wh.x", "").end(), Kept(&["d 755 d", "gone d/x"])),
        ("deleted twice", tar().file(".wh.x", "").file(".wh.x", "").end(), Kept(&["gone x"])),
        ("deleted by a folder", tar().dir(".wh.x/").end(), Kept(&["gone x"])),
        ("opaque", tar().file("d/.wh..wh..opq", "").file("d/x", "").end(), Kept(&["d 755 d opaque", "f 644 d/x "])),
        ("opaque afterwards", tar().file("d/x", "").file("d/.wh..wh..opq", "").end(), Kept(&["d 755 d opaque", "f 644 d/x "])),
        ("an opaque root", tar().file(".wh..wh..opq", "").end(), Kept(&["d 755  opaque"])),
        ("an opaque file", tar().file("a", "").file("a/.wh..wh..opq", "").end(), Refused("through a link or a file")),
        ("opaque through a link", tar().symlink("d", "../../victim").file("d/.wh..wh..opq", "").end(), Refused("through a link")),
        ("deleted through a link", tar().symlink("d", "../../victim").file("d/.wh.file", "").end(), Refused("through a link")),
        ("deletes nothing", tar().file(".wh.", "").end(), Refused("deletes nothing")),
        ("deletes itself", tar().file("d/.wh..", "").end(), Refused("deletes nothing")),
        ("deletes its parent", tar().file("d/.wh...", "").end(), Refused("deletes nothing")),
        ("below a deleted name", tar().file(".wh.a/b", "").end(), Refused("through a deleted name")),
        ("made, then deleted", tar().file("x", "y").file(".wh.x", "").end(), Kept(&["f 644 x y"])),
        ("deleted, then made", tar().file(".wh.x", "").file("x", "y").end(), Kept(&["f 644 x y"])),
        ("deleted, then a folder", tar().file(".wh.d", "").file("d/x", "").end(), Kept(&["d 755 d opaque", "f 644 d/x "])),
        ("a folder, then deleted", tar().file("d/x", "").file(".wh.d", "").end(), Kept(&["d 755 d opaque", "f 644 d/x "])),
        ("deleted, then a link", tar().file(".wh.l", "").symlink("l", "a").end(), Kept(&["l l -> a"])),
        ("bookkeeping of aufs", tar().dir(".wh..wh.plnk").file(".wh..wh.plnk/1.2", "").file(".wh..wh.aufs", "").end(), Kept(&[])),
        // Devices, modes, attributes.
        ("a marker of overlayfs", tar().device(b'3', "x").end(), Kept(&[])),
        ("devices and pipes", tar().device(b'3', "dev/mem").device(b'4', "sda").device(b'6', "pipe").end(), Kept(&[])),
        ("a device over a file", tar().file("a", "x").device(b'3', "a").end(), Kept(&["f 644 a x"])),
        ("set-id bits", tar().mode(b'0', "a", 0o6755).mode(b'5', "d", 0o3775).end(), Kept(&["d 1775 d", "f 755 a "])),
        ("a sticky folder", tar().mode(b'5', "tmp", 0o1777).end(), Kept(&["d 1777 tmp"])),
        ("no rights", tar().mode(b'0', "a", 0).mode(b'5', "d", 0).file("d/x", "").end(), Kept(&["d 700 d", "f 600 a ", "f 644 d/x "])),
        ("capabilities", tar().pax(&[("SCHILY.xattr.security.capability", b"\x01\0\0\x02\xff\xff\xff\xff\0\0\0\0\0\0\0\0\0\0\0\0")]).file("a", "").end(), Kept(&["f 644 a "])),
        ("attributes of overlayfs", tar().pax(&[("SCHILY.xattr.user.overlay.opaque", b"y"), ("SCHILY.xattr.trusted.overlay.redirect", b"/etc")]).dir("d").end(), Kept(&["d 755 d"])),
        // Overwriting.
        ("twice", tar().file("a", "long").file("a", "x").end(), Kept(&["f 644 a x"])),
        ("a folder, made a file", tar().file("d/x", "").file("d", "y").end(), Kept(&["f 644 d y"])),
        ("a file, made a folder", tar().file("d", "y").dir("d").file("d/x", "").end(), Kept(&["d 755 d", "f 644 d/x "])),
        ("a folder twice", tar().dir("d").file("d/x", "").mode(b'5', "d", 0o711).end(), Kept(&["d 711 d", "f 644 d/x "])),
        // Forms of tar.
        ("text", vec![b'x'; 2048], Refused("not a tar archive")),
        ("nothing", Vec::new(), Refused("not a tar archive")),
        ("less than a block", vec![0; 100], Refused("not a tar archive")),
        ("only zeros", tar().end(), Kept(&[])),
        ("no end", tar().file("a", "x").0, Kept(&["f 644 a x"])),
        ("cut in a header", file_then(10, 100), Refused("not a tar archive")),
        ("cut in the content", file_then(2000, 1024), Refused("ends early")),
        ("cut in the padding", file_then(10, 600), Refused("ends early")),
        ("cut in the second header", tar().file("a", "x").file("b", "").0[..1100].to_vec(), Refused("ends early")),
        ("more after the end", [tar().file("a", "").end(), vec![b'x'; 512]].concat(), Refused("data after the end")),
        ("zeros after the end", [tar().file("a", "").end(), vec![0; 9216]].concat(), Kept(&["f 644 a "])),
        ("zeros without end", [tar().file("a", "").end(), vec![0; 2 << 20]].concat(), Refused("data after the end")),
        ("a wrong checksum", { let mut all = tar().file("a", "").file("b", "").end(); all[512] = b'x'; all }, Refused("its checksum is wrong")),
        ("an unknown kind", tar().entry(b'Z', b"a", b"", b"").end(), Refused("entries of kind 0x5a are not supported")),
        ("a contiguous file", tar().entry(b'7', b"a", b"", b"x").end(), Kept(&["f 644 a x"])),
        ("a name without an entry", tar().long(b'L', b"a").end(), Refused("a name without an entry")),
        ("two long names", tar().long(b'L', b"a").long(b'L', b"b").file("x", "").end(), Kept(&["f 644 b "])),
        ("a record after a long name", tar().long(b'L', b"a").pax(&[("path", b"b")]).file("x", "").end(), Kept(&["f 644 b "])),
        ("a long name after a record", tar().pax(&[("path", b"b")]).long(b'L', b"a").file("x", "").end(), Kept(&["f 644 b "])),
        ("a global path", tar().entry(b'g', b"g", b"", &mote_store::tar::pax("path", b"../x")).file("a", "").end(), Kept(&["f 644 a "])),
        ("a broken record", tar().entry(b'x', b"pax", b"", b"99 path=a\n").file("a", "").end(), Refused("a broken extended header")),
        ("a huge record", tar().entry(b'x', b"pax", b"", &vec![b'x'; 2 << 20]).end(), Refused("extended header past 1024 KiB")),
        ("a record of 8 EiB", with(&[(156, b"x"), (124, b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff")], b"").end(), Refused("extended header past")),
        ("a huge long name", with(&[(156, b"L"), (124, b"77777777777\0")], b"").end(), Refused("extended header past 64 KiB")),
        ("a binary size", with(&[(124, b"\x80\0\0\0\0\0\0\0\0\0\0\x02")], b"hi").end(), Kept(&["f 644 f hi"])),
        ("a negative size", with(&[(124, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff")], b"").end(), Refused("its size is not")),
        ("a size that is no number", with(&[(124, b"0000000009x\0")], b"").end(), Refused("its size is not")),
        ("a size of 8 EiB", with(&[(124, b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff")], b"").end(), Refused("exceeds the size")),
        ("another size in a record", tar().pax(&[("size", b"2")]).raw(changed(header(b'0', b"f", b"", 0, 0o644), &marker), b"hi").end(), Kept(&["f 644 f hi"])),
        ("a size that is no size", tar().pax(&[("size", b"-1")]).file("f", "").end(), Refused("its size is not a number")),
        ("a time before 1970", with(&[(136, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00")], b"").end(), Kept(&["f 644 f "])),
        // Sparse files.
        ("sparse", gnu_sparse(b"00000002000\0", b"00000001750\x0000000000004\0").end(), Kept(&["f 644 f (1024 bytes)"])),
        ("sparse, outside", gnu_sparse(b"00000000100\0", b"00000001750\x0000000000004\0").end(), Refused("its pieces overlap or lie outside")),
        ("sparse, overlapping", gnu_sparse(b"00000002000\0", b"00000000002\x0000000000004\0").end(), Refused("its pieces overlap")),
        ("sparse, with too much content", gnu_sparse(b"00000002000\0", b"00000001750\x0000000000002\0").end(), Refused("do not fit its content")),
        ("sparse, of 1 TiB", gnu_sparse(b"\x80\0\0\0\0\0\x01\0\0\0\0\0", b"00000001750\x0000000000004\0").end(), Refused("exceeds the size")),
        ("sparse 1.0", sparse_1_0("2\n0\n4\n1000\n4\n", "1024").end(), Kept(&["f 644 f (1024 bytes)"])),
        ("sparse 1.0, cut", sparse_1_0("9\n0\n4\n", "1024").end(), Refused("broken sparse file")),
        ("sparse 1.0, huge", sparse_1_0("99999999\n", "1024").end(), Refused("more than 65,536 pieces")),
        ("sparse 0.1", tar().pax(&[("GNU.sparse.map", b"0,4,1000,4"), ("GNU.sparse.size", b"1024"), ("GNU.sparse.name", b"f")]).bytes("x", b"headtail").end(), Kept(&["f 644 f (1024 bytes)"])),
        ("sparse 0.1, odd", tar().pax(&[("GNU.sparse.map", b"0,4,1000"), ("GNU.sparse.size", b"1024")]).bytes("x", b"headtail").end(), Refused("odd number of fields")),
        ("sparse 0.0", tar().pax(&[("GNU.sparse.offset", b"0")]).file("f", "").end(), Refused("a format that is not supported")),
        ("sparse, with a path up", tar().pax(&[("GNU.sparse.map", b"0,4"), ("GNU.sparse.size", b"4"), ("GNU.sparse.name", b"../f")]).bytes("x", b"head").end(), Refused("path leaves the layer")),
        // Limits: 1 MiB and 100 entries.
        ("too many files", (0..101).fold(tar(), |tar, at| tar.file(&format!("{at}"), "")).end(), Refused("exceeds the number of files")),
        ("too many links", (0..101).fold(tar(), |tar, at| tar.symlink(&format!("{at}"), "x")).end(), Refused("exceeds")),
        ("too many folders in few entries", tar().pax(&[("path", deep(200).as_bytes())]).file("x", "").end(), Refused("exceeds")),
        ("too many bytes", tar().bytes("a", &vec![0; 1 << 20]).file("b", "x").end(), Refused("exceeds the size")),
        ("one file, many times", (0..3).fold(tar(), |tar, _| tar.bytes("a", &vec![0; 400 << 10])).end(), Refused("exceeds the size")),
        // Compression.
        ("gzip", gzip(&tar().file("a", "x").end()), Kept(&["f 644 a x"])),
        ("gzip, cut", { let all = gzip(&tar().file("a", "x").end()); all[..all.len() - 4].to_vec() }, Refused("its gzip data is cut off")),
        ("gzip, changed", { let mut all = gzip(&tar().file("a", "x").end()); let at = all.len() - 8; all[at] ^= 1; all }, Refused("its gzip data is broken")),
        ("gzip, with more after it", [gzip(&tar().file("a", "").end()), vec![b'x'; 20]].concat(), Refused("its gzip data is broken")),
        ("a bomb of gzip", gzip(&[tar().end(), vec![0; 80 << 20]].concat()), Refused("data after the end")),
        ("zstd", zstd(&tar().file("a", "x").end()), Kept(&["f 644 a x"])),
        ("zstd, cut", { let all = zstd(&tar().file("a", "x").end()); all[..all.len() - 6].to_vec() }, Refused("its zstd data is cut off")),
        ("zstd, with a large window", b"\x28\xb5\x2f\xfd\x00\x88\x01\x00\x00\x00".to_vec(), Refused("more than 32 MiB")),
        ("gzip in gzip", gzip(&gzip(&tar().file("a", "x").end())), Refused("not a tar archive")),
        ("xz", b"\xfd7zXZ\0\0\x04rest".to_vec(), Refused("the compression xz is not supported")),
        ("bzip2", b"BZh91AY&SYrest".to_vec(), Refused("the compression bzip2 is not supported")),
    ]
}

#[test]
fn hostile_layers() {
    let mut failed = Vec::new();
    let place = Place::new();
    let all = cases(&place.outer.path().display().to_string());
    let count = all.len();
    let before = place.outside();
    for (name, bytes, expected) in &all {
        place.empty();
        let result = place.run(bytes, (1 << 20, 100));
        assert_eq!(place.outside(), before, "{name}: something outside changed");
        let there = list(&place.root);
        let is_right = match (&result, expected) {
            (Err(text), Refused(reason)) => text.contains(reason),
            // The two cases that contain the folder's own name make folders with that name.
            (Ok(_), &Kept(&[])) if name.ends_with("to us") => true,
            (Ok(_), Kept(nodes)) => there.iter().map(String::as_str).eq(nodes.iter().copied()),
            _ => false,
        };
        if !is_right {
            let result = result.map(|_| there);
            let wanted = match expected {
                Refused(text) => format!("refused: {text}"),
                Kept(nodes) => format!("{nodes:?}"),
            };
            failed.push(format!("{name}: {result:?}, not {wanted}"));
        }
    }
    assert!(failed.is_empty(), "{} of {count}:\n{}", failed.len(), failed.join("\n"));
}

#[test]
fn a_layer_keeps_its_times_and_holes() {
    let place = Place::new();
    let layer = gnu_sparse(b"10000000000\0", b"07777777774\x0000000000004\0")
        .pax(&[("mtime", b"1700000000.5")])
        .file("a", "x")
        .end();
    place.run(&layer, (2 << 30, 10)).unwrap();
    let meta = place.root.join("a").metadata().unwrap();
    assert_eq!((meta.mtime(), meta.mtime_nsec()), (1_700_000_000, 500_000_000));
    let sparse = place.root.join("f").metadata().unwrap();
    assert_eq!(sparse.len(), 1 << 30);
    assert!(sparse.blocks() < 100, "{} blocks", sparse.blocks());
}

#[test]
fn a_layer_is_named_by_its_unpacked_bytes() {
    let plain = tar().file("a", "x").end();
    let expected = crate::documents::digest(&plain);
    for form in [plain.clone(), gzip(&plain), zstd(&plain)] {
        let contents = Place::new().run(&form, (1 << 20, 100)).unwrap();
        assert_eq!(contents.diff_id, expected);
        assert_eq!((contents.bytes, contents.entries, contents.skipped), (1, 1, 0));
    }
}

/// The cost of an entry must not grow with the number of entries in its folder.
#[test]
fn many_files() {
    let place = Place::new();
    let layer =
        (0..20_000).fold(tar().dir("a/b/c"), |tar, at| tar.file(&format!("a/b/c/{at}"), ""));
    let contents = place.run(&layer.end(), (1 << 30, 30_000)).unwrap();
    assert_eq!(contents.entries, 20_003);
    assert_eq!(std::fs::read_dir(place.root.join("a/b/c")).unwrap().count(), 20_000);
}
