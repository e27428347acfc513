// Shared memory has 32 banks of 4 bytes. A pass takes one word of each bank, for all lanes that want that word.
const BANKS = 32, BANK_BYTES = 4, CHUNK_BYTES = 16, LINE_BYTES = BANKS * BANK_BYTES, TILE_ROWS = 64;

// For each group of lanes that shared memory serves together, for each bank the different words that they want of it.
function wordsByBank(offsets, bytes) {
  const lanes = LINE_BYTES / Math.max(BANK_BYTES, bytes);
  return range(offsets.length / lanes).map(group => {
    const banks = range(BANKS).map(() => []);
    for (const offset of offsets.slice(group * lanes, (group + 1) * lanes))
      for (let word = offset >> 2; word <= offset + bytes - 1 >> 2; ++word)
        if (!banks[word % BANKS].includes(word)) banks[word % BANKS].push(word);
    return banks;
  });
}
const bankPasses = (offsets, bytes) =>
  wordsByBank(offsets, bytes).map(banks => Math.max(...banks.map(wanted => wanted.length)));

// A swizzle changes where the chunks of 16 bytes of a row lie. This is SwizzledTile::offset_of of common/swizzle.h,
// counted in chunks, of a tile whose rows have `mode` bytes.
function swizzlePlace(mode, row, chunk) {
  const chunks = mode / CHUNK_BYTES;
  return row * chunks + (chunk ^ Math.floor(row * chunks / 8) % chunks);
}

// What the slider goes over. TMA lays the columns of a wider tile side by side, `rowBytes` of them each.
const LAYOUTS = [
  ...range(9).map(step => ({ padding: 8 * step, rowBytes: 128, name: `padded by ${8 * step}`,
    text: step ? `${8 * step} elements of padding` : "rows as they are" })),
  ...[32, 64, 128].map(mode => ({ mode, padding: 0, rowBytes: mode, name: `swizzle ${mode}`,
    text: `a swizzle of ${mode} bytes` })),
];
const chunkOffset = ({ padding, mode, rowBytes }, row, chunk) =>
  mode ? CHUNK_BYTES * swizzlePlace(mode, row, chunk) : row * (rowBytes + 2 * padding) + chunk * CHUNK_BYTES;

story("banks", {
  state: { layout: 0, chunk: 1, pass: 1 },
  controls: {
    layout: { kind: "range", label: "layout:", wide: true, min: 0, max: LAYOUTS.length - 1,
      text: index => LAYOUTS[index].text },
    pass: { kind: "range", label: "pass", min: 1, max: state => passesOf(state),
      text: (pass, state) => `${pass} of ${passesOf(state)}` },
    chunk: { kind: "range", label: "chunk", min: 0, max: ({ layout }) => LAYOUTS[layout].rowBytes / CHUNK_BYTES - 1 },
  },
  settle(state) { state.chunk = Math.min(state.chunk, LAYOUTS[state.layout].rowBytes / CHUNK_BYTES - 1); },
  point(state, { chunk, pressed }) {
    if (!pressed || chunk === undefined) return false;
    state.chunk = Number(chunk);
    return true;
  },
  draw({ layout, chunk, pass }, width) {
    const its = LAYOUTS[layout], { padding, mode, rowBytes } = its;
    const chunks = rowBytes / CHUNK_BYTES, rows = range(mode ? 1024 / mode : 8), read = readTogether(its, chunk);
    const [banks] = wordsByBank(read, CHUNK_BYTES), needed = Math.max(...banks.map(wanted => wanted.length));
    const lines = Math.ceil(rows.length * (rowBytes + 2 * padding) / LINE_BYTES), top = 34, high = 24;
    const cell = Math.min((width - 1) / 8, 60), parts = [], names = [];
    parts.push(words(0, 12, "banks; a line is 128 bytes, once around all banks", "small muted"));
    for (const at of range(8)) parts.push(words(at * cell + 2, 28, 4 * at, "small muted"));
    const place = offset => [offset % LINE_BYTES / CHUNK_BYTES * cell, top + Math.floor(offset / LINE_BYTES) * high];
    for (const row of rows) {
      for (const c of range(chunks)) {
        const offset = chunkOffset(its, row, c), wanted = c === chunk && row < 8;
        const turn = wanted ? banks[offset / BANK_BYTES % BANKS].indexOf(offset / BANK_BYTES) + 1 : 0;
        const look = !wanted ? "empty" : turn === pass ? "mark" : turn < pass ? "tint2" : "tint0";
        const own = { "data-place": `${row}:${c}`, "data-chunk": c, ...wanted ? { "data-turn": turn } : {} };
        parts.push(box(...place(offset), cell, high, look, own));
        names.push(words(place(offset)[0] + cell / 2, place(offset)[1] + 16, `${row}:${c}`,
          `small middle through ${look === "mark" ? "inmark" : wanted ? "" : "muted"}`));
      }
      for (let unused = rowBytes; unused < rowBytes + 2 * padding; unused += CHUNK_BYTES)
        parts.push(box(...place(row * (rowBytes + 2 * padding) + unused), cell, high, "idle", { "data-unused": row }));
    }
    parts.push(names);
    // How many of the eight each four banks have to deliver.
    const below = top + lines * high + 12;
    for (const at of range(8)) {
      const wanted = banks[4 * at].length, most = wanted === needed && needed > 1;
      parts.push(box(at * cell, below, cell, high, most ? "tint3" : "empty"));
      parts.push(words((at + 0.5) * cell, below + 16, wanted || "", "middle"));
    }
    parts.push(words(0, below + high + 16, "rows that each four banks have to deliver", "small muted"));
    let tall = below + high + 24;
    if (mode) { // the address in bits, 9 to 4: what is below stays as it is
      const row = 3, plain = row * chunks + chunk, swizzled = swizzlePlace(mode, row, chunk);
      const bits = [[`bits of ${row}:${chunk}`, null], ["as it is", plain], ["XOR", plain ^ swizzled],
        ["swizzled", swizzled]];
      bits.forEach(([title, value], line) => {
        const y = tall + line * 28;
        parts.push(words(0, y + 18, title, "small"));
        for (const bit of [9, 8, 7, 6, 5, 4]) {
          const x = 80 + (9 - bit) * 34;
          if (value === null) { parts.push(words(x + 15, y + 18, bit, "small muted middle")); continue; }
          const mixed = line > 1 && (plain ^ swizzled) >> bit - 4 & 1;
          parts.push(box(x, y, 30, 24, mixed ? "tint1" : "empty", { "data-bit": `${title} ${bit}` }));
          parts.push(words(x + 15, y + 17, value >> bit - 4 & 1, "middle mono"));
        }
      });
      tall += 4 * 28;
    }
    const counted = DATA.layouts.shared[`ldmatrix, D=64, ${its.name}`].passes, extra = 2 * padding * TILE_ROWS;
    const costs = extra ? `The padding takes ${thousands(extra)} bytes of a tile of ${TILE_ROWS} rows.`
      : mode ? "A swizzle takes no memory." : "";
    return [
      picture(8 * cell + 1, tall, "Where the chunks of a tile lie in the banks", parts) +
      legend([["mark", "comes in this pass"], ["tint2", "came before"], ["tint0", "still has to wait"],
        ["idle", "padding"], ["tint3", "the banks with the most to deliver"]]),
      `<code>ldmatrix</code> reads chunk ${chunk} of rows 0 to 7 in ${bold(count(needed, "pass"))}. ${costs} The four
       matrices of an <code>ldmatrix.x4</code> take ${counted} passes, as the emulator counts them.`,
    ];
  },
});
// Where ldmatrix finds the rows of a matrix, of whose chunks it reads one each.
function readTogether(layout, chunk) { return range(8).map(row => chunkOffset(layout, row, chunk)); }
function passesOf({ layout, chunk }) { return bankPasses(readTogether(LAYOUTS[layout], chunk), CHUNK_BYTES)[0]; }
