//! Reads `[files]`: a folder to which the function writes, and folders of the host.

use crate::files::{
    DATA_BYTES_MAX, DATA_BYTES_MIN, FOLDER_NAME_RULE, HOST_FOLDERS_MAX, HOST_PATH_RULE,
    is_folder_name, is_host_path,
};
use crate::toml_reader::{Section, TomlReader};

use super::{FunctionManifest, TOP_KEYS};

pub(super) const KEYS: [&str; 1] = ["data"];
/// The keys of a folder of the host.
pub(super) const FOLDER_KEYS: [&str; 2] = ["from", "read_only"];

pub(super) fn read(
    reader: &mut TomlReader<'_>,
    section: &Section<'_>,
    function: &mut FunctionManifest,
    line: usize,
) {
    let names: Vec<&str> = section.table().keys().map(|key| &**key.get_ref()).collect();
    let known: Vec<&str> = names.into_iter().filter(|name| !TOP_KEYS.contains(name)).collect();
    reader.check_keys(section, &known, &[], &TOP_KEYS);
    let wanted = "16MiB\u{2013}1024GiB, e.g. 256MiB";
    let data = reader.size(section, "data", DATA_BYTES_MIN..=DATA_BYTES_MAX, wanted);
    function.files.data_bytes = data.map(|size| size.value);
    for (key, value) in section.table() {
        let name: &str = key.get_ref();
        if KEYS.contains(&name) || TOP_KEYS.contains(&name) {
            continue;
        }
        let line = reader.line(key.span().start);
        let folder = "a folder of the host, e.g. { from = \"/srv/models\" }";
        let Some(table) = value.get_ref().as_table() else {
            reader.wrong_type(name, line, folder, value.get_ref());
            continue;
        };
        if !is_folder_name(name) {
            reader.mistake(
                "M0303",
                line,
                &format!("`{name}` in [files]: {FOLDER_NAME_RULE}"),
                None,
            );
            continue;
        }
        let label = format!("{name} of [files]");
        let section = reader.section(table, &label, &label);
        reader.check_keys(&section, &FOLDER_KEYS, &[], &[]);
        if let Some(read_only) = reader.get(&section, "read_only").map(|(_, line)| line)
            && reader.boolean(&section, "read_only").is_some_and(|read_only| !read_only.value)
        {
            let text = "read_only: functions cannot write to folders of the host";
            let hint = "leave it out, and write to the folder of data = \"256MiB\"";
            reader.mistake("M0303", read_only, text, Some(hint.to_owned()));
        }
        let from = reader.string(&section, "from", "a folder of the host, e.g. \"/srv/models\"");
        match from {
            Some(from) if is_host_path(&from.value) => {
                function.files.host_folders.insert(name.to_owned(), from.value);
            }
            Some(from) => {
                reader.mistake("M0303", from.line, &format!("from: {HOST_PATH_RULE}"), None);
            }
            None if reader.get(&section, "from").is_none() => {
                let text = format!("{name} needs from, e.g. from = \"/srv/models\"");
                reader.mistake("M0306", line, &text, None);
            }
            None => {}
        }
    }
    if function.files.host_folders.len() > HOST_FOLDERS_MAX {
        reader.mistake("M0303", line, "files: at most 16 folders of the host", None);
    }
}

#[cfg(test)]
mod tests {
    use crate::files::Files;
    use crate::manifest::Manifest;

    fn read(text: &str) -> Result<Files, String> {
        let manifest = Manifest::parse("mote.toml", &format!("version = 1\n[files]\n{text}"));
        let mut manifest = manifest.map_err(|mistakes| mistakes.to_string())?;
        Ok(manifest.functions.remove(0).files)
    }

    #[test]
    fn a_size_and_folders_of_the_host() {
        let files = read("data = \"256MiB\"\nmodels = { from = \"/srv/models\" }\n").unwrap();
        assert_eq!(files.data_bytes, Some(256 << 20));
        assert_eq!(files.host_folders["models"], "/srv/models");
        let files = read("maps.from = \"/srv/maps\"\nmaps.read_only = true\n").unwrap();
        assert_eq!((files.data_bytes, files.host_folders["maps"].as_str()), (None, "/srv/maps"));
    }

    #[test]
    fn mistakes_say_what_is_possible() {
        for (text, expected) in [
            (
                "data = \"1MiB\"\n",
                "data: 16MiB\u{2013}1024GiB, e.g. 256MiB; found \"1MiB\" (line 3)",
            ),
            (
                "models = \"/srv/models\"\n",
                "models: a folder of the host, e.g. { from = \"/srv/models\" }; found a string (line 3)",
            ),
            ("name = \"x\"\n", "`name` (line 3) is below [files]"),
            ("models = {}\n", "models needs from, e.g. from = \"/srv/models\" (line 3)"),
            ("models = { from = \"/srv/../etc\" }\n", "from: a folder of the host is an absolute"),
            (
                "models = { from = \"/srv\", read_only = false }\n",
                "read_only: functions cannot write to folders of the host (line 3)",
            ),
            ("models = { from = \"/srv\", write = true }\n", "unknown key `write` in models"),
            ("\"../x\" = { from = \"/srv\" }\n", "`../x` in [files]: a name of a folder"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
