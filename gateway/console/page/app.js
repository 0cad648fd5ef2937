// The page's life: the key, a look every two seconds, and what people do.

import { ask, forget, key, remember } from "./api.js";
import * as charts from "./charts.js";
import * as parts from "./parts.js";
import * as words from "./words.js";

const EVERY = 2000;
const REMEMBERED = 600; // seconds of break-evens that are kept to tell what moved
const at = (id) => document.getElementById(id);
const page = { found: null, kinds: {}, before: [], problems: "", decisions: "", timer: 0, chartError: "" };

// ── Key ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

function show(signedIn) {
  at("signin").hidden = signedIn;
  at("board").hidden = !signedIn;
  at("leave").hidden = !signedIn;
  if (!signedIn) {
    clearTimeout(page.timer);
    pulse("", "");
    at("key").focus();
  }
}

at("key-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const given = at("key").value.trim();
  at("key-error").textContent = "";
  try {
    await ask("overview", { using: given });
  } catch (error) {
    at("key-error").textContent = error.status === 401 ? "That is not the admin key." : error.message;
    at("key").select();
    return;
  }
  remember(given);
  at("key").value = "";
  open();
});

at("leave").addEventListener("click", () => {
  forget();
  show(false);
});

function open() {
  show(true);
  look();
  if (location.hash.startsWith("#receipt=")) receipt(decodeURIComponent(location.hash.slice("#receipt=".length)));
}

// ── Looking ──────────────────────────────────────────────────────────────────────────────────────────────────────────

function pulse(text, state) {
  at("pulse").textContent = text;
  at("pulse").className = `pulse ${state}`;
}

async function look() {
  clearTimeout(page.timer);
  if (!document.hidden) {
    try {
      render(await ask("overview"));
    } catch (error) {
      if (error.status === 401 || error.status === 403) {
        forget();
        show(false);
        at("key-error").textContent = error.message;
        return;
      }
      pulse(`No answer (${error.message}); still trying`, "lost");
    }
  }
  page.timer = setTimeout(look, EVERY);
}

document.addEventListener("visibilitychange", () => !document.hidden && key() && look());

function render(found) {
  page.found = found;
  page.kinds = Object.fromEntries(found.state.pools.map((pool) => [pool.name, pool.kind]));
  const { state } = found;
  pulse(`Live at ${words.clock(found.time)}: ${state.running} under way, up ${words.span(state.uptime_seconds)}${state.draining ? ", draining" : ""}`, "live");
  at("about").textContent = `Configuration ${state.config.slice(0, 12)}, artefact ${state.artefact}. ${found.workers > 1 ? `${found.workers} workers speak together; what is learned and how replicas stand is one worker's view.` : ""}`;
  once("problems", JSON.stringify(found.problems), () => at("problems").replaceChildren(...parts.problems(found.problems)));
  at("tiles").replaceChildren(...parts.tiles(found.money));
  renderPools(state.pools);
  renderDecisions(found.decisions);
  renderToday(found.money.today);
  fill("explain-model", found.models);
  fill("explain-tenant", found.tenants);
  renderBalance(found);
}

// Does something only if what it shows has changed: a screen reader should not be told the same every two seconds.
function once(name, shown, change) {
  if (page[name] === shown) return;
  page[name] = shown;
  change();
}

function fill(id, names) {
  const place = at(id);
  if ([...place.options].map((option) => option.value).join() === names.join()) return;
  const chosen = place.value;
  place.replaceChildren(...names.map((name) => new Option(name, name)));
  if (names.includes(chosen)) place.value = chosen;
}

function renderPools(pools) {
  const place = at("pools");
  const held = place.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
  place.replaceChildren(...pools.map((pool) => parts.pool(pool, { unlocked: at("unlock").checked, flip })));
  if (held) place.querySelector(`[aria-label="${CSS.escape(held)}"]`)?.focus();
}

function renderDecisions(calls) {
  const body = at("decisions").tBodies[0];
  if (body.contains(document.activeElement)) {
    at("decisions-note").textContent = "Held while you are in the table";
    return;
  }
  once("decisions", calls.map((call) => call.request_id).join(), () => {
    at("decisions-note").textContent = calls.length ? `${calls.length} calls, newest first` : "No calls yet";
    body.replaceChildren(...calls.map((call) => parts.decision(call, { kinds: page.kinds, open: receipt })));
  });
}

function renderToday(today) {
  at("today-note").textContent = today ? `${today.day}, UTC` : "The Store does not answer";
  at("today").tBodies[0].replaceChildren(...(today ? parts.today(today) : []));
}

function renderBalance(found) {
  const pools = found.state.pools;
  const speculative = pools.filter((pool) => pool.kind === "speculative");
  at("curve-pick").hidden = speculative.length < 2;
  fill("curve-pool", speculative.map((pool) => pool.name));
  const pool = speculative.find((one) => one.name === at("curve-pool").value) ?? speculative[0];
  if (!pool) {
    at("curve-words").textContent = "No pool speculates.";
  } else {
    const baseline = pools.find((one) => one.kind === "baseline" && one.model === pool.model);
    at("curve-words").textContent = words.balance(pool, baseline, earlier(found));
    at("curve-table").replaceChildren(parts.curveTable(pool));
  }
  drawn([pool && charts.curve(pool), charts.spend(found.lately), charts.balance(found.lately)]);
}

// Remembers step times and prices, and returns how they were at the beginning of what is remembered.
function earlier(found) {
  const pools = Object.fromEntries(
    found.state.pools.map((pool) => [pool.name, { break_even: pool.break_even, step_seconds: pool.step_seconds, price: pool.price_per_slot_second }]),
  );
  page.before.push({ time: found.time, pools });
  while (found.time - page.before[0].time > REMEMBERED) page.before.shift();
  return { ...page.before[0], age: found.time - page.before[0].time };
}

async function drawn(charts) {
  try {
    await Promise.all(charts.filter(Boolean));
  } catch (error) {
    once("chartError", error.message, () => at("curve-words").append(` ${error.message}`));
  }
}

// ── What people do ───────────────────────────────────────────────────────────────────────────────────────────────────

async function flip(pool) {
  const verb = pool.enabled ? "disable" : "enable";
  if (!window.confirm(`${pool.enabled ? "Switch off" : "Switch on"} pool ${pool.name}? Running calls go on.`)) return;
  await ask(`pools/${encodeURIComponent(pool.name)}/${verb}`, { method: "POST" });
  look();
}

at("unlock").addEventListener("change", () => page.found && renderPools(page.found.state.pools));
at("curve-pool").addEventListener("change", () => page.found && renderBalance(page.found));

at("explain-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const body = { model: at("explain-model").value, messages: [{ role: "user", content: at("prompt").value }] };
  if (at("temperature").value !== "") body.temperature = Number(at("temperature").value);
  if (at("max-tokens").value !== "") body.max_tokens = Number(at("max-tokens").value);
  const place = at("explained");
  try {
    const found = await ask(`explain?tenant=${encodeURIComponent(at("explain-tenant").value)}`, { method: "POST", body });
    place.replaceChildren(parts.explained(found, page.kinds));
    drawn([charts.features(found.features)]);
  } catch (error) {
    place.replaceChildren(parts.el("p", { class: "error" }, error.message));
  }
});

async function receipt(id) {
  at("receipt-title").textContent = `Receipt of ${id}`;
  at("receipt-body").replaceChildren(parts.el("p", { class: "dim" }, "Looking…"));
  at("receipt").showModal();
  try {
    at("receipt-body").replaceChildren(parts.receipt(await ask(`receipts/${encodeURIComponent(id)}`)));
  } catch (error) {
    at("receipt-body").replaceChildren(parts.el("p", { class: "error" }, error.message));
  }
}

at("receipt-close").addEventListener("click", () => at("receipt").close());

// ── Theme ────────────────────────────────────────────────────────────────────────────────────────────────────────────

const THEMES = ["system", "light", "dark"];

function theme(name) {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  localStorage.setItem("draftlane-theme", name);
  at("theme").textContent = `Theme: ${name}`;
  if (page.found) renderBalance(page.found);
}

at("theme").addEventListener("click", () => theme(THEMES[(THEMES.indexOf(localStorage.getItem("draftlane-theme") ?? "system") + 1) % THEMES.length]));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => page.found && renderBalance(page.found));
theme(localStorage.getItem("draftlane-theme") ?? "system");

if (key()) open();
else show(false);
