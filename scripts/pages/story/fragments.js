// Which lane holds which elements: the emulator's own table. A register of A and B has two elements, of acc one.
// Of the first 8 x 8 block of K or V as it is stored: what ldmatrix gives a lane, and what the product wants.
const STORED = { k: ([k, n]) => [n, k], v: ([k, n]) => [k, n] };
const wantedBy = (lane, operand) => DATA.fragments.mma_b[lane].slice(0, 2).map(STORED[operand]);
const givenTo = (lane, trans) => DATA.fragments[trans ? "ldmatrix_trans" : "ldmatrix"][lane];
const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

story("fragments", {
  state: { lane: 6, operand: "k", trans: false },
  controls: {
    lane: { kind: "range", label: "lane:", min: 0, max: 31, text: lane => `T${lane}` },
    operand: { kind: "choice", label: "B is loaded from", of: [["k", "K, for S = Q Kᵀ"], ["v", "V, for O = P V"]] },
    trans: { kind: "flag", label: "ldmatrix with .trans" },
  },
  point(state, { lane }) {
    if (lane === undefined || state.lane === Number(lane)) return false;
    state.lane = Number(lane);
    return true;
  },
  draw({ lane, operand, trans }, width) {
    const beside = width > 700, wide = beside ? 20 : Math.min(width / 16 - 0.1, 20), high = 18, parts = [];
    // Two neighbours at a time, with the lane's name.
    const matrix = (x, y, title, positions, cellWidth, columns) => {
      const names = [];
      parts.push(words(x, y - 8, title, "strong"));
      positions.forEach((own, at) => {
        for (let first = 0; first < own.length; first += 2) {
          const [[row, col], [lastRow, lastCol]] = own.slice(first, first + 2);
          const look = at === lane ? "mark" : `tint${first / 2}`;
          const size = [(lastCol - col + 1) * cellWidth, (lastRow - row + 1) * high];
          const place = [x + col * cellWidth, y + row * high], cell = `${title[0]} ${row} ${col}`;
          parts.push(box(...place, ...size, look, { "data-lane": at, "data-cell": cell }));
          names.push(words(place[0] + size[0] / 2, place[1] + size[1] / 2 + 4, `T${at}`,
            `small middle through ${at === lane ? "inmark" : ""}`));
        }
      });
      parts.push(names);
    };
    const { mma_a, mma_b, mma_c } = DATA.fragments, side = 16 * wide, tall = 16 * high, b = 25;
    const [atB, atC] = beside ? [[side + 30, 24], [side + 30, 68 + tall]] : [[0, 68 + tall], [0, 112 + 2 * tall]];
    matrix(0, beside ? atC[1] : 24, "A, 16 × 16", mma_a, wide);
    matrix(...atB, "B, 16 × 8", mma_b, b);
    matrix(...atC, "acc += A B, 16 × 8", mma_c, b);
    // What is stored, and what becomes of it.
    const [x, y] = beside ? [side + 70 + 8 * b, atC[1] + 24] : [0, atC[1] + tall + 68], cell = beside ? 24 : 30;
    const given = givenTo(lane, trans), wanted = wantedBy(lane, operand);
    parts.push(words(x, y - 26, `${operand.toUpperCase()} as stored, 8 keys × 8 of d:`, "strong"));
    parts.push(words(x, y - 8, `what T${lane} gets, and what it needs`, "small muted"));
    for (const row of range(8)) for (const col of range(8)) {
      const [gets, needs] = [given, wanted].map(its => its.some(position => same(position, [row, col])));
      const place = [x + col * cell, y + row * cell], here = `${row} ${col}`;
      parts.push(box(...place, cell, cell, gets ? "mark" : "empty", gets ? { "data-gets": here } : {}));
      if (needs)
        parts.push(box(place[0] + 3, place[1] + 3, cell - 6, cell - 6, "chosen", { "data-needs": here }));
    }
    const right = range(32).filter(each => same(givenTo(each, trans), wantedBy(each, operand))).length;
    const verdict = right === 32 ? `<b class="good">All 32 lanes get what the product needs.</b>`
      : `<b class="bad">${right || "None"} of the 32 lanes get what the product needs.</b>`;
    return [
      picture(beside ? width : side + 2, beside ? atC[1] + tall + 4 : y + 8 * cell + 4,
        "Who holds what of the operands of mma.m16n8k16", parts) +
      legend([["mark", `held by T${lane}`], ["tint0", "register 0"], ["tint1", "register 1"], ["tint2", "register 2"],
        ["tint3", "register 3 (of acc, a colour is two registers)"], ["chosen", "what the product needs"]]),
      `T${lane} holds ${mma_a[lane].length} elements of A, ${mma_b[lane].length} of B and ${mma_c[lane].length} of
       acc. ${operand.toUpperCase()} loaded ${trans ? "with" : "without"} <code>.trans</code>: ${verdict}`,
    ];
  },
});
