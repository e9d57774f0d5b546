//! The answers to each platform's clients by condition: one row for each condition, one cell for
//! each platform. A cell is `None` if the platform does not have the condition. A new platform is a
//! new column.

use std::net::SocketAddr;

use mote_tests::{Answer, Node, base64, basic_auth, call_at};
use serde_json::json;

/// A condition that [`Scene`] brings about on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Condition {
    UnknownFunction,
    FunctionError,
    FunctionTimeout,
    NoCapacity,
    SandboxDied,
    AsyncAccepted,
    BadManagementBody,
    Unauthorised,
    DuplicateCreate,
    BodyTooLarge,
}

/// A platform's cells, in the order of [`ROWS`].
type Cells = [Option<u16>; 10];

const ROWS: [Condition; 10] = [
    Condition::UnknownFunction,
    Condition::FunctionError,
    Condition::FunctionTimeout,
    Condition::NoCapacity,
    Condition::SandboxDied,
    Condition::AsyncAccepted,
    Condition::BadManagementBody,
    Condition::Unauthorised,
    Condition::DuplicateCreate,
    Condition::BodyTooLarge,
];

/// tinyFaaS has no deadline, no queue and no body limit. A node has all three. It answers 413 for a
/// body that is too long, and otherwise 500, as for every failure. Uploads overwrite functions.
const TINYFAAS: Cells = [
    Some(404),
    Some(200),
    Some(500),
    Some(500),
    Some(500),
    Some(202),
    Some(400),
    None,
    Some(200),
    Some(413),
];
const OPENFAAS: Cells = [
    Some(404),
    Some(500),
    Some(504),
    Some(429),
    Some(502),
    Some(202),
    Some(400),
    Some(401),
    Some(400),
    Some(413),
];
/// Nuclio has no calls without a waiting caller, and no credentials on loopback.
const NUCLIO: Cells = [
    Some(404),
    Some(500),
    Some(408),
    Some(503),
    Some(500),
    None,
    Some(400),
    None,
    Some(409),
    Some(413),
];

/// Knative functions are called at the node's own front. Here there are neither a management API
/// nor accepted calls, and the body limit is the node's.
const KNATIVE: Cells =
    [Some(404), Some(500), Some(504), Some(503), Some(502), None, None, None, None, Some(413)];
/// As for Knative. Kubeless has no queue that could be full, but a node has one.
const KUBELESS: Cells =
    [Some(404), Some(500), Some(408), Some(429), Some(502), None, None, None, None, Some(413)];

/// Returns the code of a function that contains a line.
type Code = fn(&str) -> String;

/// Returns a function for [`KNATIVE`] that contains this line.
fn knative(line: &str) -> String {
    let answer = "await send({'type': 'http.response.start', 'status': 200, 'headers': []})\n        \
                  await send({'type': 'http.response.body', 'body': b'ok'})";
    format!(
        "import asyncio, os, time\nclass F:\n    async def handle(self, scope, receive, send):\n        \
         {line}\n        {answer}\ndef new():\n    return F()\n"
    )
}

/// Returns a function for [`KUBELESS`] that contains this line.
fn kubeless(line: &str) -> String {
    format!("import os, time\ndef handle(event, context):\n    {line}\n    return 'ok'\n")
}

/// Functions that can bring about each condition.
struct Scene {
    node: Node,
}

impl Scene {
    fn new() -> Self {
        let flags = [
            "--openfaas",
            ":0",
            "--nuclio",
            ":0",
            "--tinyfaas",
            ":0",
            "--tinyfaas-http",
            ":0",
            "--tinyfaas-coap",
            ":0",
            "--tinyfaas-grpc",
            ":0",
        ];
        let node = Node::start_with(&flags);
        let slow = "import time\ndef handle(event, ctx):\n    time.sleep(30)\n";
        // The function is asynchronous, so that an earlier call does not block it.
        let late = "import asyncio\nasync def handle(event, ctx):\n    await asyncio.sleep(30)\n";
        let soon = "[limits]\ntimeout = \"300ms\"\n";
        let full = "[limits]\ntimeout = \"20s\"\nconcurrency = 1\n[scale]\nmax = 1\nqueue = 0\n";
        let functions: [(&str, &str, &str); 5] = [
            ("fine", "def handle(event, ctx):\n    return 'ok'\n", ""),
            ("error", "def handle(event, ctx):\n    raise ValueError('no')\n", ""),
            ("slow", late, soon),
            ("full", slow, full),
            ("dies", "import os\ndef handle(event, ctx):\n    os._exit(9)\n", ""),
        ];
        for (name, code, more) in functions {
            let manifest = format!("version = 1\nname = \"{name}\"\nruntime = \"python\"\n{more}");
            node.deploy_ok(name, &[("app.py", code), ("mote.toml", &manifest)]);
        }
        let contracts: [(&str, &str, Code, &str); 2] = [
            ("knative", "new", knative, "await asyncio.sleep(30)"),
            ("kubeless", "handle", kubeless, "time.sleep(30)"),
        ];
        for (compat, entry, code, wait) in contracts {
            for (name, line, more) in [
                ("fine", "pass", ""),
                ("error", "raise ValueError('no')", ""),
                ("slow", wait, soon),
                ("full", "time.sleep(30)", full),
                ("dies", "os._exit(9)", ""),
            ] {
                let name = format!("{compat}-{name}");
                let manifest = format!(
                    "version = 1\nruntime = \"python\"\ncompat = \"{compat}\"\nentry = \"app:{entry}\"\n{more}"
                );
                node.deploy_ok(&name, &[("app.py", &code(line)), ("mote.toml", &manifest)]);
            }
        }
        let scene = Self { node };
        for name in ["full", "knative-full", "kubeless-full"] {
            scene.fill(name);
        }
        scene
    }

    /// Occupies a function's only place for as long as the test runs.
    fn fill(&self, name: &str) {
        let front = self.node.http;
        let path = format!("/{name}");
        std::thread::spawn(move || {
            let _ = mote_tests::Connection::open(front).try_call("POST", &path, &[], b"");
        });
        mote_tests::wait_for("the full function", || {
            let described = self.node.json(&["describe", name, "-o", "json"]);
            (described["requests"]["running"] == 1).then_some(())
        });
    }
}

/// The requests by which a platform's client brings about the conditions.
trait Platform {
    fn call(&self, function: &str, body: &[u8]) -> Answer;
    /// Calls without waiting for the result.
    fn call_later(&self, function: &str) -> Answer;
    /// Sends an invalid request to create a function.
    fn bad_create(&self) -> Answer;
    /// Sends a management request without credentials.
    fn unauthorised(&self) -> Answer;
    /// Creates a function twice. Returns the second answer.
    fn create_twice(&self) -> Answer;

    fn meet(&self, condition: Condition) -> Answer {
        match condition {
            Condition::UnknownFunction => self.call("nobody", b""),
            Condition::FunctionError => self.call("error", b""),
            Condition::FunctionTimeout => self.call("slow", b""),
            Condition::NoCapacity => self.call("full", b""),
            Condition::SandboxDied => self.call("dies", b""),
            Condition::AsyncAccepted => self.call_later("fine"),
            Condition::BadManagementBody => self.bad_create(),
            Condition::Unauthorised => self.unauthorised(),
            Condition::DuplicateCreate => self.create_twice(),
            Condition::BodyTooLarge => self.call("fine", &vec![0; 7 << 20]),
        }
    }
}

struct TinyFaas {
    management: SocketAddr,
    http: SocketAddr,
}

impl Platform for TinyFaas {
    fn call(&self, function: &str, body: &[u8]) -> Answer {
        call_at(self.http, "POST", &format!("/{function}"), &[], body)
    }

    fn call_later(&self, function: &str) -> Answer {
        let headers = [("x-tinyfaas-async", "1")];
        call_at(self.http, "POST", &format!("/{function}"), &headers, b"")
    }

    fn bad_create(&self) -> Answer {
        call_at(self.management, "POST", "/upload", &[], b"{")
    }

    fn unauthorised(&self) -> Answer {
        call_at(self.management, "GET", "/list", &[], b"")
    }

    fn create_twice(&self) -> Answer {
        // The smallest possible zip with one stored file.
        let code = "def fn(input, headers):\n    return 'x'\n";
        let script = "import sys, zipfile\nwith zipfile.ZipFile(sys.stdout.buffer, 'w') as out: out.writestr('fn.py', sys.argv[1])";
        let zip = std::process::Command::new("python3")
            .args(["-c", script, code])
            .output()
            .expect("python3");
        let wish =
            json!({"name": "twice", "env": "python3", "threads": 1, "zip": base64(&zip.stdout)});
        let upload =
            || call_at(self.management, "POST", "/upload", &[], wish.to_string().as_bytes());
        assert_eq!(upload().status, 200);
        upload()
    }
}

struct OpenFaas {
    address: SocketAddr,
    auth: String,
}

impl OpenFaas {
    fn system(&self, body: &str) -> Answer {
        let headers = [("authorization", self.auth.as_str())];
        call_at(self.address, "POST", "/system/functions", &headers, body.as_bytes())
    }
}

impl Platform for OpenFaas {
    fn call(&self, function: &str, body: &[u8]) -> Answer {
        call_at(self.address, "POST", &format!("/function/{function}"), &[], body)
    }

    fn call_later(&self, function: &str) -> Answer {
        call_at(self.address, "POST", &format!("/async-function/{function}"), &[], b"")
    }

    fn bad_create(&self) -> Answer {
        self.system("{")
    }

    fn unauthorised(&self) -> Answer {
        call_at(self.address, "GET", "/system/functions", &[], b"")
    }

    fn create_twice(&self) -> Answer {
        let wish = json!({"service": "copy", "image": "mote://fine"}).to_string();
        assert_eq!(self.system(&wish).status, 202);
        self.system(&wish)
    }
}

struct Nuclio(SocketAddr);

impl Platform for Nuclio {
    fn call(&self, function: &str, body: &[u8]) -> Answer {
        let headers = [("x-nuclio-function-name", function)];
        call_at(self.0, "POST", "/api/function_invocations", &headers, body)
    }

    fn call_later(&self, _function: &str) -> Answer {
        unreachable!("there is no such call")
    }

    fn bad_create(&self) -> Answer {
        call_at(self.0, "POST", "/api/functions", &[], b"{")
    }

    fn unauthorised(&self) -> Answer {
        unreachable!("nothing is asked on loopback")
    }

    fn create_twice(&self) -> Answer {
        let source = base64(b"def handler(context, event):\n    return 'x'\n");
        let wish = json!({
            "metadata": {"name": "nu"},
            "spec": {"runtime": "python", "handler": "main:handler", "build": {"functionSourceCode": source}},
        });
        let waits = [("x-nuclio-wait-function-action", "true")];
        let create =
            || call_at(self.0, "POST", "/api/functions", &waits, wish.to_string().as_bytes());
        assert_eq!(create().status, 202);
        create()
    }
}

/// Functions of a platform whose API a node does not have. They are called at the node's own front.
struct AtTheFront {
    front: SocketAddr,
    compat: &'static str,
}

impl Platform for AtTheFront {
    fn call(&self, function: &str, body: &[u8]) -> Answer {
        call_at(self.front, "POST", &format!("/{}-{function}", self.compat), &[], body)
    }

    fn call_later(&self, _function: &str) -> Answer {
        unreachable!("there is no such call")
    }

    fn bad_create(&self) -> Answer {
        unreachable!("there is no API")
    }

    fn unauthorised(&self) -> Answer {
        unreachable!("there is no API")
    }

    fn create_twice(&self) -> Answer {
        unreachable!("there is no API")
    }
}

#[test]
fn every_cell() {
    let scene = Scene::new();
    let node = &scene.node;
    let tinyfaas =
        TinyFaas { management: node.platform("tinyfaas"), http: node.platform("tinyfaas http") };
    let auth = basic_auth("admin", &node.token());
    let openfaas = OpenFaas { address: node.platform("openfaas"), auth };
    let nuclio = Nuclio(node.platform("nuclio"));
    let knative = AtTheFront { front: node.http, compat: "knative" };
    let kubeless = AtTheFront { front: node.http, compat: "kubeless" };
    let columns: [(&str, &dyn Platform, Cells); 5] = [
        ("knative", &knative, KNATIVE),
        ("kubeless", &kubeless, KUBELESS),
        ("tinyfaas", &tinyfaas, TINYFAAS),
        ("openfaas", &openfaas, OPENFAAS),
        ("nuclio", &nuclio, NUCLIO),
    ];
    let mut wrong = Vec::new();
    for (name, platform, cells) in columns {
        for (condition, expected) in ROWS.into_iter().zip(cells) {
            let Some(expected) = expected else { continue };
            let answer = platform.meet(condition);
            if answer.status != expected {
                let text = answer.text();
                wrong.push(format!(
                    "{name} {condition:?}: {} not {expected}: {text}",
                    answer.status
                ));
            }
            if condition == Condition::AsyncAccepted {
                assert_eq!(answer.text(), "", "{name}");
            }
            assert!(!answer.text().contains("ValueError"), "{name}: {}", answer.text());
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
