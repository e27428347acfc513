// What the warps do, and what the tensor cores do meanwhile, as v21 and v22 order it, if K and V always are there in time.
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
    const { steps } = DATA.ladder.problems[0], v22 = steps.find(({ step }) => version(step) === "v22");
    return [
      picture(width, y - 6, "What the warps do, and what the tensor cores do meanwhile", parts) +
      legend([...LEGEND, ["idle", "nothing"]]) + `<p class="now">${now.join("<br>")}</p>`,
      `A product takes ${COSTS.product}, four tiles take ${thousands(slow)} in v21 and ${thousands(fast)} in v22:
       ${bold(`${(slow / fast).toFixed(2)} ×`)} as fast. The tensor cores work for ${before} % of the time, and for
       ${after} %. Measured on an ${safe(v22.device)} with two warpgroups and D = 128, v22 was ${v22.factor.toFixed(2)} ×
       as fast as v21.`,
    ];
  },
});
// The end of the longer of the two.
function lastOfBoth({ work, warpgroups }) {
  return Math.max(...["v21", "v22"].map(step => lastOf(overlapped(step, work, warpgroups))));
}
