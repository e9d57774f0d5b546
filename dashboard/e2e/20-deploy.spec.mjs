import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** The functions of all specs. Their output is hostile on purpose. */
export const FILES = {
  "e2e-hostile/app.py": `
def handle(event, ctx=None):
    print("<img src=x onerror=window.__hacked=1>")
    print("</pre><script>window.__hacked=2</script>")
    print("\\x1b[31mred\\x1b[0m \\u202eevil\\u202c javascript:alert(1)")
    return ("<svg onload=window.__hacked=3></svg>", 200, {"content-type": "text/html", "set-cookie": "secret=abc", "x-hostile": "<script>window.__hacked=4</script>"})
`,
  "e2e-fails/app.py": `
def handle(event, ctx=None):
    raise ValueError("<img src=x onerror=window.__hacked=5> broke")
`,
  "e2e-echo/app.py": `
def handle(event, ctx=None):
    print("a line of the echo")
    return {"method": event.method, "path": event.path, "query": event.query, "body": event.text, "headers": {k.lower(): v for k, v in event.headers.items()}}
`,
  "e2e-echo/mote.toml": `
version = 1
name = "e2e-echo"
runtime = "python"
entry = "app:handle"

[[trigger]]
every = "1h"
`,
};

export default async function ({ step, check, until, newPage, login, open, api, accessible }) {
  const page = await newPage();
  step.page = page;
  await login(page);
  const folder = await mkdtemp(join(tmpdir(), "mote-e2e-"));
  for (const [path, text] of Object.entries(FILES)) {
    await mkdir(join(folder, path, ".."), { recursive: true });
    await writeFile(join(folder, path), text);
  }
  page.allowed.push(/e2e-/);
  for (const name of ["e2e-hostile", "e2e-fails", "e2e-echo", "e2e-single", "e2e-written", "e2e-broken"]) await api(page, "DELETE", `/v1/functions/${name}`);
  const choose = (name) => page.setInputFiles("input[aria-label=Folder]", join(folder, name));
  const live = (name) => page.waitForSelector(`.outcome .notice:has-text("${name}@")`, { timeout: 30_000 });

  await step("deploy: the page is accessible", async () => {
    await open(page, "deploy");
    await accessible(page);
  });
  await step("deploy: a folder is read and its name is taken", async () => {
    await choose("e2e-hostile");
    await page.waitForSelector("summary:has-text('e2e-hostile: 1 file')");
    check((await page.inputValue("input[aria-describedby]")) === "e2e-hostile", "wrong name");
  });
  await step("deploy: a check changes nothing and shows the steps", async () => {
    page.allowed.push(/e2e-hostile$/);
    await page.click("text=Check only");
    await page.waitForSelector(".outcome .steps li");
    check(/Nothing was changed/.test(await page.textContent(".outcome .notice")), "no text");
    check((await api(page, "GET", "/v1/functions/e2e-hostile")).status === 404, "it exists");
  });
  await step("deploy: the function becomes live, with its steps", async () => {
    await page.click("button[type=submit]:has-text('Deploy')");
    await live("e2e-hostile");
    check((await page.locator(".steps li").count()) >= 2, "no steps");
    check((await api(page, "GET", "/v1/functions/e2e-hostile")).status === 200, "it does not exist");
    await accessible(page);
  });
  await step("deploy: a single file", async () => {
    await page.setInputFiles("input[aria-label=Files]", { name: "e2e_single.py", mimeType: "text/plain", buffer: Buffer.from("def handle(event):\n    return 'one file'\n") });
    await until(async () => (await page.inputValue("input[aria-describedby]")) === "e2e-single", "the name of the file");
    await page.click("button[type=submit]:has-text('Deploy')");
    await live("e2e-single");
    const answer = await api(page, "POST", "/v1/functions/e2e-single/invoke");
    check(answer.text === "one file", answer.text);
  });
  await step("deploy: a manifest in the folder gives the name and the trigger", async () => {
    await choose("e2e-echo");
    await until(async () => (await page.inputValue("input[aria-describedby]")) === "e2e-echo", "the name of the manifest");
    await page.click("button[type=submit]:has-text('Deploy')");
    await live("e2e-echo");
    const detail = JSON.parse((await api(page, "GET", "/v1/functions/e2e-echo")).text);
    check(detail.schedules?.length === 1, "no schedule");
  });
  await step("deploy: another revision without traffic", async () => {
    await page.check("input[type=checkbox]");
    await page.click("button[type=submit]:has-text('Deploy')");
    await page.waitForSelector(".outcome .notice:has-text('without traffic')", { timeout: 30_000 });
    await page.uncheck("input[type=checkbox]");
  });
  await step("deploy: the last of the functions", async () => {
    await choose("e2e-fails");
    await until(async () => (await page.inputValue("input[aria-describedby]")) === "e2e-fails", "the name of the folder");
    await page.click("button[type=submit]:has-text('Deploy')");
    await live("e2e-fails");
  });
  await step("deploy: an error shows its code, its text and what helps", async () => {
    page.allowed.push(/e2e-broken/);
    await page.setInputFiles("input[aria-label=Files]", { name: "e2e-broken.py", mimeType: "text/plain", buffer: Buffer.from("import no_such_module_at_all\ndef handle(event):\n    return ''\n") });
    await until(async () => (await page.inputValue("input[aria-describedby]")) === "e2e-broken", "the name of the file");
    await page.click("button[type=submit]:has-text('Deploy')");
    await page.waitForSelector(".outcome .failure", { timeout: 30_000 });
    const text = await page.textContent(".outcome .failure");
    check(/no_such_module_at_all/.test(text) && /M\d{4}/.test(text), text);
    await accessible(page);
  });
  await step("deploy: a hostile file name is text", async () => {
    await page.setInputFiles("input[aria-label=Files]", [
      { name: "app.py", mimeType: "text/plain", buffer: Buffer.from("def handle(event):\n    return ''\n") },
      { name: "<img src=x onerror=window.__hacked=6>.txt", mimeType: "text/plain", buffer: Buffer.from("x") },
    ]);
    await page.click("summary:has-text('2 files')");
    check(await page.locator(".file-list code", { hasText: "<img src=x" }).first().isVisible(), "the name is not shown");
    check((await page.locator(".file-list img").count()) === 0, "the name became an element");
  });
  await step("deploy: a wrong name is refused before it is sent", async () => {
    await page.fill("input[aria-describedby]", "Not A Name");
    check(await page.locator("button[type=submit]:has-text('Deploy')").isDisabled(), "the button is on");
  });
  await step("deploy: a function written in the editor", async () => {
    await page.click("button:has-text('Write a small function')");
    const editor = page.locator(".cm-content");
    await editor.waitFor();
    check((await editor.getAttribute("aria-label")) === "Code of app.py", "no label");
    await editor.click();
    await page.keyboard.press("Control+a");
    await page.keyboard.type("def handle(event):\nreturn 'from the editor'");
    await accessible(page);
    await page.fill("input[aria-describedby]", "e2e-written");
    await page.click("button[type=submit]:has-text('Deploy')");
    await live("e2e-written");
    const answer = await api(page, "POST", "/v1/functions/e2e-written/invoke");
    check(answer.text === "from the editor", answer.text);
  });
  await step("deploy: Escape and Tab leave the editor", async () => {
    await page.locator(".cm-content").click();
    await page.keyboard.press("Escape");
    await page.keyboard.press("Tab");
    check(!(await page.evaluate(() => document.activeElement?.classList.contains("editor"))), "the editor keeps the focus");
  });
  await rm(folder, { recursive: true });
}
