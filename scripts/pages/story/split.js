// The keys of a head in parts, each for a CTA: how many SMs have work, how parts are merged, what it takes.
const SPLIT = DATA.split;
const SCORES = scoresOf(SECTIONS.softmax.state); // the example of that section
// Eight keys in parts: what a CTA has of each.
function partsOf(scores, parts) {
  return range(parts).map(part => {
    const [begin, end] = [part, part + 1].map(edge => Math.floor(edge * scores.length / parts));
    const own = range(end - begin).map(index => begin + index), max = Math.max(...own.map(key => scores[key]));
    const weights = own.map(key => Math.exp(scores[key] - max));
    return { begin, end, max, total: sum(weights), output: sum(own.map((key, index) => weights[index] * key)) };
  });
}
// The weight of each part, by which it becomes relative to the largest maximum of all.
const weightsOf = (parts, weighted) =>
  parts.map(({ max }) => weighted ? Math.exp(max - Math.max(...parts.map(other => other.max))) : 1);
function merged(parts, weights) {
  const added = name => sum(parts.map((part, index) => weights[index] * part[name]));
  return added("output") / added("total");
}

story("split", {
  state: { splits: 3, problem: 1, weighted: true, shown: false },
  controls: {
    splits: { kind: "range", label: "CTAs for each head:", wide: true, min: 0, max: () => SPLIT.problems[0].times.length - 1,
      text: (index, { problem }) => String(SPLIT.problems[problem].times[index].splits) },
    problem: { kind: "choice", label: "keys", of: SPLIT.problems.map(({ keys }, index) => [index, thousands(keys)]) },
    weighted: { kind: "flag", label: "weight the parts before they are added" },
    shown: { kind: "flag", label: "show the measured times" },
  },
  point(state, { choose, pressed }) {
    if (!pressed || choose === undefined) return false;
    state.splits = Number(choose);
    return true;
  },
  draw({ splits: at, problem, weighted, shown }, width) {
    const { times, read } = SPLIT.problems[problem], { splits } = times[at], parts = [];
    const ctas = splits * SPLIT.heads, busy = Math.min(ctas, SPLIT.sms), across = width > 600 ? 33 : 22;
    const cell = Math.min(width / across, 20);
    parts.push(words(0, 12, `the GPU's ${SPLIT.sms} SMs`, "small muted"));
    for (const sm of range(SPLIT.sms)) {
      const place = [sm % across * cell, 20 + Math.floor(sm / across) * cell];
      parts.push(box(...place, cell - 2, cell - 2, sm < busy ? "tint0" : "idle", { "data-sm": sm < busy ? "busy" : "idle" }));
    }
    let y = 20 + Math.ceil(SPLIT.sms / across) * cell + 26;
    // The merge.
    const its = partsOf(SCORES, Math.min(splits, KEYS));
    const weights = weightsOf(its, weighted), wide = Math.min((width - 1) / KEYS, 92), tall = 70;
    const most = Math.max(...its.map(({ total }) => total));
    parts.push(words(0, y, `eight keys for ${count(its.length, "CTA")}: the sum of each`, "small muted"));
    its.forEach(({ begin, end, total }, index) => {
      const [x, long] = [begin * wide, (end - begin) * wide - 4], high = total / most * tall, low = high * weights[index];
      parts.push(box(x, y + 10 + tall - high, long, high, "empty"));
      parts.push(box(x, y + 10 + tall - low, long, low, weighted || its.length === 1 ? "tint2" : "tint3", { "data-part": index }));
      parts.push(words(x + long / 2, y + tall + 26, end - begin > 1 ? `${begin}–${end - 1}` : begin, "small middle muted"));
    });
    y += tall + 56;
    // The times.
    const longest = Math.max(...times.map(({ us }) => us)), bar = Math.min((width - 1) / times.length, 60), high = 120;
    parts.push(words(0, y, "the call's time, by CTAs for each head", "small muted"));
    times.forEach(({ splits: its, us }, index) => {
      const up = us / longest * high, x = index * bar;
      if (shown) parts.push(box(x + 2, y + 10 + high - up, bar - 4, up, index === at ? "mark" : "tint0", { "data-us": us }));
      parts.push(box(x, y + 8, bar, high + 20, index === at ? "chosen" : "grab", { "data-choose": index }));
      parts.push(words(x + bar / 2, y + high + 25, its, "small middle through"));
    });
    const floor = y + 10 + high - read / longest * high;
    if (shown) parts.push(path([[0, floor], [times.length * bar, floor]], "markline"));
    else parts.push(words(times.length * bar / 2, y + high / 2 + 10, "which is fastest?", "small muted middle through"));
    const mine = merged(its, weights), right = merged(partsOf(SCORES, 1), [1]), off = Math.abs(mine - right) > 1e-9;
    const best = times.reduce((a, b) => b.us < a.us ? b : a);
    return [
      picture(width, y + high + 34, "SMs with work, parts of a sum, and times", parts) +
      legend([["tint0", "has work"], ["idle", "has none"], ["empty", "a sum relative to the part's own maximum"],
        ["tint2", "relative to the largest"], ...shown ? [["swatchline", "only reading K and V"]] : []]),
      `${count(SPLIT.heads, "head")} × ${splits} = ${count(ctas, "CTA")} for ${SPLIT.sms} SMs. Merged, O =
       <b class="${off ? "bad" : "good"}">${mine.toFixed(3)}</b>; with one CTA it is ${right.toFixed(3)}.
       ${shown ? `Measured: ${bold(`${times[at].us.toFixed(1)} µs`)}; the fastest, ${best.splits} for each head,
       ${best.us.toFixed(1)} µs; reading K and V alone takes ${read.toFixed(1)} µs.` : ""}`,
    ];
  },
});
