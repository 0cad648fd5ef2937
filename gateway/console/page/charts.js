// Charts, drawn by Plotly, which the gateway serves from the installed package. Colours come from the style sheet.

let loading;

function library() {
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = "console/plotly.js";
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => reject(new Error("The chart library could not be loaded; tables show the same."));
    document.head.append(script);
  });
  return loading;
}

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const faint = (hex, share) => hex + Math.round(share * 255).toString(16).padStart(2, "0");

function layout(more) {
  const axis = { gridcolor: color("line"), zeroline: false, linecolor: color("line"), tickcolor: color("line"), automargin: true, fixedrange: true };
  const { xaxis, yaxis, ...rest } = more;
  return {
    margin: { l: 44, r: 14, t: 30, b: 40 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 12, color: color("dim") },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, font: { color: color("ink") } },
    hoverlabel: { bgcolor: color("card"), bordercolor: color("line"), font: { color: color("ink") } },
    hovermode: "x unified",
    xaxis: { ...axis, ...xaxis },
    yaxis: { ...axis, ...yaxis },
    ...rest,
  };
}

async function draw(id, traces, shape) {
  const plotly = await library();
  const place = document.getElementById(id);
  if (place) await plotly.react(place, traces, layout(shape), { displayModeBar: false, responsive: true });
}

const text = (words, at) => ({ text: words, showarrow: false, font: { size: 12, color: color("ink") }, bgcolor: faint(color("card"), 0.8), ...at });

export function curve(pool) {
  const points = pool.curve;
  const needed = pool.break_even;
  const from = pool.threshold;
  const tall = Math.max(...points.map((point) => point.acceptance_length), needed < 20 ? needed : 1) + 0.6;
  const shapes = [];
  const annotations = [];
  if (needed != null && needed >= 1 && needed < 20) {
    shapes.push({ type: "line", xref: "paper", x0: 0, x1: 1, y0: needed, y1: needed, line: { color: color("bad"), width: 2, dash: "dash" } });
    annotations.push(text(`break-even ${needed.toFixed(2)}`, { xref: "paper", x: 0.995, xanchor: "right", y: needed, yanchor: "top" }));
  }
  if (from != null) {
    shapes.push({ type: "rect", x0: from, x1: 1, yref: "paper", y0: 0, y1: 1, fillcolor: faint(color("spec"), 0.1), line: { width: 0 }, layer: "below" });
    shapes.push({ type: "line", x0: from, x1: from, yref: "paper", y0: 0, y1: 1, line: { color: color("spec"), width: 2, dash: "dot" } });
    const right = from > 0.7;
    annotations.push(text(`threshold ${from.toFixed(2)}${from < 1 ? " →" : ""}`, { x: from, xanchor: right ? "right" : "left", xshift: right ? -4 : 4, yref: "paper", y: 1, yanchor: "top" }));
  }
  return draw(
    "curve",
    [
      {
        x: points.map((point) => point.score),
        y: points.map((point) => point.acceptance_length),
        customdata: points.map((point) => point.samples),
        mode: "lines+markers",
        name: "expected",
        line: { color: color("spec"), width: 3, shape: "spline", smoothing: 0.6 },
        marker: { color: color("spec"), size: points.map((point) => 7 + 3 * Math.log10(1 + point.samples)), line: { color: color("card"), width: 2 } },
        hovertemplate: "%{y:.2f} tokens per step, %{customdata:.1f} samples<extra></extra>",
      },
    ],
    {
      showlegend: false,
      margin: { l: 44, r: 14, t: 10, b: 40 },
      shapes,
      annotations,
      xaxis: { title: { text: "score: how predictable a call is" }, range: [0, 1] },
      yaxis: { title: { text: "tokens per step" }, range: [1, tall] },
    },
  );
}

const when = (lately) => lately.times.map((at) => new Date(at * 1000));

// From when there was traffic, but two minutes at least: a gateway that has just begun shows no empty past.
function shown(lately) {
  const last = lately.times.length - 1;
  const first = lately.times.findIndex((_, i) => lately.break_even[i] != null || lately.usd_per_hour[i] > 0);
  const begin = first < 0 ? 0 : Math.max(0, Math.min(first - 2, last - 120 / lately.step_seconds));
  const range = [new Date(lately.times[begin] * 1000), new Date((lately.times[last] + lately.step_seconds) * 1000)];
  return { range, type: "date", tickformat: "%H:%M:%S", nticks: 4, tickangle: 0 };
}

export function spend(lately) {
  const x = when(lately);
  const line = (name, y, look) => ({ x, y, name, mode: "lines", hovertemplate: "$%{y:.3f}/h", line: { width: 2, shape: "hv", ...look } });
  return draw(
    "spend",
    [
      line("all baseline", lately.baseline_usd_per_hour, { color: color("base"), dash: "dot" }),
      line("all speculative", lately.speculative_usd_per_hour, { color: color("spec"), dash: "dot" }),
      { ...line("as routed", lately.usd_per_hour, { color: color("good"), width: 2.5 }), fill: "tozeroy", fillcolor: faint(color("good"), 0.14) },
    ],
    { yaxis: { rangemode: "tozero", tickprefix: "$" }, xaxis: shown(lately) },
  );
}

export function balance(lately) {
  const x = when(lately);
  const dots = (name, y, look) => ({ x, y, name, mode: "markers", hovertemplate: "%{y:.2f}", ...look });
  const top = Math.max(4, ...lately.observed, ...lately.predicted) + 0.4;
  const held = lately.break_even.map((value) => (value != null && value <= top ? Math.max(1, value) : null));
  return draw(
    "balance",
    [
      { x, y: held, name: "break-even", mode: "lines", connectgaps: true, hovertemplate: "%{y:.2f}", line: { color: color("bad"), width: 2, dash: "dash" } },
      dots("predicted", lately.predicted, { marker: { color: color("card"), size: 9, line: { color: color("spec"), width: 2 } } }),
      dots("observed", lately.observed, { marker: { color: color("spec"), size: 8 } }),
    ],
    { yaxis: { range: [1, top] }, xaxis: shown(lately) },
  );
}

export function features(parts) {
  const shown = [...parts].reverse();
  const reach = 1.15 * Math.max(0.01, ...shown.map((part) => Math.abs(part.effect)));
  return draw(
    "features",
    [
      {
        type: "bar",
        orientation: "h",
        y: shown.map((part) => part.name),
        x: shown.map((part) => part.effect),
        marker: { color: shown.map((part) => (part.effect >= 0 ? color("spec") : color("base"))) },
        hovertemplate: "%{x:+.3f}<extra></extra>",
      },
    ],
    { hovermode: "closest", margin: { l: 10, r: 14, t: 6, b: 34 }, xaxis: { range: [-reach, reach], title: { text: "effect on log tokens per step" }, zeroline: true, zerolinecolor: color("dim") }, bargap: 0.35 },
  );
}
