// What the warps and copies of one CTA do, in nominal time: the emulator's own traces.
const TRACES = DATA.traces;
const LOOKS = { products: "tint0", wgmma: "tint0", work: "tint1", memory: "tint3", copy: "tint3", issue: "ink",
  wait: "idle" };
const isProduct = ({ kind }) => kind === "products" || kind === "wgmma";
const ofOutput = event => isProduct(event) && /^O [^a-z]*= /.test(event.name);
const lookOf = event => ofOutput(event) ? "tint2" : LOOKS[event.kind];
const shortName = event => {
  if (event.kind === "copy") return event.name.replace(" tile", "");
  if (event.kind === "memory") return event.name.split(" ").at(-1);
  return ofOutput(event) ? "PV" : isProduct(event) && event.name[0] === "S" ? "S" : "";
};
const full = event => event.kind === "work" && !/^[SO] /.test(event.name) ? "softmax and other work" : event.name;
const underWay = (trace, time) =>
  trace.events.filter(event => event.kind !== "arrival" && event.begin <= time && time < event.end);
const endOf = trace => Math.max(...trace.events.map(event => event.end));

// An mbarrier's phases, each with its arrivals and with its end: the last arrival, or the last byte of a copy.
function phasesOf(trace, mbarrier) {
  const own = trace.events.filter(event => event.mbarrier === mbarrier && ["arrival", "copy"].includes(event.kind));
  return [...new Set(own.map(event => event.phase))].sort((a, b) => a - b).map(phase => {
    const its = own.filter(event => event.phase === phase), arrivals = its.filter(event => event.kind === "arrival");
    return { phase, arrivals: arrivals.map(event => event.begin), end: Math.max(...its.map(event => event.end)) };
  });
}

// The bars of a track. `at` has the trace's number, to which its events belong, and the one that is chosen.
function barsOf(trace, track, x, y, high, at) {
  return trace.events.map((event, number) => {
    if (event.track !== track || event.kind === "arrival") return "";
    const { begin, end } = event, name = shortName(event), id = `${at.trace}:${number}`;
    const look = lookOf(event) + (id === at.event ? " chosen-event" : ""), wide = x(end) - x(begin);
    const own = { "data-event": id, "data-name": full(event), "data-begin": begin };
    const fits = name && wide > 7 * name.length + 2;
    return box(x(begin), y + 1, Math.max(wide, 1), high - 2, look, own) +
      (fits ? words((x(begin) + x(end)) / 2, y + 14, name, "small middle through") : "");
  });
}
const playhead = (x, to) => [
  handle("time", {}, box(x - 14, 0, 28, 24, "grab"),
    element("path", { d: `M${number(x - 7)} 2h14l-7 14z`, class: "mark" })),
  path([[x, 14], [x, to]], "markline")];
// What is under way, and in which line of the source; who does the same is one row.
function tableOf(caption, events) {
  const now = new Map();
  for (const each of events) {
    const what = `${safe(full(each))}<br><code>${safe(each.line)}</code>`;
    now.set(what, [...now.get(what) ?? [], each.track]);
  }
  const rows = [...now].map(([what, who]) =>
    `<tr><th scope="row">${who.map(safe).join("<br>")}</th><td>${what}</td></tr>`);
  return `<table><caption>${safe(caption)}</caption>
    ${rows.join("") || "<tr><td>Nothing is under way.</td></tr>"}</table>`;
}
const LEGEND = [["tint0", "S = Q Kᵀ"], ["tint1", "softmax and other work"], ["tint2", "O += P V"]];

// The time of a trace's first computing warp, by what it does. While it waits for a wgmma of its own, that counts.
const PARTS = ["tint0", "tint1", "tint2", "tint3", "idle"];
function timesOf(trace) {
  const own = name => trace.events.filter(event => event.track === name && event.kind !== "arrival");
  const first = trace.tracks.find(track => /^warps? 0/.test(track));
  const products = own(first.replace("warps", "their wgmma"));
  const times = Object.fromEntries(PARTS.map(look => [look, 0]));
  for (const event of own(first)) {
    let rest = event.end - event.begin;
    if (event.kind === "wait" && first.startsWith("warps"))
      for (const product of products) {
        const both = Math.min(event.end, product.end) - Math.max(event.begin, product.begin);
        if (both > 0) { times[lookOf(product)] += both; rest -= both; }
      }
    if (event.kind !== "issue") times[lookOf(event)] += rest;
  }
  return times;
}

story("pipeline", {
  state: { step: 1, time: 2000, event: null },
  controls: {
    step: { kind: "choice", label: "step", of: TRACES.map(({ step }, index) => [index, version(step)]) },
    play: { kind: "play", label: "play" },
    time: { kind: "range", label: "playhead:", min: 0, max: ({ step }) => endOf(TRACES[step]), step: 20,
      text: thousands },
  },
  left: 96,
  point(state, { handle, event, choose, pressed }, x) {
    if (pressed && choose !== undefined) return state.step = Number(choose), true;
    if (handle === "time" || pressed && event === undefined) {
      state.time = clamp(Math.round((x - this.left) / this.unit), 0, endOf(TRACES[state.step]));
      return true;
    }
    if (event === undefined || event === state.event) return false;
    state.event = event;
    return true;
  },
  begin(state) { if (state.time >= endOf(TRACES[state.step]) - 20) state.time = 0; },
  advance(state, seconds) {
    const end = endOf(TRACES[state.step]);
    state.time = Math.min(state.time + seconds * end / 12, end);
    return state.time < end;
  },
  draw(state, width) {
    const { left } = this, trace = TRACES[state.step], unit = this.unit = (width - left - 8) / endOf(trace);
    const x = time => left + time * unit, high = 20, parts = [];
    let y = 26;
    for (const track of trace.tracks) {
      parts.push(words(0, y + 14, track.replace(/ \d+–\d+$/, track.startsWith("their") ? "" : "$&"), "small"));
      parts.push(path([[left, y + high], [width - 8, y + high]], "thin"));
      parts.push(barsOf(trace, track, x, y, high, { trace: state.step, event: state.event }));
      y += high;
    }
    const drawn = y;
    // The mbarriers: which phase is under way.
    const named = [...new Set(trace.events.map(event => event.mbarrier))];
    const mbarriers = named.filter(name => /[kv].*(full|empty)/i.test(name)).sort(), few = mbarriers.length <= 8;
    if (mbarriers.length && few) {
      parts.push(words(0, y + 26, "mbarriers: the phase under way, and arrivals", "small muted"));
      y += 34;
    }
    for (const mbarrier of few ? mbarriers : []) {
      let begin = 0;
      parts.push(words(0, y + 14, mbarrier.replace("bar_", "").replace("_", " "), "small"));
      const phases = phasesOf(trace, mbarrier);
      for (const { phase, arrivals, end } of [...phases, { phase: phases.length, arrivals: [], end: endOf(trace) }]) {
        const name = `${mbarrier} ${phase}`, wide = Math.max((end - begin) * unit, 1);
        parts.push(box(x(begin), y + 1, wide, high - 2, "empty", { "data-phase": name, "data-end": end }));
        if (wide > 12) parts.push(words(x((begin + end) / 2), y + 14, phase, "small middle through"));
        for (const time of arrivals)
          parts.push(box(x(time) - 1, y + 1, 2, high - 2, "mark through", { "data-arrival": name, "data-at": time }));
        begin = end;
      }
      y += high;
    }
    parts.push(playhead(x(state.time), few ? y : drawn));
    // All steps, beside each other: what the time of a warp becomes, for each 64 queries.
    parts.push(words(0, y + 30, "a warp's time for each 64 queries", "small muted"));
    y += 38;
    const totals = TRACES.filter(({ queries }) => queries >= 64).map(each => [each, timesOf(each), each.queries / 64]);
    const most = Math.max(...totals.map(([, times, share]) => sum(Object.values(times)) / share));
    totals.forEach(([each, times, share], index) => {
      let from = left;
      parts.push(words(0, y + 14, version(each.step), `small ${index === state.step ? "strong" : ""}`));
      for (const look of PARTS) {
        const wide = times[look] / share / most * (width - left - 8);
        if (wide) parts.push(box(from, y + 1, wide, high - 2, look, { "data-choose": index }));
        from += wide;
      }
      if (index === state.step) parts.push(box(left, y + 1, from - left, high - 2, "chosen"));
      y += high + 4;
    });
    const [at, event] = (state.event ?? "").split(":").map(Number), told = at === state.step && trace.events[event];
    return [
      picture(width, y + 2, "What warps and copies do, one below the other, over nominal time", parts) +
      legend([...LEGEND, ["tint3", "copies and loads"], ["idle", "waits"], ["ink", "asks for a copy"],
        ["mark", "an arrival at an mbarrier"]]) +
      tableOf(`${version(trace.step)} at the playhead`, underWay(trace, state.time)),
      told ? `${told.track}, from ${thousands(told.begin)} to ${thousands(told.end)}:
       ${safe(full(told))}. The source line: <code>${safe(told.line)}</code>`
        : "Point at a bar to see its line of the source.",
    ];
  },
});

// What the warps do, and what the tensor cores do meanwhile, as v21 and v22 order it, if K and V always come in time.
// The costs that it begins with are the emulator's nominal ones.
const TILES_OF_KEYS = 4, COSTS = DATA.overlap;

// Each warpgroup issues products, of which the tensor cores compute one at a time, in the order of their requests, and
// computes exponentials. Gives bars: who does what, for which warpgroup, from when to when.
function overlapped(step, work, warpgroups) {
  const bars = [], product = COSTS.product;
  let free = 0; // the tensor cores, from then on
  const compute = (warpgroup, name, asked) => {
    const begin = Math.max(asked, free);
    bars.push({ who: "tensor cores", warpgroup, name, begin, end: free = begin + product });
    return free;
  };
  const exponentiate = (warpgroup, begin) => {
    bars.push({ who: "warps", warpgroup, name: "", begin, end: begin + work });
    return begin + work;
  };
  function* v21(warpgroup) {
    for (let tile = 0, now = 0; tile < TILES_OF_KEYS; ++tile) {
      yield now;
      now = exponentiate(warpgroup, compute(warpgroup, `S ${tile}`, now));
      yield now;
      now = compute(warpgroup, `PV ${tile}`, now);
    }
  }
  function* v22(warpgroup) {
    yield 0;
    let now = exponentiate(warpgroup, compute(warpgroup, "S 0", 0));
    for (let tile = 1; tile < TILES_OF_KEYS; ++tile) {
      yield now;
      const scores = compute(warpgroup, `S ${tile}`, now), output = compute(warpgroup, `PV ${tile - 1}`, now);
      now = Math.max(exponentiate(warpgroup, scores), output);
    }
    yield now;
    compute(warpgroup, `PV ${TILES_OF_KEYS - 1}`, now);
  }
  const waiting = range(warpgroups).map(index => (step === "v21" ? v21 : v22)(index))
    .map(its => ({ its, asks: its.next().value }));
  while (waiting.length) { // whoever asks first
    const first = waiting.reduce((a, b) => b.asks < a.asks ? b : a), { value, done } = first.its.next();
    waiting.splice(waiting.indexOf(first), 1);
    if (!done) waiting.push({ its: first.its, asks: value });
  }
  return bars;
}
const lastOf = bars => Math.max(...bars.map(({ end }) => end));

story("overlap", {
  state: { work: COSTS.work, warpgroups: 1, time: 1000 },
  controls: {
    play: { kind: "play", label: "play" },
    work: { kind: "range", label: "exponentials of a tile:", min: 100, max: 1400, step: 2, text: thousands },
    warpgroups: { kind: "choice", label: "warpgroups", of: [[1, "one"], [2, "two"]] },
    time: { kind: "range", label: "playhead:", min: 0, max: state => lastOfBoth(state), step: 20, text: thousands },
  },
  left: 96,
  point(state, { handle, pressed }, x) {
    if (handle !== "time" && !pressed) return false;
    state.time = clamp(Math.round((x - this.left) / this.unit), 0, lastOfBoth(state));
    return true;
  },
  begin(state) { if (state.time >= lastOfBoth(state) - 20) state.time = 0; },
  advance(state, seconds) {
    const end = lastOfBoth(state);
    state.time = Math.min(state.time + seconds * end / 12, end);
    return state.time < end;
  },
  draw({ work, warpgroups, time }, width) {
    const { left } = this, both = ["v21", "v22"].map(step => overlapped(step, work, warpgroups)), high = 24, parts = [];
    const unit = this.unit = (width - left - 8) / lastOfBoth({ work, warpgroups }), now = [];
    let y = 26;
    const busy = both.map((bars, index) => {
      const end = lastOf(bars), products = bars.filter(({ who }) => who === "tensor cores");
      parts.push(words(0, y + 14, ["v21: wait", "v22: overlap"][index], "strong"));
      y += 20;
      for (const row of range(warpgroups + 1)) {
        const own = row ? bars.filter(bar => bar.who === "warps" && bar.warpgroup === row - 1) : products;
        const title = row ? `warpgroup ${row - 1}` : "tensor cores";
        parts.push(words(0, y + 16, title, "small"));
        parts.push(box(left, y + 1, end * unit, high - 2, "idle")); // where no bar comes to lie on it, nothing happens
        for (const { name, begin, end, warpgroup } of own) {
          const look = row ? "tint1" : name[0] === "S" ? "tint0" : "tint2", wide = (end - begin) * unit;
          const text = row ? "exp" : warpgroups > 1 ? name.split(" ")[0] : name, fits = wide > 7 * text.length + 3;
          const own = { "data-bar": `v${21 + index} ${name || "exp"} ${warpgroup}`, "data-begin": begin };
          parts.push(box(left + begin * unit, y + 1, wide, high - 2, look, own));
          if (fits) parts.push(words(left + (begin + end) / 2 * unit, y + 16, text, "small middle through"));
        }
        y += high;
      }
      y += 12;
      const here = bars.filter(({ begin, end }) => begin <= time && time < end);
      const [cores, warps] = ["tensor cores", "warps"].map(who => here.some(bar => bar.who === who));
      now.push(`v${21 + index}: ${cores && warps ? "the tensor cores and a warpgroup both work"
        : cores ? "only the tensor cores work" : warps ? "only exponentials are computed" : "all is done"}.`);
      return [end, Math.round(100 * products.length * COSTS.product / end)];
    });
    parts.push(playhead(left + time * unit, y - 12));
    const [[slow, before], [fast, after]] = busy;
    const [{ steps, device }] = DATA.ladder.problems, [v21, v22] = ["v21", "v22"]
      .map(name => steps.find(({ step }) => version(step) === name).rate);
    return [
      picture(width, y - 6, "What the warps do, and what the tensor cores do meanwhile", parts) +
      legend([...LEGEND, ["idle", "nothing"]]) + `<p class="now">${now.join("<br>")}</p>`,
      `A product takes ${COSTS.product}, four tiles take ${thousands(slow)} in v21 and ${thousands(fast)} in v22:
       ${bold(`${(slow / fast).toFixed(2)} ×`)} as fast. The tensor cores work for ${before} % of the time, and for
       ${after} %. Measured on an ${safe(device)} with two warpgroups and D = 128, v22 was
       ${(v22 / v21).toFixed(2)} × as fast as v21.`,
    ];
  },
});
// The end of the longer of the two.
function lastOfBoth({ work, warpgroups }) {
  return Math.max(...["v21", "v22"].map(step => lastOf(overlapped(step, work, warpgroups))));
}
