// Kernels with one bug each. The reader marks the lines that the emulator's report names, and then it shows.
const BUGS = DATA.bugs;
const namedLines = ({ files }) =>
  files.flatMap(({ file, lines }) => lines.filter(({ named }) => named).map(({ number }) => `${file}:${number}`));

story("bugs", {
  state: { bug: 0, told: false, marked: [] },
  controls: {
    bug: { kind: "range", label: "bug", wide: true, min: 0, max: BUGS.length - 1,
      text: bug => `${bug + 1} of ${BUGS.length}, ${version(BUGS[bug].step)}: ${BUGS[bug].title}` },
    told: { kind: "flag", label: "I give up: show the report" },
  },
  played: BUGS.map(() => ({ told: false, marked: [] })),
  bug: 0,
  settle(state) {
    if (this.bug !== state.bug) Object.assign(state, this.played[this.bug = state.bug]);
    if (state.marked.length >= namedLines(BUGS[state.bug]).length) state.told = true;
    this.played[state.bug] = { told: state.told, marked: state.marked };
  },
  press(state, { line }) {
    if (state.told) return false;
    const { marked } = state;
    state.marked = marked.includes(line) ? marked.filter(other => other !== line) : [...marked, line];
    return true;
  },
  draw({ bug, told, marked }) {
    const { diff, report, files } = BUGS[bug], named = namedLines(BUGS[bug]);
    const changed = diff.map(text =>
      `<span class="${{ "+": "added", "-": "removed" }[text[0]] ?? "same"}">${safe(text)}</span>`);
    const lookOf = (line, isMarked) => !told ? isMarked ? "marked" : "" :
      named.includes(line) ? isMarked ? "hit" : "missed" : isMarked ? "wrong" : "";
    const shown = files.map(({ file, lines }) => `<p class="file">${safe(file)}</p>` + lines.map(
      ({ number, text }, index) => {
        const line = `${file}:${number}`, isMarked = marked.includes(line);
        const gap = index && lines[index - 1].number < number - 1 ? `<p class="file">…</p>` : "";
        return `${gap}<button type="button" class="line ${lookOf(line, isMarked)}" id="bugs-${bug}-${safe(line)}"
          data-line="${safe(line)}" aria-pressed="${isMarked}">${String(number).padStart(4)}  ${safe(text)}</button>`;
      }).join(""));
    const said = safe(report).replace(/[\w/]+\.(cu|h):\d+/g, "<mark>$&</mark>");
    const found = marked.filter(line => named.includes(line)).length;
    const over = this.played.map((each, index) => [each, namedLines(BUGS[index])]).filter(([each]) => each.told);
    const score = sum(over.map(([each, its]) => each.marked.filter(line => its.includes(line)).length));
    return [
      `<pre aria-label="the change">${changed.join("")}</pre>` +
      (told ? `<p class="report">${said}</p>` : "") + shown.join(""),
      told ? `You found ${bold(found)} of the ${count(named.length, "line")}; ${count(over.length, "bug")} so far:
       ${score} of ${sum(over.map(([, its]) => its.length))}. You found the green lines and missed the yellow ones; pink
       ones are not in the report.`
        : `The emulator's report will name ${bold(count(named.length, "line"))}. Which? Click
       ${named.length > 1 ? "them" : "it"}.${marked.length ? ` You have marked ${marked.length}.` : ""}`,
    ];
  },
});
