//! `mote test`: runs the tests of a function.

use std::fs;
use std::path::Path;

use mote_api::client::{Client, DeployOptions, Endpoint};
use mote_api::exit;
use mote_node::develop::DevNode;
use mote_spec::Runtime;

use super::project::Project;
use super::session::missing_secret;
use super::show::Show;
use crate::cli::failure::Failure;
use crate::cli::output::Output;

/// How deep tests are looked for.
const DEPTH_MAX: u32 = 4;
/// Python's own test tool is used if the function does not include pytest.
const PYTHON: &str = "if python3 -c 'import pytest' 2>/dev/null; \
    then exec python3 -m pytest -p no:cacheprovider \"$@\"; fi; exec python3 -m unittest \"$@\"";
const NODE: &str = "exec node --test \"$@\"";
const BUN: &str = "exec bun test \"$@\"";
const DENO: &str =
    "exec deno test --allow-all --no-check --no-lock --node-modules-dir=manual \"$@\"";
const GO: &str = "exec /packages/function.test \"$@\"";
const SHELL: &str = "failed=0; for test in tests/*.sh; do \
    if \"$test\" \"$@\"; then echo \"ok $test\"; else echo \"failed $test\"; failed=1; fi; \
    done; exit $failed";

/// The tools that run tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tool {
    Python,
    Node,
    Bun,
    Deno,
    Go,
    Shell,
}

impl Tool {
    /// Returns the tool for the tests in a folder. Tests in the runtime's own language take
    /// precedence.
    pub(super) fn of(folder: &Path, runtime: Runtime) -> Option<Self> {
        let own = match runtime {
            Runtime::Python => Some(Self::Python),
            Runtime::Node => Some(Self::Node),
            Runtime::Bun => Some(Self::Bun),
            Runtime::Deno => Some(Self::Deno),
            Runtime::Go => Some(Self::Go),
            Runtime::Rust | Runtime::Exec | Runtime::Server | Runtime::Chain | Runtime::Wasm => {
                None
            }
        };
        let others = [Self::Python, Self::Node, Self::Shell];
        own.into_iter().chain(others).find(|tool| tool.has_tests(folder, 0))
    }

    fn has_tests(self, folder: &Path, depth: u32) -> bool {
        let Ok(entries) = fs::read_dir(folder) else { return false };
        entries.flatten().any(|entry| {
            let name = entry.file_name();
            let Some(name) = name.to_str() else { return false };
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                let is_left_out = name.starts_with('.') || name == "node_modules";
                return !is_left_out
                    && depth < DEPTH_MAX
                    && self.has_tests(&folder.join(name), depth + 1);
            }
            let (stem, ending) = name.rsplit_once('.').unwrap_or((name, ""));
            let script = matches!(ending, "mjs" | "js" | "cjs" | "ts" | "mts" | "cts");
            let jsx = matches!(ending, "tsx" | "jsx") && matches!(self, Self::Bun | Self::Deno);
            match self {
                Self::Python => {
                    ending == "py" && (stem.starts_with("test_") || stem.ends_with("_test"))
                }
                Self::Node | Self::Bun | Self::Deno => {
                    (script || jsx) && (stem.ends_with(".test") || stem.ends_with("-test"))
                }
                Self::Go => name.ends_with("_test.go"),
                Self::Shell => ending == "sh" && folder.ends_with("tests"),
            }
        })
    }

    fn script(self) -> &'static str {
        match self {
            Self::Python => PYTHON,
            Self::Node => NODE,
            Self::Bun => BUN,
            Self::Deno => DENO,
            Self::Go => GO,
            Self::Shell => SHELL,
        }
    }
}

/// Deploys the function and runs its tests. Returns the exit code of the tests.
pub(super) async fn run(
    node: DevNode,
    (mut project, arguments): (Project, Vec<String>),
    output: Output,
) -> u8 {
    match test(&node, &mut project, arguments, output).await {
        Ok(code) => code,
        Err(failure) => {
            output.failure(&failure);
            failure.exit
        }
    }
}

async fn test(
    node: &DevNode,
    project: &mut Project,
    arguments: Vec<String>,
    output: Output,
) -> Result<u8, Failure> {
    let client = Client::new(Endpoint::Unix(node.socket.clone()));
    let packed = project.pack()?.map(|packed| packed.functions).unwrap_or_default();
    // The tests of a project with several functions run once.
    let function = packed.into_iter().find(|one| one.spec.runtime != Runtime::Chain);
    let Some(function) = function else { return Err(no_tests(project.folder())) };
    let folder = project.folder().to_owned();
    let tool = Tool::of(&folder, function.spec.answered_by());
    let tool = tool.ok_or_else(|| no_tests(&folder))?;
    let name = function.spec.name.to_string();
    for (secret, value) in function.secrets {
        client.put_secret(&secret, value).await?;
    }
    let deployed = client.deploy(&name, function.tar, &DeployOptions::default()).await;
    let result = deployed.map_err(|error| missing_secret(error.into()))?;
    for step in result.steps.iter().filter(|step| step.ms >= 100) {
        output.step(&step.name, &step.detail, Some(step.ms));
    }
    let mut show = Show::new(output);
    show.set_folder(name.clone(), function.folder.as_deref().unwrap_or(&folder));
    let words = ["sh", "-c", tool.script(), "test"].map(str::to_owned);
    let argv = words.into_iter().chain(arguments).collect();
    let ended = node.run_program(&name, argv, |line| show.line(&show.placed(&name, line))).await;
    match ended {
        Ok(code) => Ok(u8::try_from(code).unwrap_or(exit::FAILED)),
        Err(text) => Err(Failure::new("M0107", format!("{name}: the tests were stopped: {text}"))),
    }
}

fn no_tests(folder: &Path) -> Failure {
    let text = format!("{}: there are no tests", folder.display());
    Failure::new("M0106", text).with_hint(
        "they are files such as test_app.py, index.test.mjs, handler_test.go or tests/a.sh",
    )
}

#[cfg(test)]
mod tool_tests {
    use super::*;

    #[test]
    fn the_files_decide_which_tool_runs() {
        for (file, runtime, expected) in [
            ("test_app.py", Runtime::Python, Some(Tool::Python)),
            ("tests/app_test.py", Runtime::Python, Some(Tool::Python)),
            ("index.test.mjs", Runtime::Node, Some(Tool::Node)),
            ("index.test.ts", Runtime::Node, Some(Tool::Node)),
            ("index.test.ts", Runtime::Bun, Some(Tool::Bun)),
            ("main.test.ts", Runtime::Deno, Some(Tool::Deno)),
            ("page.test.tsx", Runtime::Bun, Some(Tool::Bun)),
            ("page.test.tsx", Runtime::Node, None),
            ("handler_test.go", Runtime::Go, Some(Tool::Go)),
            ("tests/a.sh", Runtime::Exec, Some(Tool::Shell)),
            ("a.sh", Runtime::Exec, None),
            ("test_server.py", Runtime::Server, Some(Tool::Python)),
            ("app.py", Runtime::Python, None),
            ("node_modules/a/a.test.js", Runtime::Node, None),
        ] {
            let folder = tempfile::tempdir().expect("a folder");
            let path = folder.path().join(file);
            fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            fs::write(path, "").expect("written");
            assert_eq!(Tool::of(folder.path(), runtime), expected, "{file}");
        }
    }
}
