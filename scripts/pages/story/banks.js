// Shared memory has 32 banks of 4 bytes. A pass takes one word of each bank, for all lanes that want that word.
const BANKS = 32, BANK_BYTES = 4;

// For each group of lanes that shared memory serves together, for each bank the different words that they want of it.
function wordsByBank(offsets, bytes) {
  const lanes = BANKS * BANK_BYTES / Math.max(BANK_BYTES, bytes);
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

const paddedRows = state => DATA.layouts.shared[`ldmatrix, D=${state.dim}, padded by ${state.padding}`];

story("banks", {
  state: { padding: 0, dim: 64, pass: 1 },
  controls: {
    padding: { kind: "range", label: "padding:", min: 0, max: 64, step: 8,
      text: value => `${value} elements` },
    pass: { kind: "range", label: "pass", min: 1, max: state => bankPasses(paddedRows(state).offsets, 16)[0],
      text: (value, state) => `${value} of ${bankPasses(paddedRows(state).offsets, 16)[0]}` },
    dim: { kind: "choice", label: "elements in a row", of: [[64, "64"], [128, "128"]] },
  },
  draw(state, width) {
    const { offsets, passes } = paddedRows(state), [banks] = wordsByBank(offsets, 16);
    const ofMatrix = bankPasses(offsets, 16)[0];
    const left = 58, top = 34, cell = Math.min((width - left - 1) / BANKS, 22), high = 24;
    const below = top + 8 * high + 10;
    const parts = [words(left, 12, "banks", "small muted")];
    for (let bank = 0; bank < BANKS; bank += 4) parts.push(words(left + bank * cell, 28, bank, "small muted"));
    offsets.slice(0, 8).forEach((offset, row) => {
      parts.push(words(0, top + row * high + 16, `T${row}, row ${row}`, "small"));
      parts.push(box(left, top + row * high, BANKS * cell, high, "empty"));
      for (let word = offset / 4; word < offset / 4 + 4; ++word) {
        const turn = banks[word % BANKS].indexOf(word) + 1;
        const look = turn === state.pass ? "mark" : turn < state.pass ? "tint1" : "tint0";
        parts.push(box(left + word % BANKS * cell, top + row * high, cell, high, look, { "data-turn": turn }));
      }
    });
    banks.forEach((wanted, bank) => {
      const deep = wanted.length === ofMatrix && ofMatrix > 1;
      parts.push(box(left + bank * cell, below, cell, high, deep ? "tint3" : "empty"));
    });
    for (let bank = 0; bank < BANKS; bank += 4) // a row has four neighbouring banks
      parts.push(words(left + (bank + 2) * cell, below + 16, banks[bank].length || "", "middle"));
    parts.push(words(0, below + 16, "words", "small"));
    const bytes = 2 * (state.dim + state.padding);
    return [
      picture(left + BANKS * cell + 1, below + high + 2, "Which banks hold the eight rows of a matrix", parts) +
      legend([["mark", "comes in this pass"], ["tint1", "came before"], ["tint0", "still has to wait"],
        ["tint3", "the banks with the most words"]]),
      `Rows begin ${bytes} bytes apart. One matrix of eight rows needs ${bold(count(ofMatrix, "pass"))}, the four
       matrices of an <code>ldmatrix.x4</code> together ${sum(bankPasses(offsets, 16))}. The emulator counts
       ${passes}.`,
    ];
  },
});
