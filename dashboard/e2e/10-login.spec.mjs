import { gzipSync } from "node:zlib";

export default async function ({ base, step, check, until, newPage, code, login, open, accessible }) {
  const page = await newPage();
  step.page = page;

  await step("login: the root leads to the dashboard", async () => {
    await page.goto(`${base}/`);
    check(new URL(page.url()).pathname === "/dashboard/", page.url());
    await page.waitForSelector("form");
  });
  await step("login: the headers of the page protect it", async () => {
    const answer = await page.request.get(`${base}/dashboard/`);
    const headers = answer.headers();
    const policy = headers["content-security-policy"] ?? "";
    for (const part of ["default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'", "base-uri 'none'", "connect-src 'self'"]) check(policy.includes(part), `policy lacks ${part}: ${policy}`);
    check(!/unsafe|\*/.test(policy), `policy is weak: ${policy}`);
    check(headers["x-content-type-options"] === "nosniff", "no nosniff");
    check(headers["x-frame-options"] === "DENY", "no X-Frame-Options");
    check(headers["referrer-policy"] === "no-referrer", "no Referrer-Policy");
  });
  await step("login: there is no data without a session", async () => {
    check((await page.request.get(`${base}/v1/functions`)).status() === 401, "functions without a login");
  });
  await step("login: the first view is at most 150 KB compressed", async () => {
    const html = await (await page.request.get(`${base}/dashboard/`)).text();
    let size = gzipSync(html).length;
    for (const [, url] of html.matchAll(/(?:src|href)="([^"]+\.(?:js|css|svg))"/g)) size += gzipSync(await (await page.request.get(base + url)).body()).length;
    check(size < 150_000, `${size} bytes`);
  });
  await step("login: the page is accessible", () => accessible(page));
  await step("login: the field has the focus and the button is off without a token", async () => {
    check((await page.evaluate(() => document.activeElement?.type)) === "password", "no focus");
    check(await page.locator("button[type=submit]").isDisabled(), "button is on");
  });
  await step("login: a wrong token is explained", async () => {
    await page.fill("input[type=password]", "not-a-token");
    await page.keyboard.press("Enter");
    await page.waitForSelector("[role=alert]");
    const text = await page.textContent("[role=alert]");
    check(/does not know this token|too many wrong tokens/.test(text), text);
  });
  await step("login: a code that does not exist is explained", async () => {
    await page.goto("about:blank");
    await page.goto(`${base}/dashboard/#code=0000000000000000`);
    await page.waitForSelector(".notice");
    check(/expired or was used/.test(await page.textContent(".notice")), "no text");
  });
  let used;
  await step("login: a one-time code logs in and leaves the address", async () => {
    used = await code();
    await page.goto("about:blank");
    await page.goto(`${base}/dashboard/#code=${used}`);
    await page.waitForSelector("nav[aria-label=Views]");
    check(!page.url().includes(used), page.url());
    check((await page.textContent("h1")) === "Node", "not the start");
  });
  await step("login: the cookie is HttpOnly and SameSite=Strict", async () => {
    const cookie = (await page.context().cookies()).find((one) => one.name.startsWith("mote-session"));
    check(cookie?.httpOnly && cookie.sameSite === "Strict", JSON.stringify(cookie));
    check((await page.evaluate(() => document.cookie)) === "", "a script sees the cookie");
    check(await page.evaluate((secret) => !JSON.stringify({ ...localStorage, ...sessionStorage }).includes(secret), cookie.value), "the secret is in the storage");
  });
  await step("login: a code works once", async () => {
    const other = await newPage();
    await other.goto(`${base}/dashboard/#code=${used}`);
    await other.waitForSelector(".notice");
    check((await other.locator("nav[aria-label=Views]").count()) === 0, "logged in twice");
    await other.context().close();
  });
  await step("login: the session survives a reload", async () => {
    await page.reload();
    await page.waitForSelector("nav[aria-label=Views]");
  });
  await step("login: a change without the session's value is refused", async () => {
    page.allowed.push(/functions\/none/);
    const status = await page.evaluate(async () => (await fetch("/v1/functions/none", { method: "DELETE" })).status);
    check(status === 403, `status ${status}`);
  });
  await step("login: logging out ends the session at once", async () => {
    await open(page, "functions");
    await page.click("button[aria-label='Log out']");
    await page.waitForSelector("form");
    check(/logged out/.test(await page.textContent(".notice")), "no text");
    await until(async () => (await page.request.get(`${base}/v1/functions`)).status() === 401, "the end of the session");
    await page.reload();
    await page.waitForSelector("form");
  });
  await step("login: the first view is ready soon after a cold start, on a fast and on a slow line", async () => {
    for (const [what, line, slower] of [
      ["this machine", undefined, 1],
      ["10 Mbit/s, 40 ms, a processor of a quarter of the speed", { offline: false, latency: 40, downloadThroughput: 1_250_000, uploadThroughput: 1_250_000 }, 4],
    ]) {
      // A new context has an empty cache.
      const fresh = await newPage();
      const tools = await fresh.context().newCDPSession(fresh);
      if (line) {
        await tools.send("Network.enable");
        await tools.send("Network.emulateNetworkConditions", line);
        await tools.send("Emulation.setCPUThrottlingRate", { rate: slower });
      }
      await fresh.addInitScript(() => {
        globalThis.__long = [];
        new PerformanceObserver((list) => globalThis.__long.push(...list.getEntries().map((one) => one.startTime + one.duration))).observe({ type: "longtask", buffered: true });
        new MutationObserver(() => {
          // The navigation can be used, and the figures of the node are there.
          globalThis.__seen ??= /\d/.test(document.querySelector(".stat-value")?.textContent ?? "") ? performance.now() : undefined;
        }).observe(document, { childList: true, subtree: true, characterData: true });
      });
      await fresh.goto(`${base}/dashboard/#code=${await code()}`);
      await fresh.waitForFunction(() => globalThis.__seen !== undefined);
      const { paint, ready, bytes } = await fresh.evaluate(() => ({
        paint: performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? 0,
        // A task that is still running when the figures appear delays the first click.
        ready: Math.max(globalThis.__seen, ...globalThis.__long.filter((end) => end - globalThis.__seen < 500)),
        bytes: performance.getEntries().reduce((sum, one) => sum + (one.transferSize ?? 0), 0),
      }));
      console.log(`     ${what}: first paint after ${paint.toFixed(0)} ms, ready after ${ready.toFixed(0)} ms, ${bytes} bytes`);
      check(ready < 5000, `ready after ${ready} ms`);
      await fresh.context().close();
    }
  });
  await step("login: colours can be chosen and are kept", async () => {
    await page.click("button[aria-label^=Colours]");
    await page.click("button[aria-label^=Colours]");
    check((await page.getAttribute("html", "data-theme")) === "dark", "not dark");
    await page.reload();
    await page.waitForSelector("form");
    check((await page.getAttribute("html", "data-theme")) === "dark", "not kept");
    await accessible(page);
  });
  await login(page);
}
