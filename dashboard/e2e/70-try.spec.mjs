export default async function ({ step, check, until, newPage, login, open, accessible }) {
  const page = await newPage();
  step.page = page;
  await login(page);

  await step("try: a request is answered with its times", async () => {
    await open(page, "try/e2e-echo");
    await page.selectOption("select", "PUT");
    await page.fill("input >> nth=1", "/a/b?x=1");
    await page.fill("textarea", '{"it\'s": "a body"}');
    await page.click("text=Add a header");
    await page.fill("[aria-label='Name of header 1']", "x-mine");
    await page.fill("[aria-label='Value of header 1']", "yes");
    await page.click("button[type=submit]:has-text('Send')");
    await page.waitForSelector("text=status 200", { timeout: 30_000 });
    const answer = JSON.parse(await page.textContent("pre[aria-label='Body of the answer']"));
    check(answer.method === "PUT" && answer.path === "/a/b" && answer.headers["x-mine"] === "yes" && answer.body.includes("a body"), JSON.stringify(answer));
    check(/inside the function/.test(await page.textContent("main")), "no phases");
  });
  await step("try: the function does not see the session", async () => {
    const answer = JSON.parse(await page.textContent("pre[aria-label='Body of the answer']"));
    check(!answer.headers.cookie && !answer.headers["mote-csrf"], JSON.stringify(answer.headers));
  });
  await step("try: the equal command lines, quoted", async () => {
    const text = await page.textContent("pre[aria-label='curl command']");
    check(text.startsWith("curl -X PUT -H 'x-mine: yes' --data-binary '{\"it'\\''s\": \"a body\"}'") && text.includes("/e2e-echo/a/b?x=1"), text);
    check(/^coap-client -m put/.test(await page.textContent("pre[aria-label='coap-client command']")), "no coap-client");
    await page.click("button[aria-label='Copy: curl command']");
    await until(async () => (await page.evaluate(() => navigator.clipboard.readText())) === text, "the copy");
    await accessible(page);
  });
  await step("try: secrets in headers are masked in what is shown again", async () => {
    await page.fill("[aria-label='Name of header 1']", "Authorization");
    await page.fill("[aria-label='Value of header 1']", "Bearer hidden-value");
    check((await page.getAttribute("[aria-label='Value of header 1']", "type")) === "password", "the field shows it");
    const text = await page.textContent("pre[aria-label='curl command']");
    check(!text.includes("hidden-value") && text.includes("Authorization: •"), text);
    check(/cannot be sent from this page/.test(await page.textContent("main")), "it is not said that it is not sent");
    await page.check("text=Show secrets");
    check((await page.textContent("pre[aria-label='curl command']")).includes("hidden-value"), "it cannot be shown");
    await page.click("[aria-label='Remove header 1']");
  });
  await step("try: a hostile answer is text, and its cookie is masked", async () => {
    await open(page, "try/e2e-hostile");
    await page.selectOption("select", "GET");
    await page.click("button[type=submit]:has-text('Send')");
    await page.waitForSelector("text=status 200", { timeout: 30_000 });
    check((await page.textContent("pre[aria-label='Body of the answer']")).includes("<svg onload="), "not shown as text");
    await page.click("summary:has-text('headers')");
    const headers = await page.textContent(".pairs-code");
    check(!headers.includes("secret=abc"), headers);
    check(headers.includes("<script>window.__hacked=4</script>"), headers);
    check((await page.evaluate(() => globalThis.__hacked)) === undefined, "a script ran");
    await accessible(page);
  });
  await step("try: a failure of the function has its code and its call", async () => {
    page.allowed.push(/e2e-fails/);
    await open(page, "try/e2e-fails");
    await page.click("button[type=submit]:has-text('Send')");
    await page.waitForSelector("text=status 500", { timeout: 30_000 });
    check(/M0510/.test(await page.textContent("main")), "no code");
    await page.click("text=show the call and its log lines");
    await page.waitForSelector("h1:has-text('Call ')");
    await page.waitForSelector(".log-text:has-text('ValueError')");
  });
  await step("try: a path with other letters and spaces arrives", async () => {
    await open(page, "try/e2e-echo");
    await page.fill("input >> nth=1", "/grün und/日本?q=ü");
    await page.click("button[type=submit]:has-text('Send')");
    await page.waitForSelector("text=status 200", { timeout: 30_000 });
    const answer = JSON.parse(await page.textContent("pre[aria-label='Body of the answer']"));
    check(decodeURIComponent(answer.path) === "/grün und/日本" && decodeURIComponent(answer.query) === "q=ü", JSON.stringify(answer));
  });
  await step("try: a path must begin with a slash", async () => {
    await open(page, "try/e2e-echo");
    await page.fill("input >> nth=1", "no-slash");
    check(await page.locator("button[type=submit]:has-text('Send')").isDisabled(), "the button is on");
  });
}
