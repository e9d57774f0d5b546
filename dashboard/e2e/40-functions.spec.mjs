const MANY = 1000;

export default async function ({ step, check, until, newPage, login, open, api, accessible, smooth }) {
  const page = await newPage();
  step.page = page;
  await login(page);

  await step("functions: the list has state and language", async () => {
    await open(page, "functions");
    await page.waitForSelector("a:has-text('e2e-echo')");
    check(/python/.test(await page.textContent("tr:has-text('e2e-echo')")), "no language");
    await accessible(page);
  });
  await step("functions: the search filters and stays in the address", async () => {
    await page.fill("input[type=search]", "e2e-ho");
    await until(async () => (await page.locator(".functions tbody tr:not(.spacer)").count()) === 1, "one row");
    check(page.url().includes("q=e2e-ho"), page.url());
    await page.reload();
    await until(async () => (await page.locator(".functions tbody tr:not(.spacer)").count()) === 1, "one row after a reload");
  });
  await step("functions: nothing found is said", async () => {
    await page.fill("input[type=search]", "<b>none</b>");
    await page.waitForSelector("text=No function fits “<b>none</b>”.");
    await page.fill("input[type=search]", "");
  });
  await step("functions: they can be ordered", async () => {
    page.allowed.push(/e2e-fails/);
    await api(page, "POST", "/v1/functions/e2e-fails/invoke");
    await page.selectOption("select", "failed");
    await until(async () => (await page.locator(".functions tbody tr").first().locator(".has-failed").count()) === 1, "a failing one first");
    check(!/e2e-echo/.test(await page.locator(".functions tbody tr").first().textContent()), "one that does not fail is first");
    await page.selectOption("select", "name");
  });
  await step("functions: a row opens with the keyboard, and the heading has the focus", async () => {
    await page.focus("a:has-text('e2e-echo')");
    await page.keyboard.press("Enter");
    await page.waitForSelector("h1:has-text('e2e-echo')");
    await until(() => page.evaluate(() => document.activeElement?.tagName === "H1"), "the focus on the heading");
    check((await page.title()) === "e2e-echo · mote", await page.title());
  });
  await step("functions: a function that does not exist is explained", async () => {
    page.allowed.push(/no-such-function/);
    await open(page, "functions/no-such-function");
    await page.waitForSelector("text=There is no function no-such-function.");
  });
  await step(`functions: ${MANY} of them change, scroll and are searched without a frame above 50 ms`, async () => {
    const big = await newPage();
    await login(big);
    const { text } = await api(big, "GET", "/v1/functions?view=summary");
    const model = JSON.parse(text).functions[0];
    let turn = 0;
    // Every row changes with each answer.
    const functions = () => {
      turn += 1;
      return Array.from({ length: MANY }, (_, at) => ({ ...model, name: `many-${String(at).padStart(4, "0")}`, instances: (at + turn) % 3, requests: { ...model.requests, total: turn * (at + 1), failed: turn * (at % 5), p50_ms: 1 + ((at * turn) % 7), p99_ms: 10 + ((at * turn) % 90) } }));
    };
    await big.route("**/v1/functions?view=summary", (route) => route.fulfill({ json: { functions: functions() } }));
    // Nobody has a closer look at functions that do not exist.
    await big.route(/v1\/functions\/many-/, (route) => route.abort());
    big.allowed.push(/many-/);
    await smooth(big, async () => {
      await open(big, "functions");
      await big.waitForSelector("text=many-0000");
      await until(async () => (await big.locator("[aria-rowcount]").getAttribute("aria-rowcount")) === String(MANY + 1), "all rows");
      check((await big.locator(".functions tbody tr").count()) < 80, "too many rows are drawn");
      await big.selectOption("select", "rate");
      const from = turn;
      await until(() => turn >= from + 3, "three answers", 20_000);
      await big.evaluate(async () => {
        const box = document.querySelector(".scroll-tall");
        for (let at = 0; at <= 40; at += 1) {
          box.scrollTop = (box.scrollHeight / 40) * at;
          await new Promise((next) => requestAnimationFrame(next));
        }
      });
      await big.selectOption("select", "name");
      await big.waitForSelector("text=many-0999");
      for (const letter of "many-0500") await big.locator("input[type=search]").press(letter);
      await until(async () => (await big.locator(".functions tbody tr:not(.spacer)").count()) === 1, "one row");
      await open(big, "");
      await big.waitForSelector(".stat-value:has-text('1,000')");
    });
    await big.context().close();
  });
}
