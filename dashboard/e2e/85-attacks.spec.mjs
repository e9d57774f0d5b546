// What strangers, functions and other pages try: scripts in stored text, frames, requests from other
// origins, and cookies of other ports.

import { createServer } from "node:http";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** Ways to become a script, if text became markup, an address, a style or an expression. */
const WAYS = [
  (n) => `<img src=x onerror=window.__hacked=${n}>`,
  (n) => `<svg onload=window.__hacked=${n}></svg>`,
  (n) => `"><script>window.__hacked=${n}</script>`,
  (n) => `</pre></textarea></title><script>window.__hacked=${n}</script>`,
  (n) => `javascript:window.__hacked=${n}`,
  (n) => `<a href="javascript:window.__hacked=${n}" autofocus onfocus=window.__hacked=${n}>x</a>`,
  (n) => `<details open ontoggle=window.__hacked=${n}>x</details>`,
  (n) => `<iframe srcdoc="<script>parent.__hacked=${n}</script>"></iframe>`,
  (n) => `'-(window.__hacked=${n})-'`,
  (n) => `\${window.__hacked=${n}}{{window.__hacked=${n}}}`,
  (n) => `<style onload=window.__hacked=${n}>@import 'data:text/css,*{}'</style>`,
  (n) => `<math><mtext><img src=x onerror=window.__hacked=${n}></mtext></math>`,
  (n) => `\u202e<b onpointerenter=window.__hacked=${n} style=position:fixed;inset:0>x</b>\u2066`,
];

const NAME = "e2e-attack";
const TEXTS = [];
/** The next attempt. `way` is a part of its text, `fit` changes it for its place. */
function attempt(place, fit = (text) => text) {
  const number = TEXTS.length + 100;
  const text = fit(WAYS[TEXTS.length % WAYS.length](number));
  TEXTS.push({ place, text });
  return text;
}

export default async function ({ base, step, check, until, newPage, login, open, api, accessible }) {
  const page = await newPage();
  step.page = page;
  await login(page);
  page.allowed.push(/\/v1\//);
  const json = { "content-type": "application/json" };
  const folder = await mkdtemp(join(tmpdir(), "mote-e2e-"));
  const views = new Set();

  /** Deploys files through the page, as its user does. */
  const deploy = async (name, files) => {
    const at = join(folder, name);
    await mkdir(at, { recursive: true });
    for (const [path, text] of Object.entries(files)) await writeFile(join(at, path), text);
    await open(page, "deploy");
    await page.setInputFiles("input[aria-label=Folder]", at);
    await until(async () => (await page.inputValue("input[aria-describedby]")) === name, "the name");
    await page.click("button[type=submit]:has-text('Deploy')");
    await page.waitForSelector(".outcome .notice, .outcome .failure", { timeout: 30_000 });
    return (await page.locator(".outcome .failure").count()) === 0;
  };
  const invoke = (path = "", headers = {}) => api(page, "POST", `/v1/functions/${NAME}/invoke`, attempt("body of a request"), { "mote-path": path, ...headers });

  const lines = Array.from({ length: 6 }, () => attempt("log line"));
  const errors = [attempt("line of stderr"), attempt("warning of a logger")];
  const exception = attempt("message of an exception");
  const answer = attempt("body of an answer");
  const field = attempt("header of an answer", (text) => text.replace(/[^\x20-\x7e]/g, ""));
  const file = attempt("name of a file", (text) => text.replaceAll("/", "|").replace(/[\u202e\u2066]/g, ""));
  const topic = attempt("topic", (text) => text.replace(/[+#\u202e\u2066]/g, ""));
  const issuer = attempt("issuer of tokens", (text) => `https://issuer.example/${encodeURIComponent(text)}`);
  const audience = attempt("audience of tokens", (text) => text.replace(/["\\\u202e\u2066]/g, "'"));

  await step("attack: a function whose texts are scripts is deployed", async () => {
    await api(page, "DELETE", `/v1/functions/${NAME}`);
    const code = `
import logging, sys
def handle(event, ctx=None):
    for line in ${JSON.stringify(lines)}:
        print(line)
    print(${JSON.stringify(errors[0])}, file=sys.stderr)
    logging.warning("%s", ${JSON.stringify(errors[1])})
    if event.path.startswith("/fail"):
        raise ValueError(${JSON.stringify(exception)})
    return (${JSON.stringify(answer)}, 200, {"content-type": "text/html", "x-attack": ${JSON.stringify(field)}})
`;
    const manifest = `version = 1\n[[trigger]]\nmqtt = ${JSON.stringify(topic)}\nbroker = "mqtt://127.0.0.1:9"\n`;
    check(await deploy(NAME, { "app.py": code, "mote.toml": manifest, [file]: "x" }), await page.textContent(".outcome"));
    views.add("try/" + NAME);
  });
  await step("attack: texts of callers, state, keys and refused names", async () => {
    await invoke(`/fine/${encodeURIComponent(attempt("path of a traced call"))}?q=${encodeURIComponent(attempt("query of a call"))}`, { traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01" });
    await invoke("/fail");
    await invoke("/fail", { prefer: "respond-async", "idempotency-key": attempt("idempotency key", (text) => text.replace(/[^\x20-\x7e]/g, "").slice(0, 60)) });
    await invoke("/later", { prefer: "respond-async" });
    for (const value of [attempt("value of the state"), attempt("another value of the state")]) {
      const key = encodeURIComponent(attempt("key of the state"));
      check((await api(page, "PUT", `/v1/kv/${NAME}/entry?key=${key}`, value)).status < 300, "the state was not set");
    }
    await api(page, "POST", "/v1/keys", JSON.stringify({ name: "e2e-attack", functions: [attempt("functions of a key")] }), json);
    // These names are refused; the refusal names them.
    for (const [method, path, body] of [
      ["PUT", `/v1/secrets/${encodeURIComponent(attempt("name of a secret"))}`, "x"],
      ["POST", "/v1/keys", JSON.stringify({ name: attempt("name of a key"), functions: [] })],
      ["POST", "/v1/tokens", JSON.stringify({ name: attempt("name of a token"), role: "viewer" })],
      ["POST", "/v1/tokens", JSON.stringify({ name: "e2e-attack", role: attempt("role of a token") })],
      ["POST", "/v1/namespaces", JSON.stringify({ name: attempt("name of a namespace") })],
      ["PUT", `/v1/functions/${encodeURIComponent(attempt("name of a function"))}`, "x"],
      ["DELETE", `/v1/functions/${encodeURIComponent(attempt("name in the record of acts"))}`, null],
    ]) {
      const { status } = await api(page, method, path, body, body?.startsWith("{") ? json : {});
      check(status >= 400 && status < 500, `${method} ${path}: ${status}`);
    }
  });
  await step("attack: manifests whose errors and settings are scripts", async () => {
    const app = { "app.py": "def handle(event):\n    return ''\n" };
    const quoted = (place) => JSON.stringify(attempt(place, (text) => text.replace(/[\u202e\u2066]/g, "")));
    for (const manifest of [
      `version = 1\nruntime = ${quoted("runtime of a manifest")}\n`,
      `version = 1\n${quoted("setting of a manifest")} = 1\n`,
      `version = 1\n[[trigger]]\ncron = ${quoted("expression of a schedule")}\n`,
      `version = 1\n[[trigger]]\ncron = "0 0 * * *"\ntimezone = ${quoted("time zone of a schedule")}\n`,
      `version = 1\n[[route]]\npath = ${quoted("path of a route")}\n`,
      `version = 1\nsecrets = [${quoted("secret of a manifest")}]\n`,
    ]) {
      check(!(await deploy("e2e-attack-2", { ...app, "mote.toml": manifest })), `deployed: ${manifest}`);
      await intact();
    }
    const tokens = `version = 1\n[access]\nmode = "jwt"\nissuer = ${JSON.stringify(issuer)}\naudience = ${JSON.stringify(audience)}\n`;
    if (await deploy("e2e-attack-2", { ...app, "mote.toml": tokens })) views.add("functions/e2e-attack-2/settings");
    await intact();
  });
  await step("attack: addresses of the page that are scripts", async () => {
    const text = () => encodeURIComponent(attempt("address of the page"));
    for (const path of [`functions/${text()}`, `functions/${NAME}/${text()}`, `call/${text()}?function=${text()}&trace=${text()}`, `try/${text()}`, `access/${text()}`, `functions?q=${text()}`, `functions/${NAME}/logs?invocation=${text()}`]) {
      await open(page, path);
      await intact();
    }
  });
  await step("attack: fields of forms that are scripts", async () => {
    await open(page, `try/${NAME}`);
    await page.selectOption("select", "PUT");
    await page.fill("input >> nth=1", `/${encodeURI(attempt("path of a try")).slice(0, 200)}`);
    await page.fill("textarea", attempt("body of a try"));
    await page.click("text=Add a header");
    await page.fill("[aria-label='Name of header 1']", attempt("header of a try"));
    await page.fill("[aria-label='Value of header 1']", attempt("value of a try"));
    await intact();
    await page.click("[aria-label='Remove header 1']");
    await page.click("button[type=submit]:has-text('Send')");
    await page.waitForSelector("text=status 200", { timeout: 30_000 });
    await intact();
    await open(page, `functions/${NAME}/logs`);
    await page.fill("input[type=search]", attempt("search in a log"));
    await intact();
    await page.fill("input[type=search]", `/${attempt("expression in a log")}(/`);
    await intact();
    await open(page, "access/audit");
    await page.fill("input[type=search]", attempt("search in the record"));
    await intact();
  });
  await step("attack: no script has run in any view, and the texts are shown as text", async () => {
    const { text } = await api(page, "GET", `/v1/invocations?function=${NAME}`);
    const seen = [];
    const calls = JSON.parse(text).invocations.map((one) => `call/${one.id}?function=${NAME}`);
    for (const view of ["", "functions", `functions/${NAME}`, ...["logs", "calls", "revisions", "settings", "state", "schedules"].map((tab) => `functions/${NAME}/${tab}`), ...calls, ...views, "deploy", "access/keys", "access/tokens", "access/secrets", "access/namespaces", "access/audit", "fleet"]) {
      await open(page, view);
      await until(() => page.evaluate(() => !document.querySelector("main .loading")), `the end of reading in ${view}`);
      if (view.endsWith("/state")) {
        for (const row of await page.locator("tbody button.link, tbody th button").all()) {
          await row.click();
          await page.waitForSelector("form textarea");
          seen.push(await page.inputValue("form textarea"));
        }
      }
      if (view.endsWith("/logs")) {
        for (const line of [...lines, ...errors, exception]) {
          await page.fill("input[type=search]", `__hacked=${/__hacked=(\d+)/.exec(line)[1]}`);
          await page.waitForSelector(`.log-text:has-text(${JSON.stringify(/__hacked=\d+/.exec(line)[0])})`);
          seen.push(await page.textContent(".log-list >> nth=-1"));
        }
        await page.fill("input[type=search]", "");
      }
      for (const closed of await page.locator("details:not([open]) > summary").all()) await closed.click();
      seen.push(await page.evaluate(() => document.body.innerText));
      await intact();
    }
    const all = seen.join("\n");
    // These stay in the node, so a view must have shown them.
    for (const stored of [...lines, ...errors, exception, topic]) {
      check(all.includes(stored.replace(/[\u202e\u2066]/g, "\ufffd")), `no view has shown ${stored}`);
    }
    check(TEXTS.length >= 40, `${TEXTS.length} attempts`);
    console.log(`     ${TEXTS.length} attempts in ${new Set(TEXTS.map((one) => one.place)).size} places, 0 ran`);
    await accessible(page);
  });

  /** Checks that no text has become markup, a style, an address or a hidden sign. */
  async function intact() {
    const wrong = await page.evaluate(() => {
      const found = [];
      if (globalThis.__hacked !== undefined) found.push(`the script ${globalThis.__hacked} ran`);
      for (const one of document.querySelectorAll("iframe, object, embed, base, math, style, script:not([src^='/dashboard/assets/']), img:not([src='/dashboard/icon.svg'])")) found.push(one.outerHTML.slice(0, 200));
      for (const one of document.querySelectorAll("*")) {
        for (const { name, value } of one.attributes) {
          if (/^on/i.test(name) || (/^(href|src|action|formaction|data|srcdoc)$/i.test(name) && !/^(#|\/dashboard\/|blob:|https?:)/.test(value))) found.push(`${one.tagName} ${name}=${value.slice(0, 100)}`);
        }
      }
      const turned = /.{0,60}[\u202e\u2066].{0,60}/.exec(document.body.innerText);
      if (turned) found.push(`a sign turns text round: ${turned[0]}`);
      return found;
    });
    check(wrong.length === 0, `${page.url()}: ${wrong.join("; ")}`);
  }

  // Another origin on the same host (`127.0.0.1` with another port), and another site (`localhost`).
  const { port } = new URL(base);
  const server = createServer((_, answer) => {
    answer.writeHead(200, { "content-type": "text/html" });
    answer.end("<!doctype html><title>other</title><body></body>");
  });
  await new Promise((next) => server.listen(0, next));
  const others = ["127.0.0.1", "localhost"].map((host) => `http://${host}:${server.address().port}`);
  const csrf = JSON.parse((await api(page, "GET", "/v1/session")).text).csrf;
  for (const origin of others) {
    const other = await page.context().newPage();
    await step(`other page: ${new URL(origin).hostname === "localhost" ? "another site" : "another port of the host"} can neither read nor change anything`, async () => {
      await other.goto(origin);
      const got = await other.evaluate(
        async ([base, name, csrf]) => {
          const tries = [];
          const read = async (what, work) => tries.push(`${what}: ${await work().then((text) => `READ ${text}`, () => "refused")}`);
          for (const path of ["/v1/session", "/v1/functions", "/v1/status", `/v1/functions/${name}/logs`]) {
            await read(`GET ${path}`, async () => (await fetch(base + path, { credentials: "include" })).text());
          }
          await read("log in", async () => (await fetch(`${base}/v1/session`, { method: "POST", credentials: "include", headers: { "content-type": "application/json" }, body: "{}" })).text());
          await read("code", async () => (await fetch(`${base}/v1/session/code`, { method: "POST", credentials: "include" })).text());
          // Requests whose answers a page cannot read may still act.
          const blind = (path, method, headers = {}) => fetch(base + path, { method, mode: "no-cors", credentials: "include", headers, body: "x" }).catch(() => undefined);
          await blind("/v1/secrets/e2e-foreign", "POST");
          await blind(`/v1/functions/${name}/invoke`, "POST", { "content-type": "text/plain" });
          await blind(`/v1/functions/${name}/scale`, "POST");
          for (const method of ["PUT", "DELETE"]) {
            await read(`${method} with the value`, async () => (await fetch(`${base}/v1/secrets/e2e-foreign`, { method, credentials: "include", headers: { "mote-csrf": csrf }, body: "x" })).text());
          }
          const form = document.createElement("form");
          Object.assign(form, { action: `${base}/v1/functions/${name}/invoke`, method: "post", enctype: "text/plain", target: "sink" });
          form.innerHTML = "<input name=x value=y>";
          const sink = Object.assign(document.createElement("iframe"), { name: "sink" });
          document.body.append(sink, form);
          form.submit();
          await new Promise((next) => sink.addEventListener("load", next, { once: true }));
          // A script or an image of the API would tell whether there is a session.
          for (const [tag, path] of [["script", "/v1/session"], ["img", "/v1/status"], ["script", `/v1/functions/${name}/logs`]]) {
            const element = document.createElement(tag);
            const result = new Promise((next) => {
              element.onload = () => next("LOADED");
              element.onerror = () => next("refused");
            });
            element.src = base + path;
            document.body.append(element);
            tries.push(`${tag}: ${await result}`);
          }
          return tries;
        },
        [base, NAME, csrf],
      );
      const wrong = got.filter((one) => !/refused$/.test(one));
      check(wrong.length === 0, wrong.join("; "));
      const before = JSON.parse((await api(page, "GET", `/v1/functions/${NAME}`)).text);
      check(before.bounds === undefined, "it was scaled");
      check(!(await api(page, "GET", "/v1/secrets")).text.includes("e2e-foreign"), "a secret was made");
      const record = (await api(page, "GET", "/v1/audit?limit=1000")).text;
      check(/"status":403/.test(record.replace(/\s/g, "")), "the record has no refusal");
    });
    await step(`other page: no frame of ${new URL(origin).hostname} shows the page`, async () => {
      for (const path of ["/dashboard/", "/v1/functions", `/v1/functions/${NAME}/invoke`]) {
        await other.goto(origin);
        await other.evaluate(async (url) => {
          const frame = Object.assign(document.createElement("iframe"), { src: url });
          document.body.append(frame);
          await new Promise((next) => frame.addEventListener("load", next, { once: true }));
        }, base + path);
        const frame = other.frames().find((one) => one !== other.mainFrame());
        const inside = await frame.evaluate(() => document.body?.innerText ?? "").catch(() => "");
        // A refusal has no content that a page could use.
        const isRefused = frame.url().startsWith("chrome-error:") || (path !== "/dashboard/" && /"code":"M14\d\d"/.test(inside));
        check(isRefused, `${path}: ${frame.url()} ${inside.slice(0, 80)}`);
      }
    });
    await step(`other page: a window of ${new URL(origin).hostname} has no hold on the page`, async () => {
      await other.goto(origin);
      const opened = other.context().waitForEvent("page");
      await other.evaluate((url) => void (globalThis.__window = open(url)), `${base}/dashboard/`);
      await (await opened).waitForLoadState();
      check(await other.evaluate(() => globalThis.__window.closed || globalThis.__window === null), "the window can be used");
      await (await opened).close();
    });
    await other.close();
  }

  await step("other page: a session that another port has put into the browser is not used", async () => {
    // The attacker has a session of this node.
    const attacker = await newPage();
    await login(attacker);
    const [cookie] = (await attacker.context().cookies()).filter((one) => one.name === `mote-session-${port}`);
    const victim = await newPage();
    step.page = victim;
    victim.allowed.push(/\/v1\//);
    const hosts = [base, ...others];
    victim.hosts = hosts;
    const plant = async (path) => {
      await victim.goto(others[0]);
      await victim.evaluate(([name, value, path]) => (document.cookie = `${name}=${value}; path=${path}`), [cookie.name, cookie.value, path]);
    };
    await plant("/");
    const usable = await victim.request.get(`${base}/v1/session`);
    check(usable.status() === 200, "the browser does not send the cookie that was put there");
    await victim.goto(`${base}/dashboard/`);
    await victim.waitForSelector("input[type=password]");
    // The browser of somebody who has logged in before.
    await login(victim);
    await victim.context().clearCookies();
    await plant("/");
    await victim.goto(`${base}/dashboard/`);
    await victim.waitForSelector(".notice:has-text('Another page has put a session')");
    await accessible(victim);
    // A cookie for a longer path is sent next to that of the login, which the page explains.
    await login(victim);
    await plant("/v1");
    await victim.goto(`${base}/dashboard/`);
    await victim.waitForSelector("input[type=password]");
    const { token } = JSON.parse((await api(page, "POST", "/v1/tokens", JSON.stringify({ name: "e2e-victim", role: "viewer", valid_ms: 3_600_000 }), json)).text);
    await victim.fill("input[type=password]", token);
    await victim.keyboard.press("Enter");
    await victim.waitForSelector(".failure:has-text('has set a cookie of the same name')");
    await victim.context().clearCookies();
    await victim.keyboard.press("Enter");
    await victim.waitForSelector("nav[aria-label=Views]");
    await api(page, "DELETE", "/v1/tokens/e2e-victim");
    await attacker.context().close();
    await victim.context().close();
    step.page = page;
  });
  server.close();

  await step("sessions: logging out in one tab ends the log in another one at once", async () => {
    const first = await newPage();
    await login(first);
    const second = await first.context().newPage();
    await second.goto(`${base}/dashboard/#/functions/${NAME}/logs`);
    await second.waitForSelector(".log-line");
    const began = Date.now();
    await first.click("button[aria-label='Log out']");
    await first.waitForSelector("form");
    await second.waitForSelector("input[type=password]", { timeout: 5000 });
    console.log(`     the other tab knew after ${Date.now() - began} ms`);
    await first.context().close();
  });
  await step("sessions: revoking a token ends the log that its holder follows at once", async () => {
    const { token } = JSON.parse((await api(page, "POST", "/v1/tokens", JSON.stringify({ name: "e2e-follower", role: "viewer" }), json)).text);
    const viewer = await newPage();
    viewer.allowed.push(/\/v1\//);
    await viewer.goto(`${base}/dashboard/#/functions/${NAME}/logs`);
    await viewer.fill("input[type=password]", token);
    await viewer.keyboard.press("Enter");
    await viewer.waitForSelector(".log-line");
    // Without the other requests of the page, only the stream can tell it.
    await viewer.route(/v1\/(functions\?|functions\/[^/]+$|functions\/[^/]+\/durations|status|doctor)/, () => undefined);
    const began = Date.now();
    await api(page, "DELETE", "/v1/tokens/e2e-follower");
    await viewer.waitForSelector("input[type=password]", { timeout: 5000 });
    console.log(`     the page knew after ${Date.now() - began} ms`);
    await viewer.context().close();
  });

  for (const name of [NAME, "e2e-attack-2"]) await api(page, "DELETE", `/v1/functions/${name}`);
  await api(page, "DELETE", `/v1/kv/${NAME}`);
  await api(page, "DELETE", "/v1/keys/e2e-attack");
  await rm(folder, { recursive: true });
}
