// What each step was worth: a guess first, then the prediction and the measurement.
const LADDER = DATA.ladder;
const timesFaster = (problem, step) => LADDER.problems[problem].steps[step].tflops[0] / LADDER.problems[problem].steps[step - 1].tflops[0];
// The end of the scale, the same for nearly all steps, so that it gives nothing away.
const mostOf = ({ step }) => LADDER.problems.some((_, problem) => timesFaster(problem, step) > 2.4) ? 7 : 2.5;

story("ladder", {
  state: { step: 4, problem: 0, guess: 1.5, shown: false },
  controls: {
    step: { kind: "range", label: "step", min: 1, max: LADDER.problems[0].steps.length - 1,
      text: index => LADDER.problems[0].steps[index].step.split("_")[0] },
    guess: { kind: "range", label: "my guess:", min: 0.5, max: mostOf, step: 0.05, text: guess => `${guess.toFixed(2)} ×` },
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
    const { step, problem, guess, shown } = state, most = mostOf(state);
    const { left } = this, unit = this.unit = (width - left - 14) / most, high = 30, parts = [], x = ratio => left + ratio * unit;
    const { steps } = LADDER.problems[problem], [before, its] = [steps[step - 1], steps[step]];
    const [name, old] = [its, before].map(each => each.step.split("_")[0]), [tflops, ...spread] = its.tflops.map(value => value / before.tflops[0]);
    for (const ratio of range(Math.floor(most) + 1)) {
      parts.push(path([[x(ratio), 20], [x(ratio), 20 + 3 * (high + 10)]], "thin"), words(x(ratio), 14, `${ratio} ×`, "small muted middle"));
    }
    const bar = (row, text, value, look) => {
      const y = 28 + row * (high + 10);
      parts.push(words(0, y + 20, text, "small"), box(left, y, value * unit, high, look));
      return y;
    };
    bar(0, old, 1, "tint4");
    const y = bar(1, "my guess", guess, "tint1");
    parts.push(element("g", { "data-handle": "guess", class: "handle" }, box(x(guess) - 14, y - 4, 28, high + 8, "grab") + box(x(guess) - 4, y - 3, 8, high + 6, "mark")));
    if (shown) {
      const low = bar(2, name, tflops, "tint0");
      parts.push(box(x(spread[0]), low - 3, Math.max((spread[1] - spread[0]) * unit, 1.5), high + 6, "ink", { "data-spread": its.text.slice(1).join("–") }));
    } else parts.push(words(left + 6, 28 + 2 * (high + 10) + 20, "not shown yet", "small muted"), words(0, 28 + 2 * (high + 10) + 20, name, "small"));
    const { idea, prediction } = LADDER.about[its.step];
    return [
      picture(width, 28 + 3 * (high + 10), `How fast ${name} is beside ${old}`, parts) +
      (shown ? `<blockquote><b>Written before measuring:</b> ${safe(prediction)}</blockquote>` : ""),
      `${bold(its.step)}: ${safe(idea)}. ${old} reached ${before.text[0]} TFLOPS on this problem. ${shown
    ? `${name} was measured at ${bold(its.text[0])} TFLOPS [${its.text[1]}–${its.text[2]}], ${tflops.toFixed(2)} ×. Your guess was ${guess.toFixed(2)} ×.`
    : "How much faster is the new step?"} <a href="../../steps/${its.step}/README.md">The lesson</a> compares the two.`,
    ];
  },
});
