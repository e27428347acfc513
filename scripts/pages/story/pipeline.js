// What the warps and copies of one CTA do, in nominal time: the emulator's own traces.
const TRACES = DATA.traces;
const LOOKS = { products: "tint0", wgmma: "tint0", work: "tint1", memory: "tint3", copy: "tint3", issue: "ink", wait: "idle" };
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
  const first = trace.tracks.find(track => /^warps? 0/.test(track)), products = own(first.replace("warps", "their wgmma"));
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
    time: { kind: "range", label: "playhead:", min: 0, max: state => endOf(TRACES[state.step]), step: 20, text: thousands },
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
    const totals = TRACES.map(each => [each, timesOf(each), each.queries / 64]);
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
