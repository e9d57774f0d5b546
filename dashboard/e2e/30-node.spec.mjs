export default async function ({ step, check, until, newPage, login, open, api, accessible }) {
  const page = await newPage();
  step.page = page;
  await login(page);

  await step("node: figures of what runs", async () => {
    await until(async () => Number((await page.textContent(".stat-value")).replaceAll(",", "")) >= 4, "the number of functions");
    check((await page.locator(".stats dt").allTextContents()).includes("Instances"), "no instances");
  });
  await step("node: the memory budget and who holds it", async () => {
    await api(page, "POST", "/v1/functions/e2e-hostile/invoke");
    await page.waitForSelector(".panel:has-text('Memory') a:has-text('e2e-hostile')", { timeout: 15_000 });
    check(/taken \(/.test(await page.textContent(".meter-text")), "no share");
  });
  await step("node: starts appear with their reason", async () => {
    await page.waitForSelector(".event-start:has-text('e2e-') .event-reason");
  });
  await step("node: a failed call appears, and its text is text", async () => {
    page.allowed.push(/e2e-fails/);
    await api(page, "POST", "/v1/functions/e2e-fails/invoke");
    await page.waitForSelector(".event-failed:has-text('e2e-fails')");
    await page.waitForSelector(".failing:has-text('e2e-fails') code");
    check((await page.evaluate(() => globalThis.__hacked)) === undefined, "a script ran");
  });
  await step("node: the checks of the machine can be opened and run again", async () => {
    await page.click(".panel:has-text('Checks of the machine') summary");
    check((await page.locator(".checks li").count()) > 3, "no checks");
    await page.click("text=Check again");
  });
  await step("node: what other machines reach", async () => {
    check(await page.locator("h2", { hasText: "What other machines reach" }).isVisible(), "no panel");
    check((await page.locator(".pairs dd").count()) > 0, "empty");
  });
  await step("node: the page is accessible in the light", () => accessible(page));
  await step("node: the page is accessible in the dark", async () => {
    await page.emulateMedia({ colorScheme: "dark" });
    await accessible(page);
    await page.emulateMedia({ colorScheme: "light" });
  });
  await step("node: the skip link is the first stop and leads to the content", async () => {
    await page.reload();
    await page.waitForSelector("nav[aria-label=Views]");
    await page.keyboard.press("Tab");
    check((await page.evaluate(() => document.activeElement?.className)) === "skip", "not the skip link");
    await page.keyboard.press("Enter");
    check((await page.evaluate(() => document.activeElement?.id)) === "main", "the content has no focus");
  });
  await step("fleet: the page says that the node is on its own", async () => {
    await open(page, "fleet");
    await page.waitForSelector("text=This node is on its own");
    await accessible(page);
  });
  await step("fleet: pages of other nodes are kept as links, from any text", async () => {
    await page.fill("textarea", `kitchen  https://10.0.0.7:6680  up\n"https://10.0.0.8:6680/dashboard/" javascript:alert(1) http://<b>x ${page.url()}`);
    await page.click("button:text-is('Add')");
    const links = () => page.locator("[aria-label='Other nodes'] a").evaluateAll((all) => all.map((one) => one.href));
    check(JSON.stringify(await links()) === JSON.stringify(["https://10.0.0.7:6680/dashboard/", "https://10.0.0.8:6680/dashboard/"]), await links());
    await accessible(page);
    await page.reload();
    await page.click("button[aria-label='Forget https://10.0.0.7:6680']");
    check((await links()).length === 1, "it was not forgotten");
    await page.click("button[aria-label='Forget https://10.0.0.8:6680']");
  });
  await step("an address that leads nowhere is explained", async () => {
    await open(page, "nowhere/<img src=x onerror=window.__hacked=7>");
    check((await page.textContent("h1")) === "No such page", "no heading");
    check((await page.evaluate(() => globalThis.__hacked)) === undefined, "a script ran");
  });
}
