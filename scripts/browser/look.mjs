// node scripts/browser/look.mjs PAGE.html PICTURE.png: opens a trace's page in headless Chromium, hovers over tokens and
// rounds, and fails on an error on its console, a request for anything but the page, or a tip that doesn't show.
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";
import chromium from "@sparticuz/chromium";
import puppeteer from "puppeteer-core";

const [file, picture] = process.argv.slice(2);
const address = pathToFileURL(resolve(file)).href;
const faults = [];
const browser = await puppeteer.launch({
  args: [...chromium.args, "--no-sandbox"],
  executablePath: await chromium.executablePath(),
  headless: "shell",
});
try {
  const page = await browser.newPage();
  page.on("console", (message) => ["error", "warn"].includes(message.type()) && faults.push(message.text()));
  page.on("pageerror", (error) => faults.push(String(error)));
  page.on("request", (request) => request.url() !== address && faults.push(`a request for ${request.url()}`));
  await page.setViewport({ width: 1200, height: 760 });
  const began = performance.now();
  await page.goto(address);
  const tokens = await page.$$("#reply span"), rounds = await page.$$("g.round");
  console.log(`${tokens.length} tokens, ${rounds.length} rounds, there in ${Math.round(performance.now() - began)} ms`);
  for (const [kind, found] of [["token", tokens], ["round", rounds]]) {
    for (const place of [0, Math.floor(found.length / 2), found.length - 1]) {
      if (!found[place]) continue;
      await page.mouse.move(0, 0);
      await found[place].scrollIntoView();
      await found[place].hover();
      const tip = await page.$eval("#tip", (each) => (each.hidden ? "" : each.innerText));
      if (!tip) faults.push(`${kind} ${place} shows no tip`);
    }
  }
  if (picture) {
    await page.evaluate(() => window.scrollTo(0, 0));
    const recovered = (await page.$$("#reply span.recovered"))[0] ?? tokens[0];
    await recovered.hover();
    await page.screenshot({ path: picture });
  }
} finally {
  await browser.close();
}
for (const fault of faults) console.error(fault);
process.exit(faults.length ? 1 : 0);
