// Writes a picture of a page: node screenshot.mjs URL FILE
import { chromium } from "playwright";

const [url = "about:blank", file = "page.png"] = process.argv.slice(2);
const browser = await chromium.launch();
const page = await browser.newPage();
await page.goto(url);
await page.screenshot({ path: file });
await browser.close();
