// Puts a link to Debian's Chromium where Playwright looks for the browsers that it downloads.
import { mkdirSync, readFileSync, symlinkSync } from "node:fs";
import { dirname } from "node:path";

// By the name of a browser: where its program is, on the two kinds of processors.
const places = {
  "chromium": ["chrome-linux64/chrome", "chrome-linux/chrome"],
  "chromium-headless-shell": ["chrome-headless-shell-linux64/chrome-headless-shell", "chrome-linux/headless_shell"],
};

const { browsers } = JSON.parse(readFileSync("/blaxel/app/node_modules/playwright-core/browsers.json", "utf8"));
for (const { name, revision } of browsers) {
  for (const place of places[name] ?? []) {
    const file = `${process.env.PLAYWRIGHT_BROWSERS_PATH}/${name.replaceAll("-", "_")}-${revision}/${place}`;
    mkdirSync(dirname(file), { recursive: true });
    symlinkSync("/usr/bin/chromium", file);
  }
}
