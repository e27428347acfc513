// Where a step keeps S, P and O: what its SharedStorage has, and otherwise registers.
const STORAGE = [{ step: "v01_scalar", 64: [], 128: [] }, ...DATA.layouts.storage];
const placesOf = (step, dim) => Object.fromEntries(step[dim].map(part => [part.name, part]));

story("storage", {
  state: { step: 2, dim: 64 },
  controls: {
    step: { kind: "range", label: "step", min: 0, max: STORAGE.length - 1,
      text: index => STORAGE[index].step.split("_")[0] },
    dim: { kind: "choice", label: "head_dim", of: [[64, "64"], [128, "128"]] },
  },
  draw(state, width) {
    const its = STORAGE[state.step], parts = [], own = placesOf(its, state.dim);
    if (own.s && !own.p) own.p = own.s; // P takes the place of S
    const whole = Math.min(width - 1, 760), side = whole * 0.31, middle = whole - 2 * side, line = 52, top = 34;
    parts.push(words(0, 16, "registers", "strong"), words(whole, 16, "shared memory", "strong end"));
    parts.push(box(0, top - 8, side, 3 * line + 8, "empty"), box(whole - side, top - 8, side, 5 * line + 8, "empty"));
    let inShared = 0, total = 0;
    const matrix = (name, row, shared, text) => {
      parts.push(box((shared ? whole - side : 0) + 6, top + row * line, side - 12, line - 8, { s: "tint2", p: "tint3", o: "tint4" }[name] ?? "tint0",
        { "data-lives": `${name} ${shared ? "shared" : "registers"}` }));
      parts.push(words((shared ? whole - side : 0) + side / 2, top + row * line + 26, text, "middle"));
    };
    ["s", "p", "o"].forEach((name, row) => {
      const part = own[name], text = name === "p" && part && part === own.s ? "P, where S was" : name.toUpperCase();
      matrix(name, row, Boolean(part), text);
      if (!part) return;
      ++inShared;
      for (const [offset, from, to] of [[14, side + 6, whole - side - 6], [30, whole - side - 6, side + 6]]) {
        const y = top + row * line + offset, tip = Math.sign(from - to) * 8;
        parts.push(path([[from, y], [to, y]], "markline"), path([[to + tip, y - 5], [to, y], [to + tip, y + 5]], "markline"));
      }
      parts.push(words(whole / 2, top + row * line + 26, `${part.contents.toLocaleString("en")}`, "small middle halo", { "data-bytes": name }));
    });
    const tiles = ["q", "kv", "k", "v"].filter(name => own[name]);
    tiles.forEach((name, index) => {
      const wide = (side - 12) / tiles.length;
      parts.push(box(whole - side + 6 + index * wide, top + 3 * line, wide, line - 8, "tint0"));
      parts.push(words(whole - side + 6 + (index + 0.5) * wide, top + 3 * line + 26, name === "kv" ? "K, V" : name.toUpperCase(), "middle"));
    });
    for (const part of its[state.dim]) total += part.bytes;
    const padding = sum(its[state.dim].map(part => part.bytes - part.contents));
    parts.push(words(whole - side / 2, top + 4 * line + 18, `${total.toLocaleString("en")} bytes`, "small middle"));
    if (padding) parts.push(words(whole - side / 2, top + 4 * line + 36, `${padding.toLocaleString("en")} padding`, "small middle muted"));
    // What the emulator counted of each step, per tile of 64 x 64 scores.
    const counted = DATA.counted, low = top + 5 * line + 46, tall = 90, most = Math.max(...counted.map(each => each.wavefronts));
    const wide = whole / counted.length;
    parts.push(words(0, low - 8, "passes per tile of 64 × 64 scores, D = 64", "small muted"));
    counted.forEach((each, index) => {
      const high = each.wavefronts / most * tall, here = each.step === its.step;
      parts.push(box(index * wide + 2, low + 6 + tall - high, wide - 4, high, here ? "mark" : "tint0"));
      if (whole > 600 || index % 4 === 1) parts.push(words((index + 0.5) * wide, low + tall + 22, each.step.slice(0, 3), "small middle"));
    });
    const passes = counted.find(each => each.step === its.step).wavefronts;
    const where = ["s", "p", "o"].filter(name => own[name]).map(name => name.toUpperCase());
    return [
      picture(whole + 1, low + tall + 28, "Where a step keeps S, P and O", parts),
      `<code>${its.step}</code>: ${where.length ? `${where.join(", ").replace(/, (.)$/, " and $1")} ${where.length > 1 ? "pass" : "passes"} through shared memory`
    : "S, P and O never leave the registers"}. An arrow carries the whole matrix at least once per tile; its
       number is the size of the matrix in bytes.
       For a tile of 64 × 64 scores the emulator counts ${bold(count(Math.round(passes), "pass"))}.`,
    ];
  },
});
