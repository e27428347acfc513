// Where a step keeps S, P and O: what its SharedStorage has, as far as the page knows it, and otherwise registers.
const STORAGE = DATA.counted.map(each => ({ ...each,
  parts: DATA.layouts.storage.find(({ step }) => step === each.step)?.["64"] ?? [] }));
const placesOf = ({ parts }) => Object.fromEntries(parts.map(part => [part.name, part]));

story("storage", {
  state: { step: 2 },
  controls: {
    step: { kind: "range", label: "step", wide: true, min: 0, max: STORAGE.length - 1,
      text: index => STORAGE[index].step },
  },
  point(state, { choose, pressed }) {
    if (!pressed || choose === undefined) return false;
    state.step = Number(choose);
    return true;
  },
  draw(state, width) {
    const its = STORAGE[state.step], parts = [], own = placesOf(its);
    if (own.s && !own.p) own.p = own.s; // P takes the place of S
    const whole = Math.min(width - 1, 760), side = whole * 0.31, line = 52, top = 34;
    parts.push(words(0, 16, "registers", "strong"), words(whole, 16, "shared memory", "strong end"));
    parts.push(box(0, top - 8, side, 3 * line + 8, "empty"), box(whole - side, top - 8, side, 5 * line - 12, "empty"));
    ["s", "p", "o"].forEach((name, row) => {
      const part = own[name], x = part ? whole - side : 0, y = top + row * line;
      const lives = { "data-lives": `${name} ${part ? "shared" : "registers"}` };
      parts.push(box(x + 6, y, side - 12, line - 8, ["tint0", "tint1", "tint2"][row], lives));
      const title = name === "p" && part && part === own.s ? "P, where S was" : name.toUpperCase();
      parts.push(words(x + side / 2, y + 26, title, "middle"));
      if (!part) return;
      for (const [offset, from, to] of [[14, side + 6, whole - side - 6], [30, whole - side - 6, side + 6]]) {
        const height = y + offset, back = to + Math.sign(from - to) * 8;
        parts.push(path([[from, height], [to, height]], "markline"));
        parts.push(path([[back, height - 5], [to, height], [back, height + 5]], "markline"));
      }
      parts.push(words(whole / 2, y + 26, thousands(part.contents), "small middle halo", { "data-bytes": name }));
    });
    const tiles = its.parts.length ? ["q", "kv", "k", "v"].filter(name => own[name]) : its.bytes ? ["q, k, v"] : [];
    tiles.forEach((name, index) => {
      const wide = (side - 12) / tiles.length, x = whole - side + 6 + index * wide, y = top + 3 * line;
      parts.push(box(x, y, wide, line - 8, "tint3"));
      parts.push(words(x + wide / 2, y + 26, name === "kv" ? "K, V" : name.toUpperCase(), "middle"));
    });
    const middle = whole - side / 2, end = top + 4 * line;
    parts.push(words(middle, end + 18, `${thousands(its.bytes)} bytes`, "small middle", { "data-total": its.bytes }));
    // What the emulator counted of each step, per tile of 64 x 64 scores.
    const low = end + line + 34, tall = 90, wide = whole / STORAGE.length;
    const most = Math.log2(Math.max(...STORAGE.map(each => each.wavefronts)));
    parts.push(words(0, low - 8, "passes per tile of 64 × 64 scores (log)", "small muted"));
    STORAGE.forEach((each, index) => {
      const high = Math.log2(Math.max(each.wavefronts, 1)) / most * tall, here = index === state.step;
      parts.push(box(index * wide + 1, low + 6 + tall - high, wide - 2, high, here ? "mark" : "tint0"));
      parts.push(box(index * wide, low, wide, tall + 26, "grab", { "data-choose": index }));
      if (index % (whole > 600 ? 2 : 4) === 0 && (index + 0.5) * wide < whole - 14)
        parts.push(words(index * wide + (index ? wide / 2 : 0), low + tall + 22, version(each.step),
          `small through ${index ? "middle" : ""}`));
    });
    const where = ["s", "p", "o"].filter(name => own[name]).join(", ").toUpperCase().replace(/, (.)$/, " and $1");
    const what = where ? `${where} ${where.length > 1 ? "pass" : "passes"} through shared memory. An arrow carries the
       whole matrix at least once per tile; its number is the size of the matrix in bytes`
      : "S, P and O stay in registers from the first tile of keys to the last";
    return [
      picture(whole + 1, low + tall + 28, "Where a step keeps S, P and O", parts),
      `<code>${its.step}</code>: ${what}. For a tile of 64 × 64 scores the emulator counts
       ${bold(count(Math.round(its.wavefronts), "pass"))}.
       ${its.wgmma ? "The tensor cores also read Q, K and V there for wgmma, which is not counted." : ""}`,
    ];
  },
});
