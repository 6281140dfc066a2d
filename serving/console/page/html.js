// The two libraries that draw the page, bound to each other. Text becomes text nodes, never HTML.
import { Component, createRef, h, render } from "./vendor/preact.mjs";
import htm from "./vendor/htm.module.js";

export const html = htm.bind(h);
export { Component, createRef, render };
