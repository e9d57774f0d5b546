//! Reads a project for a node that received it without a spec, such as the archive of a client that
//! is not `mote`. The node has unpacked it, and asks with a command line that is no verb for users.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use mote_api::Problem;
use mote_api::upload::{ReadUpload, VERB};
use mote_core::FunctionSpec;
use mote_project::Options;

use super::failure::Failure;
use super::output::Output;

/// The folder and the name of the function, if a node asks for an upload.
pub(super) fn asked(arguments: &[OsString]) -> Option<(&Path, &str)> {
    match arguments {
        [verb, folder, name] if verb == OsStr::new(VERB) => {
            Some((Path::new(folder), name.to_str()?))
        }
        _ => None,
    }
}

pub(super) fn run(folder: &Path, name: &str, output: &Output) -> Result<(), Failure> {
    let read = match read(folder, name) {
        Ok(spec) => ReadUpload::Spec(mote_spec_json::to_json(&spec)),
        Err(problem) => ReadUpload::Refused(problem),
    };
    output.print(serde_json::to_string(&read).unwrap_or_default().as_bytes())
}

fn read(folder: &Path, name: &str) -> Result<FunctionSpec, Problem> {
    let options = Options { name: Some(name), check_machine: true, ..Options::default() };
    let project = mote_project::read_own(folder, options).map_err(|mistakes| {
        let code = mistakes.0.first().map_or("M0303", |mistake| mistake.code);
        Problem::new(422, code, mistakes.to_string())
    })?;
    match <[_; 1]>::try_from(project.functions) {
        Ok([planned]) => Ok(planned.spec),
        Err(all) => {
            let text = format!("the archive holds {} functions, not one", all.len());
            Err(Problem::new(422, "M0303", text))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_name_of_the_request_counts_and_mistakes_are_answers() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text);
        write("app.py", "def handle(event, ctx): pass\n").expect("written");
        let spec = read(folder.path(), "other").expect("it is a function");
        assert_eq!((spec.name.as_str(), spec.entry.as_str()), ("other", "app:handle"));
        write("mote.toml", "version = 1\nruntime = python\n").expect("written");
        let problem = read(folder.path(), "other").expect_err("python needs quotes");
        assert_eq!((problem.status, problem.code.as_str()), (422, "M0301"));
        assert!(
            problem.detail.contains("mote.toml: `python` needs quotes (line 2)"),
            "{problem:?}"
        );
        let two = "version = 1\n[function.a]\nentry = \"app:handle\"\n[function.b]\nentry = \"app:handle\"\n";
        write("mote.toml", two).expect("written");
        let problem = read(folder.path(), "a").expect_err("two functions");
        assert!(problem.detail.contains("several functions"), "{problem:?}");
    }

    #[test]
    fn only_the_whole_command_line_is_an_upload() {
        let asked = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            asked(&words).is_some()
        };
        assert!(asked(&["read-upload", "/folder", "f"]));
        assert!(!asked(&["read-upload", "/folder"]) && !asked(&["deploy", "/folder", "f"]));
    }
}
