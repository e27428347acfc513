// The online softmax of one row with eight keys. The value of a key is its number, so that O is one number, too.
const KEYS = 8;

// What a kernel has after so many keys. Of `weights`, each is what its key has in `total` by then.
function onlineSoftmax(scores, keys, rescale) {
  let max = -Infinity, total = 0, output = 0, weights = [];
  for (let key = 0; key < keys; ++key) {
    const newMax = Math.max(max, scores[key]), scale = rescale ? Math.exp(max - newMax) : 1;
    const weight = Math.exp(scores[key] - newMax);
    [max, total, output] = [newMax, total * scale + weight, output * scale + weight * key];
    weights = [...weights.map(old => old * scale), weight];
  }
  return { max, total, output, weights };
}
const scoresOf = state => range(KEYS).map(key => state[`score${key}`]);
const LOWEST = -3, HIGHEST = 3;

story("softmax", {
  state: { keys: 6, rescale: true,
    score0: 0.5, score1: -1, score2: 1.5, score3: 0, score4: 2.5, score5: -0.5, score6: 1, score7: -2 },
  controls: {
    keys: { kind: "range", label: "keys so far:", min: 1, max: KEYS },
    rescale: { kind: "flag", label: "rescale sum and O when the maximum grows" },
    scores: { kind: "next line" },
    ...Object.fromEntries(range(KEYS).map(key => [`score${key}`,
      { kind: "range", small: true, label: `score ${key}`, min: LOWEST, max: HIGHEST, step: 0.25 }])),
  },
  point(state, { handle, key }, x, y) {
    if (handle !== "score") return false;
    const score = HIGHEST - Math.round((y - 24) / 120 * (HIGHEST - LOWEST) * 4) / 4;
    state[`score${key}`] = clamp(score, LOWEST, HIGHEST);
    return true;
  },
  draw(state, width) {
    const scores = scoresOf(state), found = onlineSoftmax(scores, state.keys, state.rescale);
    const right = onlineSoftmax(scores, state.keys, true);
    const left = 26, wide = Math.min((width - left - 8) / KEYS, 92), top = 24, tall = 120;
    const y = score => top + (HIGHEST - score) / (HIGHEST - LOWEST) * tall;
    const second = top + tall + 50, most = Math.max(1, ...found.weights), unit = 110 / most;
    const parts = [words(0, 12, "scores: drag one", "small muted")];
    for (const score of [HIGHEST, 0, LOWEST]) {
      parts.push(words(left - 6, y(score) + 4, score, "small muted end"));
      parts.push(path([[left, y(score)], [left + KEYS * wide, y(score)]], "thin"));
    }
    scores.forEach((score, key) => {
      const x = left + key * wide, [high, low] = [Math.max(score, 0), Math.min(score, 0)];
      parts.push(handle("score", { "data-key": key }, box(x, top - 10, wide, tall + 20, "grab"),
        box(x + wide * 0.2, y(high), wide * 0.6, y(low) - y(high), key < state.keys ? "tint0" : "empty"),
        box(x + wide * 0.15, y(score) - 4, wide * 0.7, 8, "mark")));
      parts.push(words(x + wide / 2, top + tall + 24, `key ${key}`, "small middle"));
    });
    parts.push(path([[left, y(found.max)], [left + state.keys * wide, y(found.max)]], "markline"));
    parts.push(words(0, second - 4, "weights in the sum; outlined: the right ones", "small muted"));
    const floor = second + 12 + 110;
    parts.push(path([[left, floor], [left + KEYS * wide, floor]], "thin"));
    found.weights.forEach((weight, key) => {
      const x = left + key * wide + wide * 0.2, must = right.weights[key];
      const look = Math.abs(weight - must) > 1e-9 ? "tint3" : "tint2";
      parts.push(box(x, floor - weight * unit, wide * 0.6, weight * unit, look));
      parts.push(box(x, floor - must * unit, wide * 0.6, must * unit, "outline"));
    });
    const mean = found.output / found.total, expected = right.output / right.total;
    const off = Math.abs(mean - expected) > 1e-9;
    return [
      picture(left + KEYS * wide + 8, floor + 4, "Scores of eight keys, and their weights in the running sum", parts),
      `After ${count(state.keys, "key")}: maximum ${found.max.toFixed(2)}, sum ${found.total.toFixed(3)}, O / sum =
       <b class="${off ? "bad" : "good"}">${mean.toFixed(3)}</b>. Softmax of the same keys in one go gives
       ${expected.toFixed(3)}. ${off ? "Keys that came before the maximum grew count too much."
    : state.rescale ? "The two agree." : "The two agree, because the maximum has not grown since the first key."}`,
    ];
  },
});
