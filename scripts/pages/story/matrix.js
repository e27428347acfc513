// softmax(Q Kᵀ), as a step computed it, in thousandths.
const LEVELS = [5, 20, 60, 150, 350, 700]; // from each on, a darker cell

story("matrix", {
  state: { head: 0, causal: true, row: 40 },
  controls: {
    head: { kind: "choice", label: "a head that looks at",
      of: [[0, "keys near by"], [1, "every 16th key"], [2, "the first of 64 keys"], [3, "its own 32 keys"]] },
    row: { kind: "range", label: "query", min: 0, max: () => DATA.attention.seqlen - 1 },
    causal: { kind: "flag", label: "causal mask" },
  },
  point(state, place, x, y) {
    const row = Math.floor((y - this.top) / this.cell);
    if (row < 0 || row >= DATA.attention.seqlen || row === state.row) return false;
    state.row = row;
    return true;
  },
  top: 18,
  draw({ head, causal, row }, width) {
    const { seqlen, weights } = DATA.attention, rows = weights[causal ? "causal" : "full"][head];
    const left = 30, { top } = this;
    const cell = this.cell = Math.max(4, Math.floor(Math.min(width - left - 4, 512) / seqlen));
    const side = seqlen * cell, bars = top + side + 30, tall = 100, parts = [];
    // A row's cells from one key on.
    const cells = (query, key, keys) =>
      `M${left + key * cell} ${top + query * cell}h${keys * cell}v${cell}h${-keys * cell}z`;
    parts.push(box(left, top, side, side, "empty"), words(left, 12, "keys →", "small muted"));
    if (causal) {
      const hidden = range(seqlen).map(query => cells(query, query + 1, seqlen - query - 1));
      parts.push(element("path", { d: hidden.join(""), class: "idle" }));
    }
    LEVELS.forEach((least, level) => {
      const most = LEVELS[level + 1] ?? Infinity;
      const own = rows.flatMap((weights, query) => weights.map((weight, key) =>
        weight >= least && weight < most ? cells(query, key, 1) : ""));
      parts.push(element("path", { d: own.join(""), class: `level${level}` }));
    });
    for (const query of range(seqlen).filter(query => query % 16 === 0))
      parts.push(words(left - 5, top + query * cell + 10, query, "small muted end"));
    parts.push(box(left - 2, top + row * cell - 1, side + 4, cell + 2, "chosen"));
    const own = rows[row], largest = Math.max(...own), unit = tall / largest;
    parts.push(words(left, bars - 8, `weights of query ${row}`, "small muted"));
    own.forEach((weight, key) => parts.push(
      box(left + key * cell, bars + tall - weight * unit, cell, weight * unit, "bar", { "data-weight": weight })));
    parts.push(path([[left, bars + tall], [left + side, bars + tall]], "thin"));
    const seen = visibleKeys(row, { seqlen_q: seqlen, seqlen_kv: seqlen, kv_len: seqlen, causal });
    const largestFirst = [...own].sort((a, b) => b - a);
    const most = 1 + range(seqlen).findIndex(last => sum(largestFirst.slice(0, last + 1)) >= 900);
    return [
      picture(left + side + 4, bars + tall + 4, "The attention matrix of a head, and the weights of a query", parts),
      `Query ${row} sees ${bold(count(seen, "key"))}. Key ${own.indexOf(largest)} has the largest weight,
       ${(largest / 10).toFixed(1)} %, and ${most === 1 ? "one key has" : `${most} keys have`} at least 90 % of all
       weight.`,
    ];
  },
});
