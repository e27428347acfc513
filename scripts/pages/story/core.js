"use strict";
// What the sections share. A section draws itself anew from its state whenever that changes: its picture is text, in
// pixels of the place that there is.
const DATA = JSON.parse(document.getElementById("data").textContent);
const SECTIONS = {};

const safe = text => String(text).replace(/[&<>"]/g, letter => `&#${letter.charCodeAt(0)};`);
const version = step => step.split("_")[0];
const number = value => typeof value === "number" ? +value.toFixed(2) : value;
const element = (name, own, inside = "") => {
  const attributes = Object.entries(own).map(([key, value]) => ` ${key}="${safe(number(value))}"`);
  return `<${name}${attributes.join("")}>${inside}</${name}>`;
};
const box = (x, y, width, height, look, own = {}) => element("rect", { x, y, width, height, class: look, ...own });
const words = (x, y, text, look = "", own = {}) => element("text", { x, y, class: look, ...own }, safe(text));
const path = (points, look) =>
  element("path", { d: "M" + points.map(point => point.map(number).join(" ")).join("L"), class: look });
const handle = (name, own, ...parts) =>
  element("g", { "data-handle": name, class: "handle", ...own }, parts.join(""));
const picture = (width, height, label, ...parts) => {
  const viewBox = `0 0 ${number(width)} ${number(height)}`;
  return element("svg", { width, height, viewBox, role: "img", "aria-label": label }, parts.flat(Infinity).join(""));
};
const legend = entries => {
  const words = entries.map(([look, text]) => `<span><i class="${look}"></i>${safe(text)}</span>`);
  return `<p class="legend">${words.join(" ")}</p>`;
};
const thousands = amount => amount.toLocaleString("en");
const count = (amount, word) => `${thousands(amount)} ${word}${amount === 1 ? "" : /s$/.test(word) ? "es" : "s"}`;
const range = length => Array.from({ length }, (_, index) => index);
const sum = values => values.reduce((total, value) => total + value, 0);
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const bold = text => `<b>${safe(text)}</b>`;

const CONTROLS = {
  range: (name, { label, small }) => small
    ? `<label class="small">${safe(label)}<input type="range" name="${name}"></label>`
    : `<div class="range"><label><span>${safe(label)} <b></b></span><input type="range" name="${name}"></label>
       <button type="button" data-step="-1" data-name="${name}" aria-label="${safe(label)}: back">◀</button>
       <button type="button" data-step="1" data-name="${name}" aria-label="${safe(label)}: on">▶</button></div>`,
  flag: (name, { label }) => `<label class="flag"><input type="checkbox" name="${name}"> ${safe(label)}</label>`,
  choice: (name, { label, of }, id) => {
    const button = value => `<input type="radio" name="${id}-${name}" value="${safe(value)}">`;
    const buttons = of.map(([value, text]) => `<label>${button(value)} ${safe(text)}</label>`);
    return `<fieldset><legend>${safe(label)}</legend>${buttons.join(" ")}</fieldset>`;
  },
  "next line": () => `<i class="next"></i>`,
};

// own: state; controls, by the names of what they set in it; draw(state, width), which gives the picture and a
// sentence. And if there are any: settle(state) puts right what no longer fits; point(state, place, x, y) is told of
// a pointer over the picture, or of one that drags a handle, and says whether the state has changed. `place` has the
// data of the element below the pointer, or of the handle. Whatever a pointer can do a control can do, too, for those
// who have only a keyboard.
function story(id, own) {
  const section = document.getElementById(id), stage = section.querySelector(".stage");
  const panel = section.querySelector(".controls"), says = section.querySelector(".says");
  const { state, controls } = own;
  const limit = (control, key) => typeof control[key] === "function" ? control[key](state) : control[key];
  panel.innerHTML =
    Object.entries(controls).map(([name, control]) => CONTROLS[control.kind](name, control, id)).join("");
  const inputs = [...panel.querySelectorAll("input")];
  const named = input => input.type === "radio" ? input.name.slice(id.length + 1) : input.name;

  function show() {
    own.settle?.(state);
    for (const [name, control] of Object.entries(controls))
      if (control.kind === "range") state[name] = clamp(state[name], limit(control, "min"), limit(control, "max"));
    for (const input of inputs) {
      const name = named(input), control = controls[name];
      if (input.type === "radio") input.checked = input.value === String(state[name]);
      else if (input.type === "checkbox") input.checked = state[name];
      else {
        for (const key of ["min", "max", "step"]) input[key] = limit(control, key) ?? 1;
        input.value = state[name];
        const text = control.text ? control.text(state[name], state) : String(state[name]);
        input.setAttribute("aria-valuetext", text);
        const shown = input.parentElement.querySelector("b");
        if (shown) shown.textContent = text;
      }
    }
    const [drawn, sentence] = own.draw(state, Math.floor(stage.clientWidth));
    stage.innerHTML = drawn;
    says.innerHTML = sentence;
  }

  panel.addEventListener("input", ({ target }) => {
    const { kind, of } = controls[named(target)];
    state[named(target)] = kind === "flag" ? target.checked
      : kind === "choice" ? of.find(([value]) => String(value) === target.value)[0] : Number(target.value);
    show();
  });
  panel.addEventListener("click", ({ target }) => {
    if (!target.dataset.step) return;
    const control = controls[target.dataset.name];
    state[target.dataset.name] += Number(target.dataset.step) * (control.step ?? 1);
    show();
  });
  // A finger on a handle drags that, and not the page.
  stage.addEventListener("touchstart", event => {
    if (event.target.closest("[data-handle]")) event.preventDefault();
  }, { passive: false });
  let held = null;
  const point = (event, place) => {
    const corner = stage.querySelector("svg")?.getBoundingClientRect() ?? stage.getBoundingClientRect();
    if (own.point?.(state, place, event.clientX - corner.left, event.clientY - corner.top)) show();
  };
  stage.addEventListener("pointerdown", event => {
    const place = { ...event.target.closest("[data-handle]")?.dataset, ...event.target.dataset };
    held = place.handle ? place : null;
    if (held) stage.setPointerCapture(event.pointerId); // draw nothing yet: "touchstart" is to find the handle
    else point(event, { ...place, pressed: true });
  });
  stage.addEventListener("pointermove", event =>
    point(event, held ?? { ...event.target.dataset, handle: undefined }));
  for (const end of ["pointerup", "pointercancel"]) stage.addEventListener(end, () => { held = null; });
  SECTIONS[id] = { own, state, show };
  show();
}

let drawnAt = window.innerWidth;
window.addEventListener("resize", () => {
  if (drawnAt !== window.innerWidth) for (const { show } of Object.values(SECTIONS)) show();
  drawnAt = window.innerWidth;
});
