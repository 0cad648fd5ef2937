// The parts of the page, each made anew from what the gateway said. Text only ever enters as text.

import * as words from "./words.js";

export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child != null && child !== false));
  return made;
}

const badge = (pool, speculative) => el("span", { class: `badge ${speculative ? "speculative" : ""}` }, pool);
const fact = (name, value) => el("div", {}, el("dt", {}, name), el("dd", {}, value));

export function problems(found) {
  if (!found.length) return [el("div", { class: "well" }, el("span", { class: "mark" }, "Well"), el("p", {}, "All is well: every pool has live replicas, the books are kept, and no guard holds."))];
  return found.map((each) =>
    el("div", { class: `problem ${each.level}` }, el("span", { class: "mark" }, each.level), el("p", {}, el("strong", {}, each.text)), el("p", {}, each.advice)),
  );
}

export function tiles(money) {
  const { now, today } = money;
  const saved = today?.saved_usd;
  const share = today?.baseline_usd ? saved / today.baseline_usd : null;
  const tile = (name, figure, under, state = "") =>
    el("dl", { class: `tile ${state}` }, el("dt", {}, name), el("dd", { class: "figure" }, figure), el("dd", { class: "under" }, under));
  return [
    tile("$ per 1M output tokens, now", words.dollars(now.usd_per_million), `${words.number(now.tokens)} tokens in ${words.span(now.seconds)}`),
    tile("$ per 1M output tokens, today", words.dollars(today?.usd_per_million), `${words.number(today?.tokens)} tokens`),
    tile("Spent today", words.dollars(today?.cost_usd), `${words.dollars(now.usd_per_hour)} per hour now`),
    tile("Saved today against all-baseline", words.dollars(saved), share == null ? "no estimate yet" : `${words.percent(share)} of ${words.dollars(today.baseline_usd)}`, saved > 0 ? "good" : saved < 0 ? "bad" : ""),
    tile("Idle now", words.dollars(money.idle_usd_per_hour), "per hour, paid by no call"),
    tile("Calls now", words.number(now.calls), `in ${words.span(now.seconds)}, ${words.number(now.failed)} failed`, now.failed ? "bad" : ""),
  ];
}

export function pool(each, { unlocked, flip }) {
  const state = !each.enabled ? ["switched off", "warn"] : !each.available ? [each.why_unavailable, "bad"] : each.guard ? [`guard: ${each.guard}`, "warn"] : ["available", "good"];
  const room = each.slots || 1;
  const speculative = each.kind === "speculative";
  const change = el("button", { type: "button", class: "quiet", "aria-label": `${each.enabled ? "Switch off" : "Switch on"} pool ${each.name}`, onclick: () => flip(each) }, each.enabled ? "Switch off" : "Switch on");
  return el(
    "article",
    { class: `pool ${speculative ? "speculative" : ""}`, "aria-label": `Pool ${each.name}` },
    el("div", { class: "heading" }, el("h3", {}, badge(each.name, speculative)), el("span", {}, el("span", { class: `tag ${state[1]}` }, state[0]), unlocked && " ", unlocked && change)),
    el(
      "dl",
      { class: "facts" },
      fact("Model", each.model),
      fact("Step", words.seconds(each.step_seconds)),
      fact("First token", words.seconds(each.ttft_seconds)),
      fact("Price", `${words.dollars(each.price_per_slot_second * 3600)}/slot h`),
      speculative && fact("Break-even", each.break_even >= words.NEVER ? "never" : words.fixed(each.break_even)),
      speculative && fact("Threshold", words.fixed(each.threshold)),
    ),
    el("meter", { min: 0, max: room, value: Math.min(each.running, room), "aria-label": `${each.running} of ${each.slots} slots in use` }),
    el("p", { class: "small dim" }, `${each.running} of ${each.slots} slots in use`),
    el(
      "ul",
      { class: "replicas" },
      ...each.replicas.map((replica) => el("li", {}, el("span", { class: `tag ${replica.state === "live" ? "good" : "bad"}` }, replica.state), el("span", {}, replica.name), el("span", { class: "mono dim" }, replica.url), el("span", { class: "dim" }, `${replica.running} running`))),
    ),
  );
}

export function curveTable(pool) {
  return el(
    "table",
    {},
    el("thead", {}, el("tr", {}, ...["Score", "Tokens per step", "Samples", "Goes to"].map((name) => el("th", { scope: "col" }, name)))),
    el(
      "tbody",
      {},
      ...pool.curve.map((point) => el("tr", {}, el("td", {}, words.fixed(point.score)), el("td", {}, words.fixed(point.acceptance_length)), el("td", {}, words.fixed(point.samples, 1)), el("td", {}, point.score >= pool.threshold ? pool.name : "baseline"))),
    ),
  );
}

export function decision(call, { kinds, open }) {
  const cell = (label, ...inside) => el("td", { "data-label": label, class: "num" }, ...inside);
  const speculated = kinds[call.pool] === "speculative";
  const steps = speculated && call.acceptance != null ? `${words.fixed(call.expected)} → ${words.fixed(call.acceptance)}` : words.fixed(call.expected);
  const well = call.outcome === "ok";
  return el(
    "tr",
    { "data-id": call.request_id },
    el("td", { "data-label": "When" }, el("button", { type: "button", class: "link", "aria-label": `${words.clock(call.time)}, receipt of ${call.request_id}`, onclick: () => open(call.request_id) }, words.clock(call.time))),
    el("td", { "data-label": "Tenant" }, call.tenant || "–"),
    el("td", { "data-label": "Went to" }, call.pool ? badge(call.pool, speculated) : "–"),
    el("td", { class: "why", "data-label": "Why" }, call.reason ? words.reason(call.reason) : (call.error ?? "–"), call.detail && el("span", { class: "under" }, words.detail(call.detail))),
    cell("Score", words.fixed(call.score)),
    cell("Tokens/step", call.expected == null ? "–" : steps),
    cell("Tokens", words.number(call.completion_tokens)),
    cell("First", words.seconds(call.ttft)),
    cell("Whole", words.seconds(call.duration)),
    cell("Cost", words.dollars(call.cost_usd)),
    el("td", { "data-label": "Ended" }, el("span", { class: `tag ${well ? "good" : "bad"}` }, call.outcome.replaceAll("_", " "))),
  );
}

export function today(money) {
  return ["tenant", "model", "pool"].flatMap((label) =>
    (money[`by_${label}`] ?? []).map((row) => {
      const cell = (name, value) => el("td", { class: "num", "data-label": name }, value);
      return el(
        "tr",
        {},
        el("td", { class: "dim", "data-label": "Of" }, label),
        el("td", { "data-label": "Name" }, row.name || "none"),
        cell("Calls", words.number(row.calls)),
        cell("Output tokens", words.number(row.tokens)),
        cell("Spent", words.dollars(row.cost_usd)),
        cell("$ per 1M", words.dollars(row.usd_per_million)),
        cell("All baseline", words.dollars(row.baseline_usd)),
        cell("Saved", words.dollars(row.saved_usd)),
      );
    }),
  );
}

export function explained(found, kinds) {
  const score = el("p", {}, `Score ${words.fixed(found.score.value)}: about ${words.fixed(found.score.acceptance_length)} tokens per step are predicted, and an answer of ${words.number(found.score.output_tokens)} tokens.`);
  const parts = el("figure", {}, el("figcaption", { class: "small dim" }, "What moved the score"), el("div", { id: "features", role: "img", "aria-label": found.features.map((part) => `${part.name} ${part.effect.toFixed(2)}`).join(", ") }));
  if (found.error) return el("div", { class: "result" }, el("p", { class: "error" }, `It would be refused: ${found.error.message}`), score, parts);
  const options = el(
    "table",
    {},
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Pool"), el("th", { scope: "col", class: "num" }, "Takes"), el("th", { scope: "col", class: "num" }, "Costs"), el("th", { scope: "col", class: "num" }, "Tokens/step"))),
    el(
      "tbody",
      {},
      ...found.options.map((option) =>
        option.unfit
          ? el("tr", {}, el("td", {}, badge(option.pool, kinds[option.pool] === "speculative")), el("td", { colspan: 3, class: "dim" }, `out of the question: ${option.unfit}`))
          : el("tr", {}, el("td", {}, badge(option.pool, kinds[option.pool] === "speculative")), el("td", { class: "num" }, words.seconds(option.time_seconds)), el("td", { class: "num" }, words.dollars(option.cost_usd)), el("td", { class: "num" }, words.fixed(option.acceptance_length))),
      ),
    ),
  );
  return el(
    "div",
    { class: "result" },
    el("p", { class: "verdict" }, el("strong", {}, badge(found.pool, kinds[found.pool] === "speculative")), el("span", { class: "tag" }, words.reason(found.reason))),
    el("p", {}, words.detail(found.detail)),
    score,
    el("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "What each pool would mean" }, options),
    parts,
  );
}

export function receipt(found) {
  const skipped = new Set(["scored", "prompt"]);
  const shown = Object.entries(found).filter(([name, value]) => !skipped.has(name) && value !== "" && value != null);
  const said = (value) => (typeof value === "object" ? Object.entries(value).map(([name, one]) => `${name} ${typeof one === "number" ? +one.toPrecision(6) : one}`).join(", ") : typeof value === "number" ? String(+value.toPrecision(10)) : String(value));
  return el("dl", { class: "pairs" }, ...shown.flatMap(([name, value]) => [el("dt", {}, name.replaceAll("_", " ")), el("dd", {}, said(value))]));
}
