// What each step was worth: first the path that the reader guesses, then the measured one.
const LADDER = DATA.ladder;
const MOST = 60, NOTCHES = 20; // a guess of 2^(n / 20) times
const logOf = factor => Math.log2(factor);
const pathOf = factors => factors.reduce((path, factor) => [...path, path.at(-1) + logOf(factor)], [0]);
const measuredFactors = ({ steps }) => steps.slice(1).map(({ rate }, at) => rate / steps[at].rate);
// How far two paths are apart, step by step.
const distance = (factors, others) => sum(factors.map((factor, at) => Math.abs(logOf(factor / others[at]))));
// 100 for the measured path, and 0 for a flat one, or for one that is worse.
function scoreOf(guessed, measured) {
  return Math.round(100 * Math.max(0, 1 - distance(guessed, measured) / distance(measured.map(() => 1), measured)));
}
const farthestOff = (guessed, measured) => guessed.map((factor, at) => Math.abs(logOf(factor / measured[at])))
  .reduce((farthest, off, at, all) => off > all[farthest] ? at : farthest, 0);

story("ladder", {
  state: { problem: 0, step: 1, guess: 0, shown: false },
  controls: {
    problem: { kind: "choice", label: "problem", of: LADDER.problems.map(({ name }, index) => [index, name]) },
    step: { kind: "range", label: "step", min: 1, max: ({ problem }) => LADDER.problems[problem].steps.length - 1,
      text: (step, { problem }) => version(LADDER.problems[problem].steps[step].step) },
    guess: { kind: "range", label: "my guess:", min: -NOTCHES, max: MOST,
      text: guess => `${(2 ** (guess / NOTCHES)).toFixed(2)} ×` },
    shown: { kind: "flag", label: "show what was measured, and my score" },
  },
  // Of each problem: what was guessed of each step, in notches, and whether the measured path has been shown.
  played: LADDER.problems.map(({ steps }) => ({ notches: steps.slice(1).map(() => 0), shown: false })),
  at: { problem: 0, step: 1 },
  settle(state) {
    const { at } = this;
    if (at.problem !== state.problem) state.shown = this.played[state.problem].shown;
    const its = this.played[state.problem], last = its.notches.length;
    state.step = clamp(state.step, 1, last);
    if (at.problem === state.problem && at.step === state.step && !its.shown) its.notches[state.step - 1] = state.guess;
    state.guess = its.notches[state.step - 1];
    its.shown = state.shown;
    this.at = { problem: state.problem, step: state.step };
  },
  left: 36, top: 40, tall: 300,
  point(state, place, x, y) {
    if (place.handle !== "path") return false;
    const { notches, shown } = this.played[state.problem];
    const step = clamp(Math.floor((x - this.left) / this.wide), 1, notches.length);
    if (!shown) { // all steps between the last place and this one come to lie on this height
      const level = Math.round((this.top + this.tall - y) / this.unit * NOTCHES), { last = step } = place;
      const [first, end] = last < step ? [last + 1, step] : [step, Math.max(step, last - 1)];
      for (const each of range(end - first + 1).map(more => first + more))
        notches[each - 1] = clamp(level - sum(notches.slice(0, each - 1)), -NOTCHES, MOST);
    }
    place.last = step;
    state.step = step;
    this.at = { problem: state.problem, step };
    state.guess = notches[step - 1];
    return true;
  },
  draw({ problem, step, shown }, width) {
    const its = LADDER.problems[problem], { steps } = its, { left, top, tall } = this;
    const guessed = this.played[problem].notches.map(notch => 2 ** (notch / NOTCHES)), measured = measuredFactors(its);
    const [mine, right] = [guessed, measured].map(pathOf), shownTo = its.unit === "TFLOPS" ? 8.2 : 4.2;
    const most = Math.max(shownTo, ...mine.map(level => level + 0.2));
    const unit = this.unit = tall / most, wide = this.wide = Math.min((width - left - 4) / steps.length, 60);
    const x = column => left + column * wide, y = level => top + tall - level * unit, parts = [];
    const levelOf = rate => logOf(rate / steps[0].rate);
    for (const tick of [0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]) {
      const level = levelOf(tick);
      if (level < 0 || level > most) continue;
      parts.push(path([[left, y(level)], [x(steps.length), y(level)]], "thin"));
      parts.push(words(left - 5, y(level) + 4, tick, "small muted end"));
    }
    parts.push(words(0, 12, its.unit, "small muted"));
    parts.push(box(x(step), top - 4, wide, tall + 4, "chosen-column"));
    steps.forEach(({ step: name, part }, column) => {
      if (!column || part !== steps[column - 1].part) {
        parts.push(path([[x(column), 14], [x(column), top + tall]], "thin"));
        const room = steps.filter(each => each.part === part).length * wide;
        if (room > 8 * part.length) parts.push(words(x(column) + 3, 24, part, "small muted"));
      }
      const known = !column || shown;
      const high = Math.max(right[column], 0) * unit + 1;
      if (known)
        parts.push(box(x(column) + 1, top + tall + 1 - high, wide - 2, high, "tint0", { "data-measured": name }));
      if (wide > 27 || column % (wide > 14 ? 2 : 3) === 0 && column < steps.length - 1)
        parts.push(words(x(column + 0.5), top + tall + 18, version(name), "small middle"));
    });
    let free = Infinity; // the names of peers that are nearly as fast stand below each other
    for (const { peer, rate } of shown ? [...its.peers].sort((a, b) => b.rate - a.rate) : []) {
      parts.push(path([[left, y(levelOf(rate))], [x(steps.length), y(levelOf(rate))]], "peer"));
      free = free === Infinity ? y(levelOf(rate)) - 6 : Math.max(free + 15, y(levelOf(rate)) - 6);
      parts.push(words(left + 4, free, peer, "small halo", { "data-peer": rate }));
    }
    const stairs = levels => levels.flatMap((level, column) => [[x(column), y(level)], [x(column + 1), y(level)]]);
    parts.push(path(stairs(mine), "markline"));
    if (!shown) parts.push(box(x(step + 0.5) - 6, y(mine[step]) - 6, 12, 12, "mark through"));
    if (!shown && guessed.every(factor => factor === 1))
      parts.push(words(x(2.5), y(1.4), "draw your path here", "muted through"));
    parts.push(handle("path", {}, box(left, top - 4, wide * steps.length, tall + 8, "grab")));
    const [before, here] = [steps[step - 1], steps[step]], [old, name] = [before, here].map(each => version(each.step));
    const [idea, after] = LADDER.about[here.step], off = 1 + farthestOff(guessed, measured);
    const isBranch = after !== before.step ? ` It does not build on ${old}, but on ${version(after)}.` : "";
    const text = (factors, at) => `${factors[at - 1].toFixed(2)} ×`;
    const told = shown
      ? `Score: ${bold(scoreOf(guessed, measured))} of 100. The last step is ${(2 ** right.at(-1)).toFixed(1)} × as
         fast as the first, and on your path ${(2 ** mine.at(-1)).toFixed(1)} ×. You were farthest off at
         ${version(steps[off].step)}: your guess ${text(guessed, off)}, measured ${text(measured, off)}.`
      : `How many times as fast as ${old} is it?`;
    const rates = shown ? ` ${bold(text(measured, step))}, measured at ${here.text[0]} ${its.unit}
      [${here.text[1]}–${here.text[2]}] on an ${safe(its.device)}.` : "";
    return [
      picture(x(steps.length) + 4, top + tall + 26, `How fast the steps are, in ${its.unit}`,
        parts) +
      legend([["swatchline", "your path: draw it"], ["tint0", "measured"]]) + `<p class="file">${safe(its.label)}</p>`,
      `${bold(here.step)}: ${safe(idea)}.${isBranch}${rates} ${told}
       <a href="../../steps/${here.step}/README.md">The lesson</a> says why.`,
    ];
  },
});
