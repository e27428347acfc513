// What each step was worth: a guess first, then the prediction and the measurement.
const LADDER = DATA.ladder;
// A step's median, p10 and p90, beside the median of the step before.
const timesFaster = ({ steps }, step) => steps[step].tflops.map(rate => rate / steps[step - 1].tflops[0]);
// The end of the scale, the same for nearly all steps, so that it gives nothing away.
const mostOf = ({ step }) => LADDER.problems.some(problem => timesFaster(problem, step)[0] > 2.4) ? 7 : 2.5;

story("ladder", {
  state: { step: 4, problem: 0, guess: 1.5, shown: false },
  controls: {
    step: { kind: "range", label: "step", min: 1, max: LADDER.problems[0].steps.length - 1,
      text: index => version(LADDER.problems[0].steps[index].step) },
    guess: { kind: "range", label: "my guess:", min: 0.5, max: mostOf, step: 0.05,
      text: guess => `${guess.toFixed(2)} ×` },
    shown: { kind: "flag", label: "show what was predicted and measured" },
    problem: { kind: "choice", label: "problem", of: LADDER.problems.map(({ label }, index) => [index, label]) },
  },
  settle(state) {
    if (this.before !== undefined && this.before !== state.step) state.shown = false;
    this.before = state.step;
  },
  left: 70,
  point(state, { handle }, x) {
    if (handle !== "guess") return false;
    state.guess = clamp(Math.round((x - this.left) / this.unit * 20) / 20, 0.5, mostOf(state));
    return true;
  },
  draw(state, width) {
    const { step, problem, guess, shown } = state, { steps } = LADDER.problems[problem], most = mostOf(state);
    const { left } = this, unit = this.unit = (width - left - 14) / most, x = ratio => left + ratio * unit;
    const [before, its] = [steps[step - 1], steps[step]], [old, name] = [before, its].map(each => version(each.step));
    const [tflops, low, high] = timesFaster(LADDER.problems[problem], step), parts = [], y = row => 28 + row * 40;
    for (const ratio of range(Math.floor(most) + 1)) {
      parts.push(path([[x(ratio), 20], [x(ratio), y(3) - 8]], "thin"));
      parts.push(words(x(ratio), 14, `${ratio} ×`, "small muted middle"));
    }
    const bars = [[old, 1, "tint4"], ["my guess", guess, "tint1"], [name, shown ? tflops : 0, "tint0"]];
    bars.forEach(([who, ratio, look], row) =>
      parts.push(words(0, y(row) + 20, who, "small"), box(left, y(row), ratio * unit, 30, look)));
    parts.push(handle("guess", {}, box(x(guess) - 14, y(1) - 4, 28, 38, "grab"),
      box(x(guess) - 4, y(1) - 3, 8, 36, "mark")));
    if (shown) parts.push(box(x(low), y(2) - 3, Math.max((high - low) * unit, 1.5), 36, "ink"));
    else parts.push(words(left + 6, y(2) + 20, "not shown yet", "small muted"));
    const { idea, prediction } = LADDER.about[its.step];
    const measured = `${name} was measured at ${bold(its.text[0])} TFLOPS [${its.text[1]}–${its.text[2]}],
      ${tflops.toFixed(2)} ×. Your guess was ${guess.toFixed(2)} ×.`;
    return [
      picture(width, y(3), `How fast ${name} is beside ${old}`, parts) +
      (shown ? `<blockquote>${safe(prediction)}</blockquote>` : ""),
      `${bold(its.step)}: ${safe(idea)}. ${old} reached ${before.text[0]} TFLOPS on this problem.
       ${shown ? measured : "How much faster is the new step?"}
       <a href="../../steps/${its.step}/README.md">The lesson</a> compares the two.`,
    ];
  },
});
