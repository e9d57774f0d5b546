//! `mote new`: writes the files of a template.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use mote_spec::FunctionName;

use super::args::New;
use super::failure::Failure;
use super::output::{Output, harmless, table};
use crate::templates::{TEMPLATES, Template, find};

/// The place of the manifest's schema below the prefix of an installation.
const SCHEMA: &str = "share/mote/mote.schema.json";

pub(super) fn run(args: &New, output: &Output) -> Result<(), Failure> {
    if args.list {
        return list(output);
    }
    let Some(template) = find(&args.template) else {
        let text = format!("no template {}", args.template.escape_debug());
        let near =
            mote_spec::nearest(&args.template, TEMPLATES.iter().map(|template| template.name));
        let hint = near.map_or_else(String::new, |near| format!("did you mean {near}? "));
        return Err(
            Failure::new("M0101", text).with_hint(format!("{hint}mote new --list shows all"))
        );
    };
    let folder = args.folder.clone().unwrap_or_default();
    let name = name_of(&folder)?;
    let there: Vec<&str> = template.files.iter().map(|(file, _)| *file).collect();
    let there: Vec<&str> =
        there.into_iter().filter(|file| folder.join(file).symlink_metadata().is_ok()).collect();
    if !there.is_empty() {
        let text = format!("{}: {} already there", folder.display(), is_or_are(&there));
        return Err(Failure::new("M0105", text).with_hint(
            "choose another name, or remove what you do not need; nothing was written",
        ));
    }
    let others = of_other_languages(&folder, template);
    if !others.is_empty() {
        let shown = others.join(", ");
        let text = format!("{}: code in another language is there: {shown}", folder.display());
        return Err(Failure::new("M0105", text).with_hint(
            "a function has one language: choose another folder, or a template for this one; \
             nothing was written",
        ));
    }
    let schema = schema();
    for (file, text) in template.files {
        write(&folder.join(file), &Template::text(text, name.as_str(), &schema))?;
    }
    let mut files: Vec<&str> = template.files.iter().map(|(file, _)| *file).collect();
    if let Some((file, text)) = template.types()
        && folder.join(file).symlink_metadata().is_err()
    {
        write(&folder.join(file), text)?;
        files.push(file);
    }
    for (file, text) in template.bundled() {
        if folder.join(file).symlink_metadata().is_err() {
            write(&folder.join(file), text)?;
        }
    }
    if !template.bundled().is_empty() {
        files.push("mote-function/");
    }
    let shown = folder.display().to_string();
    let value = serde_json::json!({
        "function": name.as_str(),
        "folder": shown,
        "template": template.name,
        "files": files,
    });
    output.result(&value, &[name.as_str()], || {
        format!(
            "{}: {} ({})\n  next:  mote dev {shown}\n",
            harmless(&shown),
            files.join(", "),
            template.name,
            shown = harmless(&shown),
        )
    })
}

fn list(output: &Output) -> Result<(), Failure> {
    let names: Vec<&str> = TEMPLATES.iter().map(|template| template.name).collect();
    let values: Vec<_> = TEMPLATES
        .iter()
        .map(|template| serde_json::json!({"template": template.name, "about": template.about}))
        .collect();
    output.results(&values, &values, &names, || {
        let row = |template: &Template| vec![template.name.to_owned(), template.about.to_owned()];
        table(&["TEMPLATE", "WHAT IT DOES"], &TEMPLATES.iter().map(row).collect::<Vec<_>>())
    })
}

/// The endings of files with code, grouped by language. Shell scripts are left out, because they
/// are next to code in every language.
const LANGUAGES: [&[&str]; 4] =
    [&["py"], &["js", "mjs", "cjs", "ts", "mts", "cts", "tsx", "jsx"], &["go"], &["rs"]];

/// The language of a file at the top of a folder.
fn language(file: &str) -> Option<usize> {
    let (stem, ending) = file.rsplit_once('.')?;
    let is_shown = !stem.is_empty() && !stem.contains('/') && !file.ends_with(".d.ts");
    LANGUAGES.iter().position(|endings| is_shown && endings.contains(&ending))
}

/// The files at the top of a folder whose language is not that of the template. At most three.
fn of_other_languages(folder: &Path, template: &Template) -> Vec<String> {
    let own: Vec<usize> = template.files.iter().filter_map(|(file, _)| language(file)).collect();
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut others: Vec<String> = names
        .filter(|name| language(name).is_some_and(|language| !own.contains(&language)))
        .collect();
    others.sort_unstable();
    others.truncate(3);
    others
}

fn is_or_are(files: &[&str]) -> String {
    let verb = if files.len() == 1 { "is" } else { "are" };
    format!("{} {verb}", files.join(", "))
}

/// Returns the name of the function: the last part of its folder.
fn name_of(folder: &Path) -> Result<FunctionName, Failure> {
    let last = match folder.file_name() {
        Some(name) => Some(name.to_owned()),
        // The folder is `.` or ends in `..`.
        None => {
            fs::canonicalize(folder).ok().and_then(|path| path.file_name().map(ToOwned::to_owned))
        }
    };
    let text = last.unwrap_or_default().to_string_lossy().into_owned();
    match FunctionName::new(&text) {
        Ok(name) if name.namespace().is_none() => Ok(name),
        _ => {
            let text = format!("`{}` is not the name of a function", text.escape_debug());
            Err(Failure::new("M0115", text)
                .with_hint("use a\u{2013}z, 0\u{2013}9 and -, for example attic-alarm"))
        }
    }
}

/// Where an editor finds the schema of manifests.
fn schema() -> String {
    let prefix = std::env::current_exe().ok();
    let beside = prefix.as_deref().and_then(Path::parent).and_then(Path::parent);
    let own = beside.map(|prefix| prefix.join(SCHEMA)).filter(|path| path.is_file());
    let path = own.unwrap_or_else(|| PathBuf::from("/usr").join(SCHEMA));
    format!("file://{}", path.display())
}

/// Writes a new file. A file that appeared in the meantime stays as it is.
fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let mode = if text.starts_with("#!") { 0o777 } else { 0o666 };
    let written = || {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
        file?.write_all(text.as_bytes())
    };
    written().map_err(|error| Failure::of_file("M0103", &path.display().to_string(), &error))
}
