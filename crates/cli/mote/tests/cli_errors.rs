//! Checks the error messages of the command line word for word.
//!
//! `tests/golden/cli_errors.txt` contains every command with its exit code and output. After an
//! intended change, rewrite the file with `MOTE_BLESS=1 cargo test -p mote --test cli_errors` and read
//! the diff.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fake_node;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/cli_errors.txt");

/// Commands as a user would type them, in groups with headings. `none.sock` has no node, and the fake
/// node is at `node.sock`.
const COMMANDS: &[(&str, &[&str])] = &[
    (
        "wrong usage",
        &[
            "mote nonsense",
            "mote deplyo hello.py",
            "mote lsit",
            "mote list --outptu json",
            "mote list -o xml",
            "mote deploy",
            "mote deploy --name x hello.py broken",
            "mote deploy --invoke --dry-run hello.py",
            "mote invoke",
            "mote invoke hello -H nonsense",
            "mote invoke hello --path x",
            "mote invoke hello -m 'G T'",
            "mote invoke hello --via mqtt",
            "mote invoke hello -d @missing.json",
            "mote logs hello --tail many",
            "mote logs hello --since yesterday",
            "mote scale hello",
            "mote scale hello many",
            "mote remove hello",
            "mote revisions",
            "mote rollback hello first",
            "mote rollback hello 0",
            "mote traffic",
            "mote traffic hello 3",
            "mote traffic hello next=10",
            "mote traffic hello 3=x",
            "mote traffic hello 3=101",
            "mote traffic hello 3=90 4",
            "mote deploy hello.py --no-traffic --invoke",
            "mote secret",
            "mote secret set",
            "mote secret set key",
            "mote secret set key missing.txt",
            "mote secret set key notutf8.csv",
            "mote secret remove key",
            "mote key",
            "mote key create",
            "mote key create web --expires soon",
            "mote key rotate web --grace 1",
            "mote key revoke web",
            "mote completion tcsh",
            "mote explain",
            "mote explain M0303x",
            "mote explain banana",
            "mote list --timeout 0",
            "mote list --color sometimes",
            "mote config",
            "mote config chek",
            "mote up --htp :1",
            "mote import nowhere",
            "mote import hello.py",
            "mote new",
            "mote new attic --template htp",
            "mote new Attic_1",
            "mote dev nowhere",
            "mote test nowhere",
        ],
    ),
    (
        "no node",
        &[
            "mote --node none.sock list",
            "mote --node none.sock describe hello",
            "mote --node none.sock invoke hello",
            "mote --node none.sock logs hello",
            "mote --node none.sock scale hello 1",
            "mote --node none.sock top",
            "mote --node none.sock remove hello --yes",
            "mote --node none.sock deploy hello.py",
            "mote --node none.sock secret list",
            "mote --node none.sock secret set key hello.py",
            "mote --node none.sock key list",
            "mote --node none.sock doctor",
            "mote --node https://pi4 list",
            "mote --node http:// list",
            "mote --node mute.sock list --timeout 1",
            "mote --node garbage.sock list",
        ],
    ),
    (
        "what the node refuses",
        &[
            "mote describe termo",
            "mote invoke termo",
            "mote logs termo",
            "mote remove termo --yes",
            "mote invoke full",
            "mote invoke slow",
            "mote invoke broken",
            "mote invoke teapot",
            "mote describe token",
            "mote describe newer",
            "mote invoke hello --via coap",
            "mote invoke quiet --via http",
            "mote deploy hello.py --name busy",
            "mote deploy hello.py --name fresh --tag next",
            "mote revisions termo",
            "mote rollback first",
            "mote rollback hello 9",
            "mote traffic hello 3=90",
            "mote traffic busy 3=100",
            "mote invoke hello@old",
            "mote secret remove termo --yes",
            "mote secret remove api-key",
            "mote key create web",
            "mote key rotate termo",
            "mote key revoke termo --yes",
            "mote doctor",
        ],
    ),
    (
        "several nodes",
        &[
            "mote nodes",
            "mote --node both,gone nodes -o name",
            "mote --node bth list",
            "mote --node here, list",
            "mote --node both,far list",
            "mote --node both logs hello",
            "mote --node here describe termo",
            "mote --node both list",
            "mote --node both list -o name",
            "mote --node both,gone list -q",
            "mote --node both describe termo",
            "mote --node both,gone deploy hello.py",
            "mote --node both deploy hello.py",
            "mote --node both deploy hello.py -o jsonl",
            "mote --node both deploy hello.py --dry-run",
            "mote --node both deploy hello.py --tag next",
            "mote --node both deploy hello.py --name busy",
            "mote --node both deploy hello.py --tag next --on-failure rollback",
            "mote --node both deploy hello.py --parallel 0",
            "mote --node both rollback hello",
            "mote --node both rollback hello 9",
            "mote --node both rollback hello 2 -o json",
            "mote --node both remove hello --yes",
            "mote --node both remove hello termo --yes",
            "mote --node both remove hello",
            "mote --node both secret list",
            "mote --node both key list",
            "mote --node both secret remove termo --yes",
        ],
    ),
    (
        "functions that cannot be deployed",
        &[
            "mote deploy missing.py",
            "mote deploy Bad!.py",
            "mote deploy hello.py --name Foo",
            "mote deploy no_handler.py",
            "mote deploy lambda.py",
            "mote deploy image",
            "mote deploy empty",
            "mote deploy both",
            "mote deploy programs",
            "mote deploy crlf.sh",
            "mote deploy foreign",
            "mote deploy nothing.mjs",
            "mote deploy typo",
            "mote deploy swallowed",
            "mote deploy many",
            "mote deploy targets",
            "mote deploy later",
            "mote deploy noversion",
            "mote deploy nottoml",
            "mote deploy noentry",
            "mote deploy notexecutable",
            "mote deploy route",
            "mote deploy badbuild",
            "mote deploy linkout",
            "mote deploy two --name x",
            "mote deploy hello.py missing.py",
            "mote deploy nginx:alpine",
            "mote deploy ghcr.io/owner/name",
            "mote deploy ignored",
            "mote deploy misplaced",
            "mote deploy pages",
            "mote deploy vite",
            "mote deploy startscript",
        ],
    ),
    (
        "simulations that cannot be run",
        &[
            "mote simulate stedy",
            "mote simulate steady nonsense",
            "mote simulate steady --policy knativ",
            "mote simulate steady --policy auto,",
            "mote simulate steady --policy concurrency",
            "mote simulate steady --policy cpu:101",
            "mote simulate steady --policy hpa:80",
            "mote simulate steady --policy rps:1,rps:2,rps:3,rps:4,rps:5,rps:6,rps:7,rps:8,rps:9",
            "mote simulate steady --memory 64mb",
            "mote simulate steady --memory 32MiB",
            "mote simulate steady --for 10",
            "mote simulate steady --for 745h",
            "mote simulate steady --max 0",
            "mote simulate steady --csv missing/x.csv",
            "mote simulate calls.csv --csv ./calls.csv",
            "mote simulate missing.csv",
            "mote simulate image/",
            "mote simulate badline.csv",
            "mote simulate date.csv",
            "mote simulate long.csv",
            "mote simulate notutf8.csv",
            "mote simulate nothing.csv",
        ],
    ),
    (
        "benchmarks that cannot be run",
        &[
            "mote bench",
            "mote bench termo",
            "mote bench hello --clients 0",
            "mote bench hello --clients 60001",
            "mote bench hello --rate 0",
            "mote bench hello --rate many",
            "mote bench hello --duration 10",
            "mote bench hello --duration 0",
            "mote bench hello --warmup soon",
            "mote bench hello --operations 0",
            "mote bench hello --operations 5 --duration 1s",
            "mote bench hello --threads 0",
            "mote bench hello --timeout 0",
            "mote bench hello --fail-if p98>1ms",
            "mote bench hello --fail-if p99=1ms",
            "mote bench hello --fail-if p99>10",
            "mote bench hello --fail-if p99>1ms,errors>x",
            "mote bench hello --fail-if rate<fast",
            "mote bench hello --compare missing.json",
            "mote bench hello --compare good.toml",
            "mote bench hello --export pdf",
            "mote bench hello --via mqtt",
            "mote bench hello --via coap -m HEAD",
            "mote bench hello --via coap -H 'a: b'",
            "mote bench quiet",
            "mote bench hello --path x",
            "mote bench hello -H nonsense",
            "mote bench hello --experiment sweep",
            "mote bench hello --experiment closed-sweep --clients 4",
            "mote bench https://localhost/x",
            "mote bench 'http://local host/'",
            "mote bench http://127.0.0.1:1/x --path /y",
            "mote bench http://127.0.0.1:1/x --via coap",
            "mote bench http://127.0.0.1:1/x",
            "mote bench coap://127.0.0.1:1/x --operations 1 -q -o name",
        ],
    ),
    (
        "configuration",
        &[
            "mote config check --config missing.toml",
            "mote config check --config typo.toml",
            "mote config check typo.toml",
            "mote config check typo.toml --config good.toml",
            "mote config check --config type.toml",
            "mote config check --config notutf8.toml",
            "mote config check --http nonsense --coap 0.0.0.0:5683 --socket s",
            "mote config show --admin 127.0.0.1:6683 --http :6683",
            "mote up --config typo.toml",
            "mote up --http 99999",
        ],
    ),
    (
        "and what goes well",
        &[
            "mote version",
            "mote explain M0304",
            "mote explain M0140",
            "mote list",
            "mote list -o name",
            "mote list -o jsonl",
            "mote describe hello",
            "mote describe hello -o yaml",
            "mote describe split",
            "mote revisions hello",
            "mote revisions hello -o jsonl",
            "mote revisions hello -o name",
            "mote rollback hello",
            "mote rollback hello 2 -o json",
            "mote traffic split",
            "mote traffic hello 3=90 4:next=10",
            "mote invoke hello@next --show",
            "mote deploy hello.py --tag next",
            "mote deploy hello.py --no-traffic",
            "mote invoke hello -d hi",
            "mote invoke hello --show -d 'it is' -H 'A: b'",
            "mote invoke hello --show --via coap -d 1",
            "mote logs hello",
            "mote logs hello --grep second -o jsonl",
            "mote remove hello --yes",
            "mote deploy hello.py",
            "mote deploy hello.py --dry-run -o json",
            "mote deploy hello.py --invoke -q",
            "mote config show --config good.toml --http :1 --socket /run/m.sock",
            "mote simulate --list",
            "mote simulate calls.csv --policy auto,hpa",
        ],
    ),
];

#[test]
fn the_command_line_says_what_the_golden_file_says() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    write_fixtures(root);
    fake_node::start(&root.join("node.sock"));
    fake_node::start_mute(&root.join("mute.sock"));
    fake_node::start_garbage(&root.join("garbage.sock"));

    let mut text = String::new();
    let mut count = 0;
    for (heading, commands) in COMMANDS {
        text.push_str(&format!("## {heading}\n\n"));
        for command in *commands {
            text.push_str(&run(root, command));
            count += 1;
        }
    }
    assert!(count >= 35);
    if std::env::var_os("MOTE_BLESS").is_some() {
        fs::write(GOLDEN, &text).unwrap();
    }
    let golden = fs::read_to_string(GOLDEN).unwrap_or_default();
    if text == golden {
        return;
    }
    for (new, old) in text.split("\n$ ").zip(golden.split("\n$ ")) {
        assert_eq!(new, old, "changed; MOTE_BLESS=1 rewrites the golden file");
    }
    panic!("commands were added or removed; MOTE_BLESS=1 rewrites the golden file");
}

#[test]
fn a_closed_standard_output_ends_quietly() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = mote(dir.path())
        .args(["completion", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let ended = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&ended.stderr), "");
    assert_eq!(ended.status.code(), Some(0));
}

fn mote(root: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mote"));
    command
        .env_clear()
        .env("HOME", root)
        .env("MOTE_NODE", "node.sock")
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("MOTE_CONFIG", "good.toml")
        .env("MOTE_DATA", "/srv/mote")
        .env("MOTE_NODES", "nodes.toml")
        .current_dir(root)
        .stdin(Stdio::null());
    command
}

fn run(root: &Path, line: &str) -> String {
    let ended = mote(root).args(&words(line)[1..]).output().unwrap();
    let code = ended.status.code().unwrap();
    let mut text = format!("$ {line}\n");
    for (name, bytes) in [("", &ended.stdout), ("! ", &ended.stderr)] {
        for line in String::from_utf8_lossy(bytes).lines() {
            text.push_str(format!("{name}{line}").trim_end());
            text.push('\n');
        }
    }
    // No other text here depends on the machine.
    let text = text.replace("x86-64", "ARCH").replace(std::env::consts::ARCH, "ARCH");
    format!("{text}[exit {code}]\n\n")
}

/// Splits a command at spaces outside single quotes.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for c in line.chars() {
        match c {
            '\'' => quoted = !quoted,
            ' ' if !quoted => words.push(String::new()),
            c => words.last_mut().unwrap().push(c),
        }
    }
    words
}

fn write_fixtures(root: &Path) {
    let handle = "def handle(event, ctx):\n    return {\"ok\": True}\n";
    let foreign: u8 = 8; // MIPS
    let files: &[(&str, &str)] = &[
        ("hello.py", handle),
        ("Bad!.py", handle),
        ("no_handler.py", "print(1)\n"),
        ("lambda.py", "def lambda_handler(event, context):\n    pass\n"),
        ("image/Dockerfile", "FROM scratch\n"),
        ("empty/.keep", ""),
        ("both/a.py", handle),
        ("both/index.mjs", "export default {}\n"),
        ("programs/a", "#!/bin/sh\n"),
        ("programs/b", "#!/bin/sh\n"),
        ("crlf.sh", "#!/bin/sh\r\necho\r\n"),
        ("nothing.mjs", "const x = 1\n"),
        (
            "typo/mote.toml",
            "version = 1\nname = \"typo\"\n\n# limits\n[limits]\nmemory = \"64MiB\"\n# seconds\n\ntimeot = \"1s\"\n",
        ),
        ("swallowed/mote.toml", "version = 1\n\n[[trigger]]\nhttp = \"/x\"\nname = \"x\"\n"),
        (
            "many/mote.toml",
            "version = 2\nruntime = \"pyton\"\n[limits]\nmemory = \"64mb\"\ntimeout = \"0s\"\npids = -1\n[scale]\nmin = 3\nmax = 2\npolicy = \"rsp\"\nstart = 1\n[env]\n\"A=B\" = \"x\"\n[allow]\nnet = [\"nowhere\"]\n",
        ),
        ("targets/mote.toml", "version = 1\n[scale]\npolicy = \"rps\"\n"),
        (
            "later/mote.toml",
            "version = 1\n[[trigger]]\ncron = \"* * * * *\"\n[[trigger]]\nmqtt = \"a/b\"\n[allow]\nsecrets = [\"X\"]\n",
        ),
        ("noversion/mote.toml", "name = \"x\"\n"),
        ("nottoml/mote.toml", "version = 1\nname = thermo\n"),
        ("noentry/mote.toml", "version = 1\nentry = \"app:handle\"\n"),
        ("notexecutable/mote.toml", "version = 1\ncommand = [\"./run\"]\n"),
        ("notexecutable/run", "#!/bin/sh\n"),
        ("route/mote.toml", "version = 1\n[[trigger]]\nhttp = \"/other//\"\n"),
        ("route/app.py", handle),
        ("badbuild/mote.toml", "version = 1\n[build]\ncommand = \"echo compiling; exit 3\"\n"),
        ("linkout/app.py", handle),
        (
            "two/mote.toml",
            "version = 1\n[function.a]\nentry = \"m:a\"\n[function.b]\nentry = \"m:b\"\n",
        ),
        ("two/m.py", handle),
        ("ignored/package.json", r#"{"main":"dist/index.js"}"#),
        ("ignored/dist/index.js", "export default {}\n"),
        ("ignored/.gitignore", "node_modules\ndist\n"),
        (
            "misplaced/mote.toml",
            "version = 1\nmemory = \"64MiB\"\nmax = 3\nnet = []\n[scale]\ntimeout = \"1s\"\nname = \"x\"\n",
        ),
        ("misplaced/app.py", handle),
        ("pages/index.html", "<p>hello</p>\n"),
        ("vite/index.html", "<p>hello</p>\n"),
        ("vite/package.json", r#"{"scripts":{"dev":"vite","build":"vite build"}}"#),
        ("startscript/package.json", r#"{"scripts":{"start":"node server.js"}}"#),
        ("startscript/server.js", "require('http').createServer(() => {}).listen(3000)\n"),
        ("good.toml", "coap = \"off\"\n"),
        (
            "nodes.toml",
            "[nodes]\nhere = \"node.sock\"\nthere = \"./node.sock\"\ngone = \"none.sock\"\n\
             far = \"http://192.0.2.1:1\"\n[groups]\nboth = [\"here\", \"there\"]\n",
        ),
        ("typo.toml", "\nhtp = \":1\"\n"),
        ("calls.csv", "time_s,function,service_ms\n0,a,100\n0.5,b,100\n1,a,100\n"),
        ("badline.csv", "# by hand\n0.5,a\n1;a\n"),
        ("date.csv", "1767225600,a\n"),
        ("long.csv", "0,a\n9000000,a\n"),
        ("nothing.csv", "# nobody called\n"),
        ("type.toml", "http = 6683\nlan = \"yes\"\n"),
    ];
    for (name, content) in files {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    for name in ["programs/a", "programs/b", "crlf.sh"] {
        fs::set_permissions(root.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    fs::write(root.join("notutf8.toml"), b"\xff").unwrap();
    fs::write(root.join("notutf8.csv"), b"0,a\n1,\xff\n").unwrap();
    let mut elf = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0".to_vec();
    elf.extend([foreign, 0]);
    fs::write(root.join("foreign"), elf).unwrap();
    fs::set_permissions(root.join("foreign"), fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", root.join("linkout/secret")).unwrap();
}
