//! Runs the commands that the documents show, in order, against a real node.
//!
//! Every block marked `console` in README.md, the tutorial and the guides is a session. A shell
//! runs the lines that begin with `$ `. Lines that begin with `> ` continue the command above. The
//! other lines are the command's output. A command without such lines may print anything.
//!
//! - `…` stands for a part that differs from run to run; alone on a line, it stands for any number
//!   of lines. Runs of spaces count as one, because columns are as wide as their content.
//! - The times in the steps of a deploy, which begin with ✓, are not compared, because only slow
//!   steps show them.
//! - A command must fail if and only if its documented output has a line that begins with `error[`.
//! - The documented addresses are replaced by those of the node under test, `sudo` does nothing,
//!   and `mote up` starts a node. If a document does not start a node, one is already running.
//! - `<!-- file: PATH -->` above any block: the block is written to that file.
//! - `<!-- first: COMMAND -->`: a command that runs here and is not shown. It must succeed.
//!   `$MOTE_FIXTURES` has functions written for other platforms.
//! - `<!-- node: stop -->`: the node stops here. The next `mote up` starts it on the same data.
//! - `<!-- not run: REASON -->` above a block: the block is not run, and the test prints this.
//!
//! A block of commands in another form (`sh`, `bash`, no language) must have one of these comments.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use mote_tests::{Node, has_one_processor, mote_binary, skip};

/// Longest time that one command of a document may take. Some commands build Go functions.
const COMMAND_SECONDS_MAX: &str = "300";
/// Programs that are missing on some machines.
const TOOLS: [&str; 3] = ["coap-client-openssl", "coap-client", "sqlite3"];
/// Languages of blocks that must either be run or give a reason for not being run.
const COMMANDS: [&str; 4] = ["", "sh", "bash", "shell"];
/// Documented addresses of other platforms' APIs, and the names of these fronts in an announcement.
const PLATFORMS: [(&str, &str, &str); 7] = [
    ("--coap-dtls", "coaps", "127.0.0.1:5684"),
    ("--openfaas", "openfaas", "127.0.0.1:8080"),
    ("--nuclio", "nuclio", "127.0.0.1:8070"),
    ("--openwhisk", "openwhisk", "127.0.0.1:3233"),
    ("--tinyfaas", "tinyfaas", "127.0.0.1:8080"),
    ("--tinyfaas-http", "tinyfaas http", "127.0.0.1:8000"),
    ("--tinyfaas-grpc", "tinyfaas grpc", "127.0.0.1:9000"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A step of a document, in its order.
#[derive(Debug, PartialEq)]
enum Step {
    /// A command of a block that starts in this line, and its output. The output is empty if the
    /// command may print anything.
    Run { line: usize, command: String, shown: Vec<String> },
    /// A command that the document does not show.
    First { line: usize, command: String },
    /// Stops the node. Its data stays.
    Stop,
    /// A block that is the content of a file.
    File { path: String, text: String },
    /// A block that cannot be run here.
    NotRun { line: usize, reason: String },
}

/// What a comment above a block asks for.
enum Mark {
    File(String),
    NotRun(String),
}

fn comment<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let inner = line.trim().strip_prefix("<!--")?.strip_suffix("-->")?.trim();
    Some(inner.strip_prefix(key)?.strip_prefix(':')?.trim())
}

/// Reads a document. Panics if a block of commands lacks a required mark.
fn steps(document: &str, text: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut mark = None;
    let mut lines = text.lines().zip(1..).peekable();
    while let Some((line, number)) = lines.next() {
        let text = line.trim_start();
        let indent = line.len() - text.len();
        if let Some(path) = comment(line, "file") {
            mark = Some(Mark::File(path.to_owned()));
        } else if let Some(reason) = comment(line, "not run") {
            mark = Some(Mark::NotRun(reason.to_owned()));
        } else if comment(line, "node") == Some("stop") {
            steps.push(Step::Stop);
        } else if let Some(command) = comment(line, "first") {
            steps.push(Step::First { line: number, command: command.to_owned() });
        } else if let Some(language) = text.strip_prefix("```") {
            let mut block = Vec::new();
            for (line, _) in lines.by_ref() {
                if line.trim_start().starts_with("```") {
                    break;
                }
                block.push(line.get(indent..).unwrap_or_default().to_owned());
            }
            match mark.take() {
                Some(Mark::File(path)) => {
                    steps.push(Step::File { path, text: block.join("\n") + "\n" });
                }
                Some(Mark::NotRun(reason)) => steps.push(Step::NotRun { line: number, reason }),
                None if language.trim() == "console" => session(number, &block, &mut steps),
                None => assert!(
                    !COMMANDS.contains(&language.trim()),
                    "{document}:{number}: a block without a language, or of commands that are not \
                     run: mark it `console`, `text`, or with a comment (see the head of \
                     tests/tests/documents.rs)"
                ),
            }
        } else if !text.is_empty() {
            assert!(mark.is_none(), "{document}:{number}: the comment above belongs to no block");
        }
    }
    steps
}

/// The commands of one block.
fn session(number: usize, block: &[String], steps: &mut Vec<Step>) {
    for (text, line) in block.iter().zip(number + 1..) {
        if let Some(command) = text.strip_prefix("$ ") {
            steps.push(Step::Run { line, command: command.to_owned(), shown: Vec::new() });
            continue;
        }
        let last = steps.last_mut();
        let Some(Step::Run { command, shown, .. }) = last else {
            panic!("line {line}: a session begins with a command: {text}");
        };
        match text.strip_prefix("> ") {
            Some(more) if shown.is_empty() => {
                command.push('\n');
                command.push_str(more);
            }
            _ => shown.push(text.clone()),
        }
    }
}

/// Returns a line with single spaces, no spaces at the ends, and no time at the end of a step.
fn plain(line: &str) -> String {
    let mut words: Vec<&str> = line.split_whitespace().collect();
    while let [first, .., time, unit] = words[..] {
        let is_time = time == "…" || time.parse::<f64>().is_ok();
        if first != "✓" || !is_time || !["ms", "s"].contains(&unit) {
            break;
        }
        words.truncate(words.len() - 2);
    }
    words.join(" ")
}

fn without_empty_ends(mut lines: Vec<String>) -> Vec<String> {
    while lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    let begin = lines.iter().position(|line| !line.is_empty()).unwrap_or(lines.len());
    lines.split_off(begin)
}

/// Whether a line matches its documentation, where `…` stands for anything.
fn line_fits(shown: &str, line: &str) -> bool {
    let mut parts = shown.split('…');
    let Some(mut rest) = line.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    true
}

/// Whether an output matches its documentation, where a line `…` stands for any lines.
fn fits(shown: &[String], lines: &[String]) -> bool {
    match (shown.split_first(), lines.split_first()) {
        (None, None) => true,
        (None, Some(_)) => false,
        (Some((first, shown_rest)), _) if first == "…" => {
            (0..=lines.len()).any(|at| fits(shown_rest, &lines[at..]))
        }
        (Some(_), None) => false,
        (Some((first, shown_rest)), Some((line, rest))) => {
            line_fits(first, line) && fits(shown_rest, rest)
        }
    }
}

/// A document under test: its folder, its node, and the local equivalents of its addresses.
struct Reader {
    document: String,
    folder: tempfile::TempDir,
    node: Option<Node>,
    /// The data of a node that was stopped.
    kept: Option<tempfile::TempDir>,
    /// Texts in the document, and the texts that replace them here.
    here: Vec<(String, String)>,
    commands: usize,
}

impl Reader {
    fn new(document: &str) -> Self {
        let folder = tempfile::Builder::new().prefix("mote-doc").tempdir().unwrap();
        let bin = folder.path().join("bin");
        std::fs::create_dir_all(folder.path().join("work")).unwrap();
        std::fs::create_dir_all(folder.path().join("home")).unwrap();
        std::fs::create_dir_all(&bin).unwrap();
        std::os::unix::fs::symlink(mote_binary(), bin.join("mote")).unwrap();
        program(&bin.join("sudo"), "exec \"$@\"");
        // Turns off curl's progress output, which is also missing on a terminal.
        if let Some(curl) = which("curl") {
            program(&bin.join("curl"), &format!("exec {} -sS \"$@\"", curl.display()));
        }
        let names =
            ["coap-client", "coap-client-notls", "coap-client-openssl", "coap-client-gnutls"];
        let client = names.iter().find_map(|name| which(name));
        if let Some(client) = &client {
            program(&bin.join("coap-client"), &format!("exec {} \"$@\"", client.display()));
        }
        let copied = Command::new("cp")
            .arg("-r")
            .arg(root().join("examples"))
            .arg(folder.path().join("work"))
            .status();
        assert!(copied.unwrap().success());
        Self {
            document: document.to_owned(),
            folder,
            node: None,
            kept: None,
            here: Vec::new(),
            commands: 0,
        }
    }

    fn work(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    /// Runs `mote up`: starts a node like that of the document, but with free ports.
    fn up(&mut self, words: &[&str]) -> String {
        self.node = None;
        let work = self.work();
        let mut flags: Vec<String> = Vec::new();
        let mut served = Vec::new();
        for (at, word) in words.iter().enumerate() {
            let before = at.checked_sub(1).map_or("", |before| words[before]);
            if *word == "on" {
                flags.push("127.0.0.1:0".to_owned());
                served.extend(PLATFORMS.iter().filter(|(flag, ..)| *flag == before));
                if before == "--tinyfaas" {
                    for more in ["--tinyfaas-http", "--tinyfaas-grpc", "--tinyfaas-coap"] {
                        flags.extend([more.to_owned(), "127.0.0.1:0".to_owned()]);
                        served.extend(PLATFORMS.iter().filter(|(flag, ..)| *flag == more));
                    }
                }
            } else if word.starts_with("--") || before.starts_with("--") {
                flags.push((*word).to_owned());
            } else {
                flags.push(work.join(word).to_str().unwrap().to_owned());
            }
        }
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let node = match self.kept.take() {
            Some(folder) => Node::start_in(folder, &flags),
            None => Node::start_with(&flags),
        };
        let socket = node.dir.path().join("s");
        self.here = vec![
            ("127.0.0.1:6683".to_owned(), node.http.to_string()),
            ("127.0.0.1:5683".to_owned(), node.coap.to_string()),
            ("coap://127.0.0.1/".to_owned(), format!("coap://{}/", node.coap)),
            ("/run/mote/mote.sock".to_owned(), socket.to_str().unwrap().to_owned()),
            ("/var/lib/mote".to_owned(), node.dir.path().join("data").to_str().unwrap().to_owned()),
        ];
        for &(_, name, documented) in served {
            let address = node.platform(name).to_string();
            if name == "coaps" {
                // A URL leaves out the standard port.
                let url = ("coaps://127.0.0.1/".to_owned(), format!("coaps://{address}/"));
                self.here.push(url);
            }
            self.here.push((documented.to_owned(), address));
        }
        let user = rustix::process::getuid();
        if !user.is_root() {
            self.here.push(("user 0".to_owned(), format!("user {}", user.as_raw())));
        }
        let said = node.announcement.clone();
        self.node = Some(node);
        self.documented(&said)
    }

    fn stop(&mut self) {
        let mut node = self.node.take().expect("a node that runs");
        // The stop removes the folder of the node, so the folder is taken out first.
        self.kept = Some(std::mem::replace(&mut node.dir, tempfile::tempdir().unwrap()));
        assert!(node.stop().success(), "{}: the node did not stop cleanly", self.document);
    }

    /// Converts a text of this node to its documented form.
    fn documented(&self, text: &str) -> String {
        let work = self.work();
        let mut text = text.replace(work.to_str().unwrap(), "…");
        for (documented, here) in &self.here {
            text = text.replace(here, documented);
        }
        text
    }

    /// Runs a command in the folder of the document. Changes by earlier commands are still in
    /// effect.
    fn shell(&mut self, command: &str) -> (bool, String) {
        if let Some(words) = up_words(command) {
            return (true, self.up(&words));
        }
        if self.node.is_none() && self.kept.is_none() {
            self.up(&[]);
        }
        let mut command = command.to_owned();
        for (documented, here) in &self.here {
            command = command.replace(documented, here);
        }
        let path = self.folder.path();
        let kept = path.join("kept");
        // The next command starts with the folder and the variables that this one leaves behind.
        let script = format!(
            "[ ! -e '{0}' ] || . '{0}'\n{command}\nstatus=$?\n\
             {{ export -p | grep -v ' MOTE_'; umask -p; printf 'cd %q\\n' \"$PWD\"; }} >'{0}'\nexit $status\n",
            kept.display()
        );
        let paths = std::env::var("PATH").unwrap();
        let output = Command::new("timeout")
            .args([COMMAND_SECONDS_MAX, "bash", "-c", &format!("exec 2>&1\n{script}")])
            .current_dir(self.work())
            .env("PATH", format!("{}:{paths}", path.join("bin").display()))
            .env("HOME", path.join("home"))
            .env("MOTE_SOCKET", self.node.as_ref().map_or(path, |node| node.dir.path()).join("s"))
            .env("MOTE_FIXTURES", root().join("tests/fixtures/compat").canonicalize().unwrap())
            .env_remove("MOTE_NODE")
            .env("COLUMNS", "200")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.success(), self.documented(&text))
    }

    fn run(&mut self, line: usize, command: &str, shown: &[String]) {
        let at = format!("{}:{line}", self.document);
        let (succeeded, text) = self.shell(command);
        let log = self.node.as_ref().map(Node::log).unwrap_or_default();
        let shown = without_empty_ends(shown.iter().map(|line| plain(line)).collect());
        let fails = shown.iter().any(|line| line.starts_with("error["));
        assert_eq!(succeeded, !fails, "{at}: $ {command}\n{text}\nnode: {log}");
        if !shown.is_empty() {
            let lines = without_empty_ends(text.lines().map(plain).collect());
            assert!(
                fits(&shown, &lines),
                "{at}: $ {command}\nthe document shows:\n{}\nthe command printed:\n{text}",
                shown.join("\n")
            );
        }
        self.commands += 1;
    }
}

/// Returns the arguments, if the command is `mote up`.
fn up_words(command: &str) -> Option<Vec<&str>> {
    let command = command.split(" #").next()?.trim();
    let rest = command.strip_prefix("sudo ").unwrap_or(command).strip_prefix("mote up")?;
    Some(rest.split_whitespace().collect())
}

fn program(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

fn which(name: &str) -> Option<PathBuf> {
    let paths = std::env::var_os("PATH")?;
    std::env::split_paths(&paths).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// Returns a program that a command needs and that this machine lacks.
fn missing(command: &str) -> Option<&'static str> {
    let tool = TOOLS.into_iter().find(|tool| command.contains(tool))?;
    let names = [tool.to_owned(), format!("{tool}-notls"), format!("{tool}-openssl")];
    names.iter().all(|name| which(name).is_none()).then_some(tool)
}

/// Runs a document, and prints which parts ran and which did not.
fn check(document: &str) {
    if NEED_PROCESSORS.contains(&document) && has_one_processor() {
        return skip(document, "it shows several instances, and this machine has one processor");
    }
    let text = std::fs::read_to_string(root().join(document)).unwrap();
    let mut reader = Reader::new(document);
    let mut not_run = Vec::new();
    for step in steps(document, &text) {
        match step {
            Step::File { path, text } => {
                let path = reader.work().join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(&path, &text).unwrap();
                if text.starts_with("#!") {
                    use std::os::unix::fs::PermissionsExt;
                    let mode = std::fs::Permissions::from_mode(0o755);
                    std::fs::set_permissions(&path, mode).unwrap();
                }
            }
            Step::First { line, command } => {
                let (succeeded, text) = reader.shell(&command);
                assert!(succeeded, "{document}:{line}: {command}\n{text}");
            }
            Step::Stop => reader.stop(),
            Step::Run { line, command, shown } => match missing(&command) {
                Some(tool) => skip(&format!("{document}:{line}"), &format!("needs {tool}")),
                None => reader.run(line, &command, &shown),
            },
            Step::NotRun { line, reason } => not_run.push(format!("line {line}: {reason}")),
        }
    }
    // The text bypasses the test runner, which hides the output of passing tests.
    let mut said = format!(
        "documents: {document}: {} commands run, {} blocks not run\n",
        reader.commands,
        not_run.len()
    );
    for reason in not_run {
        said.push_str(&format!("  not run: {document}: {reason}\n"));
    }
    let _ = std::io::stderr().write_all(said.as_bytes());
}

/// Documents whose sessions show more instances than a machine with one processor starts.
const NEED_PROCESSORS: [&str; 2] = ["docs/guides/scaling.md", "docs/tutorial.md"];

macro_rules! documents {
    ($($test:ident: $document:literal,)*) => {
        /// The documents that have a test here.
        const DOCUMENTS: &[&str] = &[$($document),*];
        $(#[test]
        fn $test() {
            check($document);
        })*
    };
}

documents! {
    front_page: "README.md",
    tutorial: "docs/tutorial.md",
    asynchronous_invocations: "docs/guides/asynchronous-invocations.md",
    benchmarking: "docs/guides/benchmarking.md",
    chains: "docs/guides/chains.md",
    cloudevents: "docs/guides/cloudevents.md",
    coap: "docs/guides/coap.md",
    coap_dtls: "docs/guides/coap-dtls.md",
    dashboard: "docs/guides/dashboard.md",
    mqtt: "docs/guides/mqtt.md",
    moving: "docs/guides/moving.md",
    moving_from_fission: "docs/guides/moving-from-fission.md",
    moving_from_knative: "docs/guides/moving-from-knative.md",
    moving_from_kubeless: "docs/guides/moving-from-kubeless.md",
    moving_from_nuclio: "docs/guides/moving-from-nuclio.md",
    moving_from_openfaas: "docs/guides/moving-from-openfaas.md",
    moving_from_openwhisk: "docs/guides/moving-from-openwhisk.md",
    moving_from_tinyfaas: "docs/guides/moving-from-tinyfaas.md",
    https: "docs/guides/https.md",
    access: "docs/guides/access.md",
    http_rules: "docs/guides/http-rules.md",
    kubernetes: "docs/guides/kubernetes.md",
    installing: "docs/guides/installing.md",
    namespaces: "docs/guides/namespaces.md",
    operating: "docs/guides/operating.md",
    rollout: "docs/guides/rollout.md",
    scaling: "docs/guides/scaling.md",
    several_nodes: "docs/guides/several-nodes.md",
    fleet: "docs/guides/fleet.md",
    moving_to_kubernetes: "docs/guides/moving-to-kubernetes.md",
    routes: "docs/guides/routes.md",
    images: "docs/guides/images.md",
    static_files: "docs/guides/static-files.md",
    schedules: "docs/guides/schedules.md",
    streams: "docs/guides/streams.md",
    state_and_calls: "docs/guides/state-and-calls.md",
    files: "docs/guides/files.md",
    developing: "docs/guides/developing.md",
    the_lab: "docs/guides/the-lab.md",
    upgrades: "docs/guides/upgrades.md",
    webassembly: "docs/guides/webassembly.md",
    writing_functions: "docs/guides/writing-functions.md",
}

#[test]
fn every_guide_is_run() {
    let run: BTreeSet<&str> = DOCUMENTS.iter().copied().collect();
    for entry in std::fs::read_dir(root().join("docs/guides")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let document = format!("docs/guides/{name}");
        assert!(run.contains(document.as_str()), "{document} has no line in tests/documents.rs");
    }
}

#[test]
fn what_a_document_shows_is_compared() {
    let lines = |text: &str| text.lines().map(plain).collect::<Vec<_>>();
    let check = |shown: &str, printed: &str| fits(&lines(shown), &lines(printed));
    assert!(check("hello  edge", "hello edge"));
    assert!(!check("hello edge", "hello edges"));
    assert!(!check("hello", "hello\nedge"));
    assert!(check("REV AGE\n1   … live", "REV  AGE\n1    12 ms live"));
    assert!(!check("1 … live", "1 12 ms retired"));
    assert!(check("one\n…\nfour", "one\ntwo\nthree\nfour"));
    assert!(check("one\n…", "one"));
    assert!(!check("…\nfour", "one\ntwo"));
    assert!(check("✓ start  1 instance, init … ms", "✓ start  1 instance, init 12 ms  160 ms"));
    assert!(check("✓ check  runtime python", "✓ check  runtime python  1.2 s"));
    assert!(!check("waited  1 s", "waited  2 s"));
}

#[test]
fn blocks_are_read_as_the_head_says() {
    let text = "<!-- file: a.py -->\n```python\nx = 1\n```\n\n<!-- first: true -->\n```console\n\
                $ mote list\nNAME\n$ cat <<END\n> a\n> END\n```\n<!-- not run: systemd -->\n\n\
                ```sh\nreboot\n```\n";
    let run = |line, command: &str, shown: &[&str]| Step::Run {
        line,
        command: command.to_owned(),
        shown: shown.iter().map(|&line| line.to_owned()).collect(),
    };
    assert_eq!(
        steps("test", text),
        [
            Step::File { path: "a.py".to_owned(), text: "x = 1\n".to_owned() },
            Step::First { line: 6, command: "true".to_owned() },
            run(8, "mote list", &["NAME"]),
            run(10, "cat <<END\na\nEND", &[]),
            Step::NotRun { line: 16, reason: "systemd".to_owned() },
        ]
    );
    for text in ["```sh\nls\n```\n", "```\nls\n```\n", "<!-- not run: x -->\nwords\n"] {
        assert!(std::panic::catch_unwind(|| steps("test", text)).is_err(), "{text}");
    }
}
