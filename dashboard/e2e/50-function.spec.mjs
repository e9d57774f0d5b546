export default async function ({ step, check, until, newPage, login, open, api, accessible }) {
  const page = await newPage();
  step.page = page;
  await login(page);
  const invoke = (name, times = 1) =>
    page.evaluate(
      async ([name, times]) => {
        const { csrf } = await (await fetch("/v1/session")).json();
        for (let at = 0; at < times; at += 1) await (await fetch(`/v1/functions/${name}/invoke`, { method: "POST", headers: { "mote-csrf": csrf }, body: "x" })).text();
      },
      [name, times],
    );

  await step("function: the heat map measures calls as they come", async () => {
    await open(page, "functions/e2e-echo");
    await page.waitForSelector("canvas.heat");
    await invoke("e2e-echo", 20);
    await until(async () => /\d+ calls: median/.test(await page.textContent(".chart-summary")), "calls in the summary");
    await accessible(page);
  });
  await step("function: the heat map is read with the keyboard", async () => {
    await page.focus("canvas.heat");
    await page.keyboard.press("End");
    await until(async () => /\d\d:\d\d:\d\d: /.test(await page.textContent(".readout")), "the readout");
    await page.keyboard.press("Escape");
  });
  await step("function: the heat map as a table", async () => {
    await page.click("button[aria-label^='Show as table: latency']");
    await page.waitForSelector("[aria-label^='Table: latency'] tbody tr");
    check(/µs|ms/.test(await page.textContent("[aria-label^='Table: latency'] tbody")), "no times");
    await page.click("button[aria-label^='Show as table: latency']");
  });
  await step("function: rate and instances as lines and as tables", async () => {
    check((await page.locator(".chart-host canvas").count()) === 2, "no charts");
    for (const name of ["Calls per second", "Instances"]) {
      await page.click(`button[aria-label='Show as table: ${name}']`);
      await page.waitForSelector(`[aria-label='Table: ${name}'] tbody tr`);
    }
    await accessible(page);
    for (const name of ["Calls per second", "Instances"]) await page.click(`button[aria-label='Show as table: ${name}']`);
  });
  await step("function: an hour can be shown", async () => {
    await page.click(".segments button:has-text('1 h')");
    check((await page.getAttribute(".segments button:has-text('1 h')", "aria-pressed")) === "true", "not chosen");
    await page.waitForSelector("canvas.heat");
    await page.click(".segments button:has-text('5 min')");
  });
  await step("function: percentiles of each phase", async () => {
    const rows = await page.locator(".phases tbody tr").allTextContents();
    check(rows.length === 4 && /Run/.test(rows[3]) && /(µs|ms)/.test(rows[3]), rows.join());
  });
  await step("function: why instances start and stop", async () => {
    // Only instances that exist have a start here, and on a slow machine the last one may have gone.
    await invoke("e2e-echo");
    check(/Wanted now/.test(await page.textContent(".panel:has-text('Why instances start')")), "no decision");
    await page.waitForSelector("[aria-label='Starts and stops of e2e-echo'] .event-start .event-reason");
  });
  await step("function: advice of the node, as text", async () => {
    const advice = [{ code: "queue-full", text: "90 calls were refused <b>today</b>", section: "scale", change: "max = 2" }];
    await page.route(/\/v1\/functions\/e2e-echo$/, async (route) => {
      const answer = await route.fetch();
      await route.fulfill({ response: answer, json: { ...(await answer.json()), advice } });
    });
    const shown = page.locator(".panel:has-text('Advice')");
    await until(async () => /refused <b>today<\/b>.*\[scale\].*max = 2/s.test(await shown.textContent()), "the advice");
    await accessible(page);
    await page.unroute(/\/v1\/functions\/e2e-echo$/);
  });
  await step("function: revisions are listed", async () => {
    await open(page, "functions/e2e-echo/revisions");
    await page.waitForSelector("tbody tr:nth-child(2)");
    await accessible(page);
  });
  await step("function: sliders split the traffic to 100 %", async () => {
    await page.focus("#share-2");
    for (let at = 0; at < 30; at += 1) await page.keyboard.press("ArrowRight");
    check((await page.textContent("output[for=share-1]")) === "70 %", await page.textContent("output[for=share-1]"));
    await page.click("button[type=submit]:has-text('Apply')");
    await page.waitForSelector(".notice:has-text('@1 70 %')", { timeout: 30_000 });
    const detail = JSON.parse((await api(page, "GET", "/v1/functions/e2e-echo")).text);
    check(detail.traffic.some((one) => one.revision === 2 && one.percent === 30), JSON.stringify(detail.traffic));
  });
  await step("function: a tag reaches one revision", async () => {
    await page.selectOption("select", "2");
    await page.fill(".panel:has-text('Tag a revision') input", "next");
    await page.click("text=Set the tag");
    await page.waitForSelector(".notice:has-text('next')", { timeout: 30_000 });
  });
  await step("function: all traffic goes back after a question", async () => {
    await page.click("button[aria-label='Send all traffic here: revision 1']");
    await page.waitForSelector("dialog[open]");
    await accessible(page);
    await page.click("dialog[open] button[value=yes]");
    await page.waitForSelector(".notice:has-text('@1 100 %')", { timeout: 30_000 });
  });
  await step("function: its settings and addresses", async () => {
    await open(page, "functions/e2e-echo/settings");
    await page.waitForSelector("text=Memory of an instance");
    check(/\/e2e-echo/.test(await page.textContent(".panel:has-text('Where it can be called')")), "no address");
    await accessible(page);
  });
  await step("function: an address is copied", async () => {
    await page.click(".address button");
    await page.waitForSelector("[role=status]:has-text('Copied')", { state: "attached" });
    check(/\/e2e-echo$/.test(await page.evaluate(() => navigator.clipboard.readText())), "not copied");
  });
  await step("function: it is scaled by hand, and the bounds are taken back", async () => {
    await page.fill(".panel:has-text('Scale by hand') input >> nth=2", "1");
    await page.click("button:text-is('Scale')");
    await page.waitForSelector(".warning:has-text('Bounds set by hand')");
    await page.click("text=Use those of mote.toml");
    await until(async () => (await page.locator(".warning:has-text('Bounds set by hand')").count()) === 0, "the end of the bounds");
  });
  await step("function: state is added, with a hostile key", async () => {
    await api(page, "DELETE", "/v1/kv/e2e-echo");
    await open(page, "functions/e2e-echo/state");
    await page.waitForSelector("text=It keeps no state");
    await page.click("text=Add a key");
    await page.fill("form input", "<img src=x onerror=window.__hacked=8>");
    await page.fill("form textarea", "first");
    await page.click("button[type=submit]:has-text('Save')");
    await page.waitForSelector("tbody button:has-text('<img')");
    await accessible(page);
  });
  await step("function: state is changed and removed", async () => {
    await until(async () => (await page.inputValue("form textarea").catch(() => "")) === "first", "the value");
    await page.fill("form textarea", "second");
    await page.click("button[type=submit]:has-text('Save')");
    const key = encodeURIComponent("<img src=x onerror=window.__hacked=8>");
    await until(async () => (await api(page, "GET", `/v1/kv/e2e-echo/entry?key=${key}`)).text === "second", "the new value");
    await page.waitForSelector("[role=status]:has-text('Saved the key')", { state: "attached" });
    await page.click("button[aria-label^='Remove the key']");
    await page.click("dialog[open] button[value=yes]");
    await page.waitForSelector("text=It keeps no state");
  });
  await step("function: a value that changed meanwhile is not overwritten", async () => {
    page.allowed.push(/\/v1\/kv\//);
    await api(page, "PUT", "/v1/kv/e2e-echo/entry?key=k", "one");
    await page.fill("input[type=search]", "k");
    await page.click("tbody button:has-text('k')");
    await until(async () => (await page.inputValue("form textarea").catch(() => "")) === "one", "the value");
    await api(page, "PUT", "/v1/kv/e2e-echo/entry?key=k", "two");
    await page.fill("form textarea", "three");
    await page.click("button[type=submit]:has-text('Save')");
    await page.waitForSelector("text=changed by somebody else");
    await api(page, "DELETE", "/v1/kv/e2e-echo");
  });
  await step("function: schedules show when they run next", async () => {
    await open(page, "functions/e2e-echo/schedules");
    await page.waitForSelector("code:has-text('every 1h')");
    check(/in \d/.test(await page.textContent("tbody")), "no next run");
    await accessible(page);
  });
  await step("function: a call that failed for good is a dead letter and runs again", async () => {
    page.allowed.push(/e2e-fails/);
    await api(page, "POST", "/v1/functions/e2e-fails/invoke", "x", { prefer: "respond-async" });
    await open(page, "functions/e2e-fails/calls");
    await page.waitForSelector("td:has-text('dead letter')", { timeout: 30_000 });
    await accessible(page);
    await page.click("button[aria-label^='Run again']");
    await page.waitForSelector("[role=status]:has-text('It waits to run again')", { state: "attached" });
    await page.waitForSelector("td:has-text('dead letter')", { timeout: 30_000 });
  });
  await step("function: failed and slow calls are found among the recorded ones", async () => {
    const rows = page.locator("[aria-label='Recent calls of e2e-fails'] tbody tr");
    await until(async () => (await rows.count()) > 0, "recorded calls");
    await page.selectOption(".panel:has-text('Recent calls') select", "failed");
    await until(async () => (await rows.count()) > 0 && (await rows.allTextContents()).every((text) => /failed/.test(text)), "only failed calls");
    await accessible(page);
    await page.selectOption(".panel:has-text('Recent calls') select", { index: 2 });
    await page.waitForSelector("text=No slow call is kept.");
    await page.selectOption(".panel:has-text('Recent calls') select", "all");
  });
  await step("function: dead letters are deleted after a question", async () => {
    await page.click("text=Delete all dead letters");
    await page.click("dialog[open] button[value=yes]");
    await until(async () => (await page.locator("td:has-text('dead letter')").count()) === 0, "no dead letters");
  });
}
