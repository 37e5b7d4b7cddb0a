// The live view of a cell and the panel over a result, one widget for both. It draws what the kernel decides.
// No build step: the kernel sends this file unchanged.

const ALL = "all";
// The kernel updates the clock of a running cell every second.
const SILENT_MS = 10000;
const SEEN_MS = 3000;
const SILENCE = " · no word from the kernel since then";

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function button(text, title, onclick) {
  return make("button", { type: "button", class: "mhnb-button", title, onclick }, ...[text].flat());
}

// Its glyph is wider than its place in some fonts.
const sign = () => make("span", { class: "mhnb-sign" }, "≠");

// One tab stop for a row of elements; arrow keys, Home and End move inside it.
function rove(row, pick) {
  const items = () => [...row.children].filter((node) => !node.hidden && node.tagName === "BUTTON");
  row.addEventListener("keydown", (event) => {
    const all = items();
    const at = all.indexOf(document.activeElement);
    const to = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: all.length - 1 }[event.key];
    if (to === undefined || at < 0) return;
    event.preventDefault();
    event.stopPropagation();
    const next = all[(to + all.length) % all.length];
    next.focus();
    pick(next);
  });
}

// -- a running cell

// Draw the chips into nodes that exist, so that a tooltip under the mouse stays while times change.
function drawStrip(strip, items) {
  while (strip.children.length > items.length) strip.lastChild.remove();
  items.forEach((item, at) => {
    if (!strip.children[at]) strip.append(make("li", {}, make("span", { "aria-hidden": "true" }), make("b"), make("span"), make("span", { class: "mhnb-value" })));
    const chip = strip.children[at];
    const [sign, label, told, values] = chip.children;
    const write = (node, text) => { if (node.textContent !== text) node.textContent = text; };
    chip.className = `mhnb-rank mhnb-${item.kind}`;
    chip.title = item.details;
    write(sign, item.sign);
    write(label, item.label);
    write(told, [item.state, item.lines].filter(Boolean).join(" · "));
    write(values, [item.time, item.memory].filter(Boolean).map((value) => ` · ${value}`).join(""));
  });
}

function renderLive({ model, el }) {
  const head = make("div", { class: "mhnb-quiet", role: "status", "aria-live": "off" });
  const strip = make("ul", { class: "mhnb-strip", "aria-label": "ranks by state", "aria-live": "off" });
  const blocks = make("div", { class: "mhnb-blocks" });
  const more = make("div", { class: "mhnb-quiet mhnb-more" });
  const card = make("div", {});
  const charts = make("div", { role: "group", "aria-label": "metrics", hidden: true });
  const each = make("div", { class: "mhnb-each", role: "region", "aria-label": "each rank", tabindex: "0", hidden: true });
  const act = (name) => () => model.send({ act: name });
  const where = button("Where", "where each rank is now", act("where"));
  const all = button("Show all", "each rank's output by itself", () => {
    const on = all.getAttribute("aria-pressed") !== "true";
    all.setAttribute("aria-pressed", String(on));
    model.send({ act: on ? "all" : "fold" });
  });
  const tabs = make("div", { class: "mhnb-tabs", role: "tablist", "aria-label": "ranks", hidden: true });
  // The buttons have their place from the start, so that nothing moves when they are offered.
  const row = make("div", { class: "mhnb-actions mhnb-later", role: "group", "aria-label": "while the cell runs" },
    button("Interrupt", "KeyboardInterrupt on every rank", act("interrupt")), where, all);
  const top = make("div", { class: "mhnb-top" }, head, row);
  const root = make("div", { class: "mhnb mhnb-panel mhnb-live", "data-lm-suppress-shortcuts": "true" }, top, strip, tabs, blocks, more, charts, card, each);
  // The file's placeholder for a cell that never ends. It is hidden while this widget shows more and is up to date.
  const cover = make("style");
  const placeholder = CSS.escape(model.get("placeholder"));
  const covering = `.${placeholder}, .jp-OutputArea-child:has(.${placeholder}) { display: none !important; }`;
  el.append(cover, root);

  const places = Array.from({ length: model.get("blocks") }, () => make("div", { hidden: true }));
  blocks.append(...places);
  // Ranks that print at different times are one block and several in turn. The blocks keep their height, so that what is below stays.
  new ResizeObserver(() => { blocks.style.minHeight = `min(${blocks.offsetHeight}px, 50vh)`; }).observe(blocks);
  const said = places.map(() => null);
  let chosen = 0;
  let seen = null;
  const isTabbed = () => model.get("view") === "tabs" && said.some((block) => block?.label);
  const choose = (at) => {
    chosen = at;
    drawTabs();
    places.forEach((place, other) => { place.hidden = !said[other] || other !== at; });
  };
  const drawTabs = () => {
    tabs.hidden = !isTabbed();
    // Keep existing tabs, so that a user who moves among them keeps the focus.
    const shown = tabs.hidden ? [] : said.map((block, at) => ({ block, at })).filter(({ block }) => block);
    while (tabs.children.length > shown.length) tabs.lastChild.remove();
    shown.forEach(({ block, at }, place) => {
      if (!tabs.children[place]) tabs.append(make("button", { type: "button", role: "tab", class: "mhnb-tab", onclick: (event) => choose(Number(event.currentTarget.dataset.at)) }));
      const tab = tabs.children[place];
      const text = [block.label, block.host, block.failed && "✗"].filter(Boolean).join(" ");
      if (tab.textContent !== text) tab.textContent = text;
      tab.dataset.at = at;
      tab.setAttribute("aria-selected", String(at === chosen));
      tab.tabIndex = at === chosen ? 0 : -1;
    });
  };
  rove(tabs, (node) => choose(Number(node.dataset.at)));
  const drawBlock = (at) => {
    const place = places[at];
    const block = said[at];
    place.hidden = !block || (isTabbed() && at !== chosen);
    if (!block) return place.replaceChildren();
    const isCard = model.get("view") === "grid" && block.label;
    const body = make("div", { class: "mhnb-body" });
    body.innerHTML = block.html;
    place.className = isCard ? "mhnb-card" : block.label ? "mhnb-row" : "";
    for (const [name, value] of [["role", "tabpanel"], ["aria-label", [block.label, block.host].filter(Boolean).join(" ")]]) {
      if (isTabbed()) place.setAttribute(name, value);
      else place.removeAttribute(name);
    }
    place.style.borderColor = "";
    place.style[isCard ? "borderTopColor" : "borderLeftColor"] = block.color;
    const label = block.label && !isTabbed() ? [make("div", { class: "mhnb-label" }, make("b", {}, block.label),
      ...(block.host ? [" ", make("span", { class: "mhnb-value" }, block.host)] : []))] : [];
    place.replaceChildren(...label, body);
  };
  // What is shown for each rank may be long, and beside charts a few lines suffice. They scroll by themselves, also by keyboard.
  const limitBlocks = () => {
    const isLong = ["rows", "grid"].includes(model.get("view"));
    const isFew = !isLong && !charts.hidden && said.some(Boolean);
    blocks.classList.toggle("mhnb-long", isLong);
    blocks.classList.toggle("mhnb-few", isFew);
    for (const [name, value] of [["role", "region"], ["aria-label", isLong ? "output of each rank" : "output"], ["tabindex", "0"]]) {
      if (isLong || isFew) blocks.setAttribute(name, value);
      else blocks.removeAttribute(name);
    }
  };
  const draw = {
    head: (text) => { head.textContent = text; },
    more: (text) => { more.textContent = text; },
    acts: (on) => { row.classList.toggle("mhnb-later", !on); },
    card: (html) => { card.innerHTML = html; },
    charts: (html) => {
      // A fold that the user has opened stays open.
      const opened = [...charts.querySelectorAll("details")].map((fold) => fold.open);
      charts.hidden = !html;
      charts.innerHTML = html;
      charts.querySelectorAll("details").forEach((fold, at) => { fold.open = Boolean(opened[at]); });
      limitBlocks();
    },
    each: (html) => {
      where.setAttribute("aria-pressed", String(Boolean(html)));
      each.hidden = !html;
      each.innerHTML = html;
    },
    strip: (text) => {
      drawStrip(strip, text ? JSON.parse(text) : []);
      // Ranks that have just differed often differ again, so the line stays a while: the output below must not jump each time.
      clearTimeout(seen);
      if (text) strip.classList.add("mhnb-seen");
      else if (strip.classList.contains("mhnb-seen")) {
        seen = setTimeout(() => {
          // The cells below stay where they are.
          root.style.minHeight = `${root.offsetHeight}px`;
          strip.classList.remove("mhnb-seen");
        }, SEEN_MS);
      }
    },
    block: (at, text) => {
      said[at] = text ? JSON.parse(text) : null;
      drawBlock(at);
      drawTabs();
      limitBlocks();
    },
    view: (view) => {
      all.setAttribute("aria-pressed", String(view !== "fold"));
      blocks.style.minHeight = root.style.minHeight = "";
      blocks.className = view === "grid" ? "mhnb-blocks mhnb-grid" : "mhnb-blocks";
      limitBlocks();
      drawTabs();
      said.forEach((_, at) => drawBlock(at));
    },
  };
  const follow = (name, show) => {
    const now = () => show(model.get(name));
    model.on(`change:${name}`, now);
    now();
  };
  for (const name of ["head", "strip", "more", "card", "charts", "each", "acts"]) follow(name, draw[name]);
  for (let at = 0; at < places.length; at += 1) follow(`block_${at}`, (text) => draw.block(at, text));
  follow("view", draw.view);

  let timer = null;
  const lose = () => {
    cover.textContent = "";
    draw.acts(false);
    head.textContent = model.get("head") + SILENCE;
  };
  const hear = () => {
    clearTimeout(timer);
    timer = setTimeout(lose, SILENT_MS);
    if (cover.textContent) return;
    cover.textContent = covering;
    for (const name of ["head", "acts"]) draw[name](model.get(name));
  };
  model.on("change", hear);
  hear();
  // The stored form of an ended cell replaces this widget in the page that ran the cell. Another page cannot receive it: it was
  // loaded later, from a file with this widget. So it asks.
  const end = () => {
    if (model.get("runs")) return;
    model.off("change", hear);
    clearTimeout(timer);
    if (!model.get("page")) return model.send({ act: "end" });
    root.innerHTML = model.get("page");
    root.hidden = false;
    cover.textContent = covering;
  };
  if (!model.get("runs")) {
    // Until the kernel answers, the placeholder is nearer to the end than the last moment that this widget knows.
    root.hidden = true;
    cover.textContent = "";
  }
  model.on("change:runs", end);
  model.on("change:page", end);
  end();
  return () => {
    model.off("change", hear);
    model.off("change:runs", end);
    model.off("change:page", end);
    clearTimeout(timer);
  };
}

// -- a result

function parseRanks(text, known) {
  if (!text.trim() || text.trim() === ALL) return new Set(known);
  const wanted = new Set();
  for (const part of text.split(",")) {
    const found = /^\s*(\d+)(?:\s*-\s*(\d+))?\s*$/.exec(part);
    if (!found) return null;
    for (let rank = Number(found[1]); rank <= Number(found[2] ?? found[1]) && rank <= Math.max(...known); rank += 1) wanted.add(rank);
  }
  return new Set(known.filter((rank) => wanted.has(rank)));
}

class Panel {
  constructor({ model, el }) {
    this.model = model;
    this.bodies = new Map();
    this.asked = new Set();
    this.chosen = null;
    this.view = model.get("view");
    this.build();
    el.append(this.root);
    this.take = (message) => {
      for (const [rank, html] of Object.entries(message.bodies ?? {})) this.bodies.set(Number(rank), html);
      // The fold view shows none of these bodies. Redrawing it would close what the user has opened, and lose the focus.
      if (message.bodies && !this.folds) this.draw();
    };
    this.renew = () => {
      this.bodies.clear();
      this.asked.clear();
      this.hear();
      this.draw();
    };
    model.on("msg:custom", this.take);
    model.on("change:number", this.renew);
    this.hear();
    this.draw();
  }

  // Show a notice if the kernel sends nothing for SILENT_MS while a cell runs; an ended cell sends nothing more.
  hear() {
    clearTimeout(this.timer);
    this.silence = "";
    if (!this.model.get("runs")) return;
    this.timer = setTimeout(() => {
      this.silence = SILENCE;
      this.drawHead();
    }, SILENT_MS);
  }

  forget() {
    clearTimeout(this.timer);
    this.model.off("msg:custom", this.take);
    this.model.off("change:number", this.renew);
  }

  build() {
    this.head = make("div", { class: "mhnb-quiet", role: "status" });
    this.layouts = make("div", { class: "mhnb-layouts", role: "radiogroup", "aria-label": "layout" });
    for (const name of ["fold", "tabs", "grid"]) {
      this.layouts.append(make("button", {
        type: "button", class: "mhnb-button", role: "radio", "data-view": name, onclick: () => this.layOut(name),
      }, name[0].toUpperCase() + name.slice(1)));
    }
    rove(this.layouts, (node) => this.layOut(node.dataset.view));
    const input = (label, size, oninput) =>
      make("input", { type: "text", size, "aria-label": label, placeholder: label, "data-lm-suppress-shortcuts": "true", oninput });
    this.filter = input("ranks, like 0,2-3", 12, () => this.draw());
    this.search = input("search", 12, () => this.mark());
    this.found = make("span", { class: "mhnb-quiet", role: "status", "aria-live": "polite" });
    this.folding = button("Collapse", "close every block, or open all", () => this.collapse());
    this.copying = button("Copy", "what is shown, as text", () => this.copy());
    this.tools = make("div", { class: "mhnb-actions", role: "group", "aria-label": "outputs" }, this.layouts, this.filter, this.search, this.found,
      button(["‹", sign()], "previous difference (p)", () => this.jump(-1)), button([sign(), "›"], "next difference (n)", () => this.jump(1)),
      this.folding, this.copying);
    this.tabs = make("div", { class: "mhnb-tabs", role: "tablist", "aria-label": "ranks" });
    rove(this.tabs, (node) => this.choose(Number(node.dataset.rank)));
    this.id = `mhnb-panel-${Math.random().toString(36).slice(2)}`;
    this.body = make("div", { class: "mhnb-shown", id: this.id });
    // No landmark, because a notebook may have several panels.
    this.root = make("div", { class: "mhnb mhnb-panel", role: "group", "aria-label": "outputs of the ranks", "data-lm-suppress-shortcuts": "true" },
      this.head, this.tools, this.tabs, this.body);
    this.root.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    if (event.target.tagName === "INPUT") {
      if (event.key === "Escape") {
        event.target.value = "";
        event.target.dispatchEvent(new Event("input"));
      } else if (event.key === "Enter" && event.target === this.search) this.step();
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const act = { n: () => this.jump(1), p: () => this.jump(-1), "/": () => this.search.focus() }[event.key];
    if (!act) return;
    event.preventDefault();
    event.stopPropagation();
    act();
  }

  ranks() {
    const all = this.model.get("ranks");
    const wanted = parseRanks(this.filter.value, all.map((one) => one.rank));
    this.filter.setAttribute("aria-invalid", String(wanted === null));
    return wanted === null ? all : all.filter((one) => wanted.has(one.rank));
  }

  layOut(view) {
    this.view = view;
    this.draw();
    if (view === "fold" && !this.folds) this.tell("fold is of all ranks");
  }

  choose(rank) {
    this.chosen = rank;
    this.picked = true;
    this.draw();
    this.tabs.querySelector(`[data-rank="${rank}"]`)?.focus();
  }

  ask(ranks) {
    const missing = ranks.filter((rank) => !this.bodies.has(rank) && !this.asked.has(rank));
    missing.forEach((rank) => this.asked.add(rank));
    if (missing.length) this.model.send({ ask: missing });
  }

  drawHead() {
    this.head.textContent = this.model.get("head") + this.silence;
    this.head.title = this.model.get("tip") || "";
  }

  draw() {
    this.drawHead();
    const ranks = this.ranks();
    const filtered = ranks.length < this.model.get("ranks").length;
    this.folds = this.view === "fold" && !filtered;
    // Shared blocks name all their ranks, so filtered ranks are shown as cards until the filter is empty again.
    const view = this.view === "fold" && filtered ? "grid" : this.view;
    for (const node of this.layouts.children) {
      const on = node.dataset.view === view;
      node.setAttribute("aria-checked", String(on));
      node.tabIndex = on ? 0 : -1;
    }
    this.tabs.hidden = view !== "tabs" || !ranks.length;
    for (const name of ["role", "aria-labelledby", "tabindex"]) this.body.removeAttribute(name);
    if (this.folds) this.show(this.model.get("page"));
    else if (!ranks.length) this.drawNone();
    else if (view === "tabs") this.drawTabs(ranks);
    else this.drawGrid(ranks);
    this.mark();
  }

  show(html) {
    this.body.className = "mhnb-shown";
    this.body.innerHTML = html;
  }

  drawNone() {
    this.show("");
    this.body.setAttribute("role", "status");
    this.body.textContent = `no rank matches ${this.filter.value.trim()}`;
  }

  drawTabs(ranks) {
    const open = ranks.find((one) => one.rank === this.chosen);
    // Until the user picks a tab, open that of a rank that differs.
    if (!open || (!this.picked && !open.differs)) this.chosen = (ranks.find((one) => one.differs) ?? open ?? ranks[0]).rank;
    const focused = this.tabs.contains(document.activeElement);
    this.tabs.replaceChildren(...ranks.map((one) => make("button", {
      type: "button", role: "tab", class: one.differs ? "mhnb-tab mhnb-outlier" : "mhnb-tab", id: `${this.id}-${one.rank}`, "data-rank": one.rank,
      "aria-selected": String(one.rank === this.chosen), "aria-controls": this.id, tabindex: one.rank === this.chosen ? 0 : -1,
      onclick: () => this.choose(one.rank),
    }, `rank ${one.rank}${one.mark}`)));
    if (focused) this.tabs.querySelector('[aria-selected="true"]')?.focus();
    this.body.setAttribute("role", "tabpanel");
    this.body.setAttribute("tabindex", "0");
    this.body.setAttribute("aria-labelledby", `${this.id}-${this.chosen}`);
    this.ask([this.chosen]);
    this.show(this.bodies.get(this.chosen) ?? "…");
  }

  drawGrid(ranks) {
    this.ask(ranks.map((one) => one.rank));
    this.show("");
    this.body.className = "mhnb-shown mhnb-grid";
    // What users look for comes first.
    const ordered = [...ranks.filter((one) => one.differs), ...ranks.filter((one) => !one.differs)];
    this.body.append(...ordered.map((one) => {
      const inner = make("div", { class: "mhnb-scroll", tabindex: "0" });
      inner.innerHTML = this.bodies.get(one.rank) ?? "…";
      const card = make("div", { class: one.differs ? "mhnb-card mhnb-outlier" : "mhnb-card" },
        make("div", {}, make("b", {}, `rank ${one.rank}`), ` ${one.host}${one.mark}`),
        one.difference ? make("div", { class: "mhnb-difference" }, one.difference) : null, inner);
      card.style.borderTopColor = one.color;
      return card;
    }));
  }

  mark() {
    for (const old of this.body.querySelectorAll("mark")) {
      const parent = old.parentNode;
      old.replaceWith(...old.childNodes);
      parent.normalize();
    }
    const words = this.search.value.toLowerCase();
    this.found.textContent = "";
    if (!words) return;
    const walker = document.createTreeWalker(this.body, NodeFilter.SHOW_TEXT);
    const nodes = [];
    while (walker.nextNode()) if (walker.currentNode.data.toLowerCase().includes(words)) nodes.push(walker.currentNode);
    let count = 0;
    for (const node of nodes) {
      let rest = node;
      for (let at = rest.data.toLowerCase().indexOf(words); at >= 0 && count < 2000; at = rest.data.toLowerCase().indexOf(words)) {
        const hit = rest.splitText(at);
        rest = hit.splitText(words.length);
        const mark = make("mark", {});
        hit.replaceWith(mark);
        mark.append(hit);
        mark.closest("details")?.setAttribute("open", "");
        count += 1;
      }
    }
    this.at = -1;
    this.found.textContent = count ? `${count} found` : "not found";
    if (count) this.body.querySelector("mark").scrollIntoView({ block: "nearest" });
  }

  step() {
    const marks = [...this.body.querySelectorAll("mark")];
    if (!marks.length) return;
    marks[this.at]?.classList.remove("mhnb-here");
    this.at = (this.at + 1) % marks.length;
    marks[this.at].classList.add("mhnb-here");
    marks[this.at].scrollIntoView({ block: "center" });
  }

  jump(by) {
    if (this.view === "tabs") {
      const marked = this.ranks().filter((one) => one.differs).map((one) => one.rank);
      if (!marked.length) return this.tell("no difference");
      const next = by > 0 ? marked.find((rank) => rank > this.chosen) ?? marked[0] : marked.findLast((rank) => rank < this.chosen) ?? marked.at(-1);
      return this.choose(next);
    }
    const marked = [...this.body.querySelectorAll(".mhnb-outlier")];
    if (!marked.length) return this.tell("no difference");
    const at = marked.indexOf(document.activeElement?.closest(".mhnb-outlier"));
    const next = marked[((at < 0 && by < 0 ? 0 : at) + by + marked.length) % marked.length];
    next.closest("details")?.setAttribute("open", "");
    next.tabIndex = -1;
    next.focus({ preventScroll: true });
    next.scrollIntoView({ block: "nearest" });
  }

  tell(text) { this.found.textContent = text; }

  collapse() {
    // A figure that opens to its own size is no fold.
    const folds = [...this.body.querySelectorAll("details:not(.mhnb-pic)")];
    const open = folds.some((fold) => fold.open);
    folds.forEach((fold) => { fold.open = !open; });
    this.folding.textContent = open ? "Expand" : "Collapse";
  }

  async copy() {
    const text = this.body.innerText;
    try {
      await navigator.clipboard.writeText(text);
      this.tell("copied");
    } catch {
      // A page that is not served securely has no clipboard. Select the text, so that the keyboard can copy it.
      getSelection().selectAllChildren(this.body);
      this.tell(document.execCommand("copy") ? "copied" : "selected: copy it with the keyboard");
    }
  }
}

export default {
  render({ model, el }) {
    if (model.get("mode") === "live") return renderLive({ model, el });
    const panel = new Panel({ model, el });
    return () => panel.forget();
  },
};
