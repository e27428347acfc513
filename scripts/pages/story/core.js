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
  range: (name, { label, small, wide }) => small
    ? `<label class="small">${safe(label)}<input type="range" name="${name}"></label>`
    : `<div class="range${wide ? " wide" : ""}">
       <label><span>${safe(label)} <b></b></span><input type="range" name="${name}"></label>
       <button type="button" data-step="-1" data-name="${name}" aria-label="${safe(label)}: back">◀</button>
       <button type="button" data-step="1" data-name="${name}" aria-label="${safe(label)}: on">▶</button></div>`,
  flag: (name, { label }) => `<label class="flag"><input type="checkbox" name="${name}"> ${safe(label)}</label>`,
  choice: (name, { label, of }, id) => {
    const button = value => `<input type="radio" name="${id}-${name}" value="${safe(value)}">`;
    const buttons = of.map(([value, text]) => `<label>${button(value)} ${safe(text)}</label>`);
    return `<fieldset><legend>${safe(label)}</legend>${buttons.join(" ")}</fieldset>`;
  },
  play: (name, { label }) => `<button type="button" data-play="${safe(label)}">▶ ${safe(label)}</button>`,
  "next line": () => `<i class="next"></i>`,
};
const NARROWEST = 300; // pixels for a picture: where there are fewer, or none as in a hidden frame, its place scrolls

// own: state; controls, by the names of what they set in it; draw(state, width), which gives the picture and a
// sentence. And if there are any:
// settle(state) puts right what no longer fits.
// point(state, place, x, y) is told of a pointer over the picture, or of one that drags a handle, and says whether the
// state has changed. `place` has the data of the element below the pointer, or of the handle, and is the same object
// while one is dragged. What a pointer can do a control can do, too, for readers who have only a keyboard.
// press(state, place) is told of a button in the picture. Such a button has an id, by which it keeps the focus.
// advance(state, seconds) moves what plays, and says whether it goes on; begin(state) winds back what has ended.
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
    const [drawn, sentence] = own.draw(state, Math.max(Math.floor(stage.clientWidth), NARROWEST));
    const focused = stage.contains(document.activeElement) && document.activeElement.id;
    stage.innerHTML = drawn;
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
    says.innerHTML = sentence;
  }

  const player = panel.querySelector("[data-play]");
  let played = null; // when it was drawn last, while it plays
  function play(on) {
    played = on ? performance.now() : null;
    player.textContent = on ? "❚❚ pause" : `▶ ${player.dataset.play}`;
    says.setAttribute("aria-live", on ? "off" : "polite"); // nobody can listen to sixty sentences a second
    if (on) requestAnimationFrame(frame);
  }
  function frame(now) {
    if (played === null) return;
    const more = own.advance(state, Math.max(now - played, 0) / 1000);
    show();
    if (!more) return play(false);
    played = now;
    requestAnimationFrame(frame);
  }
  player?.addEventListener("click", () => {
    if (played === null) own.begin(state);
    play(played === null);
  });

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
  stage.addEventListener("click", ({ target }) => {
    const button = target.closest("button");
    if (button && own.press(state, button.dataset)) show();
  });
  let held = null, pressed = null;
  const point = (event, place) => {
    const corner = stage.querySelector("svg")?.getBoundingClientRect() ?? stage.getBoundingClientRect();
    if (own.point?.(state, place, event.clientX - corner.left, event.clientY - corner.top)) show();
  };
  stage.addEventListener("pointerdown", event => {
    const place = { ...event.target.closest("[data-handle]")?.dataset, ...event.target.dataset };
    held = place.handle ? place : null;
    pressed = event;
    if (held) stage.setPointerCapture(event.pointerId); // draw nothing yet: "touchstart" is to find the handle
    else point(event, { ...place, pressed: true });
  });
  const drag = event => {
    if (pressed) point(pressed, held);
    pressed = null;
    point(event, held);
  };
  stage.addEventListener("pointermove", event => {
    if (held) drag(event);
    else point(event, { ...event.target.dataset, handle: undefined });
  });
  for (const end of ["pointerup", "pointercancel"]) stage.addEventListener(end, event => {
    if (held && end === "pointerup") drag(event); // which may not have moved
    held = null;
  });
  SECTIONS[id] = { own, state, show };
  show();
}

let drawnAt = window.innerWidth;
window.addEventListener("resize", () => {
  if (drawnAt !== window.innerWidth) for (const { show } of Object.values(SECTIONS)) show();
  drawnAt = window.innerWidth;
});

// The address names the section that is being read. (A browser may refuse if it changes too often.)
function followReader() {
  const read = [...document.querySelectorAll("section")]
    .findLast(section => section.getBoundingClientRect().top < window.innerHeight / 3);
  const address = read ? `#${read.id}` : "";
  for (const link of document.querySelectorAll("nav a"))
    link.setAttribute("aria-current", String(link.hash === address));
  if (address === window.location.hash) return;
  try {
    window.history.replaceState(null, "", address || window.location.pathname);
  } catch { /* then it stays as it is */ }
}
let following = false;
window.addEventListener("scroll", () => {
  if (!following) requestAnimationFrame(() => { following = false; followReader(); });
  following = true;
}, { passive: true });
// Called when all sections have drawn themselves: only now are they where they stay.
function openAtAddress() {
  document.getElementById(window.location.hash.slice(1))?.scrollIntoView();
}
