// Drives the dashboard of a running node in Chromium.
//
//   node dashboard/e2e/run.mjs --base http://127.0.0.1:6684 --code-command "mote dashboard --print" [--only NAME] [--shots DIR] [--quiet]
//
// The command prints the address with a one-time code (or the code alone); it must have the rights
// of an operator. One line is printed for each step. The exit code is 1 if a step failed.
// With --quiet, tasks and frames must be as short as a user wants them, which needs a machine that
// does nothing else.
// Functions that the steps deploy begin with `e2e-`; they are removed at the end.

import { execFile } from "node:child_process";
import { mkdir, readdir, readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { parseArgs, promisify } from "node:util";
import { chromium } from "playwright-core";

const { values: options } = parseArgs({
  options: {
    base: { type: "string" },
    "code-command": { type: "string" },
    chromium: { type: "string", default: "/usr/bin/chromium" },
    only: { type: "string" },
    shots: { type: "string" },
    quiet: { type: "boolean", default: false },
  },
});
if (!options.base || !options["code-command"]) {
  console.error("usage: run.mjs --base URL --code-command COMMAND [--chromium FILE] [--only NAME] [--shots DIR]");
  process.exit(2);
}
const base = options.base.replace(/\/$/, "");
const axe = await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const browser = await chromium.launch({ executablePath: options.chromium, args: ["--no-sandbox"] });

let done = 0;
let failed = 0;
/** What no step may cause: errors of scripts, violations of the policy, requests to other hosts. */
const faults = [];
/** Answers that a step expects; the browser writes them to the console as errors. */
const EXPECTED = /\/v1\/(session$|traces\?)/;

async function newPage(settings = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, reducedMotion: "reduce", ...settings });
  await context.grantPermissions(["clipboard-read", "clipboard-write"], { origin: base }).catch(() => undefined);
  await context.addInitScript(() => {
    addEventListener("securitypolicyviolation", (event) => console.error(`policy: ${event.violatedDirective} ${event.blockedURI} ${event.sample}`));
  });
  const page = await context.newPage();
  page.allowed = [];
  page.hosts = [base];
  page.setDefaultTimeout(10_000);
  page.on("console", (message) => {
    if (message.type() !== "error") return;
    const where = message.location().url ?? "";
    if (/Failed to load resource/.test(message.text()) && (EXPECTED.test(where) || page.allowed.some((one) => one.test(where)))) return;
    faults.push(`console: ${message.text()} (${where})`);
  });
  page.on("pageerror", (error) => faults.push(`script: ${error.message}`));
  page.on("request", (request) => {
    const url = request.url();
    if (!page.hosts.some((host) => url.startsWith(host)) && !/^(data|blob):/.test(url)) faults.push(`request to another host: ${url}`);
  });
  page.on("dialog", (dialog) => {
    faults.push(`dialog: ${dialog.message()}`);
    void dialog.dismiss();
  });
  return page;
}

async function code() {
  const { stdout } = await promisify(execFile)("sh", ["-c", options["code-command"]]);
  const found = /#code=([\w.~-]+)/.exec(stdout)?.[1] ?? /"code"\s*:\s*"([^"]+)"/.exec(stdout)?.[1] ?? stdout.trim();
  if (!found) throw new Error("the command printed no code");
  return found;
}

async function login(page) {
  await page.goto(`${base}/dashboard/#code=${await code()}`);
  await page.waitForSelector("nav[aria-label=Views]");
}

async function open(page, path) {
  await page.evaluate((hash) => (location.hash = hash), `#/${path}`);
  await page.waitForSelector("main h1");
}

/** Calls the node with the session of the page. */
async function api(page, method, path, body, headers = {}) {
  return page.evaluate(
    async ([method, path, body, headers]) => {
      const { csrf } = await (await fetch("/v1/session")).json();
      const answer = await fetch(path, { method, headers: { "mote-csrf": csrf, ...headers }, ...(body === null ? {} : { body }) });
      return { status: answer.status, text: await answer.text() };
    },
    [method, path, body ?? null, headers],
  );
}

function check(value, text) {
  if (!value) throw new Error(text);
}

/** Waits until the condition holds, by asking again. */
async function until(condition, text, most = 10_000) {
  const end = Date.now() + most;
  for (;;) {
    if (await condition()) return;
    if (Date.now() > end) throw new Error(`${text} did not happen in ${most / 1000} s`);
    await new Promise((next) => setTimeout(next, 100));
  }
}

async function accessible(page) {
  if (!(await page.evaluate(() => "axe" in globalThis))) await page.evaluate(axe);
  const found = await page.evaluate(async () => {
    const tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];
    const result = await globalThis.axe.run(document, { runOnly: { type: "tag", values: tags } });
    return result.violations.map((one) => `${one.id}: ${one.nodes.slice(0, 3).map((node) => `${node.target.join(" ")} ${node.failureSummary?.split("\n")[1]?.trim() ?? ""}`).join("; ")}`);
  });
  check(found.length === 0, `axe: ${found.join(" | ")}`);
}

/** The longest frame, in milliseconds. A user notices a longer one while he types or scrolls. */
const FRAME_MAX_MS = 50;
/**
 * The longest task on a machine that does other things as well. Such a machine takes up to three
 * times the processor time. A page that handles all lines at once would take more still.
 */
const BUSY_TASK_MAX_MS = 200;

/**
 * Does something with the page, and fails if one task takes too long. The time is that on the
 * processor, because the machine may do other things at the same time; frames by the clock are printed.
 */
async function smooth(page, work) {
  await page.evaluate(() => {
    globalThis.__frames = [];
    new PerformanceObserver((list) => globalThis.__frames.push(...list.getEntries().map((one) => one.duration))).observe({ type: "long-animation-frame" });
  });
  await browser.startTracing(page, { categories: ["toplevel"] });
  await work();
  const { traceEvents } = JSON.parse(await browser.stopTracing());
  const threads = new Set(traceEvents.filter((one) => one.name === "thread_name" && one.args.name === "CrRendererMain").map((one) => `${one.pid} ${one.tid}`));
  const tasks = traceEvents.filter((one) => one.ph === "X" && /RunTask/.test(one.name) && threads.has(`${one.pid} ${one.tid}`)).map((one) => (one.tdur ?? 0) / 1000);
  const longest = Math.max(...tasks);
  const frames = await page.evaluate(() => globalThis.__frames);
  const slowest = Math.max(0, ...frames);
  console.log(`     ${tasks.length} tasks, the longest took ${longest.toFixed(1)} ms of the processor; ${frames.length} frames took more than 50 ms by the clock${frames.length ? `, the longest ${slowest.toFixed(0)} ms` : ""}`);
  check(tasks.length > 100 && longest < (options.quiet ? FRAME_MAX_MS : BUSY_TASK_MAX_MS), "a task blocked the page");
  check(!options.quiet || slowest <= FRAME_MAX_MS, "a frame was late by the clock");
}

const STEP_MAX_MS = 90_000;

async function step(name, work) {
  const before = faults.length;
  const began = Date.now();
  let timer;
  try {
    await Promise.race([
      work(),
      new Promise((_, fail) => {
        timer = setTimeout(() => fail(new Error(`the step takes longer than ${STEP_MAX_MS / 1000} s`)), STEP_MAX_MS);
      }),
    ]);
    if (faults.length > before) throw new Error(faults.slice(before).join("; "));
    done += 1;
    console.log(`ok   ${name} (${Date.now() - began} ms)`);
  } catch (error) {
    failed += 1;
    const text = String(error.message ?? error).split("\n").slice(0, 6).join(" / ");
    console.log(`FAIL ${name}: ${text}`);
    if (options.shots && step.page && !step.page.isClosed()) {
      await mkdir(options.shots, { recursive: true });
      await step.page.screenshot({ timeout: 5000, path: `${options.shots}/fail-${name.replace(/\W+/g, "-")}.png` }).catch(() => undefined);
    }
  } finally {
    clearTimeout(timer);
  }
}

const tools = { base, browser, step, check, until, newPage, code, login, open, api, accessible, smooth, faults, shots: options.shots };
const specs = (await readdir(new URL(".", import.meta.url))).filter((file) => file.endsWith(".spec.mjs")).sort();
for (const file of specs) {
  if (options.only && !file.includes(options.only) && !file.startsWith("20-")) continue;
  const { default: run } = await import(new URL(file, import.meta.url));
  const before = browser.contexts().length;
  try {
    await run(tools);
  } catch (error) {
    failed += 1;
    console.log(`FAIL ${file}: ${error.message}`);
  }
  for (const context of browser.contexts().slice(before)) await context.close();
}
await browser.close();
console.log(`${done} steps passed, ${failed} failed`);
process.exit(failed > 0 ? 1 : 0);
