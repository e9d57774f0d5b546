// A network that is slow, stands still or breaks off, between the browser and a real node.

import { connect, createServer } from "node:net";

/** Passes bytes on as `mode` says, which may change at any time. */
async function proxy(target) {
  const { hostname, port } = new URL(target);
  const pairs = new Set();
  const state = { mode: "pass", delay: 0 };
  const server = createServer((inner) => {
    if (state.mode === "drop" || (state.mode === "flaky" && Math.random() < 0.5)) return inner.destroy();
    const outer = connect(Number(port), hostname);
    const pair = [inner, outer];
    pairs.add(pair);
    const end = () => {
      pairs.delete(pair);
      for (const one of pair) one.destroy();
    };
    for (const [from, into] of [[inner, outer], [outer, inner]]) {
      let last = Promise.resolve();
      from.on("data", (bytes) => {
        from.pause();
        last = last
          .then(() => (state.delay ? new Promise((next) => setTimeout(next, state.delay)) : undefined))
          .then(() => {
            if (state.mode === "stall") return; // the bytes and the connection are lost silently
            if (state.mode === "flaky" && Math.random() < 0.3) return end();
            if (!into.destroyed) into.write(bytes);
            from.resume();
          });
      });
      from.on("error", end);
      from.on("close", () => {
        if (state.mode !== "stall") end();
      });
    }
  });
  await new Promise((next) => server.listen(0, "127.0.0.1", next));
  return {
    base: `http://127.0.0.1:${server.address().port}`,
    set(mode, delay = 0) {
      state.mode = mode;
      state.delay = delay;
      if (mode === "drop") for (const pair of pairs) for (const one of pair) one.destroy();
    },
    async close() {
      for (const pair of pairs) for (const one of pair) one.destroy();
      await new Promise((next) => server.close(next));
    },
  };
}

const NAME = "e2e-network";

export default async function ({ base, step, check, until, newPage, code, login, open, api, accessible }) {
  const direct = await newPage();
  await login(direct);
  direct.allowed.push(/\/v1\//);
  const way = await proxy(base);
  const page = await newPage();
  step.page = page;
  page.hosts = [way.base];
  page.allowed.push(/./);
  await page.goto(`${way.base}/dashboard/#code=${await code()}`);
  await page.waitForSelector("nav[aria-label=Views]");
  await page.evaluate(() => (globalThis.__mark = 1));
  const connection = () => page.textContent(".connection");
  const isLive = () => until(async () => /live/.test(await connection()), "the return", 30_000);
  const isLost = async (most) => {
    const began = Date.now();
    await until(async () => /does not answer/.test(await connection()), "the loss", most);
    return Date.now() - began;
  };
  const isSame = async () => check(await page.evaluate(() => globalThis.__mark === 1), "the page was loaded again");
  let number = 0;
  const say = async () => {
    number += 1;
    const text = `network line ${number}.`;
    check((await api(direct, "POST", `/v1/functions/${NAME}/invoke`, text)).status === 200, "the call failed");
    return text;
  };
  const lines = () => page.locator(".log-text:has-text('network line')").allTextContents();

  await step("network: with answers that take a second, every view is read", async () => {
    await open(direct, "deploy");
    await direct.setInputFiles("input[aria-label=Files]", { name: "e2e_network.py", mimeType: "text/plain", buffer: Buffer.from("def handle(event):\n    print(event.text)\n    return ''\n") });
    await direct.click("button[type=submit]:has-text('Deploy')");
    await direct.waitForSelector(`.outcome .notice:has-text('${NAME}@')`, { timeout: 30_000 });
    way.set("pass", 500);
    for (const view of ["", "functions", `functions/${NAME}`, `functions/${NAME}/calls`, "access/tokens"]) {
      await open(page, view);
      await until(() => page.evaluate(() => !document.querySelector("main .loading")), `the end of reading in ${view}`, 20_000);
      check(/live/.test(await connection()), `${view}: ${await connection()}`);
      check((await page.locator(".failure").count()) === 0, `${view} shows a failure`);
    }
    way.set("pass");
  });
  for (const mode of ["stall", "drop"]) {
    await step(`network: ${mode === "stall" ? "a connection that stands still" : "a node that refuses connections"} is said, what is shown stays, and the log goes on without a reload`, async () => {
      await open(page, `functions/${NAME}/logs`);
      const first = await say();
      await page.waitForSelector(`.log-text:has-text('${first}')`);
      way.set(mode);
      const lostAfter = await isLost(20_000);
      const between = [await say(), await say()];
      check((await lines()).includes(first), "the lines are gone");
      await accessible(page);
      await open(page, "functions");
      await page.waitForSelector(`a:has-text('${NAME}')`);
      await open(page, `functions/${NAME}/logs`);
      way.set("pass");
      const began = Date.now();
      await isLive();
      const after = await say();
      await page.waitForSelector(`.log-text:has-text('${after}')`, { timeout: 20_000 });
      console.log(`     said after ${lostAfter} ms, back after ${Date.now() - began} ms`);
      const all = await lines();
      for (const text of [first, ...between, after]) check(all.filter((one) => one === text).length === 1, `${text} is there ${all.filter((one) => one === text).length} times`);
      await isSame();
    });
  }
  await step("network: a log that was open during a break has each line once", async () => {
    await open(page, `functions/${NAME}/logs`);
    const before = await say();
    await page.waitForSelector(`.log-text:has-text('${before}')`);
    for (const mode of ["drop", "stall"]) {
      way.set(mode);
      await isLost(20_000);
      await say();
      way.set("pass");
      await isLive();
    }
    const last = await say();
    await page.waitForSelector(`.log-text:has-text('${last}')`, { timeout: 20_000 });
    const all = await lines();
    const expected = Array.from({ length: number }, (_, at) => `network line ${at + 1}.`);
    check(JSON.stringify(all) === JSON.stringify(expected), all.join(" "));
    await isSame();
  });
  await step("network: connections that break off again and again do no harm", async () => {
    way.set("flaky", 20);
    for (const view of ["", "functions", `functions/${NAME}`, `functions/${NAME}/logs`, "access/keys", `functions/${NAME}/calls`]) {
      await open(page, view);
      await page.waitForTimeout(1500); // measured: a time in which connections break off
    }
    way.set("pass");
    await isLive();
    await until(async () => (await page.locator("main .loading, main .failure").count()) === 0, "the answers", 30_000);
    await isSame();
  });
  await step("network: logging in while the node cannot be reached is explained", async () => {
    const late = await newPage();
    step.page = late;
    late.hosts = [way.base];
    late.allowed.push(/./);
    await late.goto(`${way.base}/dashboard/`);
    await late.waitForSelector("input[type=password]");
    way.set("drop");
    await late.fill("input[type=password]", "anything");
    await late.keyboard.press("Enter");
    await late.waitForSelector(".failure:has-text('Not reached')");
    way.set("pass");
    await late.context().close();
    step.page = page;
  });
  await api(direct, "DELETE", `/v1/functions/${NAME}`);
  await page.context().close();
  await way.close();
}
