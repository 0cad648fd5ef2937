// Figures and sentences for people.

const count = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const time = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
export const NEVER = 99; // what the gateway says where no acceptance would make speculation worth it

export const number = (value) => (value == null ? "–" : count.format(value));
export const fixed = (value, digits = 2) => (value == null ? "–" : value.toFixed(digits));
export const percent = (value, digits = 0) => (value == null ? "–" : `${(100 * value).toFixed(digits)}\u00a0%`);
export const clock = (seconds) => time.format(new Date(seconds * 1000));

export function dollars(value) {
  if (value == null) return "–";
  const size = Math.abs(value);
  const digits = size === 0 || size >= 0.995 ? 2 : Math.min(7, 2 + Math.ceil(-Math.log10(size)));
  return `${value < 0 ? "−" : ""}$${size.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: digits })}`;
}

export function seconds(value) {
  if (value == null) return "–";
  if (value < 0.001) return `${(value * 1e6).toFixed(0)} µs`;
  if (value < 1) return `${(value * 1000).toFixed(0)} ms`;
  return value < 120 ? `${value.toFixed(1)} s` : `${(value / 60).toFixed(0)} min`;
}

export function span(value) {
  if (value < 90) return `${value.toFixed(0)} s`;
  if (value < 5400) return `${(value / 60).toFixed(0)} min`;
  return value < 129600 ? `${(value / 3600).toFixed(1)} h` : `${(value / 86400).toFixed(1)} days`;
}

export const REASONS = {
  predictable: "Predictable",
  unpredictable: "Not predictable enough",
  constraint: "Only one kind of pool can serve it",
  policy: "Tenant's policy",
  header: "Asked for by header",
  explore: "Taken to learn",
  shadow: "Shadow policy",
  only_pool: "Only one kind of pool",
  pool_down: "Better pool is down",
  pool_full: "Better pool is full",
  guard: "A guard holds the better pool",
  affinity: "Conversation's cache is worth more",
};

// The gateway's sentence without its opening, which the reason beside it says already.
export const detail = (sentence) => {
  const rest = sentence.slice(sentence.indexOf(": ") + 2);
  return rest.charAt(0).toUpperCase() + rest.slice(1);
};

export const reason = (name) => REASONS[name.split(":")[0]] ?? name;

// What decides when speculation pays, and what moved since `before`, an earlier look at the same pools.
export function balance(pool, baseline, before) {
  if (pool.break_even == null) return "Break-even is not known yet.";
  const steps = baseline
    ? `A speculative step takes ${seconds(pool.step_seconds)}, a plain one ${seconds(baseline.step_seconds)}`
    : `A speculative step takes ${seconds(pool.step_seconds)}`;
  const must =
    pool.break_even >= NEVER
      ? "so that no number of tokens per step would make it worth it now."
      : pool.break_even <= 1
        ? "so speculation wins even where no drafted token is accepted."
        : `so speculation wins from ${fixed(pool.break_even)} tokens per step on.`;
  const who =
    pool.threshold >= 1
      ? "No score reaches that: all calls go to baseline."
      : pool.threshold <= 0
        ? "Every score reaches that: all calls that may speculate do."
        : `Calls with a score from ${fixed(pool.threshold)} speculate.`;
  return [`${steps}, ${must}`, who, moved(pool, baseline, before)].filter(Boolean).join(" ");
}

function moved(pool, baseline, before) {
  const was = before?.pools[pool.name];
  if (!was?.break_even || before.age < 30 || Math.abs(pool.break_even / was.break_even - 1) < 0.03) return "";
  const causes = [];
  const change = (now, then, words) => {
    if (then && Math.abs(now / then - 1) >= 0.02) causes.push(`${words} ${now > then ? "rose" : "fell"} by ${percent(Math.abs(now / then - 1))}`);
  };
  change(pool.step_seconds, was.step_seconds, "speculative steps' time");
  change(pool.price_per_slot_second, was.price, "its price");
  if (baseline) {
    change(baseline.step_seconds, before.pools[baseline.name]?.step_seconds, "plain steps' time");
    change(baseline.price_per_slot_second, before.pools[baseline.name]?.price, "baseline's price");
  }
  const why = causes.length ? ` as ${causes.join(" and ")}` : " as queues changed";
  return `Break-even went from ${fixed(was.break_even)} to ${fixed(pool.break_even)} in ${span(before.age)}${why}.`;
}
