const VIEWS = ["", "functions", "functions/e2e-echo", "functions/e2e-hostile/logs", "functions/e2e-fails/calls", "functions/e2e-echo/revisions", "functions/e2e-echo/settings", "functions/e2e-echo/state", "functions/e2e-echo/schedules", "try/e2e-echo", "deploy", "access/keys", "access/tokens", "access/secrets", "access/namespaces", "access/audit", "fleet"];

export default async function ({ step, check, until, newPage, login, open, api, accessible, shots }) {
  const page = await newPage();
  step.page = page;
  await login(page);

  await step("state: a node that does not answer is said, and its return too", async () => {
    page.allowed.push(/\/v1\//);
    await page.route("**/v1/**", (route) => route.abort());
    await page.waitForSelector(".connection:has-text('does not answer')", { timeout: 20_000 });
    await accessible(page);
    await page.unroute("**/v1/**");
    await page.waitForSelector(".connection:has-text('live')", { timeout: 40_000 });
  });
  await step("state: while the node does not answer, the page asks less and less", async () => {
    let asked = 0;
    await page.route("**/v1/functions?view=summary", (route) => {
      asked += 1;
      return route.abort();
    });
    await page.waitForSelector(".connection:has-text('does not answer')", { timeout: 20_000 });
    const before = asked;
    await new Promise((next) => setTimeout(next, 8000)); // measured: a page without growing pauses asks four times
    check(asked - before <= 2, `${asked - before} requests in 8 s`);
    await page.unroute("**/v1/functions?view=summary");
    await page.reload();
    await page.waitForSelector("nav[aria-label=Views]");
  });
  await step("state: the page reports that requests are too many, and waits as long as the node asks", async () => {
    let asked = 0;
    await page.route("**/v1/functions?view=summary", (route) => {
      asked += 1;
      return route.fulfill({ status: 429, headers: { "retry-after": "30", "content-type": "application/problem+json" }, body: JSON.stringify({ code: "M1409", detail: "too many requests", status: 429 }) });
    });
    await page.reload();
    await page.waitForSelector(".connection:has-text('fewer requests')", { timeout: 20_000 });
    const before = asked;
    await new Promise((next) => setTimeout(next, 5000)); // measured: a page that does not wait asks twice
    check(asked === before, `${asked - before} requests in 5 s`);
    await page.waitForSelector(".connection:has-text('fewer requests')", { timeout: 1000 });
    await page.unroute("**/v1/functions?view=summary");
    await page.reload();
    await page.waitForSelector("nav[aria-label=Views]");
  });
  await step("state: a hidden tab asks nothing", async () => {
    await open(page, "functions/e2e-echo");
    await page.waitForSelector("canvas.heat");
    await page.evaluate(() => {
      Object.defineProperty(document, "hidden", { configurable: true, get: () => globalThis.__hidden === true });
      globalThis.__hidden = true;
      document.dispatchEvent(new Event("visibilitychange"));
    });
    await new Promise((next) => setTimeout(next, 300)); // measured: answers on their way
    let asked = 0;
    const listen = () => (asked += 1);
    page.on("request", listen);
    await new Promise((next) => setTimeout(next, 5000)); // measured: a visible tab asks about eight times
    check(asked === 0, `${asked} requests`);
    await page.evaluate(() => {
      globalThis.__hidden = false;
      document.dispatchEvent(new Event("visibilitychange"));
    });
    await until(() => asked > 0, "requests of the visible tab");
    page.off("request", listen);
  });
  await step("state: memory does not grow while views change", async () => {
    const session = await page.context().newCDPSession(page);
    const used = async () => {
      await session.send("HeapProfiler.collectGarbage");
      return (await session.send("Runtime.getHeapUsage")).usedSize;
    };
    const round = async () => {
      for (const view of ["", "functions", "functions/e2e-echo", "functions/e2e-hostile/logs", "functions/e2e-echo/revisions", "access/tokens"]) {
        await open(page, view);
        await page.waitForTimeout(60);
      }
    };
    for (let at = 0; at < 3; at += 1) await round();
    const before = await used();
    for (let at = 0; at < 15; at += 1) await round();
    const after = await used();
    console.log(`     heap before ${(before / 1e6).toFixed(1)} MB, after ${(after / 1e6).toFixed(1)} MB`);
    check(after < before * 1.35 + 1_000_000, `from ${before} to ${after} bytes`);
  });

  for (const width of [320, 360, 768, 1280]) {
    await step(`layout: no view is wider than ${width} px`, async () => {
      await page.setViewportSize({ width, height: 800 });
      const wide = [];
      for (const view of VIEWS) {
        await open(page, view);
        await until(() => page.evaluate(() => !document.querySelector("main .loading")), `the end of reading in ${view || "node"}`);
        const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
        if (over > 0) wide.push(`${view || "node"}: ${over} px`);
        if (shots) {
          for (const theme of ["light", "dark"]) {
            await page.emulateMedia({ colorScheme: theme });
            await page.screenshot({ path: `${shots}/${(view || "node").replaceAll("/", "-")}-${width}-${theme}.png`, fullPage: true });
          }
        }
      }
      check(wide.length === 0, wide.join(", "));
    });
  }
  for (const theme of ["light", "dark"]) {
    await step(`layout: every view is accessible at 360 px, ${theme}`, async () => {
      await page.setViewportSize({ width: 360, height: 800 });
      await page.emulateMedia({ colorScheme: theme });
      const wrong = [];
      for (const view of VIEWS) {
        await open(page, view);
        await until(() => page.evaluate(() => !document.querySelector("main .loading")), `the end of reading in ${view || "node"}`);
        await accessible(page).catch((error) => wrong.push(`${view || "node"}: ${error.message}`));
      }
      check(wrong.length === 0, wrong.join(" || "));
    });
  }
  await step("layout: less motion is respected", async () => {
    await page.emulateMedia({ reducedMotion: "reduce", colorScheme: "light" });
    const moving = await page.evaluate(() => document.getAnimations().filter((one) => one.playState === "running").length);
    check(moving === 0, `${moving} animations`);
  });
  await step("keyboard: every stop in the function's page is visible and has a name", async () => {
    await page.setViewportSize({ width: 1280, height: 900 });
    await open(page, "functions/e2e-echo");
    await page.waitForSelector("canvas.heat");
    await page.evaluate(() => document.activeElement?.blur());
    const wrong = [];
    for (let at = 0; at < 30; at += 1) {
      await page.keyboard.press("Tab");
      const one = await page.evaluate(() => {
        const element = document.activeElement;
        if (!element || element === document.body) return undefined;
        const name = element.getAttribute("aria-label") ?? element.textContent?.trim() ?? "";
        const style = getComputedStyle(element);
        return { name, tag: element.tagName, outline: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0 };
      });
      if (one && (!one.name || !one.outline)) wrong.push(JSON.stringify(one));
    }
    check(wrong.length === 0, wrong.join());
  });
  await step("a function is removed after a question", async () => {
    await open(page, "functions/e2e-single/settings");
    await page.click("[aria-label='Remove e2e-single']");
    await page.click("dialog[open] button[value=yes]");
    await page.waitForSelector("h1:has-text('Functions')");
    page.allowed.push(/e2e-/);
    check((await api(page, "GET", "/v1/functions/e2e-single")).status === 404, "it is still there");
  });
  await step("no script of a function, caller or file has run", async () => {
    check((await page.evaluate(() => globalThis.__hacked)) === undefined, "a script ran");
  });
  for (const name of ["e2e-hostile", "e2e-fails", "e2e-echo", "e2e-single", "e2e-written"]) await api(page, "DELETE", `/v1/functions/${name}`);
}
