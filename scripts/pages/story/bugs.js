// Kernels with one bug each, and what the emulator says of them.
story("bugs", {
  state: { bug: 0, told: true },
  controls: {
    bug: { kind: "choice", label: "the bug", of: DATA.bugs.map(({ title, step }, index) => [index, `${step.split("_")[0]}: ${title}`]) },
    told: { kind: "flag", label: "show what the emulator says" },
  },
  draw({ bug, told }) {
    const { diff, report, lines } = DATA.bugs[bug];
    const changed = diff.map(text => `<span class="${{ "+": "added", "-": "removed" }[text[0]] ?? "same"}">${safe(text)}</span>`);
    const shown = lines.map(({ number, text, lit }, index) =>
      (index && lines[index - 1].number < number - 1 ? "<span>    …</span>" : "") +
      `<span class="${lit ? "lit" : "same"}">${String(number).padStart(4)}  ${safe(text)}</span>`);
    const said = safe(report).replace(/kernel\.cu:\d+/g, "<mark>$&</mark>");
    return [
      `<pre aria-label="the change">${changed.join("")}</pre>` +
      (told ? `<p class="report">${said}</p><pre aria-label="the lines that the report names">${shown.join("")}</pre>` : ""),
      told ? `The report names ${count(lines.filter(({ lit }) => lit).length, "line")} of the changed kernel.`
        : "What goes wrong, and which lines will the emulator name?",
    ];
  },
});
