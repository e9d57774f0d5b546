// Takes pictures of the dashboard of a node with traffic; scripts/pictures.sh starts the node.
//
//   node dashboard/e2e/pictures.mjs --base URL --http URL --code CODE --out DIR [--all] [--chromium FILE]
//
// Without --all, only the pictures of the documentation are taken.

import { mkdir } from "node:fs/promises";
import { parseArgs } from "node:util";
import { chromium } from "playwright-core";

const { values: options } = parseArgs({
  options: {
    base: { type: "string" },
    http: { type: "string" },
    code: { type: "string" },
    out: { type: "string" },
    all: { type: "boolean", default: false },
    chromium: { type: "string", default: "/usr/bin/chromium" },
  },
});
const { base, http, out } = options;

/** Views, and what must be on the screen before the picture. */
const VIEWS = {
  node: { path: "", ready: ".failing" },
  functions: { path: "functions", ready: ".functions tbody tr" },
  function: { path: "functions/resize", ready: "canvas.heat" },
  logs: { path: "functions/invoice/logs", ready: ".log-line" },
  calls: { path: "functions/invoice/calls", ready: "[aria-label^='Recent calls'] tbody tr" },
  "dead-letters": { path: "functions/notify/calls", ready: "td:has-text('dead letter')" },
  call: { path: "", ready: ".waterfall", call: true },
  revisions: { path: "functions/greet/revisions", ready: "tbody tr" },
  settings: { path: "functions/resize/settings", ready: "text=Memory of an instance" },
  state: { path: "functions/thermo/state", ready: "tbody tr", choose: true },
  schedules: { path: "functions/report/schedules", ready: "tbody tr" },
  try: { path: "try/thermo", ready: "button[type=submit]", send: '{"sensor": "hall", "celsius": 21.5}' },
  deploy: { path: "deploy", ready: "h1" },
  keys: { path: "access/keys", ready: "tbody tr" },
  tokens: { path: "access/tokens", ready: "tbody tr" },
  secrets: { path: "access/secrets", ready: "tbody tr" },
  namespaces: { path: "access/namespaces", ready: "tbody tr" },
  audit: { path: "access/audit", ready: "tbody tr" },
  fleet: { path: "fleet", ready: "h2" },
};

/** The pictures of the documentation. */
const SHOWN = [
  { view: "function", width: 1280, height: 1010, theme: "light" },
  { view: "node", width: 1280, height: 900, theme: "dark" },
  { view: "call", width: 1280, height: 640, theme: "light" },
  { view: "logs", width: 1280, height: 640, theme: "dark" },
  { view: "functions", width: 390, height: 844, theme: "light" },
];

const browser = await chromium.launch({ executablePath: options.chromium, args: ["--no-sandbox", "--font-render-hinting=none"] });
const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, reducedMotion: "reduce", locale: "en-GB", timezoneId: "UTC" });
const page = await context.newPage();
page.setDefaultTimeout(30_000);
await page.goto(`${base}/dashboard/#code=${options.code}`);
await page.waitForSelector("nav[aria-label=Views]");

async function api(method, path, body, headers = {}) {
  return page.evaluate(
    async ([method, path, body, headers]) => {
      const { csrf } = await (await fetch("/v1/session")).json();
      const answer = await fetch(path, { method, headers: { "mote-csrf": csrf, ...headers }, ...(body === undefined ? {} : { body }) });
      return answer.text();
    },
    [method, path, body, headers],
  );
}
const json = { "content-type": "application/json" };
const made = JSON.parse(await api("POST", "/v1/keys", JSON.stringify({ name: "shop", functions: ["webhook"] }), json));
await api("POST", "/v1/keys", JSON.stringify({ name: "gateway-yard", functions: ["thermo", "search"], valid_ms: 86_400_000 * 30 }), json);
await api("POST", "/v1/tokens", JSON.stringify({ name: "ci", role: "deployer", valid_ms: 86_400_000 * 365 }), json);
await api("POST", "/v1/tokens", JSON.stringify({ name: "wallboard", role: "viewer" }), json);
await api("PUT", "/v1/secrets/mail-password", "x");
await api("POST", "/v1/namespaces", JSON.stringify({ name: "orchard", quotas: { functions: 10, instances: 4, memory_bytes: 256 << 20 } }), json);
await api("POST", "/v1/namespaces", JSON.stringify({ name: "plant" }), json);

let on = true;
const random = (most) => Math.floor(Math.random() * most);
const pick = (list) => list[random(list.length)];
const SENSORS = ["hall", "kitchen", "yard", "cellar", "attic", "garage"];
const CALLS = [
  { every: 25, call: () => ["thermo", JSON.stringify({ sensor: pick(SENSORS), celsius: 18 + Math.random() * 10, battery: 60 + random(40) })] },
  { every: 180, call: () => ["invoice", String(4000 + random(1000))] },
  { every: 90, call: () => ["resize", "picture"] },
  { every: 120, call: () => ["search", pick(["a", "hal", "ki", "zz"])] },
  { every: 400, call: () => ["webhook", "{}", { authorization: `Bearer ${made.key}` }] },
  { every: 700, call: () => ["greet", pick(["Ada", "Ben", "Cleo"])] },
  { every: 5000, call: () => ["notify", pick(["hall: 27.4 °C", "cellar: 28.1 °C"]), { prefer: "respond-async" }] },
];
const traffic = CALLS.map(async ({ every, call }) => {
  while (on) {
    const [name, body, headers = {}] = call();
    // More calls in waves, so that the charts have a shape.
    const wave = 1 + 0.6 * Math.sin(Date.now() / 12_000);
    void fetch(`${http}/${name}`, { method: "POST", body, headers }).then((answer) => answer.text()).catch(() => undefined);
    await new Promise((next) => setTimeout(next, every * (0.4 + Math.random()) * wave));
  }
});

// A function that fails for good needs its three attempts.
await fetch(`${http}/notify`, { method: "POST", body: "cellar: 31.0 °C", headers: { prefer: "respond-async" } });

async function open(view) {
  const { path, ready, call, choose, send } = VIEWS[view];
  let hash = `#/${path}`;
  if (call) {
    const { traces } = JSON.parse(await api("GET", "/v1/traces?function=resize&limit=200"));
    const [one] = traces.sort((a, b) => b.duration_us - a.duration_us);
    hash = `#/call/${one.invocation}?function=resize&trace=${one.trace}`;
  }
  await page.evaluate((hash) => (location.hash = hash), hash);
  await page.waitForSelector(ready);
  if (choose) await page.click("tbody button >> nth=0");
  if (send) {
    await page.selectOption("select", "POST");
    await page.fill("textarea", send);
    await page.click("button[type=submit]:has-text('Send')");
    await page.waitForSelector("text=status 200");
  }
  await page.waitForTimeout(700);
}

// The page measures the past of a function while its view is open.
await open("function");
await page.waitForTimeout(options.all ? 45_000 : 130_000);
await mkdir(out, { recursive: true });
if (options.all) {
  for (const [width, height] of [[390, 844], [768, 1024], [1440, 900]]) {
    await page.setViewportSize({ width, height });
    for (const view of Object.keys(VIEWS)) {
      await open(view);
      for (const theme of ["light", "dark"]) {
        await page.emulateMedia({ colorScheme: theme });
        await page.waitForTimeout(150);
        await page.screenshot({ path: `${out}/${view}-${width}-${theme}.png`, fullPage: true });
      }
    }
  }
} else {
  for (const { view, width, height, theme } of SHOWN) {
    await page.setViewportSize({ width, height });
    await page.emulateMedia({ colorScheme: theme });
    await open(view);
    await page.screenshot({ path: `${out}/dashboard-${view}.png` });
  }
}
on = false;
await Promise.all(traffic);
await browser.close();
