//! Names the syntax error in a file in which no handler was found because the file cannot be
//! parsed.
//!
//! The interpreters of this machine only parse the file. They do not run it.

use std::path::Path;
use std::process::{Command, Stdio};

use super::failure::Failure;
use super::output::harmless;

/// The largest file that is parsed.
const BYTES_MAX: u64 = 1 << 20;
/// Prints the line, the error and the text of a mistake.
const PYTHON: &str = "import ast, sys\n\
    try: ast.parse(open(sys.argv[1], 'rb').read())\n\
    except SyntaxError as e: print(e.lineno, f'{type(e).__name__}: {e.msg}', (e.text or '').strip(), sep='\\n')";
/// The longest text of a line that is shown.
const SHOWN_CHARS_MAX: usize = 120;

/// Replaces "has no handler" with the syntax error in that file, if it has one. `path` is the
/// project.
pub(super) fn named(mut failure: Failure, path: &Path) -> Failure {
    let Some(mistake) = failure.mistakes.first_mut().filter(|mistake| mistake.code == "M0112")
    else {
        return failure;
    };
    let folder = if path.is_file() { path.parent().unwrap_or(path) } else { path };
    let file = mistake.text.split(' ').next().unwrap_or_default().trim_end_matches(':').to_owned();
    if let Some((line, error, text)) = mistake_in(&folder.join(&file)) {
        let text: String = text.chars().take(SHOWN_CHARS_MAX).collect();
        mistake.text =
            format!("{file}, line {line}: {}\n    {}", harmless(&error), harmless(&text));
        mistake.hint = None;
    }
    failure
}

/// The first mistake in a file: its line, the error, and the text of the line.
fn mistake_in(file: &Path) -> Option<(u32, String, String)> {
    let length = file.metadata().ok().filter(|meta| meta.is_file())?.len();
    if length > BYTES_MAX {
        return None;
    }
    match file.extension()?.to_str()? {
        "py" => {
            let printed = parsed(Command::new("python3").args(["-I", "-c", PYTHON]).arg(file))?;
            let mut lines = printed.0.lines().map(str::to_owned);
            Some((lines.next()?.parse().ok()?, lines.next()?, lines.next().unwrap_or_default()))
        }
        "js" | "mjs" | "cjs" | "ts" | "mts" => {
            of_node(&parsed(Command::new("node").arg("--check").arg(file))?.1)
        }
        _ => None,
    }
}

/// The interpreter's output. `None` if the interpreter is not installed.
fn parsed(command: &mut Command) -> Option<(String, String)> {
    let output = command.stdin(Stdio::null()).output().ok()?;
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    Some((text(&output.stdout), text(&output.stderr)))
}

/// Reads what `node --check` prints: `FILE:LINE`, the text of the line, a mark, and the error.
fn of_node(printed: &str) -> Option<(u32, String, String)> {
    let mut lines = printed.lines();
    let (_, line) = lines.next()?.rsplit_once(':')?;
    let text = lines.next()?.trim().to_owned();
    let error = lines.find(|line| line.starts_with("SyntaxError: "))?;
    Some((line.parse().ok()?, error.to_owned(), text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_node_prints_is_read() {
        let printed = "/x/index.mjs:2\nexprt default 1\n      ^^^^^^^\n\nSyntaxError: Unexpected token 'default'\n    at a\n";
        let expected =
            (2, "SyntaxError: Unexpected token 'default'".to_owned(), "exprt default 1".to_owned());
        assert_eq!(of_node(printed), Some(expected));
        assert_eq!(of_node(""), None);
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named_with_its_line() {
        let folder = tempfile::tempdir().expect("a folder");
        let failed = |text: &str| named(Failure::new("M0112", text), folder.path());
        std::fs::write(folder.path().join("app.py"), "x = 1\ndeff handle(event):\n")
            .expect("written");
        let failure = failed("app.py has no `def handle(event, ctx)` and no `app`");
        assert!(
            failure.mistakes[0].text.starts_with("app.py, line 2: SyntaxError: "),
            "{failure:?}"
        );
        assert!(failure.mistakes[0].text.ends_with("deff handle(event):"), "{failure:?}");
        std::fs::write(folder.path().join("app.py"), "x = 1\n").expect("written");
        assert_eq!(failed("app.py has nothing").mistakes[0].text, "app.py has nothing");
        assert_eq!(failed("attic: found none").mistakes[0].text, "attic: found none");
    }
}
