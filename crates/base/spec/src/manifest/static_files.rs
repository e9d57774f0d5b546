//! Reads `[static]`: files of a function that the node serves itself.

use crate::toml_reader::{Section, TomlReader};

use super::{FunctionManifest, HOUR_MS, TOP_KEYS};

pub(super) const KEYS: [&str; 3] = ["folder", "fallback", "cache"];
/// Longest time for which clients may keep a file: a year, which RFC 9111 suggests.
const CACHE_MS_MAX: u64 = 365 * 24 * HOUR_MS;

/// `[static]`. Its paths are not yet checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StaticManifest {
    /// `folder`, with its line.
    pub folder: (String, usize),
    /// `fallback`, with its line.
    pub fallback: Option<(String, usize)>,
    /// `cache`, in seconds.
    pub cache_s: u32,
}

pub(super) fn read(
    reader: &mut TomlReader<'_>,
    section: &Section<'_>,
    function: &mut FunctionManifest,
    line: usize,
) {
    reader.check_keys(section, &KEYS, &[], &TOP_KEYS);
    let folder = reader.string(section, "folder", "a folder, e.g. \"public\"");
    if reader.get(section, "folder").is_none() {
        reader.mistake("M0306", line, "[static] needs folder, e.g. \"public\"", None);
    }
    let fallback = reader.string(section, "fallback", "a file, e.g. \"index.html\"");
    let cache = reader.duration_ms(section, "cache", 0..=CACHE_MS_MAX, "0s\u{2013}365d, e.g. 1h");
    function.static_files = Some(StaticManifest {
        folder: folder.map_or_else(Default::default, |folder| (folder.value, folder.line)),
        fallback: fallback.map(|fallback| (fallback.value, fallback.line)),
        cache_s: cache.map_or(0, |cache| u32::try_from(cache.value / 1_000).unwrap_or(u32::MAX)),
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Manifest;

    fn read(text: &str) -> Result<StaticManifest, String> {
        let manifest = Manifest::parse("mote.toml", &format!("version = 1\n{text}"));
        let mut manifest = manifest.map_err(|mistakes| mistakes.to_string())?;
        Ok(manifest.functions.remove(0).static_files.expect("a section"))
    }

    #[test]
    fn folder_fallback_and_time() {
        let files = read("[static]\nfolder = \"public\"\n").expect("valid");
        assert_eq!((files.folder.0.as_str(), files.cache_s), ("public", 0));
        let text = "[function.a.static]\nfolder = \"www\"\nfallback = \"a.html\"\ncache = \"1h\"\n";
        let files = read(text).expect("valid");
        assert_eq!((files.fallback.expect("given").0.as_str(), files.cache_s), ("a.html", 3_600));
        for (text, wanted) in [
            ("[static]\nfallback = \"a.html\"\n", "[static] needs folder"),
            ("[static]\nfolder = 1\n", "folder: a folder"),
            ("[static]\nfolder = \"a\"\ncache = \"2y\"\n", "cache"),
            ("[static]\nfolder = \"a\"\nindex = \"b\"\n", "index"),
            ("static = \"public\"\n", "a section [static]"),
        ] {
            let mistakes = read(text).expect_err(text);
            assert!(mistakes.contains(wanted), "{text}: {mistakes}");
        }
    }
}
