//! Checks the program that a command names, if it is one of the function's own files.

use std::path::Path;

use mote_spec::toml_reader::Mistakes;
use mote_spec::{FunctionSpec, Runtime};

use super::mistakes::{escaped, mistake};
use super::probe::{self, Folder, Program};

/// Checks the program of a command, if it is one of the function's own files. `spec` is complete, and
/// `path` contains the function's code.
pub fn check_code(path: &Path, spec: &FunctionSpec) -> Result<(), Mistakes> {
    match spec.runtime {
        Runtime::Exec | Runtime::Server | Runtime::Rust => {
            check_program(&Folder::read(path)?, &mut spec.command.clone(), true)
        }
        Runtime::Python
        | Runtime::Node
        | Runtime::Bun
        | Runtime::Deno
        | Runtime::Go
        | Runtime::Chain
        | Runtime::Wasm => Ok(()),
    }
}

/// Returns the files and folders in `code` that the spec names: the file of the entry, words of the
/// command, and the static files.
pub fn named_files(code: &Path, spec: &FunctionSpec) -> Vec<(&'static str, String)> {
    let mut named: Vec<(&'static str, String)> = Vec::new();
    let entry = spec.entry.split(':').next().unwrap_or_default().trim_start_matches("./");
    match spec.runtime {
        Runtime::Python => {
            let path = entry.trim_end_matches(".py").replace('.', "/");
            named.extend([".py", "/__init__.py"].map(|end| ("entry", format!("{path}{end}"))));
        }
        Runtime::Node | Runtime::Bun | Runtime::Deno | Runtime::Chain | Runtime::Wasm => {
            named.push(("entry", entry.to_owned()));
        }
        Runtime::Exec | Runtime::Server | Runtime::Rust => named.extend(
            spec.command.iter().map(|word| ("command", word.trim_start_matches("./").to_owned())),
        ),
        Runtime::Go => {}
    }
    let http = spec.http.as_ref();
    named.extend(
        http.and_then(|http| http.files.as_ref())
            .map(|files| ("static.folder", files.folder.clone())),
    );
    let is_there =
        |path: &str| !path.is_empty() && !path.starts_with(['/', '-']) && code.join(path).exists();
    named.retain(|(_, path)| is_there(path));
    named
}

pub(super) fn check_program(
    folder: &Folder,
    command: &mut [String],
    check_machine: bool,
) -> Result<(), Mistakes> {
    let Some(program) = command.first_mut() else {
        return Ok(());
    };
    if program.starts_with('/') {
        return Ok(()); // the machine's own program
    }
    let own = program.strip_prefix("./").unwrap_or(program).to_owned();
    match folder.program(&own)? {
        None if program.contains('/') => Err(mistake(
            "M0113",
            format!("command: `{}` is not part of the function", escaped(program)),
            None,
        )),
        None => Ok(()), // found through PATH, such as `sh`
        Some(found) => {
            *program = format!("./{own}");
            check_found(&own, &found, check_machine)
        }
    }
}

/// Runs a script that is not executable with the interpreter that its first line names. The images of
/// other platforms make such scripts executable, so users of those platforms do not.
pub(super) fn run_by_interpreter(
    folder: &Folder,
    command: &mut Vec<String>,
) -> Result<(), Mistakes> {
    let Some(program) = command.first() else { return Ok(()) };
    let own = program.strip_prefix("./").unwrap_or(program).to_owned();
    let is_script = |found: &Program| !found.executable && found.has_shebang && !found.shebang_cr;
    if own.starts_with('/') || !folder.program(&own)?.as_ref().is_some_and(is_script) {
        return Ok(());
    }
    let source = folder.source(&own);
    let line = source.lines().next().unwrap_or_default().trim_start_matches("#!");
    let interpreter: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    if !interpreter.is_empty() {
        command[0] = format!("./{own}");
        command.splice(0..0, interpreter);
    }
    Ok(())
}

fn check_found(own: &str, found: &Program, check_machine: bool) -> Result<(), Mistakes> {
    let own = escaped(own);
    if found.shebang_cr {
        return Err(mistake(
            "M0121",
            format!("{own}: line 1 ends in CR, so its interpreter cannot be found"),
            Some(format!("sed -i 's/\\r$//' {own}")),
        ));
    }
    if let (Some(machine), true) = (found.machine, check_machine)
        && !probe::runs_here(machine)
    {
        let theirs = probe::machine_name(machine);
        let here = std::env::consts::ARCH;
        let here_shown = if here == "x86_64" { "x86-64" } else { here };
        return Err(mistake(
            "M0120",
            format!("{own} is built for {theirs}, this node is {here_shown}"),
            Some(format!("build for it: cargo build --target {here}-unknown-linux-musl")),
        ));
    }
    if !found.executable {
        return Err(mistake(
            "M0114",
            format!("{own} is not executable"),
            Some(format!("chmod +x {own}")),
        ));
    }
    if found.machine.is_none() && !found.has_shebang {
        return Err(mistake(
            "M0114",
            format!("{own} is neither an ELF program nor a script with #! in line 1"),
            Some("begin it with a line such as #!/bin/sh".to_owned()),
        ));
    }
    Ok(())
}
