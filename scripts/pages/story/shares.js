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
      parts.push(handle("length", { "data-sequence": index }, box(end - 12, y, 24, high, "grab"), box(end - 3, y, 6, high, "mark")));
    });
    let y = 20 + SEQUENCES * (high + 2) + 14;
    const ways = [["v33: a CTA for each sequence", wholeSequences(lengths)], ["v36: equal pieces of one line", equalPieces(lengths)]];
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
       ${thousands(record.others)}: ${version(after.step)} took ${after.us.toFixed(1)} µs, and ${version(before.step)}, whose place
       it took, ${before.us.toFixed(1)} µs, ${bold(`${factor.toFixed(2)} ×`)} as long.`,
    ];
  },
});
