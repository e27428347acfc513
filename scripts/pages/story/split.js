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
    splits: { kind: "range", label: "CTAs for each head:", wide: true, min: 0,
      max: () => SPLIT.problems[0].times.length - 1,
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
      const own = { "data-sm": sm < busy ? "busy" : "idle" };
      parts.push(box(...place, cell - 2, cell - 2, sm < busy ? "tint0" : "idle", own));
    }
    let y = 20 + Math.ceil(SPLIT.sms / across) * cell + 26;
    // The merge.
    const its = partsOf(SCORES, Math.min(splits, KEYS));
    const weights = weightsOf(its, weighted), wide = Math.min((width - 1) / KEYS, 92), tall = 70;
    const most = Math.max(...its.map(({ total }) => total));
    parts.push(words(0, y, `eight keys for ${count(its.length, "CTA")}: the sum of each`, "small muted"));
    its.forEach(({ begin, end, total }, index) => {
      const x = begin * wide, long = (end - begin) * wide - 4, high = total / most * tall, low = high * weights[index];
      parts.push(box(x, y + 10 + tall - high, long, high, "empty"));
      const look = weighted || its.length === 1 ? "tint2" : "tint3";
      const name = end - begin > 1 ? `${begin}–${end - 1}` : begin;
      parts.push(box(x, y + 10 + tall - low, long, low, look, { "data-part": index }));
      parts.push(words(x + long / 2, y + tall + 26, name, "small middle muted"));
    });
    y += tall + 56;
    // The times.
    const longest = Math.max(...times.map(({ us }) => us)), bar = Math.min((width - 1) / times.length, 60), high = 120;
    const title = shown ? "the call's time, by CTAs for each head" : "CTAs for each head: which is the fastest?";
    parts.push(words(0, y, title, "small muted"));
    times.forEach(({ splits: its, us }, index) => {
      const up = us / longest * high, x = index * bar;
      const look = index === at ? "mark" : "tint0";
      if (shown) parts.push(box(x + 2, y + 10 + high - up, bar - 4, up, look, { "data-us": us }));
      parts.push(box(x, y + 8, bar, high + 20, index === at ? "chosen" : "grab", { "data-choose": index }));
      parts.push(words(x + bar / 2, y + high + 25, its, "small middle through"));
    });
    const floor = y + 10 + high - read / longest * high;
    if (shown) parts.push(path([[0, floor], [times.length * bar, floor]], "markline"));
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

// Sequences of different lengths on a few SMs: a CTA for each of them, or equal pieces of one line.
const SMS = 4, SEQUENCES = 6, MOST_UNITS = 16; // a unit is 64 keys
// What a sequence costs: its keys, and one unit for its start and end. units_of_start() and units_of_keys() of v36.
const unitsOf = length => 1 + Math.max(length, 1);
const lengthsOf = state => range(SEQUENCES).map(index => state[`units${index}`]);

// As v33 does it: the next sequence goes to the SM that is free first.
function wholeSequences(lengths) {
  const ends = range(SMS).map(() => 0);
  return lengths.map((length, sequence) => {
    const sm = ends.indexOf(Math.min(...ends)), begin = ends[sm], end = ends[sm] += unitsOf(length);
    return { sm, sequence, begin, end };
  });
}
// Where the piece of a CTA begins on the line of all units: Line::begin_of() of v36.
const pieceBegin = (cta, units) => units <= SMS ? Math.min(cta, units)
  : cta * Math.floor(units / SMS) + Math.floor(cta * (units % SMS) / SMS);
function equalPieces(lengths) {
  const total = sum(lengths.map(unitsOf)), pieces = [];
  for (const sm of range(SMS)) {
    const [begin, end] = [sm, sm + 1].map(cta => pieceBegin(cta, total));
    let first = 0; // unit of a sequence
    lengths.forEach((length, sequence) => {
      const last = first + unitsOf(length), from = Math.max(begin, first), to = Math.min(end, last);
      if (from < to) pieces.push({ sm, sequence, begin: from - begin, end: to - begin });
      first = last;
    });
  }
  return pieces;
}
const endOfAll = pieces => Math.max(...pieces.map(({ end }) => end));

story("shares", {
  state: { units0: 2, units1: 5, units2: 1, units3: 4, units4: 3, units5: 16 },
  controls: Object.fromEntries(range(SEQUENCES).map(index => [`units${index}`,
    { kind: "range", small: true, label: `sequence ${index}`, min: 0, max: MOST_UNITS,
      text: units => `${64 * units} keys` }])),
  left: 46,
  point(state, { handle, sequence }, x) {
    if (handle !== "length") return false;
    state[`units${sequence}`] = clamp(Math.round((x - this.left) / this.unit), 0, MOST_UNITS);
    return true;
  },
  draw(state, width) {
    const lengths = lengthsOf(state), { left } = this, high = 20, parts = [], look = sequence => `tint${sequence % 4}`;
    const unit = this.unit = Math.min((width - left - 30) / MOST_UNITS, 40);
    parts.push(words(0, 12, "keys of each sequence: drag", "small muted"));
    lengths.forEach((length, index) => {
      const y = 20 + index * (high + 2), end = left + length * unit;
      parts.push(words(0, y + 15, index, "small"), box(left, y, length * unit, high, look(index)));
      parts.push(handle("length", { "data-sequence": index }, box(end - 12, y, 24, high, "grab"),
        box(end - 3, y, 6, high, "mark")));
    });
    let y = 20 + SEQUENCES * (high + 2) + 14;
    const ways = [["v33: a CTA for each sequence", wholeSequences(lengths)],
      ["v36: equal pieces of one line", equalPieces(lengths)]];
    const ends = ways.map(([, pieces]) => endOfAll(pieces)), scale = (width - left - 8) / Math.max(...ends, 18);
    ways.forEach(([title, pieces], way) => {
      parts.push(words(0, y + 14, title, "strong"));
      y += 20;
      for (const sm of range(SMS)) {
        parts.push(words(0, y + 15, `SM ${sm}`, "small"), box(left, y, ends[way] * scale, high, "idle"));
        for (const { sequence, begin, end } of pieces.filter(piece => piece.sm === sm)) {
          const own = { "data-piece": `${way} ${sm} ${sequence}`, "data-units": end - begin };
          parts.push(box(left + begin * scale, y, (end - begin) * scale, high, look(sequence), own));
          if ((end - begin) * scale > 12)
            parts.push(words(left + (begin + end) / 2 * scale, y + 15, sequence, "small middle through"));
        }
        y += high;
      }
      y += 12;
    });
    const shared = lengths.filter((_, index) => ways[1][1].filter(piece => piece.sequence === index).length > 1).length;
    const { lengths: record, before, after, factor } = DATA.shares;
    return [
      picture(width, y, "When each SM works on which sequence", parts) + legend([["idle", "an SM without work"]]),
      `v33 takes ${bold(ends[0])} units of time, v36 ${bold(ends[1])}: ${(ends[0] / ends[1]).toFixed(2)} × as fast.
       ${count(shared, "sequence")} of v36 ${shared === 1 ? "is" : "are"} shared and must be merged. Measured with
       ${record.count} sequences, of which the longest has ${thousands(record.most)} keys and the others at most
       ${thousands(record.others)}: ${version(after.step)} took ${after.us.toFixed(1)} µs, and ${version(before.step)},
       whose place it took, ${before.us.toFixed(1)} µs, ${bold(`${factor.toFixed(2)} ×`)} as long.`,
    ];
  },
});
