// Elements and figures. Text enters the page through `make` and `show` alone, and as text: never as markup.
"use strict";

const byId = (id) => document.getElementById(id);

/** A new element with attributes; children are nodes, or strings that become text. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** The same in SVG. */
function draw(tag, attributes = {}) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

/** Sets an element's text where it differs, so that a screen reader hears changes only. */
function show(id, text) {
  const element = byId(id);
  if (element.textContent !== text) element.textContent = text;
}

/** "0.02 ms", "3.2 ms", "312 ms", "1.24 s", "2 min 5 s", "2 h 3 min"; a dash for what has not happened. */
function duration(seconds) {
  if (seconds === null) return "–";
  const ms = seconds * 1000;
  if (ms < 0.0995) return `${Number(ms.toFixed(2))} ms`;
  if (ms < 9.95) return `${ms.toFixed(1)} ms`;
  if (ms < 999.5) return `${ms.toFixed(0)} ms`;
  if (seconds < 99.95) return `${seconds.toFixed(seconds < 9.995 ? 2 : 1)} s`;
  const whole = Math.round(seconds);
  const hours = Math.floor(whole / 3600);
  const minutes = Math.floor(whole / 60) % 60;
  return hours ? `${hours} h ${minutes} min` : `${minutes} min ${whole % 60} s`;
}

/** "538 MB", "1.2 GB": decimal, as rates are. */
function bytes(count) {
  for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    if (count >= size) return `${figures(count / size)} ${unit}`;
  }
  return `${figures(count)} B`;
}

/** Three digits that count: "0.42", "3.1", "42", "1,234". */
function figures(value) {
  if (value >= 99.5) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(value < 1 ? 2 : 3)));
}
