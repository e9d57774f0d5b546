//! Reads secret values and answers to questions. A secret value comes from standard input or a file. It
//! never comes from an argument, because every user of a machine can see the arguments of processes.

use std::io::{IsTerminal, Read, Write};
use std::path::Path;

use super::failure::Failure;

/// The most bytes of a value that are read. The node accepts fewer, and its error names the limit.
const READ_BYTES_MAX: u64 = 1 << 20;

/// Reads a secret value from a file or from standard input. If standard input is a terminal, which
/// would show the value, fails with `missing`.
pub(super) async fn read(
    file: Option<&Path>,
    missing: impl FnOnce() -> Failure,
) -> Result<String, Failure> {
    let shown = match file {
        Some(path) => path.display().to_string(),
        None if std::io::stdin().is_terminal() => return Err(missing()),
        None => "standard input".to_owned(),
    };
    let path = file.map(Path::to_owned);
    // Standard input is read on another thread, so that Ctrl-C works while no input arrives.
    let reading = tokio::task::spawn_blocking(move || {
        let source: Box<dyn Read> = match path {
            Some(path) => Box::new(std::fs::File::open(path)?),
            None => Box::new(std::io::stdin()),
        };
        let mut bytes = Vec::new();
        source.take(READ_BYTES_MAX + 1).read_to_end(&mut bytes).map(|_| bytes)
    });
    let bytes = reading.await.map_err(std::io::Error::other).and_then(|read| read);
    let bytes = bytes.map_err(|error| Failure::of_file("M0102", &shown, &error))?;
    if bytes.len() as u64 > READ_BYTES_MAX {
        return Err(Failure::new("M0303", format!("{shown}: too long for a secret")));
    }
    String::from_utf8(bytes).map_err(|_| {
        let failure = Failure::new("M0303", format!("{shown}: not UTF-8; secrets are text"));
        failure.with_hint("encode it, for example as base64, and decode it in the function")
    })
}

/// Asks a question on the terminal. Returns whether the answer is yes.
pub(super) async fn says_yes(question: &str) -> Result<bool, Failure> {
    eprint!("{question} [y/N] ");
    let _ = std::io::stderr().flush();
    // The answer is read on another thread, so that Ctrl-C works while the command waits for it.
    let reading = tokio::task::spawn_blocking(|| {
        let mut answer = String::new();
        std::io::stdin().read_line(&mut answer).map(|_| answer)
    });
    let answer = reading.await.map_err(std::io::Error::other).and_then(|answer| answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
