// Whether somebody who opens the dashboard finds a function there.
//
//   node dashboard/e2e/seen.mjs URL-WITH-CODE FUNCTION [CHROMIUM]

import { chromium } from "playwright-core";

const [url, name, executablePath = "/usr/bin/chromium"] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
const page = await browser.newPage();
try {
  await page.goto(url);
  await page.waitForSelector("nav[aria-label=Views]");
  await page.getByRole("link", { name: "Functions" }).first().click();
  await page.getByRole("link", { name, exact: true }).click();
  console.log(await page.locator("main h1").innerText());
} finally {
  await browser.close();
}
