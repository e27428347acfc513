// Which tiles a CTA computes. The first two functions are those of common/attention.h and of the kernels from v02 on.
function visibleKeys(row, { seqlen_q, seqlen_kv, kv_len, causal }) {
  return causal ? clamp(row + 1 + kv_len - seqlen_q, 0, kv_len) : kv_len;
}
// For each tile that the CTA computes: is a mask needed?
function tilesOfCta(cta, problem) {
  const { block_m, block_n } = DATA.layouts, first = cta * block_m;
  const last = Math.min(first + block_m, problem.seqlen_q) - 1;
  const tiles = Math.ceil(visibleKeys(last, problem) / block_n);
  return range(tiles).map(tile => (tile + 1) * block_n > visibleKeys(first, problem));
}
const LONGEST = 320;

story("tiles", {
  state: { seqlen_q: 300, seqlen_kv: 300, kv_len: 300, causal: true, cta: 2 },
  controls: {
    seqlen_q: { kind: "range", label: "queries:", min: 1, max: LONGEST },
    seqlen_kv: { kind: "range", label: "keys:", min: 1, max: LONGEST },
    kv_len: { kind: "range", label: "kv_len:", min: 0, max: state => state.seqlen_kv },
    cta: { kind: "range", label: "CTA", min: 0, max: state => Math.ceil(state.seqlen_q / DATA.layouts.block_m) - 1 },
    causal: { kind: "flag", label: "causal mask" },
  },
  settle(state) { if (state.kv_len > state.seqlen_kv) state.kv_len = state.seqlen_kv; },
  point(state, { handle, cta, pressed }, x, y) {
    if (!handle && pressed && cta) return state.cta = Number(cta), true;
    const unit = this.unit, keys = Math.round((x - this.left) / unit), queries = Math.round((y - this.top) / unit);
    if (handle === "seqlen_q") state.seqlen_q = clamp(queries, 1, LONGEST);
    else if (handle === "seqlen_kv") {
      const whole = state.kv_len === state.seqlen_kv;
      state.seqlen_kv = clamp(keys, 1, LONGEST);
      if (whole) state.kv_len = state.seqlen_kv;
    } else if (handle === "kv_len") state.kv_len = clamp(keys, 0, state.seqlen_kv);
    else return false;
    return true;
  },
  left: 34, top: 46,
  draw(state, width) {
    const { block_m, block_n } = DATA.layouts, { left, top } = this;
    const unit = this.unit = Math.min(width - left - 24, 480) / LONGEST;
    const { seqlen_q, seqlen_kv, kv_len, cta } = state, parts = [];
    const rows = Math.ceil(seqlen_q / block_m), columns = Math.ceil(seqlen_kv / block_n);
    const x = key => left + key * unit, y = query => top + query * unit;
    let computed = 0, masked = 0;
    for (const row of range(rows)) {
      const tiles = tilesOfCta(row, state);
      computed += tiles.length;
      masked += tiles.filter(Boolean).length;
      for (const column of range(columns)) {
        const look = column >= tiles.length ? "idle" : tiles[column] ? "tint1" : "tint0";
        parts.push(box(x(column * block_n), y(row * block_m), block_n * unit, block_m * unit, look,
          { "data-cta": row, "data-tile": column }));
        if (row === cta && column < tiles.length)
          parts.push(words(x((column + 0.25) * block_n), y((row + 0.75) * block_m) + 5, column + 1, "through"));
      }
      parts.push(words(left - 6, y(row * block_m) + 12, row * block_m, "small muted end"));
    }
    for (const column of range(columns))
      parts.push(words(x(column * block_n), top - 6, column * block_n, "small muted"));
    // What the tiles have beyond the tensors.
    parts.push(box(x(seqlen_kv), y(0), (columns * block_n - seqlen_kv) * unit, rows * block_m * unit, "outside"));
    parts.push(box(x(0), y(seqlen_q), seqlen_kv * unit, (rows * block_m - seqlen_q) * unit, "outside"));
    const stairs = range(seqlen_q).flatMap(row => [row, row + 1].map(edge => [x(visibleKeys(row, state)), y(edge)]));
    parts.push(path(stairs, "markline"));
    parts.push(box(x(0), y(cta * block_m), columns * block_n * unit, block_m * unit, "chosen"));
    const bar = (name, px, py, wide, high) => parts.push(
      handle(name, {}, box(px - 8, py - 8, wide + 16, high + 16, "grab"), box(px, py, wide, high, "mark")));
    bar("seqlen_kv", x(seqlen_kv) - 3, (y(seqlen_q) + top) / 2 - 20, 6, 40);
    bar("seqlen_q", (x(seqlen_kv) + left) / 2 - 20, y(seqlen_q) - 3, 40, 6);
    bar("kv_len", x(kv_len) - 6, 14, 12, 12);
    parts.push(words(clamp(x(kv_len) - 12, 56, width), 25, "kv_len", "small end"));
    const seen = sum(range(seqlen_q).map(row => visibleKeys(row, state)));
    const tiles = tilesOfCta(cta, state), pairs = computed * block_m * block_n;
    const wanted = pairs ? `; ${Math.round(100 * seen / pairs)} % of the pairs in them are wanted` : "";
    return [
      picture(x(LONGEST) + 24, y(LONGEST) + 8, "The tiles of the attention matrix", parts) +
      legend([["tint0", "computed without a mask"], ["tint1", "computed with a mask"], ["idle", "not even loaded"],
        ["outside", "pale: no such query or key"],         ["swatchline", "how far a row sees"]]),
      `CTA ${cta} computes ${bold(count(tiles.length, "tile"))}, in the order of the numbers,
       ${tiles.filter(Boolean).length} of them with a mask. All CTAs together compute ${computed} of
       ${count(rows * columns, "tile")}, ${masked} with a mask${wanted}.`,
    ];
  },
});
