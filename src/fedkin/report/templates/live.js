"use strict";
// The page asks for itself every second and replaces the sections that have changed, so that
// back, reload and the place on the page work as anywhere else.
const PAUSE = 1000;
const gone = document.querySelector("#gone");
const trouble = document.querySelector("#trouble");

const replace = (section, fresh) => {
  const open = [...section.querySelectorAll("details")].map((each) => each.open);
  const focused = section.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  fresh.querySelectorAll("details").forEach((each, place) => (each.open = open[place] ?? each.open));
  section.replaceWith(fresh);
  if (focused !== null) [...fresh.querySelectorAll("a")].find((each) => each.getAttribute("href") === focused)?.focus();
};

const update = (page) => {
  const old = document.querySelector("main");
  const now = page.querySelector("main");
  document.title = page.title;
  const [style, fresh] = [document, page].map((each) => each.querySelector("style"));
  if (style.textContent !== fresh.textContent) style.textContent = fresh.textContent; // colors of new methods
  const names = (main) => [...main.children].map((each) => each.id).join();
  if (names(old) !== names(now)) return old.replaceChildren(...now.children);
  const sections = [...now.children];
  for (const [place, section] of [...old.children].entries()) {
    // What the reader has unfolded is no change.
    const same = section.cloneNode(true);
    same.querySelectorAll("details").forEach((each) => each.removeAttribute("open"));
    if (same.outerHTML !== sections[place].outerHTML) replace(section, sections[place]);
  }
};

const look = async () => {
  try {
    const answer = await fetch(location.pathname + location.search, { cache: "no-store", redirect: "error" });
    const text = await answer.text();
    gone.hidden = true;
    trouble.hidden = answer.ok;
    if (!answer.ok) {
      trouble.querySelector("p").textContent = text;
      return void setTimeout(look, PAUSE);
    }
    const page = new DOMParser().parseFromString(text, "text/html");
    if (!page.querySelector("main.live")) return location.reload(); // it has become the report
    update(page);
  } catch {
    gone.hidden = false;
  }
  setTimeout(look, PAUSE);
};
setTimeout(look, PAUSE);
