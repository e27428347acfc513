// A swizzle changes where the chunks of 16 bytes of a row lie. This is SwizzledTile::offset_of of common/swizzle.h,
// counted in chunks, of a tile whose rows have `mode` bytes.
function swizzlePlace(mode, row, chunk) {
  const chunks = mode / 16;
  return row * chunks + (chunk ^ Math.floor(row * chunks / 8) % chunks);
}
const LINES = 8, CHUNKS = 8; // 1,024 bytes, after which the pattern repeats: a line is once around the banks

story("swizzle", {
  state: { mode: 128, row: 3, chunk: 1 },
  controls: {
    mode: { kind: "choice", label: "bytes in a row", of: [[128, "128"], [64, "64"], [32, "32"]] },
    row: { kind: "range", label: "row", min: 0, max: state => 1024 / state.mode - 1 },
    chunk: { kind: "range", label: "chunk", min: 0, max: state => state.mode / 16 - 1 },
  },
  point(state, { place, pressed }) {
    if (!pressed || !place) return false;
    [state.row, state.chunk] = place.split(":").map(Number);
    return true;
  },
  draw({ mode, row, chunk }, width) {
    const chunks = mode / 16, beside = width > 700, gap = 34;
    const cell = Math.min((beside ? (width - gap) / 2 : width) / CHUNKS - 0.2, 46), high = 26, parts = [];
    const panel = (x, y, title, placeOf) => {
      parts.push(words(x, y - 24, title, "strong"));
      for (const column of range(CHUNKS)) parts.push(words(x + column * cell + 2, y - 6, column * 4, "small muted"));
      const names = [];
      for (const r of range(1024 / mode)) for (const c of range(chunks)) {
        const place = placeOf(r, c), at = [x + place % CHUNKS * cell, y + Math.floor(place / CHUNKS) * high];
        const look = r === row && c === chunk ? "mark" : c === chunk && r < 8 ? "tint1" : "tint0", name = `${r}:${c}`;
        parts.push(box(...at, cell, high, look, { "data-place": name }));
        names.push(words(at[0] + cell / 2, at[1] + 17, name, `middle through ${look === "mark" ? "inmark" : ""}`));
      }
      parts.push(names);
    };
    const [x2, y2] = beside ? [CHUNKS * cell + gap, 44] : [0, 44 + LINES * high + 60];
    panel(0, 44, "without a swizzle, by banks", (r, c) => r * chunks + c);
    panel(x2, y2, `with the ${mode}-byte swizzle, by banks`, (r, c) => swizzlePlace(mode, r, c));
    // The address in bits, 9 to 4: what is below stays as it is.
    const plain = row * chunks + chunk, swizzled = swizzlePlace(mode, row, chunk), below = y2 + LINES * high + 42;
    const bits = [["bit", null], ["without", plain], ["XOR", plain ^ swizzled], ["with", swizzled]];
    bits.forEach(([title, value], line) => {
      const y = below + line * 30;
      parts.push(words(0, y + 18, title, "small"));
      for (const bit of [9, 8, 7, 6, 5, 4]) {
        const x = 60 + (9 - bit) * 42;
        if (value === null) { parts.push(words(x + 18, y + 18, bit, "small muted middle")); continue; }
        const one = value >> bit - 4 & 1, mixed = title !== "without" && (plain ^ swizzled) >> bit - 4 & 1;
        parts.push(box(x, y, 36, 26, mixed ? "tint1" : "empty", { "data-bit": `${title} ${bit}` }));
        parts.push(words(x + 18, y + 18, one, "middle mono"));
      }
    });
    const banks = placeOf => new Set(range(8).map(r => placeOf(r, chunk) % CHUNKS)).size;
    const from = range(Math.log2(chunks)).map(bit => bit + 7), into = from.map(bit => bit - 3);
    const list = numbers => numbers.length > 1 ? `bits ${numbers[0]} to ${numbers.at(-1)}` : `bit ${numbers[0]}`;
    return [
      picture(x2 + CHUNKS * cell + 1, below + 4 * 30, "Places of the chunks, and bits of an address", parts) +
      legend([["mark", "the chosen chunk, row:chunk"],
        ["tint1", "the same chunk of rows 0 to 7, which ldmatrix reads together"]]),
      `Chunk ${chunk} of row ${row} moves from byte ${16 * plain} to byte ${bold(16 * swizzled)}. The swizzle XORs
       ${list(from)} of the address into ${list(into)}. Without it, ldmatrix finds chunk ${chunk} of eight rows in
       ${count(banks((r, c) => r * chunks + c), "group")} of four banks; with it, in
       ${banks((r, c) => swizzlePlace(mode, r, c))}.`,
    ];
  },
});
