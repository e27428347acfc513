// Where a step keeps S, P and O: what its SharedStorage has, and otherwise registers.
const STORAGE = [{ step: "v01_scalar", 64: [], 128: [] }, ...DATA.layouts.storage];
const placesOf = (step, dim) => Object.fromEntries(step[dim].map(part => [part.name, part]));

story("storage", {
  state: { step: 2, dim: 64 },
  controls: {
    step: { kind: "range", label: "step", min: 0, max: STORAGE.length - 1,
      text: index => version(STORAGE[index].step) },
    dim: { kind: "choice", label: "head_dim", of: [[64, "64"], [128, "128"]] },
  },
  draw(state, width) {
    const its = STORAGE[state.step], parts = [], own = placesOf(its, state.dim);
    if (own.s && !own.p) own.p = own.s; // P takes the place of S
    const whole = Math.min(width - 1, 760), side = whole * 0.31, line = 52, top = 34;
    parts.push(words(0, 16, "registers", "strong"), words(whole, 16, "shared memory", "strong end"));
    parts.push(box(0, top - 8, side, 3 * line + 8, "empty"), box(whole - side, top - 8, side, 5 * line + 8, "empty"));
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
    const tiles = ["q", "kv", "k", "v"].filter(name => own[name]);
    tiles.forEach((name, index) => {
      const wide = (side - 12) / tiles.length, x = whole - side + 6 + index * wide, y = top + 3 * line;
      parts.push(box(x, y, wide, line - 8, name === "q" ? "tint4" : "tint3"));
      parts.push(words(x + wide / 2, y + 26, name === "kv" ? "K, V" : name.toUpperCase(), "middle"));
    });
    const total = sum(its[state.dim].map(part => part.bytes)), middle = whole - side / 2, end = top + 4 * line;
    const padding = total - sum(its[state.dim].map(part => part.contents));
    parts.push(words(middle, end + 18, `${thousands(total)} bytes`, "small middle"));
    if (padding) parts.push(words(middle, end + 36, `${thousands(padding)} padding`, "small middle muted"));
    // What the emulator counted of each step, per tile of 64 x 64 scores.
    const counted = DATA.counted, low = end + line + 46, tall = 90, wide = whole / counted.length;
    const most = Math.max(...counted.map(each => each.wavefronts));
    parts.push(words(0, low - 8, "passes per tile of 64 × 64 scores, D = 64", "small muted"));
    counted.forEach((each, index) => {
      const high = each.wavefronts / most * tall, here = each.step === its.step;
      parts.push(box(index * wide + 2, low + 6 + tall - high, wide - 4, high, here ? "mark" : "tint0"));
      if (whole > 600 || index % 4 === 1)
        parts.push(words((index + 0.5) * wide, low + tall + 22, version(each.step), "small middle"));
    });
    const passes = counted.find(each => each.step === its.step).wavefronts;
    const where = ["s", "p", "o"].filter(name => own[name]).join(", ").toUpperCase().replace(/, (.)$/, " and $1");
    return [
      picture(whole + 1, low + tall + 28, "Where a step keeps S, P and O", parts),
      `<code>${its.step}</code>: ${where ? `${where} ${where.length > 1 ? "pass" : "passes"} through shared memory`
    : "S, P and O never leave the registers"}. An arrow carries the whole matrix at least once per tile; its
       number is the size of the matrix in bytes.
       For a tile of 64 × 64 scores the emulator counts ${bold(count(Math.round(passes), "pass"))}.`,
    ];
  },
});
