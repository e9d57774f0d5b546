//! The context of a function in WSGI and ASGI applications and in `fetch`, and the state while a
//! function loads.

use std::process::Command;

use mote_tests::{Node, skip, wait_for};

const MANIFEST: &str = "version = 1\n[allow]\nfunctions = [\"called\"]\n";
const CALLED: &str = "def handle(event, ctx):\n    return event.trigger + ' ' + event.text\n";

const WSGI: &str = r#"
def app(environ, start_response):
    ctx = environ["mote.ctx"]
    start_response("200 OK", [("content-type", "text/plain")])
    count = ctx.kv.increment("count")
    yield ("%s %d " % (ctx.function, count)).encode()
    yield ctx.call("called", "from wsgi").body
"#;
const ASGI: &str = r#"
async def app(scope, receive, send):
    ctx = scope["extensions"]["mote"]["ctx"]
    if scope["type"] == "lifespan":
        assert (await receive())["type"] == "lifespan.startup"
        await ctx.kv.put("count", "10")
        try:
            await ctx.call("called")
            scope["state"]["said"] = "called"
        except Exception as error:
            scope["state"]["said"] = "%s: %s" % (error.code, error)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await ctx.kv.put("ended", "yes")
        return await send({"type": "lifespan.shutdown.complete"})
    count = await ctx.kv.increment("count")
    reply = await ctx.call("called", scope["state"]["said"])
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"%d %s" % (count, reply.body)})
"#;
/// Uses the context in a thread, as frameworks do for plain functions.
const ASGI_THREAD: &str = r#"
import asyncio

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        raise NotImplementedError
    ctx = scope["extensions"]["mote"]["ctx"]
    count = await asyncio.get_running_loop().run_in_executor(None, ctx.kv.increment, "count")
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"%d" % count})
"#;
const FETCH: &str = r#"
export async function init(ctx) { await ctx.kv.put('count', '10'); }
export default {
  async fetch(request, ctx) {
    const count = await ctx.kv.increment('count');
    return new Response(`${count} ${(await ctx.call('called', 'from fetch')).text}`);
  },
};
"#;
const STARLETTE: &str = r#"
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

def plain(request):
    ctx = request.scope["extensions"]["mote"]["ctx"]
    return PlainTextResponse("%d" % ctx.kv.increment("count"))

async def waits(request):
    ctx = request.scope["extensions"]["mote"]["ctx"]
    return PlainTextResponse((await ctx.call("called", "from starlette")).text)

app = Starlette(routes=[Route("/plain", plain), Route("/waits", waits)])
"#;

fn node_with_called() -> Node {
    let node = Node::start();
    node.deploy_ok("called", &[("handler.py", CALLED)]);
    node
}

#[test]
fn applications_have_the_context_of_the_function() {
    let node = node_with_called();
    node.deploy_ok("wsgi", &[("app.py", WSGI), ("mote.toml", MANIFEST)]);
    assert_eq!(
        node.get("/wsgi").text(),
        "wsgi 1 function from wsgi",
        "{}",
        node.ok(&["logs", "wsgi"])
    );
    let threads = format!("{MANIFEST}[limits]\nconcurrency = 4\n");
    node.deploy_ok("threads", &[("app.py", WSGI), ("mote.toml", &threads)]);
    assert_eq!(node.get("/threads").text(), "threads 1 function from wsgi");
    node.deploy_ok("fetch", &[("index.mjs", FETCH), ("mote.toml", MANIFEST)]);
    assert_eq!(node.get("/fetch").text(), "11 function from fetch");
    node.deploy_ok("thread", &[("app.py", ASGI_THREAD), ("mote.toml", MANIFEST)]);
    assert_eq!(node.get("/thread").text(), "1");
    // The ASGI lifespan can use the state, but it cannot call other functions while the function
    // loads.
    node.deploy_ok("asgi", &[("app.py", ASGI), ("mote.toml", MANIFEST)]);
    let refused = "unavailable: while a function loads, it can use its state, and nothing else of \
                   the node";
    assert_eq!(node.get("/asgi").text(), format!("11 function {refused}"));
    node.ok(&["remove", "--yes", "asgi"]);
    wait_for("the shutdown, which can use it, too", || {
        (node.mote(&["kv", "get", "asgi", "ended"]).stdout == b"yes").then_some(())
    });
}

#[test]
fn a_framework_passes_the_context_on() {
    let node = node_with_called();
    let packages = ("requirements.txt", "starlette\n");
    let output = node.deploy("star", &[("app.py", STARLETTE), ("mote.toml", MANIFEST), packages]);
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("M06") || text.contains("pip"), "{text}");
        return skip("starlette", "it cannot be installed here");
    }
    assert_eq!(node.get("/star/plain").text(), "1");
    assert_eq!(node.get("/star/waits").text(), "function from starlette");
}

#[test]
fn a_function_uses_its_state_while_it_loads() {
    const PLAIN: &str = r#"
import threading

said = []

def init(ctx):
    said.append("%d" % ctx.kv.increment("loads"))
    ctx.kv.put("large", b"x" * 200000)
    said.append("%d" % len(ctx.kv.get("large")))
    for refused in (lambda: ctx.call("called"), lambda: ctx.kv.shared("site").get("x")):
        try:
            refused()
        except ctx.kv.Error as error:
            said.append(error.code)
    def other():
        try:
            ctx.kv.get("x")
        except RuntimeError as error:
            said.append(str(error))
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()

def handle(event, ctx):
    return " | ".join(said)
"#;
    const LOOP: &str = r#"
said = []

async def init(ctx):
    said.append("%d" % await ctx.kv.increment("loads"))

async def handle(event, ctx):
    return said[0] + " %d" % await ctx.kv.increment("calls")
"#;
    const NODE: &str = r#"
const said = [];
export async function init(ctx) {
  const sums = await Promise.all(Array.from({ length: 300 }, () => ctx.kv.increment('loads', 1, { durable: false })));
  said.push(Math.max(...sums));
  try { await ctx.publish('a', 'b'); } catch (error) { said.push(error.code); }
}
export const handle = () => said.join(' ');
"#;
    let node = node_with_called();
    node.deploy_ok("plain", &[("app.py", PLAIN), ("mote.toml", MANIFEST)]);
    let refused = "while the function loads, only its main thread can send requests to the node";
    assert_eq!(node.get("/plain").text(), format!("1 | 200000 | unavailable | denied | {refused}"));
    node.deploy_ok("loop", &[("app.py", LOOP)]);
    assert_eq!(node.get("/loop").text(), "1 1");
    node.deploy_ok("node", &[("index.mjs", NODE)]);
    assert_eq!(node.get("/node").text(), "300 unavailable");
}

/// The examples run as they are, each with a usual server of its language.
#[test]
fn servers_in_other_languages_answer() {
    let node = Node::start();
    for (language, program) in [("ruby", "puma"), ("php", "php"), ("java", "javac")] {
        if Command::new(program).arg("--version").output().is_err() {
            let why = format!("{program} is not installed: scripts/setup.sh languages");
            skip(language, &why);
            continue;
        }
        let name = format!("hello-{language}");
        let folder = mote_tests::repository().join("examples/languages").join(&name);
        node.ok(&["deploy", &folder.display().to_string()]);
        let said = node.get(&format!("/{name}")).text();
        assert!(said.to_lowercase().ends_with(language), "{name}: {said}");
        assert_eq!(node.post(&format!("/{name}/upper"), b"abc").text(), "ABC", "{name}");
        node.ok(&["scale", &name, "0"]);
        assert_eq!(node.post(&format!("/{name}/upper"), b"again").text(), "AGAIN", "{name}");
    }
}
