//! `mote new`, `mote dev` and `mote test`: the way of a developer from the first file to a
//! debugger.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};

use mote_tests::{
    Answer, Node, call_at, has_pip, is_root, mote_binary, mqtt, repository, signal, skip, wait_for,
};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

/// `mote dev` on a project in a temporary folder. Dropping it ends the program.
struct Dev {
    child: Child,
    /// Everything that the program has printed.
    printed: Arc<Mutex<String>>,
    keys: Option<fs::File>,
    dir: tempfile::TempDir,
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
    fs::write(path, text).expect("written");
    if text.starts_with("#!") {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("a mode");
    }
}

/// A folder with the project `attic`, and a folder `tmp` for the program's own files.
fn project(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::Builder::new().prefix("mote-test").tempdir().expect("a folder");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("a mode");
    fs::create_dir(dir.path().join("tmp")).expect("a folder");
    for (file, text) in files {
        write(&dir.path().join("attic").join(file), text);
    }
    dir
}

fn mote(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(mote_binary());
    mote_environment(&mut command, dir).args(args);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Makes a program work in a folder, and keep all its files there.
fn mote_environment<'c>(command: &'c mut Command, dir: &Path) -> &'c mut Command {
    command.current_dir(dir).env("TMPDIR", dir.join("tmp")).env("XDG_CACHE_HOME", dir.join("cache"))
}

impl Dev {
    fn start(files: &[(&str, &str)], flags: &[&str]) -> Self {
        Self::start_in(project(files), flags)
    }

    fn start_in(dir: tempfile::TempDir, flags: &[&str]) -> Self {
        let command = mote(dir.path(), &[&["dev", "attic"], flags].concat());
        Self::start_as(command, dir)
    }

    fn start_as(mut command: Command, dir: tempfile::TempDir) -> Self {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        command.stdout(writer.try_clone().expect("a pipe")).stderr(writer);
        let child = command.spawn().expect("the program starts");
        drop(command);
        Self::reading(child, fs::File::from(OwnedFd::from(reader)), None, dir)
    }

    /// Starts the program on a terminal.
    fn on_terminal(files: &[(&str, &str)], flags: &[&str]) -> Self {
        let dir = project(files);
        let outer = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&outer).expect("granted");
        unlockpt(&outer).expect("unlocked");
        let name = ptsname(&outer, Vec::new()).expect("a name");
        let name = name.to_str().expect("UTF-8");
        let inner = fs::OpenOptions::new().read(true).write(true).open(name).expect("opened");
        let again = || inner.try_clone().expect("a copy");
        let mut command =
            mote(dir.path(), &[&["dev", "attic", "--color", "never"], flags].concat());
        command.stdin(again()).stdout(again()).stderr(again());
        let child = command.spawn().expect("the program starts");
        drop((command, inner));
        let keys = fs::File::from(outer.as_fd().try_clone_to_owned().expect("a copy"));
        Self::reading(child, fs::File::from(outer), Some(keys), dir)
    }

    fn reading(
        child: Child,
        mut from: fs::File,
        keys: Option<fs::File>,
        dir: tempfile::TempDir,
    ) -> Self {
        let printed = Arc::<Mutex<String>>::default();
        let all = printed.clone();
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(length @ 1..) = from.read(&mut piece) {
                all.lock().expect("text").push_str(&String::from_utf8_lossy(&piece[..length]));
            }
        });
        Self { child, printed, keys, dir }
    }

    fn printed(&self) -> String {
        self.printed.lock().expect("text").clone()
    }

    /// Waits until the program has printed a text.
    fn wait(&mut self, text: &str) -> String {
        let child = &mut self.child;
        let printed = &self.printed;
        wait_for(text, || {
            let all = printed.lock().expect("text").clone();
            if all.contains(text) {
                return Some(all);
            }
            if let Some(status) = child.try_wait().expect("our child") {
                panic!("it ended: {status}\n{all}");
            }
            None
        })
    }

    /// Waits until the project is live, and returns the address and the path of the function.
    fn address(&mut self) -> (SocketAddr, String) {
        let all = self.wait("/attic");
        let (_, rest) = all.split_once("http://127").expect("an address");
        let address = format!("127{}", rest.split([',', '\r', '\n']).next().unwrap_or_default());
        (address.parse().expect("an address"), "/attic".to_owned())
    }

    fn get(&mut self, path: &str) -> Answer {
        let (address, own) = self.address();
        call_at(address, "GET", &format!("{own}{path}"), &[], b"")
    }

    fn save(&self, file: &str, text: &str) {
        write(&self.dir.path().join("attic").join(file), text);
    }

    fn key(&mut self, key: &str) {
        let keys = self.keys.as_mut().expect("a terminal");
        keys.write_all(key.as_bytes()).expect("pressed");
    }

    fn ended(&mut self) -> ExitStatus {
        wait_for("the end", || self.child.try_wait().expect("our child"))
    }

    /// The files that the program has left in its folder.
    fn left(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.dir.path().join("tmp")).expect("a folder");
        entries.map(|entry| entry.expect("an entry").path()).collect()
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            signal(self.child.id(), "TERM");
            wait_for("the end", || self.child.try_wait().expect("our child"));
        }
    }
}

/// Whether a file below a folder contains a text.
fn contains(folder: &Path, text: &str) -> bool {
    let is_in = |bytes: &[u8]| bytes.windows(text.len()).any(|part| part == text.as_bytes());
    let Ok(entries) = fs::read_dir(folder) else { return false };
    entries.flatten().map(|entry| entry.path()).any(|path| {
        let is_folder = path.symlink_metadata().is_ok_and(|meta| meta.is_dir());
        if is_folder { contains(&path, text) } else { fs::read(&path).is_ok_and(|all| is_in(&all)) }
    })
}

const ONE: &str = "def handle(event, ctx):\n    return 'one'\n";
const TWO: &str = "def handle(event, ctx):\n    return 'two'\n";

#[test]
fn each_save_is_served_and_a_broken_one_is_not() {
    let mut dev = Dev::start(&[("app.py", ONE)], &["--http", "127.0.0.1:0"]);
    assert_eq!(dev.get("").text(), "one");
    dev.save("app.py", TWO);
    dev.wait("live attic@2");
    assert_eq!(dev.get("/x?y=1").text(), "two");
    dev.wait("200  GET /x?y=1 ");
    // A start that fails.
    dev.save("app.py", &format!("{TWO}import nothing_like_this\n"));
    let all = dev.wait("    import nothing_like_this");
    assert!(all.contains("failed attic: attic@2 still serves"), "{all}");
    assert!(all.contains("File \"attic/app.py\", line 3"), "{all}");
    assert_eq!(dev.get("").text(), "two");
    // A manifest that cannot be read.
    dev.save("app.py", ONE);
    dev.save("mote.toml", "version = 1\n[limitz]\n");
    let all = dev.wait("error[M0302]");
    assert!(all.contains("did you mean `limits`?"), "{all}");
    dev.save("mote.toml", "version = 1\n");
    wait_for("the first answer again", || (dev.get("").text() == "one").then_some(()));
    // An exception, with its place.
    dev.save("app.py", "def handle(event, ctx):\n    print('here')\n    return 1 / 0\n");
    wait_for("the error", || (dev.get("").status == 500).then_some(()));
    dev.wait("   | ZeroDivisionError: division by zero");
    let all = dev.wait("500  GET / ");
    assert!(all.contains("   | here"), "{all}");
    assert!(all.contains("File \"attic/app.py\", line 3, in handle"), "{all}");
}

#[test]
fn files_that_are_not_deployed_change_nothing() {
    let files = [("app.py", ONE), (".gitignore", "*.log\n")];
    let mut dev = Dev::start(&files, &["--http", "127.0.0.1:0"]);
    dev.wait("live attic@1");
    dev.save("note.log", "x");
    dev.save("__pycache__/app.pyc", "x");
    // The same bytes are not deployed again, either.
    dev.save("app.py", ONE);
    dev.save("lib/part.py", "x = 1\n");
    let all = dev.wait("live attic@2");
    assert!(!all.contains("attic@3"), "{all}");
    dev.save("lib/part.py", "x = 2\n");
    dev.wait("live attic@3");
}

#[test]
fn variables_and_secrets_come_from_the_env_file() {
    let code = "import os\n\ndef handle(event, ctx):\n    secret = open('/secrets/api-key').read()\n    \
                return f\"{os.environ['A']} {os.environ['TOKEN']} {secret}\"\n";
    let manifest = "version = 1\nsecrets = [\"api-key\"]\n[env]\nA = \"manifest\"\n\
                    TOKEN = { secret = \"token\" }\n";
    let mut dev =
        Dev::start(&[("app.py", code), ("mote.toml", manifest)], &["--http", "127.0.0.1:0"]);
    let all = dev.wait("the secret api-key is the line API_KEY=");
    assert!(all.contains("error[M0414]"), "{all}");
    dev.save(".env", "A=file\nTOKEN=t1\nAPI_KEY=k1\n");
    dev.wait(".env: A, API_KEY, TOKEN");
    assert_eq!(dev.get("").text(), "file t1 k1");
    dev.save(".env", "A=file\nTOKEN=t2\nAPI_KEY=k2\n");
    wait_for("the new values", || (dev.get("").text() == "file t2 k2").then_some(()));
}

#[test]
fn values_of_the_env_file_are_on_no_disk() {
    let code = "import os\n\ndef handle(event, ctx):\n    secret = open('/secrets/api-key').read()\n    \
                print(os.environ['PLACE'])\n    return secret + os.environ.get('API_KEY', ' and no more')\n";
    let env = "PLACE=under-the-roof\nAPI_KEY=key-of-nobody\n";
    let manifest = "version = 1\nsecrets = [\"api-key\"]\n";
    let files = [("app.py", code), ("mote.toml", manifest), (".env", env)];
    let mut dev = Dev::start(&files, &["--http", "127.0.0.1:0"]);
    assert_eq!(dev.get("").text(), "key-of-nobody and no more");
    let all = dev.wait("200  GET / ");
    assert!(all.contains("   | ***"), "{all}");
    let folder = dev.left().remove(0);
    assert!(contains(&folder, "handle(event"), "the code is there");
    for value in ["under-the-roof", "key-of-nobody"] {
        assert!(!contains(&folder, value), "{value} is in {}", folder.display());
    }
}

#[test]
fn a_folder_that_is_deleted_and_made_again_is_served() {
    let dir = project(&[("app.py", ONE)]);
    let attic = dir.path().join("attic");
    // A relative path leads into the new folder, too.
    let mut command = mote(dir.path(), &["dev", "--http", "127.0.0.1:0"]);
    command.current_dir(&attic);
    let mut dev = Dev::start_as(command, dir);
    assert_eq!(dev.get("").text(), "one");
    fs::remove_dir_all(&attic).expect("removed");
    dev.wait("attic@1 still serves");
    dev.save("app.py", TWO);
    wait_for("the new folder", || (dev.get("").text() == "two").then_some(()));
    dev.save("app.py", ONE);
    wait_for("the next save", || (dev.get("").text() == "one").then_some(()));
}

#[test]
fn the_folder_of_a_killed_session_is_removed() {
    let mut dev = Dev::start(&[("app.py", ONE)], &["--http", "127.0.0.1:0"]);
    assert_eq!(dev.get("").text(), "one");
    let [former] = dev.left().try_into().expect("a folder");
    // Another session must not remove the folder meanwhile.
    let test = |dev: &Dev| mote(dev.dir.path(), &["test", "attic"]).output().expect("it runs");
    assert!(text(&test(&dev)).contains("M0106"));
    assert_eq!(dev.left(), [former]);
    assert_eq!(dev.get("").text(), "one");
    signal(dev.child.id(), "KILL");
    dev.ended();
    assert_eq!(dev.left().len(), 1, "nobody could remove it");
    test(&dev);
    assert_eq!(dev.left(), Vec::<PathBuf>::new());
}

#[test]
fn a_failure_counts_as_the_answer_before() {
    let mut dev = Dev::start(&[("app.py", ONE)], &["--http", "127.0.0.1:0", "--replay"]);
    assert_eq!(dev.get("/p").text(), "one");
    dev.wait("200  GET /p ");
    dev.save("app.py", "def handle(event, ctx):\n    raise ValueError('broken')\n");
    let all = dev.wait("again 500  GET /p  the answer has changed");
    assert!(!all.contains("the same answer"), "{all}");
    dev.wait("     status 500 was 200");
    dev.wait("   + ");
    dev.save("app.py", ONE);
    dev.wait("again 200  GET /p  the answer has changed");
    dev.wait("     status 200 was 500");
    dev.wait("   + one");
}

#[test]
fn the_lines_of_a_call_come_before_it() {
    let code = "def handle(event, ctx):\n    print('line of', event.path)\n    return 1 / len(event.args)\n";
    let mut dev = Dev::start(&[("app.py", code)], &["--http", "127.0.0.1:0"]);
    for number in 0..20 {
        assert_eq!(dev.get(&format!("/{number}")).status, 500);
        let all = dev.wait(&format!("500  GET /{number} "));
        let at = |text: &str| all.rfind(text).unwrap_or_else(|| panic!("{text}\n{all}"));
        let line = at(&format!("   | line of /{number}"));
        let error = at("   | ZeroDivisionError");
        assert!(line < error && error < at(&format!("500  GET /{number} ")), "{all}");
    }
}

#[test]
fn paths_name_the_folder_of_each_function() {
    let code = "def handle(event, ctx):\n    return 1 / 0\n";
    let dir = project(&[("app.py", code)]);
    write(&dir.path().join("cellar/app.py"), code);
    let command = mote(dir.path(), &["dev", "attic", "cellar", "--http", "127.0.0.1:0"]);
    let mut dev = Dev::start_as(command, dir);
    dev.wait("live attic@1");
    dev.wait("live cellar@1");
    let (address, _) = dev.address();
    for name in ["attic", "cellar"] {
        assert_eq!(call_at(address, "GET", &format!("/{name}"), &[], b"").status, 500);
        dev.wait(&format!("   | {name}   File \"{name}/app.py\", line 2, in handle"));
    }
}

#[test]
fn a_mistake_in_the_only_file_is_shown_with_its_line() {
    let mut dev = Dev::start(
        &[("app.py", "x = 1\ndef handle event, ctx:\n    return x\n")],
        &["--http", "127.0.0.1:0"],
    );
    let all = dev.wait("app.py, line 2: SyntaxError: ");
    assert!(all.contains("    def handle event, ctx:"), "{all}");
    dev.save("app.py", ONE);
    assert_eq!(dev.get("").text(), "one");
}

#[test]
fn the_last_call_is_repeated_after_each_change() {
    let code = |word: &str| {
        format!(
            "def handle(event, ctx):\n    return '{word}\\n' + event.text.upper() + event.path\n"
        )
    };
    let mut dev = Dev::start(&[("app.py", &code("one"))], &["--http", "127.0.0.1:0", "--replay"]);
    let (address, path) = dev.address();
    let answer = call_at(address, "POST", &format!("{path}/p"), &[], b"body");
    assert_eq!(answer.text(), "one\nBODY/p");
    dev.wait("200  POST /p ");
    dev.save("app.py", &(code("one") + "# another comment\n"));
    dev.wait("again 200  POST /p  the same answer");
    dev.save("app.py", &code("two"));
    let all = dev.wait("again 200  POST /p  the answer has changed");
    dev.wait("   - one");
    dev.wait("   + two");
    assert!(!all.contains("   - BODY"), "{all}");
}

#[test]
fn keys_repeat_restart_clear_and_end() {
    let mut dev = Dev::on_terminal(&[("app.py", ONE)], &["--http", "127.0.0.1:0"]);
    dev.wait("keys: r restart   i repeat the last call   c clear   q quit");
    assert_eq!(dev.get("/k").text(), "one");
    dev.wait("200  GET /k ");
    dev.key("i");
    dev.wait("again 200  GET /k  the same answer");
    dev.key("r");
    dev.wait("live attic@2");
    dev.key("c");
    dev.wait("\x1b[2J");
    let shows_keys = dev.printed().contains("\ni\r");
    assert!(!shows_keys, "keys are not shown");
    dev.key("q");
    assert_eq!(dev.ended().code(), Some(0));
    assert_eq!(dev.left(), Vec::<PathBuf>::new());
}

#[test]
fn an_interrupt_ends_it_and_leaves_nothing() {
    let mut dev = Dev::start(&[("app.py", ONE)], &["--http", "127.0.0.1:0"]);
    assert_eq!(dev.get("").text(), "one");
    assert_eq!(dev.left().len(), 1, "a folder of its own");
    signal(dev.child.id(), "INT");
    assert_eq!(dev.ended().code(), Some(0));
    assert_eq!(dev.left(), Vec::<PathBuf>::new());
    // The terminal is closed. The tests themselves may be running without a terminal.
    let dir = project(&[("app.py", ONE)]);
    let mut command = Command::new("env");
    command.args(["--default-signal=HUP", mote_binary().to_str().expect("text")]);
    command.args(["dev", "attic", "--http", "127.0.0.1:0"]).current_dir(dir.path());
    command.env("TMPDIR", dir.path().join("tmp")).stdin(Stdio::null());
    let mut dev = Dev::start_as(command, dir);
    assert_eq!(dev.get("").text(), "one");
    signal(dev.child.id(), "HUP");
    assert_eq!(dev.ended().code(), Some(0));
    assert_eq!(dev.left(), Vec::<PathBuf>::new());
    // A signal while the node starts.
    let mut dev = Dev::start(&[("app.py", ONE)], &["--http", "127.0.0.1:0"]);
    wait_for("the folder", || (!dev.left().is_empty()).then_some(()));
    signal(dev.child.id(), "INT");
    dev.ended();
    assert_eq!(dev.left(), Vec::<PathBuf>::new());
}

#[test]
fn a_build_command_runs_once_for_each_save() {
    let manifest = "version = 1\n[build]\ncommand = \"sh build.sh\"\n";
    let build = "cp source.txt app.py && echo x >> builds.log\n";
    let files = [
        ("source.txt", ONE),
        ("build.sh", build),
        ("mote.toml", manifest),
        (".gitignore", "*.log\n"),
    ];
    let mut dev = Dev::start(&files, &["--http", "127.0.0.1:0"]);
    assert_eq!(dev.get("").text(), "one");
    dev.save("source.txt", TWO);
    dev.wait("live attic@2");
    dev.save("build.sh", "echo source.txt:7: not good; exit 3\n");
    dev.wait("source.txt:7: not good");
    assert_eq!(dev.get("").text(), "two");
    let builds = fs::read_to_string(dev.dir.path().join("attic/builds.log")).expect("builds");
    assert_eq!(builds.lines().count(), 2);
}

#[test]
fn a_debugger_stops_a_function_of_node() {
    let code = "export function handle(event) {\n  const word = event.path.slice(1);\n  \
                return word.toUpperCase();\n}\n";
    // A call may take as long as somebody looks at it in a debugger.
    let manifest = "version = 1\n[limits]\ntimeout = \"100ms\"\n";
    let files = [("index.mjs", code), ("mote.toml", manifest)];
    let dev = Dev::start(&files, &["--http", "127.0.0.1:0", "--inspect"]);
    debug(dev, "node", ("index.mjs", "3", "word"), "ada\nADA\n");
}

#[test]
fn a_debugger_of_another_user_is_refused() {
    if !is_root() {
        return skip("another user", "only root can become another user");
    }
    let code = "export function handle(event) {\n  return 1;\n}\n";
    let mut dev = Dev::start(&[("index.mjs", code)], &["--http", "127.0.0.1:0", "--inspect"]);
    let all = dev.wait("debugger at ");
    let address = all.split("debugger at ").nth(1).and_then(|rest| rest.split(';').next());
    let ask = |user: &str| {
        const ASK: &str = "import os, sys, urllib.request\n'x'.encode('idna')\nos.setuid(int(sys.argv[2]))\n\
            print(urllib.request.urlopen(f'http://{sys.argv[1]}/json/list').read().decode())";
        let mut python = Command::new("python3");
        python.args(["-c", ASK, address.expect("an address"), user]);
        python.output().expect("python3 starts")
    };
    let refused = ask("65534");
    assert!(!refused.status.success() && refused.stdout.is_empty(), "{refused:?}");
    dev.wait("a debugger of another user (id 65534) was refused");
    let allowed = ask("0");
    assert!(text(&allowed).contains("webSocketDebuggerUrl"), "{allowed:?}");
}

#[test]
fn a_debugger_stops_a_function_of_python() {
    if !has_pip() {
        return;
    }
    let code = "def handle(event, ctx):\n    word = event.path[1:]\n    return word.upper()\n";
    let files = [("app.py", code), ("requirements.txt", "debugpy\n")];
    let dev = Dev::start(&files, &["--http", "127.0.0.1:0", "--inspect"]);
    let all = wait_for("the packages", || {
        let all = dev.printed();
        (all.contains("debugger at") || all.contains("error[M")).then_some(all)
    });
    if all.contains("error[M04") {
        return skip("a debugger for Python", &all);
    }
    debug(dev, "python", ("app.py", "3", "word"), "'ada'\nADA\n");
}

/// Lets a debugger stop at a line, evaluate an expression, and continue.
fn debug(mut dev: Dev, kind: &str, (file, line, look): (&str, &str, &str), expected: &str) {
    let (address, path) = dev.address();
    let all = dev.wait("debugger at ");
    let port = all.split("debugger at ").nth(1).and_then(|rest| rest.split(';').next());
    let output = Command::new("python3")
        .arg(repository().join("tests/clients/debugger.py"))
        .args([kind, port.expect("an address"), file, line, look])
        .arg(format!("http://{address}{path}/ada"))
        .output()
        .expect("python3 starts");
    let printed = dev.printed();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{errors}\n{printed}");
}

/// From the first file to the dashboard, in the steps of somebody who has never seen `mote`.
#[test]
fn a_newcomer_goes_from_nothing_to_the_dashboard() {
    let has = |module: &str| {
        let python = tool("python3").expect("python3");
        let found = Command::new(python).args(["-c", &format!("import {module}")]).output();
        found.is_ok_and(|output| output.status.success())
    };
    let (Some(python), true, Some(node)) = (tool("python3"), has("pexpect"), tool("node")) else {
        return skip("a newcomer", "pexpect or node is not installed");
    };
    let machine = Node::start();
    let dir = project(&[]);
    let output = mote_environment(&mut Command::new(python), dir.path())
        .arg(repository().join("tests/clients/newcomer.py"))
        .arg(mote_binary())
        .arg(dir.path())
        .arg(machine.dir.path().join("s"))
        .output()
        .expect("python3 starts");
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(machine.get("/attic/ada").text(), "ada");
    let left = fs::read_dir(dir.path().join("tmp")).expect("a folder").count();
    assert_eq!(left, 0, "nothing is left");

    let driver = repository().join("dashboard/node_modules/playwright-core");
    let (Some(chromium), true) = (tool("chromium"), driver.exists()) else {
        return skip("a newcomer's dashboard", "chromium or dashboard/node_modules is not there");
    };
    let url = machine.ok(&["dashboard", "-q", "-o", "name"]);
    let seen = Command::new(node)
        .arg(repository().join("dashboard/e2e/seen.mjs"))
        .args([url.trim(), "attic"])
        .arg(chromium)
        .output()
        .expect("node starts");
    assert!(seen.status.success(), "{}", text(&seen));
    assert!(text(&seen).contains("attic"), "{}", text(&seen));
}

#[test]
fn messages_reach_a_function_through_a_broker_of_its_own() {
    if !mqtt::is_there() {
        return;
    }
    let dir = project(&[]);
    let made = mote(dir.path(), &["new", "attic", "-t", "mqtt"]).output().expect("it runs");
    assert!(made.status.success(), "{made:?}");
    let mut dev = Dev::start_in(dir, &["--http", "127.0.0.1:0"]);
    let all = dev.wait("live attic@1");
    let port = all.split("mqtt://127.0.0.1:").nth(1).and_then(|rest| rest.split('\n').next());
    let port: u16 = port.and_then(|port| port.parse().ok()).expect("a broker");
    let alarms = mqtt::Subscriber::start(port, &["-t", "sensors/+/alarm"]);
    let sent = Command::new("mosquitto_pub")
        .args(["-p", &port.to_string(), "-q", "1", "-t", "sensors/attic/temp"])
        .args(["-m", "{\"celsius\": 71}"])
        .status();
    assert!(sent.expect("it runs").success());
    let alarm = alarms.wait(1).concat();
    assert!(alarm.contains("sensors/attic/temp reports 71 degrees"), "{alarm}");
    dev.wait(" over mqtt  ");
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&*output.stdout, &*output.stderr].concat()).into_owned()
}

fn has(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

#[test]
fn the_tests_of_each_template_pass_in_the_sandbox() {
    let dir = project(&[]);
    let list = mote(dir.path(), &["new", "--list", "-o", "name"]).output().expect("it runs");
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    assert!(list.lines().count() >= 10, "{list}");
    let node = Command::new("node").args(["-p", "process.features.typescript ?? ''"]).output();
    let has_types = node.is_ok_and(|output| output.stdout.len() > 1);
    for template in list.lines() {
        let language = template.rsplit('-').next().unwrap_or_default();
        let is_there = match language {
            "typescript" => has_types,
            // The first build compiles the standard library, which takes a while. The tests of a
            // Rust function are cargo's.
            "rust" | "wasm" => false,
            "go" => mote_tests::is_long() && Path::new("/usr/local/go/bin/go").exists(),
            "node" => has("node"),
            _ => true,
        };
        let made = mote(dir.path(), &["new", template, "-t", template]).output().expect("it runs");
        assert!(made.status.success(), "{template}: {}", text(&made));
        if !is_there {
            skip(template, "its language is not installed, or too old, or the test is not long");
            continue;
        }
        let tested = mote(dir.path(), &["test", template]).output().expect("it runs");
        assert!(tested.status.success(), "{template}: {}", text(&tested));
    }
}

/// Cargo builds the program of a new Rust function, and the node runs it.
#[test]
fn a_rust_function_is_built_and_served() {
    if Command::new("cargo").arg("--version").output().is_err() {
        return skip("Rust", "cargo is not installed");
    }
    let dir = project(&[]);
    let made = mote(dir.path(), &["new", "rusty", "-t", "rust"]).output().expect("it runs");
    assert!(made.status.success(), "{}", text(&made));
    let node = mote_tests::Node::start();
    let folder = dir.path().join("rusty");
    let deploy = |arguments: &[&str]| {
        let folder = folder.display().to_string();
        let all: Vec<&str> = ["deploy", folder.as_str()].iter().chain(arguments).copied().collect();
        node.mote(&all)
    };
    let deployed = deploy(&[]);
    assert!(deployed.status.success(), "{}", text(&deployed));
    assert_eq!(node.get("/rusty?name=Ada").text(), "Hello, Ada!\n");
    assert_eq!(node.json(&["describe", "rusty", "-o", "json"])["runtime"], "rust");
    let state = "use mote_function::{serve, Event, Level};\n\nfn main() {\n    \
                 serve(|event: Event| -> Result<String, Box<dyn std::error::Error>> {\n        \
                 event.log(Level::Warn, \"counts\");\n        \
                 if event.path() == \"/fail\" { return Err(\"no luck\".into()); }\n        \
                 Ok(event.kv().increment(\"n\", 2)?.to_string())\n    });\n}\n";
    write(&folder.join("src/main.rs"), state);
    let deployed = deploy(&[]);
    assert!(deployed.status.success(), "{}", text(&deployed));
    assert_eq!(node.get("/rusty").text(), "2");
    let answer = node.get("/rusty");
    assert_eq!(answer.text(), "4");
    let id = answer.header("mote-invocation").expect("an id");
    assert!(node.ok(&["logs", "rusty", "--invocation", id]).contains("warn"), "a line of the call");
    assert_eq!(node.get("/rusty/fail").status, 500);
    assert!(node.ok(&["logs", "rusty"]).contains("no luck"));
    write(&folder.join("src/main.rs"), "fn main() { broken }\n");
    let failed = deploy(&[]);
    assert!(!failed.status.success() && text(&failed).contains("M0402"), "{}", text(&failed));
    assert_eq!(node.get("/rusty").text(), "6");
}

#[test]
fn the_exit_code_is_that_of_the_tests() {
    let dir = project(&[
        ("app.py", ONE),
        (
            "test_app.py",
            "import os\nimport unittest\nimport app\n\nclass Test(unittest.TestCase):\n    \
          def test_one(self):\n        self.assertEqual(app.handle(None, None), os.environ.get('A', 'one'))\n",
        ),
        (".env", "A=only for dev\n"),
    ]);
    let test = |args: &[&str]| {
        mote(dir.path(), &[&["test", "attic"], args].concat()).output().expect("it runs")
    };
    let passed = test(&[]);
    assert_eq!(passed.status.code(), Some(0), "{}", text(&passed));
    write(&dir.path().join("attic/app.py"), TWO);
    let failed = test(&[]);
    assert_eq!(failed.status.code(), Some(1), "{}", text(&failed));
    assert!(text(&failed).contains("'two' != 'one'"), "{}", text(&failed));
    // Code in the sandbox cannot change the project.
    let shell = "#!/bin/sh\ntouch /function/made && exit 1\ntest ! -e /etc/shadow\n";
    let dir = project(&[("run.sh", "#!/bin/sh\necho 1\n"), ("tests/a.sh", shell)]);
    let output = mote(dir.path(), &["test", "attic"]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert!(text(&output).contains("ok tests/a.sh"), "{}", text(&output));
    fs::remove_dir_all(dir.path().join("attic/tests")).expect("removed");
    let none = mote(dir.path(), &["test", "attic"]).output().expect("it runs");
    assert_eq!(none.status.code(), Some(8));
    assert!(text(&none).contains("error[M0106]"), "{}", text(&none));
    let left = fs::read_dir(dir.path().join("tmp")).expect("a folder").count();
    assert_eq!(left, 0, "nothing is left");
}

#[test]
fn tests_of_a_function_with_secrets_run() {
    let check = "import unittest\nimport app\n\nclass Test(unittest.TestCase):\n    \
                 def test_one(self):\n        self.assertEqual(app.value, 'open sesame')\n";
    let dir = project(&[
        (
            "app.py",
            "import os\nvalue = os.environ['DOOR']\ndef handle(event, ctx):\n    return value\n",
        ),
        ("mote.toml", "version = 1\n[env]\nDOOR = { secret = \"door-word\" }\n"),
        ("test_app.py", check),
    ]);
    let missing = mote(dir.path(), &["test", "attic"]).output().expect("it runs");
    assert!(!missing.status.success());
    let said = text(&missing);
    assert!(said.contains("error[M0414]") && said.contains(".env"), "{said}");
    let mut with_variable = mote(dir.path(), &["test", "attic"]);
    let passed = with_variable.env("DOOR_WORD", "open sesame").output().expect("it runs");
    assert_eq!(passed.status.code(), Some(0), "{}", text(&passed));
    write(&dir.path().join("attic/.env"), "DOOR_WORD=open sesame\n");
    let passed = mote(dir.path(), &["test", "attic"]).output().expect("it runs");
    assert_eq!(passed.status.code(), Some(0), "{}", text(&passed));
}

#[test]
fn new_files_replace_none() {
    let dir = project(&[("app.py", ONE)]);
    let output = mote(dir.path(), &["new", "attic"]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(8));
    assert!(text(&output).contains("error[M0105]: attic: app.py is already there"));
    let kept = fs::read_to_string(dir.path().join("attic/app.py")).expect("a file");
    assert_eq!(kept, ONE);
    assert!(!dir.path().join("attic/test_app.py").exists(), "nothing was written");
    write(&dir.path().join("loft/main.py"), ONE);
    write(&dir.path().join("loft/build.sh"), "#!/bin/sh\n");
    let output = mote(dir.path(), &["new", "loft", "-t", "node"]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(8));
    assert!(text(&output).contains("loft: code in another language is there: main.py"));
    assert!(!dir.path().join("loft/index.mjs").exists(), "nothing was written");
    let output = mote(dir.path(), &["new", "loft", "-t", "python"]).output().expect("it runs");
    assert!(output.status.success(), "{}", text(&output));
    let output = mote(dir.path(), &["new", "cellar/bell"]).output().expect("it runs");
    assert!(text(&output).contains("next:  mote dev cellar/bell"), "{}", text(&output));
}

/// A program that `scripts/setup.sh` has installed, or that the machine has.
fn tool(name: &str) -> Option<PathBuf> {
    let cache = repository().join(".cache");
    let places = [cache.join("test-venv/bin"), cache.join("test-node/node_modules/.bin")];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all = places.into_iter().chain(std::env::split_paths(&path));
    all.map(|folder| folder.join(name)).find(|program| program.is_file())
}

#[test]
fn type_checkers_find_the_types_of_a_new_function() {
    let dir = project(&[]);
    let check = |(name, checker, flags): (&str, &str, &[&str]),
                 file: &str,
                 (right, wrong): (&str, &str)| {
        let made = mote(dir.path(), &["new", name, "-t", name]).output().expect("it runs");
        assert!(made.status.success(), "{}", text(&made));
        let Some(checker) = tool(checker) else {
            return skip(name, &format!("{checker} is not installed"));
        };
        let folder = dir.path().join(name);
        let run = || {
            let mut command = Command::new(&checker);
            command.args(flags).arg(file).current_dir(&folder).output().expect("it runs")
        };
        let found = run();
        assert!(found.status.success(), "{name}: {}", text(&found));
        let code = fs::read_to_string(folder.join(file)).expect("a file");
        assert!(code.contains(right), "{code}");
        write(&folder.join(file), &code.replace(right, wrong));
        let found = run();
        assert!(!found.status.success(), "{name}: no mistake was found");
        assert!(text(&found).contains("nothing"), "{name}: {}", text(&found));
    };
    const MYPY: &[&str] = &["--check-untyped-defs", "--cache-dir=/dev/null"];
    const TSC: &[&str] =
        &["--noEmit", "--strict", "--allowImportingTsExtensions", "--module", "nodenext"];
    let js = [TSC, &["--allowJs", "--checkJs"]].concat();
    check(("http-python", "mypy", MYPY), "app.py", ("event.args", "event.nothing"));
    check(("coap-python", "mypy", MYPY), "app.py", ("ctx.kv.put", "ctx.kv.nothing"));
    check(("http-typescript", "tsc", TSC), "index.ts", ("request.url", "request.nothing"));
    check(("http-node", "tsc", &js), "index.mjs", ("request.url", "request.nothing"));
    check(("coap-node", "tsc", &js), "index.mjs", ("ctx.kv.put", "ctx.kv.nothing"));
}

#[test]
fn every_manifest_of_the_tree_fits_the_schema() {
    const CHECK: &str = "import json, sys, tomllib\nimport jsonschema\n\
        check = jsonschema.Draft7Validator(json.load(open(sys.argv[1])))\n\
        for path in sys.argv[2:]:\n    \
        text = open(path).read().replace('__NAME__', 'attic')\n    \
        for error in check.iter_errors(tomllib.loads(text)):\n        \
        print(path, error.json_path, error.message)\n";
    let there = Command::new("python3").args(["-c", "import jsonschema, tomllib"]).output();
    if !there.is_ok_and(|output| output.status.success()) {
        return skip("the schema", "Python's jsonschema is not installed");
    }
    let mut manifests = Vec::new();
    for folder in ["examples", "crates/cli/cli/templates"] {
        for entry in fs::read_dir(repository().join(folder)).expect("a folder") {
            let manifest = entry.expect("an entry").path().join("mote.toml");
            manifests.extend(manifest.exists().then_some(manifest));
        }
    }
    assert!(manifests.len() > 12, "{manifests:?}");
    let dir = project(&[]);
    let schema = mote(dir.path(), &["config", "schema"]).output().expect("it runs");
    write(&dir.path().join("schema.json"), &String::from_utf8_lossy(&schema.stdout));
    let wrong = dir.path().join("wrong.toml");
    write(&wrong, "version = 1\n[limits]\nmemori = \"64MiB\"\ntimeout = \"10 seconds\"\n");
    let check = |files: &[PathBuf]| {
        let python = Command::new("python3")
            .args(["-c", CHECK])
            .arg(dir.path().join("schema.json"))
            .args(files)
            .output()
            .expect("python3 starts");
        text(&python)
    };
    assert_eq!(check(&manifests), "");
    let found = check(&[wrong]);
    assert!(found.contains("memori") && found.contains("10 seconds"), "{found}");
}

#[test]
fn an_ordinary_user_runs_tests_without_a_node() {
    if !is_root() {
        return skip("another user", "every other test here runs as an ordinary user already");
    }
    let dir = project(&[]);
    let output = Command::new(repository().join("scripts/as-user.sh"))
        .arg(dir.path().join("user"))
        .args(["sh", "-c", "cd ~ && \"$0\" new attic -t shell && exec \"$0\" test attic"])
        .arg(mote_binary())
        .output()
        .expect("bash starts");
    let all = text(&output);
    if all.contains("user namespaces") && !output.status.success() {
        return skip("another user", &all);
    }
    assert!(output.status.success() && all.contains("ok tests/hello.sh"), "{all}");
}
