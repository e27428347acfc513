// Kernels with one bug each, and what the emulator says of them.
story("bugs", {
  state: { bug: 0, told: true },
  controls: {
    bug: { kind: "choice", label: "the bug",
      of: DATA.bugs.map(({ title, step }, index) => [index, `${version(step)}: ${title}`]) },
    told: { kind: "flag", label: "show what the emulator says" },
  },
  draw({ bug, told }) {
    const { diff, report, lines } = DATA.bugs[bug];
    const line = (look, text) => `<span class="${look}">${safe(text)}</span>`;
    const changed = diff.map(text => line({ "+": "added", "-": "removed" }[text[0]] ?? "same", text));
    const shown = lines.map(({ number, text, lit }, index) =>
      (index && lines[index - 1].number < number - 1 ? line("same", "    …") : "") +
      line(lit ? "lit" : "same", `${String(number).padStart(4)}  ${text}`));
    const said = safe(report).replace(/kernel\.cu:\d+/g, "<mark>$&</mark>");
    return [
      `<pre aria-label="the change">${changed.join("")}</pre>` +
      (told ? `<p class="report">${said}</p><pre aria-label="the lines that it names">${shown.join("")}</pre>` : ""),
      told ? `The report names ${count(lines.filter(({ lit }) => lit).length, "line")} of the changed kernel.`
        : "What goes wrong, and which lines will the emulator name?",
    ];
  },
});
