// What the warps and copies of one CTA do, in nominal time: the emulator's own traces.
const TRACES = DATA.traces;
const END = Math.max(...TRACES.flatMap(trace => trace.events.map(event => event.end)));
const LOOKS = { products: "tint0", work: "tint1", memory: "tint3", copy: "tint3", issue: "ink", wait: "tint4" };
const ofOutput = ({ kind, name }) => kind === "products" && /^O [^a-z]*= /.test(name);
const lookOf = event => ofOutput(event) ? "tint2" : LOOKS[event.kind];
const shortName = event => {
  if (event.kind === "copy") return event.name.replace(" tile", "");
  if (event.kind === "memory") return event.name.split(" ").at(-1);
  return ofOutput(event) ? "PV" : event.kind === "products" && event.name[0] === "S" ? "S" : "";
};
const full = event => event.kind === "work" && event.name === "work" ? "softmax" : event.name;
const underWay = (trace, time) =>
  trace.events.filter(event => event.kind !== "arrival" && event.begin <= time && time < event.end);

// An mbarrier's phases, each with its arrivals and with its end: the last arrival, or the last byte of a copy.
function phasesOf(trace, mbarrier) {
  const own = trace.events.filter(event => event.mbarrier === mbarrier && ["arrival", "copy"].includes(event.kind));
  return [...new Set(own.map(event => event.phase))].sort((a, b) => a - b).map(phase => {
    const its = own.filter(event => event.phase === phase), arrivals = its.filter(event => event.kind === "arrival");
    return { phase, arrivals: arrivals.map(event => event.begin), end: Math.max(...its.map(event => event.end)) };
  });
}

story("pipeline", {
  state: { step: 1, time: 2000, event: null },
  controls: {
    time: { kind: "range", label: "playhead:", min: 0, max: END, step: 20, text: thousands },
    step: { kind: "choice", label: "tell about", of: TRACES.map(({ step }, index) => [index, version(step)]) },
  },
  left: 96,
  point(state, { handle, event, pressed }, x) {
    if (handle === "time" || pressed && event === undefined) {
      state.time = clamp(Math.round((x - this.left) / this.unit), 0, END);
      return true;
    }
    if (event === undefined || event === state.event) return false;
    state.event = event;
    state.step = Number(event.split(":")[0]);
    return true;
  },
  draw(state, width) {
    const { left } = this, unit = this.unit = (width - left - 8) / END, x = time => left + time * unit;
    const high = 20, parts = [];
    const bar = (begin, end, look, own) =>
      box(x(begin), y + 1, Math.max((end - begin) * unit, 1), high - 2, look, own);
    let y = 24;
    TRACES.forEach((trace, index) => {
      parts.push(words(0, y + 14, trace.step, `strong ${index === state.step ? "" : "muted"}`));
      y += 22;
      for (const track of trace.tracks) {
        parts.push(words(0, y + 14, track, "small"));
        parts.push(path([[left, y + high], [x(END), y + high]], "thin"));
        trace.events.forEach((event, number) => {
          if (event.track !== track || event.kind === "arrival") return;
          const { begin, end } = event, name = shortName(event), id = `${index}:${number}`;
          parts.push(bar(begin, end, lookOf(event) + (id === state.event ? " chosen-event" : ""),
            { "data-event": id, "data-name": full(event), "data-begin": begin }));
          if (name && (end - begin) * unit > 7 * name.length + 2)
            parts.push(words(x((begin + end) / 2), y + 14, name, "small middle through"));
        });
        y += high;
      }
      y += 12;
    });
    // The chosen step's mbarriers: which phase is under way.
    const trace = TRACES[state.step];
    const named = [...new Set(trace.events.map(event => event.mbarrier))];
    const mbarriers = named.filter(name => /[kv].*(full|empty)/i.test(name)).sort();
    if (mbarriers.length) {
      parts.push(words(0, y + 14, `mbarriers of ${version(trace.step)}: the phase under way`, "strong"));
      y += 22;
    }
    for (const mbarrier of mbarriers) {
      let begin = 0;
      parts.push(words(0, y + 14, mbarrier.replace("bar_", "").replace("_", " "), "small"));
      const phases = phasesOf(trace, mbarrier);
      for (const { phase, arrivals, end } of [...phases, { phase: phases.length, arrivals: [], end: END }]) {
        const name = `${mbarrier} ${phase}`;
        parts.push(bar(begin, end, phase % 2 ? "tint4" : "empty", { "data-phase": name, "data-end": end }));
        if ((end - begin) * unit > 12) parts.push(words(x((begin + end) / 2), y + 14, phase, "small middle through"));
        for (const time of arrivals)
          parts.push(box(x(time) - 1, y + 1, 2, high - 2, "mark through", { "data-arrival": name, "data-at": time }));
        begin = end;
      }
      y += high;
    }
    const flag = element("path", { d: `M${number(x(state.time) - 7)} 2h14l-7 14z`, class: "mark" });
    parts.push(handle("time", {}, box(x(state.time) - 14, 0, 28, 24, "grab"), flag));
    parts.push(path([[x(state.time), 14], [x(state.time), y]], "markline"));
    const [chosen, event] = (state.event ?? "").split(":").map(Number);
    const told = state.event && TRACES[chosen].events[event];
    const now = new Map(); // who does the same is one row
    for (const each of underWay(trace, state.time)) {
      const what = `${safe(full(each))}<br><code>${safe(each.line)}</code>`;
      now.set(what, [...now.get(what) ?? [], each.track]);
    }
    const rows = [...now].map(([what, who]) =>
      `<tr><th scope="row">${who.map(safe).join("<br>")}</th><td>${what}</td></tr>`);
    return [
      picture(width, y + 2, "What warps and copies do, one below the other, over nominal time", parts) +
      legend([["tint0", "S = Q Kᵀ"], ["tint1", "softmax and other work"], ["tint2", "O += P V"],
        ["tint3", "copies and loads"], ["tint4", "waits"], ["ink", "asks for a copy"],
        ["mark", "an arrival at an mbarrier"]]) +
      `<table><caption>${version(trace.step)} at the playhead</caption>
       ${rows.join("") || "<tr><td>Nothing is under way.</td></tr>"}</table>`,
      told ? `${version(TRACES[chosen].step)}, ${told.track}, from ${thousands(told.begin)} to ${thousands(told.end)}:
       ${safe(full(told))}. The source line: <code>${safe(told.line)}</code>`
        : "Point at a bar to see its line of the source.",
    ];
  },
});
