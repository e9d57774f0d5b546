import { readFile } from "node:fs/promises";

const LINES = 100_000;

export default async function ({ step, check, until, newPage, login, open, api, accessible, smooth }) {
  const page = await newPage();
  step.page = page;
  await login(page);
  const texts = () => page.locator(".log-text").allTextContents();

  await step("logs: lines are live and text, whatever they contain", async () => {
    await open(page, "functions/e2e-hostile/logs");
    await page.waitForSelector(".log-line");
    await api(page, "POST", "/v1/functions/e2e-hostile/invoke");
    await page.waitForSelector(".log-text:has-text('<img src=x onerror=')");
    const all = (await texts()).join("\n");
    check(all.includes("</pre><script>window.__hacked=2</script>"), "the script is not shown as text");
    check((await page.locator(".log-list img, .log-list script").count()) === 0, "a line became an element");
    check((await page.evaluate(() => globalThis.__hacked)) === undefined, "a script ran");
  });
  await step("logs: colour codes are left out, and text that turns round is made visible", async () => {
    const line = (await texts()).find((text) => text.includes("javascript:"));
    check(line?.startsWith("red ") && !/[\u001b\u202e]/.test(line), line);
  });
  await step("logs: the page is accessible", () => accessible(page));
  await step("logs: the search finds text and expressions", async () => {
    await page.fill("input[type=search]", "onerror");
    await until(async () => (await texts()).length > 0 && (await texts()).every((text) => text.includes("onerror")), "only lines that fit");
    await page.fill("input[type=search]", "/^red .*alert/");
    await until(async () => (await texts()).length > 0 && (await texts()).every((text) => text.startsWith("red")), "lines of the expression");
    await page.fill("input[type=search]", "nothing fits this");
    await page.waitForSelector("text=No line fits.");
    await page.fill("input[type=search]", "");
  });
  await step("logs: lines of mote look different from lines of the function", async () => {
    await page.selectOption("select >> nth=1", "platform");
    await until(async () => (await page.locator(".log-from-stdout").count()) === 0 && (await texts()).length > 0, "only lines of mote");
    await page.selectOption("select >> nth=1", "");
  });
  await step("logs: a level is a lower bound", async () => {
    await page.selectOption("select >> nth=0", "error");
    await until(async () => (await page.locator(".log-info").count()) === 0, "no line with info");
    await page.selectOption("select >> nth=0", "");
  });
  await step("logs: the lines are saved as a file of JSON lines", async () => {
    const waiting = page.waitForEvent("download");
    await page.click("button:text-is('Save')");
    const download = await waiting;
    const lines = (await readFile(await download.path(), "utf8")).split("\n");
    check(download.suggestedFilename() === "e2e-hostile.jsonl" && JSON.parse(lines[0]).function === "e2e-hostile", lines[0]);
  });
  await step("logs: a chosen line is shown whole, and the arrows move", async () => {
    await page.locator(".log-open").last().click();
    await page.waitForSelector(".log-message");
    const before = await page.textContent(".log-message");
    await page.keyboard.press("ArrowUp");
    await until(async () => (await page.textContent(".log-message")) !== before, "another line");
    await accessible(page);
    await page.click("button:text-is('Close')");
  });
  await step("logs: the lines of one call, from a line", async () => {
    await page.locator(".log-open:has-text('onerror')").last().click();
    await page.click("text=Only its lines");
    await page.waitForSelector(".chip");
    check(page.url().includes("invocation="), page.url());
    await until(async () => (await texts()).length === 3, "three lines");
    await page.click(".chip");
  });
  await step("call: a line leads to its call and the lines of that call", async () => {
    await page.waitForSelector(".log-call");
    await page.locator(".log-call").last().click();
    await page.waitForSelector("h1:has-text('Call ')");
    await page.waitForSelector(".log-text:has-text('onerror')");
    check((await page.locator(".log-line").count()) === 3, "other lines, too");
    await accessible(page);
  });
  await step("call: the phases are shown, or why there is no trace", async () => {
    await until(async () => (await page.locator(".waterfall tbody tr").count()) > 0 || /no trace/.test(await page.textContent("main")), "phases or a reason");
  });
  await step("logs: lines that the page does not have are searched by the node", async () => {
    page.allowed.push(/e2e-many/);
    await api(page, "DELETE", "/v1/functions/e2e-many");
    // A second has at most 5,000 lines of an instance.
    const code = "import time\ndef handle(event):\n    for part in range(3):\n        for at in range(4000):\n            print(f'Number {part * 4000 + at} of many')\n        time.sleep(1.1)\n    return ''\n";
    await open(page, "deploy");
    await page.setInputFiles("input[aria-label=Files]", { name: "e2e_many.py", mimeType: "text/plain", buffer: Buffer.from(code) });
    await page.click("button[type=submit]:has-text('Deploy')");
    await page.waitForSelector(".outcome .notice:has-text('e2e-many@')", { timeout: 30_000 });
    check((await api(page, "POST", "/v1/functions/e2e-many/invoke")).status === 200, "the call failed");
    await open(page, "functions/e2e-many/logs");
    await until(async () => /10,000 lines/.test(await page.textContent(".log-count")), "the newest lines");
    await page.fill("input[type=search]", "number 77 of");
    await page.waitForSelector(".log-text:has-text('Number 77 of many')");
    check(/searched by the node/.test(await page.textContent(".log-count")), await page.textContent(".log-count"));
    await page.fill("input[type=search]", "/number 77 of/");
    await page.waitForSelector("text=No line fits.");
    check(/in these only/.test(await page.textContent(".log-count")), await page.textContent(".log-count"));
    await accessible(page);
    await page.fill("input[type=search]", "");
    await page.selectOption("select >> nth=0", "warn");
    await until(async () => /0 lines, searched/.test((await page.textContent(".log-count")).replace("0 of ", "")), "no warning");
    await page.selectOption("select >> nth=0", "");
    await until(async () => (await texts()).length > 0, "the newest lines again");
    // A stream that was put off goes on.
    await page.click("text=Read older lines");
    await until(async () => /12,\d\d\d lines/.test(await page.textContent(".log-count")), "all lines");
    for (const height of [400, 2000, 900]) {
      await page.setViewportSize({ width: 1280, height });
      await until(() => page.evaluate(() => {
        const box = [...document.querySelectorAll(".log-list")].at(-1);
        return box.scrollHeight - box.scrollTop - box.clientHeight < 48;
      }), `the newest line at a height of ${height} px`);
    }
    check((await page.locator(".log-newest").count()) === 0, "the log does not follow any more");
    await api(page, "DELETE", "/v1/functions/e2e-many");
  });
  await step(`logs: ${LINES.toLocaleString("en")} lines without a frame above 50 ms`, async () => {
    const big = await newPage();
    await login(big);
    const one = JSON.stringify({ time: "2026-01-01T00:00:00.000Z", level: "info", message: "line NUMBER with some words that take their room", function: "e2e-echo", revision: 1, invocation: "01M8MA67CA2162X07R199PHG3G", stream: "stdout" });
    const body = Array.from({ length: LINES }, (_, at) => one.replace("NUMBER", at).replace("00.000Z", `${String(Math.floor(at / 1000) % 60).padStart(2, "0")}.${String(at % 1000).padStart(3, "0")}Z`)).join("\n") + "\n";
    let sent = false;
    await big.route("**/e2e-echo/logs?**", (route) => {
      // The first answer has the lines; the stream then stays open, as that of a node does.
      if (sent) return undefined;
      sent = true;
      return route.fulfill({ contentType: "application/jsonl", body });
    });
    await open(big, "functions/e2e-echo");
    await smooth(big, async () => {
      await open(big, "functions/e2e-echo/logs");
      await until(async () => /100,000 lines/.test(await big.textContent(".log-count").catch(() => "")), "all lines", 60_000);
      check((await big.locator(".log-line").count()) < 120, "too many rows are drawn");
      const list = big.locator(".log-list").last();
      await list.evaluate(async (box) => {
        for (let at = 0; at < 40; at += 1) {
          box.scrollTop = (box.scrollHeight / 40) * at;
          await new Promise((next) => requestAnimationFrame(next));
        }
      });
      await big.fill("input[type=search]", "/line 99999 /");
      await until(async () => (await big.locator(".log-line").count()) === 1, "the line");
    });
    await big.context().close();
  });
}
