// Headless Chromium as a person uses it, one line of JSON per step on stdin, one per answer on stdout.
import { createInterface } from "node:readline";
import { chromium } from "playwright-core";
import axe from "axe-core";

const args = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync"];
const browser = await chromium.launch({ executablePath: process.argv[2], args });
let context, page, problems;

const steps = {
  async person({ look = {} }) {
    if (context) await context.close();
    context = await browser.newContext({ ignoreHTTPSErrors: true, locale: "en-GB", ...look });
    await context.grantPermissions(["clipboard-read", "clipboard-write"]);
    page = await context.newPage();
    problems = [];
    // What a policy of ours blocks, or a script of ours breaks, is told on the console.
    page.on("console", (said) => { if (said.type() === "error") problems.push(said.text()); });
    page.on("pageerror", (error) => problems.push(String(error)));
  },
  async look({ colorScheme, viewport }) {
    if (colorScheme) await page.emulateMedia({ colorScheme });
    if (viewport) await page.setViewportSize(viewport);
  },
  async go({ url }) { return (await page.goto(url)).status(); },
  async fill({ label, text }) { await page.getByLabel(label, { exact: true }).fill(text); },
  async fill_in({ placeholder, text }) { await page.getByPlaceholder(placeholder).fill(text); },
  async press({ keys }) { for (const key of keys) await page.keyboard.press(key); },
  async type({ text }) { await page.keyboard.type(text); },
  async click({ role, name }) { await page.getByRole(role, { name }).first().click(); await page.waitForLoadState(); },
  async see({ text }) { await page.getByText(text).first().waitFor(); },
  async focused() { return page.evaluate(() => [document.activeElement.tagName, document.activeElement.textContent.trim() || document.activeElement.id]); },
  async url() { return page.url(); },
  async title() { return page.title(); },
  async text({ of = "body" }) { return page.locator(of).innerText(); },
  async content({ of }) { return page.locator(of).textContent(); },
  async clipboard() { return page.evaluate(() => navigator.clipboard.readText()); },
  async cookies() { return context.cookies(); },
  async forget({ domain }) { await context.clearCookies({ domain }); },
  async fetched({ path }) { return page.evaluate(async (path) => (await fetch(path)).status, path); },
  // A function of the page itself, in its own origin, as a script of the page would call it.
  async run({ script }) { return page.evaluate(`(async () => { ${script} })()`); },
  // Of the document as it came, in bytes.
  async size() { return page.evaluate(() => performance.getEntriesByType("navigation")[0].decodedBodySize); },
  async width() { return page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]); },
  async picture({ path }) { await page.screenshot({ path, fullPage: true }); },
  async problems() { return problems; },
  async judged({ rules = [] }) {
    // Runs outside the page's own policy, which lets no script in but ours.
    if (!(await page.evaluate(() => "axe" in window))) await page.evaluate(axe.source);
    const found = await page.evaluate((rules) => axe.run(rules.length ? { runOnly: rules } : {}), rules);
    return found.violations.map((one) => `${one.id}: ${one.nodes.map((node) => node.html).join(" ")}`);
  },
};

process.stdout.write(JSON.stringify({ value: "ready" }) + "\n");
for await (const line of createInterface({ input: process.stdin })) {
  const { do: step, ...rest } = JSON.parse(line);
  let answer;
  try {
    answer = { value: (await steps[step](rest)) ?? null };
  } catch (error) {
    answer = { error: String(error) };
  }
  process.stdout.write(JSON.stringify(answer) + "\n");
}
await browser.close();
