use std::io::Write;

use super::*;
use crate::tar::{BLOCK, header, pax};

/// Builds archives byte by byte, valid and invalid.
#[derive(Default, Clone)]
struct Tar(Vec<u8>);

impl Tar {
    fn raw(mut self, head: [u8; BLOCK], content: &[u8]) -> Self {
        self.0.extend_from_slice(&head);
        self.0.extend_from_slice(content);
        self.0.resize(self.0.len().next_multiple_of(BLOCK), 0);
        self
    }

    fn entry(self, kind: u8, path: &str, link: &str, content: &[u8]) -> Self {
        let head = header(kind, path.as_bytes(), link.as_bytes(), content.len() as u64, 0o644);
        self.raw(head, content)
    }

    fn file(self, path: &str, content: &str) -> Self {
        self.entry(b'0', path, "", content.as_bytes())
    }

    fn dir(self, path: &str) -> Self {
        self.entry(b'5', path, "", b"")
    }

    fn link(self, path: &str, target: &str) -> Self {
        self.entry(b'2', path, target, b"")
    }

    fn pax(self, records: &[(&str, &str)]) -> Self {
        let content: Vec<u8> =
            records.iter().flat_map(|(key, value)| pax(key, value.as_bytes())).collect();
        self.entry(b'x', "pax", "", &content)
    }

    fn end(mut self) -> Vec<u8> {
        self.0.extend_from_slice(&[0; 2 * BLOCK]);
        self.0
    }
}

fn tar() -> Tar {
    Tar::default()
}

fn limits() -> ArchiveLimits {
    ArchiveLimits::default()
}

fn run(
    bytes: &[u8],
    limits: &ArchiveLimits,
) -> Result<(Unpacked, tempfile::TempDir), ArchiveError> {
    let dir = tempfile::tempdir().unwrap();
    unpack(bytes, dir.path(), limits).map(|unpacked| (unpacked, dir))
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// A header whose field at `at` is overwritten. The checksum is corrected.
fn patched(kind: u8, path: &str, size: u64, at: usize, bytes: &[u8]) -> [u8; BLOCK] {
    let mut head = header(kind, path.as_bytes(), b"", size, 0o644);
    head[at..at + bytes.len()].copy_from_slice(bytes);
    head[148..156].copy_from_slice(b"        ");
    let sum: u64 = head.iter().map(|byte| u64::from(*byte)).sum();
    head[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    head
}

#[test]
fn hostile_archives_are_refused_in_words() {
    let good = || tar().file("main.py", "x");
    let long = "n".repeat(300);
    let deep = "d/".repeat(33) + "f";
    let two_path_records: Vec<u8> = [pax("path", b"a"), pax("path", b"b")].concat();
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("entry 2 `../x`: path leaves the function", good().file("../x", "").end()),
        ("entry 1 `a/../../x`: path leaves the function", tar().file("a/../../x", "").end()),
        ("entry 1 `a/../b`: path leaves the function", tar().file("a/../b", "").end()),
        ("entry 1 `/etc/passwd`: path leaves the function", tar().file("/etc/passwd", "").end()),
        ("entry 1 `..`: path leaves the function", tar().dir("..").end()),
        ("entry 1 `..\\\\x`: path leaves the function", tar().file("..\\x", "").end()),
        ("entry 1 `C:x`: path leaves the function", tar().file("C:x", "").end()),
        ("entry 1 `c:/x`: path leaves the function", tar().file("c:/x", "").end()),
        (
            "entry 1 `a\\0b`: path leaves the function",
            tar().pax(&[("path", "a\0b")]).file("x", "").end(),
        ),
        (
            "entry 1 `../x`: path leaves the function",
            tar().pax(&[("path", "../x")]).file("x", "").end(),
        ),
        (
            // If this path were cut after 4,096 bytes, it would become a different path, which is
            // allowed.
            "entry 1 `././././././././././././././././././././././././././././././././…`: its path is longer than 4,096 bytes",
            tar().pax(&[("path", &format!("{}name", "./".repeat(2047)))]).file("x", "").end(),
        ),
        (
            "entry 1 `../x`: path leaves the function",
            tar().entry(b'L', "././@LongLink", "", b"../x\0").file("x", "").end(),
        ),
        ("entry 1 `a\\nb`: name has a control character", tar().file("a\nb", "").end()),
        (
            "entry 1 `nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn…`: name is longer than 255 bytes",
            tar().pax(&[("path", &long)]).file("x", "").end(),
        ),
        (
            "entry 1 `d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/…`: path is deeper than 32 folders",
            tar().file(&deep, "").end(),
        ),
        ("entry 1: name is empty", tar().file("", "").end()),
        (
            "entry 1 `\u{fffd}`: name is not UTF-8",
            tar().raw(header(b'0', b"\xff", b"", 0, 0o644), b"").end(),
        ),
        ("entry 1 `.`: path leaves the function", tar().link(".", "x").end()),
        ("entry 2 `l`: link leaves the function", good().link("l", "../x").end()),
        ("entry 2 `l`: link leaves the function", good().link("l", "/etc/shadow").end()),
        ("entry 2 `d/l`: link leaves the function", good().link("d/l", "../../x").end()),
        ("entry 2 `l`: link leaves the function", good().link("l", "d/../../x").end()),
        ("entry 2 `l`: link leaves the function", good().link("l", "").end()),
        (
            "entry 2 `l/x`: path leads through a link or a file",
            tar().link("l", "d").file("l/x", "").end(),
        ),
        (
            "entry 3 `l/x`: path leads through a link or a file",
            tar().dir("d").link("l", "d").file("l/x", "").end(),
        ),
        (
            "entry 2 `f/x`: path leads through a link or a file",
            tar().file("f", "").file("f/x", "").end(),
        ),
        ("entry 2 `d`: ambiguous archive (same path twice)", tar().dir("d").link("d", "x").end()),
        (
            "entry 2 `l`: ambiguous archive (same path twice)",
            tar().link("l", "x").file("l", "").end(),
        ),
        ("entry 2 `l`: ambiguous archive (same path twice)", tar().link("l", "x").dir("l").end()),
        ("entry 2 `h`: link leaves the function", good().entry(b'1', "h", "../main.py", b"").end()),
        (
            "entry 2 `h`: link leaves the function",
            good().entry(b'1', "h", "/etc/passwd", b"").end(),
        ),
        (
            "entry 1 `h`: link to a file that does not precede it in the archive",
            tar().entry(b'1', "h", "later", b"").file("later", "").end(),
        ),
        (
            "entry 2 `h`: link to a file that does not precede it in the archive",
            tar().link("l", "x").entry(b'1', "h", "l", b"").end(),
        ),
        ("entry 1 `d`: device files are not allowed", tar().entry(b'3', "d", "", b"").end()),
        ("entry 1 `d`: device files are not allowed", tar().entry(b'4', "d", "", b"").end()),
        ("entry 1 `p`: device files are not allowed", tar().entry(b'6', "p", "", b"").end()),
        (
            "entry 1 `c`: entries of this kind are not allowed",
            tar().entry(b'7', "c", "", b"").end(),
        ),
        ("entry 1 `s`: ambiguous archive (a sparse file)", tar().entry(b'S', "s", "", b"").end()),
        (
            "entry 1: ambiguous archive (a sparse file)",
            tar().pax(&[("GNU.sparse.size", "9223372036854775807")]).file("s", "").end(),
        ),
        (
            "entry 1 `f`: ambiguous archive (two sizes)",
            tar().pax(&[("size", "0")]).file("f", "hello").end(),
        ),
        (
            "entry 1: ambiguous archive (its size is not a number)",
            tar().pax(&[("size", "-1")]).file("f", "").end(),
        ),
        (
            "entry 1: ambiguous archive (an extended header says one thing twice)",
            tar().entry(b'x', "pax", "", &two_path_records).file("f", "").end(),
        ),
        (
            "entry 1 `pax`: ambiguous archive (two extended headers)",
            tar().pax(&[("path", "a")]).pax(&[("path", "b")]).file("f", "").end(),
        ),
        (
            "entry 1 `x`: ambiguous archive (two long names)",
            tar().entry(b'L', "x", "", b"a\0").entry(b'L', "x", "", b"b\0").file("f", "").end(),
        ),
        (
            "entry 1: ambiguous archive (a broken extended header)",
            tar().entry(b'x', "pax", "", b"99 path=a\n").file("f", "").end(),
        ),
        (
            "entry 1 `pax`: ambiguous archive (an extended header past 64 KiB)",
            tar().entry(b'x', "pax", "", &vec![b' '; 65 << 10]).file("f", "").end(),
        ),
        (
            "entry 1 `g`: ambiguous archive (a global path or size)",
            tar().entry(b'g', "g", "", &pax("path", b"a")).file("f", "").end(),
        ),
        ("entry 1: ambiguous archive (a name without an entry)", tar().pax(&[("path", "a")]).end()),
        (
            "entry 2 `a`: ambiguous archive (same path twice)",
            tar().file("a", "1").file("a", "2").end(),
        ),
        (
            "entry 2 `./a`: ambiguous archive (same path twice)",
            tar().file("a", "1").file("./a", "2").end(),
        ),
        ("entry 2 `d/`: ambiguous archive (same path twice)", tar().dir("d").dir("d/").end()),
        (
            "entry 2 `A`: ambiguous archive (names differ only in case)",
            tar().file("a", "1").file("A", "2").end(),
        ),
        (
            "entry 2 `D/b`: ambiguous archive (names differ only in case)",
            tar().file("d/a", "1").file("D/b", "2").end(),
        ),
        (
            "entry 1 `d`: ambiguous archive (only files have content)",
            tar().entry(b'5', "d", "", b"hidden").end(),
        ),
        (
            "entry 1 `l`: ambiguous archive (only files have content)",
            tar().entry(b'2', "l", "x", b"hidden").end(),
        ),
        ("entry 2 `f`: ambiguous archive (its checksum is wrong)", {
            let mut head = header(b'0', b"f", b"", 0, 0o644);
            head[0] = b'g';
            let bytes = good().raw(head, b"").end();
            let mut fixed = bytes;
            fixed[2 * BLOCK] = b'f';
            fixed[2 * BLOCK + 148] ^= 1;
            fixed
        }),
        (
            "entry 1 `f`: ambiguous archive (its size is not plain octal)",
            tar()
                .raw(
                    patched(
                        b'0',
                        "f",
                        0,
                        124,
                        &[0x80, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
                    ),
                    b"",
                )
                .end(),
        ),
        (
            "unpacks past 256 MiB",
            tar().raw(patched(b'0', "f", 0, 124, b"77777777777\0"), b"").end(),
        ),
        ("data after the end of the archive", [good().end(), b"x".to_vec()].concat()),
        (
            "data after the end of the archive",
            [good().end(), tar().file("../second", "").end()].concat(),
        ),
        ("archive ends early, in or after entry 1", good().0),
        ("archive ends early, in or after entry 2", {
            let bytes = good().file("big", &"x".repeat(5000)).end();
            bytes[..3 * BLOCK].to_vec()
        }),
        ("not a tar archive (plain tar and gzip are read)", b"PK\x03\x04 zip".to_vec()),
        ("not a tar archive (plain tar and gzip are read)", b"#!/bin/sh\n".repeat(200)),
        ("not a tar archive (plain tar and gzip are read)", Vec::new()),
        ("not a tar archive (plain tar and gzip are read)", b"x".to_vec()),
        ("the archive is empty", tar().end()),
        ("the archive is empty", tar().dir("./").dir("d").end()),
        ("gzip data is broken", [b"\x1f\x8b\x08\0\0\0\0\0\0\0".to_vec(), vec![0xff; 64]].concat()),
        ("archive ends early, in or after entry 1", {
            let bytes = gzip(&tar().file("f", &"abcdefgh".repeat(5000)).end());
            bytes[..bytes.len() - 12].to_vec()
        }),
        (
            "unpacks to more than 100 times its size",
            gzip(&tar().entry(b'0', "zeros", "", &vec![0; 8 << 20]).end()),
        ),
    ];
    assert!(cases.len() >= 40);
    for (expected, bytes) in cases {
        match run(&bytes, &limits()) {
            Ok(_) => panic!("accepted: {expected}"),
            Err(error) => assert_eq!(error.to_string(), expected),
        }
    }
}

#[test]
fn a_million_entries_end_at_the_limit() {
    struct Endless(Vec<u8>, usize);
    impl Read for Endless {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if self.0.is_empty() {
                let name = format!("d{}", self.1);
                self.0 = header(b'5', name.as_bytes(), b"", 0, 0o755).to_vec();
                self.1 += 1;
            }
            let count = buffer.len().min(self.0.len());
            buffer[..count].copy_from_slice(&self.0[..count]);
            self.0.drain(..count);
            Ok(count)
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let few = ArchiveLimits { entries: 100, ..limits() };
    let error = unpack(Endless(Vec::new(), 0), dir.path(), &few).unwrap_err();
    assert_eq!(error.to_string(), "more than 100 entries");
    assert_eq!(error.http_status(), 413);
}

#[test]
fn hard_links_count_as_copies() {
    let few = ArchiveLimits { bytes: 1 << 20, ..limits() };
    let mut bomb = tar().entry(b'0', "f", "", &vec![7; 600 << 10]);
    bomb = bomb.entry(b'1', "g", "f", b"");
    let error = run(&bomb.end(), &few).unwrap_err();
    assert_eq!(error.to_string(), "unpacks past 1 MiB");
}

#[test]
fn good_archives_unpack_as_they_say() {
    use std::os::unix::fs::PermissionsExt;

    let bytes = tar()
        .entry(b'0', ".mote/spec.json", "", b"{}")
        .dir("./")
        .file("./main.py", "print(1)")
        .raw(header(b'0', b"run.sh", b"", 2, 0o6755), b"hi")
        .link("lib/latest", "../main.py")
        .dir("lib/")
        .entry(b'1', "copy.sh", "run.sh", b"")
        .pax(&[("mtime", "1.5"), ("SCHILY.xattr.security.capability", "x")])
        .file("cap", "")
        .end();
    let aside = ArchiveLimits { set_aside: Some(".mote/spec.json".to_owned()), ..limits() };
    for bytes in [gzip(&bytes), bytes] {
        let (unpacked, dir) = run(&bytes, &aside).unwrap();
        assert_eq!(unpacked.set_aside.as_deref(), Some(&b"{}"[..]));
        assert_eq!((unpacked.files, unpacked.bytes), (4, 12));
        let mode = |name: &str| {
            let meta = std::fs::symlink_metadata(dir.path().join(name)).unwrap();
            meta.permissions().mode() & 0o7777
        };
        assert_eq!(mode("run.sh"), 0o755);
        assert_eq!(mode("copy.sh"), 0o755);
        assert_eq!(mode("main.py"), 0o644);
        assert_eq!(mode("lib"), 0o755);
        assert!(!dir.path().join(".mote").exists());
        assert_eq!(
            unpacked.notes,
            [
                "run.sh: set-id and sticky bits were removed",
                "cap: extended attributes were removed"
            ]
        );
        assert_eq!(crate::tree::hash_dir(dir.path()).unwrap(), unpacked.hash);
    }
}

#[test]
fn the_name_of_a_tree_depends_on_content_alone() {
    let hash = |tar: Tar| run(&tar.end(), &limits()).unwrap().0.hash;
    let base = hash(tar().file("a", "1").file("d/b", "2"));
    assert_eq!(base, hash(tar().dir("d").file("d/b", "2").file("a", "1")));
    for other in [
        tar().file("a", "1").file("d/b", "3"),
        tar().file("a", "1").file("d/c", "2"),
        tar().file("a", "12").file("d/b", ""),
        tar().file("a", "1").file("d/b", "2").dir("e"),
        tar().file("d/b", "2").raw(header(b'0', b"a", b"", 1, 0o755), b"1"),
        tar().link("a", "1").file("d/b", "2"),
    ] {
        assert_ne!(base, hash(other));
    }
}

#[test]
fn archives_of_other_programs_are_read() {
    // Every archiver that is installed on this machine must make archives that we accept. This is
    // tested because formats change over time.
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("src");
    std::fs::create_dir_all(root.join("pkg")).unwrap();
    std::fs::write(root.join("main.py"), "x").unwrap();
    let long = "long-name-".repeat(15);
    std::fs::write(root.join("pkg").join(&long), "y").unwrap();
    let out = dir.path().join("out.tar");
    let formats = ["gnu", "pax", "ustar", "posix"];
    let mut read = 0;
    for format in formats {
        let made = std::process::Command::new("tar")
            .arg(format!("--format={format}"))
            .arg("-cf")
            .arg(&out)
            .args(["-C", root.to_str().unwrap(), "."])
            .output();
        if !made.is_ok_and(|made| made.status.success()) {
            continue; // not installed, or the format cannot store the name
        }
        let (unpacked, tree) = run(&std::fs::read(&out).unwrap(), &limits()).unwrap();
        assert_eq!(unpacked.files, 2, "{format}");
        assert!(tree.path().join("pkg").join(&long).exists());
        read += 1;
    }
    println!("read {read} archives of the system's tar");
}

#[test]
fn noise_never_panics() {
    // A cheap substitute for the fuzzer: tries every single-byte change of a valid archive.
    let good = tar().pax(&[("path", "p"), ("size", "3")]).file("x", "abc").link("l", "p").end();
    for at in 0..good.len() {
        for change in [0x01, 0x80, 0xff] {
            let mut bytes = good.clone();
            bytes[at] ^= change;
            let _ = run(&bytes, &limits());
        }
    }
}
