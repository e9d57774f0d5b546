export default async function ({ base, step, check, until, newPage, login, open, api, accessible }) {
  const page = await newPage();
  step.page = page;
  await login(page);
  for (const [kind, name] of [["keys", "e2e-caller"], ["tokens", "e2e-viewer"], ["secrets", "e2e-secret"], ["namespaces", "e2e-space"]]) {
    page.allowed.push(new RegExp(`/v1/${kind}/${name}`));
    await api(page, "DELETE", `/v1/${kind}/${name}`).catch(() => undefined);
  }

  await step("access: a key is made, shown once and revoked", async () => {
    await open(page, "access/keys");
    await accessible(page);
    await page.fill(".panel:has-text('Make a key') input >> nth=0", "e2e-caller");
    await page.fill(".panel:has-text('Make a key') input >> nth=1", "e2e-*");
    await page.click("button:has-text('Make the key')");
    await page.waitForSelector(".notice pre");
    check((await page.textContent(".notice pre")).length > 20, "no key");
    await page.click("text=I have copied it");
    await page.waitForSelector("tr:has-text('e2e-caller')");
    await accessible(page);
    await page.click("[aria-label='Revoke the key of e2e-caller']");
    await page.click("dialog[open] button[value=yes]");
    await until(async () => (await page.locator("tr:has-text('e2e-caller')").count()) === 0, "the end of the key");
  });
  await step("access: a name that is not valid is refused by the node", async () => {
    page.allowed.push(/\/v1\/keys$/);
    await page.fill(".panel:has-text('Make a key') input >> nth=0", "..<b>");
    await page.click("button:has-text('Make the key')");
    await page.waitForSelector(".failure");
    check((await page.locator(".failure b").count()) === 0, "the name became an element");
  });
  let token;
  await step("access: a token is made and shown once", async () => {
    await open(page, "access/tokens");
    await page.fill(".panel:has-text('Make a token') input >> nth=0", "e2e-viewer");
    await page.click("button:has-text('Make the token')");
    await page.waitForSelector(".notice pre");
    token = await page.textContent(".notice pre");
    await page.click("text=I have copied it");
    await page.waitForSelector("tr:has-text('e2e-viewer')");
    await accessible(page);
  });
  const viewer = await newPage();
  await step("access: a viewer logs in with the token and is offered no changes", async () => {
    step.page = viewer;
    await viewer.goto(`${base}/dashboard/`);
    await viewer.fill("input[type=password]", token);
    await viewer.keyboard.press("Enter");
    await viewer.waitForSelector("nav[aria-label=Views]");
    check(/viewer/.test(await viewer.textContent(".who")), "no role");
    await open(viewer, "functions/e2e-echo/settings");
    await viewer.waitForSelector("text=Memory of an instance");
    check((await viewer.locator("text=Remove the function").count()) === 0, "a viewer may remove");
    await open(viewer, "deploy");
    await viewer.waitForSelector("text=may not deploy");
    await accessible(viewer);
  });
  await step("access: what a viewer may not read is explained", async () => {
    viewer.allowed.push(/\/v1\/(kv|audit)/);
    await open(viewer, "functions/e2e-echo/state");
    await viewer.waitForSelector("text=Not permitted.");
    await open(viewer, "access/audit");
    await viewer.waitForSelector("text=Not permitted.");
    await accessible(viewer);
  });
  await step("access: revoking the token ends its session at once, and the page says so", async () => {
    step.page = page;
    viewer.allowed.push(/\/v1\//);
    await page.click("[aria-label='Revoke the token of e2e-viewer']");
    await page.click("dialog[open] button[value=yes]");
    await until(async () => (await page.locator("tr:has-text('e2e-viewer')").count()) === 0, "the end of the token");
    await viewer.waitForSelector("text=Your session has ended", { timeout: 30_000 });
  });
  await step("access: a secret is set and removed, and never shown", async () => {
    await open(page, "access/secrets");
    await page.fill(".panel:has-text('Set a secret') input >> nth=0", "e2e-secret");
    await page.fill(".panel:has-text('Set a secret') input >> nth=1", "hidden-value");
    await page.click("button:has-text('Set the secret')");
    await page.waitForSelector("tr:has-text('e2e-secret')");
    check(!(await page.content()).includes("hidden-value"), "the value is in the page");
    await accessible(page);
    await page.click("[aria-label='Remove the secret e2e-secret']");
    await page.click("dialog[open] button[value=yes]");
    await until(async () => (await page.locator("tr:has-text('e2e-secret')").count()) === 0, "the end of the secret");
  });
  await step("access: a namespace is made with a limit and deleted", async () => {
    await open(page, "access/namespaces");
    await page.fill(".panel:has-text('Make a namespace') input >> nth=0", "e2e-space");
    await page.fill(".panel:has-text('Make a namespace') input >> nth=1", "5");
    await page.click("button:has-text('Make the namespace')");
    await page.waitForSelector("tr:has-text('0 of 5')");
    await accessible(page);
    await page.click("[aria-label='Delete the namespace e2e-space']");
    await page.click("dialog[open] button[value=yes]");
    await until(async () => (await page.locator("tr:has-text('e2e-space')").count()) === 0, "the end of the namespace");
  });
  await step("access: a token for a namespace sees that namespace alone", async () => {
    await api(page, "POST", "/v1/namespaces", JSON.stringify({ name: "e2e-space" }), { "content-type": "application/json" });
    const made = JSON.parse((await api(page, "POST", "/v1/tokens", JSON.stringify({ name: "e2e-owner", role: "operator", namespace: "e2e-space" }), { "content-type": "application/json" })).text);
    const owner = await newPage();
    step.page = owner;
    await owner.goto(`${base}/dashboard/`);
    await owner.fill("input[type=password]", made.token);
    await owner.keyboard.press("Enter");
    await owner.waitForSelector("h1:has-text('Namespace e2e-space')");
    await owner.waitForSelector("tr:has-text('Memory of instances')");
    await accessible(owner);
    check((await owner.locator("nav a:has-text('Fleet')").count()) === 0, "the fleet is offered");
    await open(owner, "functions");
    await owner.waitForSelector("text=There are no functions yet.");
    await owner.context().close();
    step.page = page;
    await api(page, "DELETE", "/v1/namespaces/e2e-space?force=true");
  });
  await step("access: the record shows what was changed and by whom", async () => {
    await open(page, "access/audit");
    await page.waitForSelector("tr:has-text('/v1/namespaces')");
    await page.fill("input[type=search]", "e2e-secret");
    await until(async () => /PUT \/v1\/secrets\/e2e-secret/.test(await page.textContent("tbody")), "the entry");
    await accessible(page);
  });
}
