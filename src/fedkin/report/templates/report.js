"use strict";
// Sortable tables: a click on a heading sorts by its column, numbers by data-value; empty last.
for (const table of document.querySelectorAll("table.sortable")) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const ascending = heading.getAttribute("aria-sort") !== "ascending";
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
      const body = table.tBodies[0];
      const isNumber = [...body.rows].some((row) => "value" in row.cells[column].dataset);
      const key = (row) => {
        const cell = row.cells[column];
        if (!isNumber) return cell.textContent.trim();
        return "value" in cell.dataset ? Number(cell.dataset.value) : null;
      };
      const compare = (one, two) => {
        const [a, b] = [key(one), key(two)];
        if (a === null || b === null) return (a === null) - (b === null);
        const order = isNumber ? a - b : a.localeCompare(b, undefined, { numeric: true });
        return ascending ? order : -order;
      };
      body.append(...[...body.rows].sort(compare));
    });
  });
}

// Values under the pointer, or with the arrow keys: all curves at the nearest place.
const tip = document.createElement("div");
tip.className = "tip";
tip.hidden = true;
tip.setAttribute("aria-hidden", "true");
// A live region has to be there before it changes, so it is apart from the tip, and never hidden.
const spoken = document.createElement("div");
spoken.className = "spoken";
spoken.setAttribute("role", "status");
document.body.append(tip, spoken);
const numbers = (text) => (text === undefined ? null : text.split(" ").map(Number));
const nearest = (values, wanted) =>
  values.reduce((best, value, i) => (Math.abs(value - wanted) < Math.abs(values[best] - wanted) ? i : best), 0);
const written = (value) => value.toFixed(3).replace("-", "−");

for (const chart of document.querySelectorAll("svg.hover")) {
  const [low, high] = numbers(chart.dataset.domain);
  const [left, right, top, bottom, whole] = numbers(chart.dataset.plot);
  const curves = [...chart.querySelectorAll("polyline")].map((line) => ({
    name: line.dataset.name,
    x: numbers(line.dataset.x),
    y: numbers(line.dataset.y),
    low: numbers(line.dataset.low),
    high: numbers(line.dataset.high),
  }));
  const places = [...new Set(curves.flatMap((curve) => (curve.x.length > 2 ? curve.x : [])))].sort((a, b) => a - b);
  if (!places.length) places.push(...curves[0].x);
  const guide = document.createElementNS("http://www.w3.org/2000/svg", "line");
  guide.setAttribute("class", "guide");
  guide.setAttribute("y1", top);
  guide.setAttribute("y2", bottom);
  guide.style.display = "none";
  chart.append(guide);
  chart.setAttribute("tabindex", "0");
  chart.setAttribute("role", "group");
  chart.setAttribute("aria-roledescription", "chart");
  chart.setAttribute("aria-description", "The left and right arrow keys show the values, Escape hides them.");
  let at = places.length - 1;

  const show = () => {
    const place = places[at];
    const x = left + ((place - low) / (high - low || 1)) * (right - left);
    guide.setAttribute("x1", x);
    guide.setAttribute("x2", x);
    guide.style.display = "";
    const head = document.createElement("b");
    head.textContent = `${Number(place.toPrecision(6))} ${chart.dataset.xTitle}`;
    const rows = curves
      .map((curve) => ({ curve, i: nearest(curve.x, place) }))
      .sort((a, b) => b.curve.y[b.i] - a.curve.y[a.i])
      .map(({ curve, i }) => {
        const row = document.createElement("div");
        const [name, value] = [document.createElement("span"), document.createElement("span")];
        name.textContent = curve.name;
        value.textContent = written(curve.y[i]);
        if (curve.low) value.textContent += ` (${written(curve.low[i])} to ${written(curve.high[i])})`;
        row.append(name, value);
        return row;
      });
    tip.replaceChildren(head, ...rows);
    tip.hidden = false;
    const box = chart.getBoundingClientRect();
    const toTheRight = box.left + (x / whole) * box.width + 14;
    const width = tip.offsetWidth;
    tip.style.left = `${Math.max(4, toTheRight + width > innerWidth - 4 ? toTheRight - width - 28 : toTheRight)}px`;
    tip.style.top = `${Math.max(4, Math.min(box.top + 8, innerHeight - tip.offsetHeight - 4))}px`;
  };
  const speak = () => {
    show();
    spoken.textContent = [...tip.children]
      .map((row) => [...row.childNodes].map((part) => part.textContent).join(" "))
      .join("; ");
  };
  const hide = () => {
    tip.hidden = true;
    spoken.textContent = "";
    guide.style.display = "none";
  };
  chart.addEventListener("pointermove", (event) => {
    const box = chart.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * whole;
    at = nearest(places, low + ((x - left) / (right - left)) * (high - low));
    show();
  });
  chart.addEventListener("pointerleave", hide);
  chart.addEventListener("focus", () => chart.matches(":focus-visible") && speak());
  chart.addEventListener("blur", hide);
  chart.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") hide();
    if (!step) return;
    event.preventDefault();
    at = Math.min(places.length - 1, Math.max(0, at + step));
    speak();
  });
}

// Charts whose parts say something: under the pointer, or row by row with the arrow keys.
for (const chart of document.querySelectorAll("svg.tips")) {
  const show = (text, left, top) => {
    tip.textContent = text;
    tip.hidden = false;
    tip.style.left = `${Math.max(4, Math.min(left + 14, innerWidth - tip.offsetWidth - 4))}px`;
    tip.style.top = `${Math.max(4, Math.min(top + 14, innerHeight - tip.offsetHeight - 4))}px`;
  };
  const rows = [...chart.querySelectorAll("[data-row]")];
  let at = -1;
  const hide = () => {
    tip.hidden = true;
    spoken.textContent = "";
    rows.forEach((row) => row.classList.remove("at"));
  };
  chart.addEventListener("pointermove", (event) => {
    const part = event.target.closest("[data-tip]");
    if (part) show(part.dataset.tip, event.clientX, event.clientY);
    else hide();
  });
  chart.addEventListener("pointerleave", hide);
  if (!rows.length) continue;
  chart.setAttribute("tabindex", "0");
  chart.setAttribute("role", "group");
  chart.setAttribute("aria-roledescription", "chart");
  chart.setAttribute("aria-description", "The up and down arrow keys show the rows, Escape hides them.");
  chart.addEventListener("blur", hide);
  chart.addEventListener("keydown", (event) => {
    const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (event.key === "Escape") hide();
    if (!step) return;
    event.preventDefault();
    hide();
    at = Math.min(rows.length - 1, Math.max(0, at + step));
    rows[at].classList.add("at");
    const box = rows[at].getBoundingClientRect();
    show(rows[at].dataset.row, box.left, box.bottom - 8);
    spoken.textContent = rows[at].dataset.row;
  });
}

// What is folded up on the screen is printed.
let unfolded = [];
addEventListener("beforeprint", () => {
  unfolded = [...document.querySelectorAll("details:not([open])")];
  for (const each of unfolded) each.open = true;
});
addEventListener("afterprint", () => {
  for (const each of unfolded) each.open = false;
});
