"use strict";
(() => {
  const STATUSES = ["pass", "fail", "error", "unsupported", "waived", "unavailable"];
  const WORST_FIRST = ["fail", "error", "waived", "pass", "unsupported", "unavailable"];
  const PAGE = 100;
  const byId = (id) => document.getElementById(id);
  const say = (text) => { byId("said").textContent = text; };

  /* An element from its name, its attributes and what it holds. Texts become text nodes, never markup. */
  function make(name, attributes = {}, ...held) {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (value !== undefined && value !== null) element.setAttribute(key, value);
    }
    element.append(...held.filter((one) => one !== null && one !== undefined));
    return element;
  }

  /* Addresses in a text become links, and only if they begin with http. */
  function linked(text) {
    const parts = text.split(/(https?:\/\/[^\s()<>"']*[^\s()<>"'.,;:!?])/);
    return parts.map((part, place) => (place % 2 ? make("a", { href: part, rel: "noopener noreferrer" }, part) : part));
  }

  /* A command breaks between its words only: a line that ends in a hyphen reads like another option. */
  function words(text) {
    return text.split(" ").flatMap((word, place) => [place ? " " : "", make("span", {}, word)]);
  }

  /* Theme: what the system says, until somebody chooses. Storage may be denied to a file. */
  function theme() {
    const button = byId("theme");
    const root = document.documentElement;
    const system = matchMedia("(prefers-color-scheme: dark)");
    const stored = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
    const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
    const show = () => { button.textContent = isDark() ? "Light" : "Dark"; button.setAttribute("aria-label", isDark() ? "Use light colours" : "Use dark colours"); };
    if (["light", "dark"].includes(stored())) root.dataset.theme = stored();
    button.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      try { localStorage.setItem("theme", root.dataset.theme); } catch { /* not remembered then */ }
      show();
    });
    system.addEventListener("change", show);
    button.hidden = false;
    show();
  }

  function copying() {
    for (const button of document.querySelectorAll(".copy")) button.hidden = false;
    document.addEventListener("click", async (event) => {
      const button = event.target.closest(".copy");
      if (!button) return;
      const code = button.parentElement.querySelector("code");
      const copied = await copy(code);
      say(copied ? "Copied" : "Selected: press Ctrl+C");
      button.textContent = copied ? "Copied" : "Selected";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  }

  /* The clipboard is closed to some pages that were opened from a file: then the line is selected. */
  async function copy(code) {
    try {
      await navigator.clipboard.writeText(code.textContent);
      return true;
    } catch {
      const range = document.createRange();
      range.selectNodeContents(code);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      return false;
    }
  }

  /* A folded section that is jumped to opens. */
  function reveal(id) {
    const section = byId(id);
    const folded = section?.querySelector(":scope > details");
    if (folded) folded.open = true;
    section?.scrollIntoView();
  }

  async function unpacked(text) {
    const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  }

  class Verdicts {
    constructor(text) {
      const [shared, ...verdicts] = text.trimEnd().split("\n").map((line) => JSON.parse(line));
      Object.assign(this, shared);
      this.verdicts = verdicts;
    }

    name(verdict) {
      return this.rows[verdict.row][0];
    }

    /* Everything that a search looks through, in small letters, made when first needed. */
    haystack(verdict) {
      if (verdict.haystack === undefined) {
        const names = ["operator", "problem", "descriptor", "dtype", "layout", "distribution", "storage", "status", "check", "reason", "command"];
        verdict.haystack = [this.name(verdict), ...names.map((name) => verdict[name])].join("\n").toLowerCase();
      }
      return verdict.haystack;
    }

    fits(verdict, wanted, words) {
      return (wanted.row === "" || verdict.row === Number(wanted.row))
        && (wanted.group === "" || verdict.group === Number(wanted.group))
        && ["operator", "dtype", "distribution"].every((name) => wanted[name] === "*" || verdict[name] === wanted[name])
        && words.every((word) => this.haystack(verdict).includes(word));
    }

    /* Fitting verdicts, worst status first; and cases by status, whatever statuses are wanted. */
    found(wanted) {
      const words = wanted.search.toLowerCase().split(/\s+/).filter(Boolean);
      const cases = {};
      const groups = Object.fromEntries(STATUSES.map((status) => [status, []]));
      for (const verdict of this.verdicts) {
        if (!this.fits(verdict, wanted, words)) continue;
        cases[verdict.status] = (cases[verdict.status] || 0) + verdict.cases;
        if (!wanted.status.length || wanted.status.includes(verdict.status)) groups[verdict.status].push(verdict);
      }
      return { fitting: WORST_FIRST.flatMap((status) => groups[status]), cases };
    }
  }

  function number(value) {
    if (typeof value !== "number") return String(value);
    const size = Math.abs(value);
    return size !== 0 && (size < 1e-3 || size >= 1e6) ? value.toExponential(2) : String(value);
  }

  const many = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

  function share(value) {
    if (value === null) return "";
    if (value < 10) return `${(value * 100).toFixed(value < 0.1 ? 1 : 0)}%`;
    return value < 1e5 ? `${Math.round(value).toLocaleString("en")}×` : `${value.toExponential(1)}×`;
  }

  function table(heads, rows) {
    const cell = (text, place, kind) => make("td", { class: place > 1 ? kind : null }, text);
    return make("table", {},
      make("thead", {}, make("tr", {}, ...heads.map((head, place) => make("th", { scope: "col", class: place > 1 ? "n" : null }, head)))),
      make("tbody", {}, ...rows.map((row) => make("tr", { class: row.exceeds ? "exceeds" : null }, ...row.map((text, place) => cell(text, place, "n"))))));
  }

  function checks(verdict) {
    const limited = (value) => Number(value === "inf" ? Infinity : value);
    return verdict.checks.map(([output, name, value, limit]) => {
      const row = [output, name, number(value), number(limit)];
      row.exceeds = !(Math.abs(limited(value)) <= limited(limit));
      return row;
    });
  }

  function facts(verdict, machine) {
    const pairs = [
      ["problem", [verdict.problem, verdict.descriptor].filter(Boolean).join(" = ")],
      ["check", verdict.check],
      ["cases", verdict.cases === 1 ? "" : String(verdict.cases)],
      ["method", verdict.method],
      ["machine", machine],
      ...Object.entries(verdict.facts),
    ];
    return make("dl", {}, ...pairs.filter(([, text]) => text).flatMap(([name, text]) => [make("dt", {}, name), make("dd", {}, text)]));
  }

  function detail(verdict, machine, id) {
    const inside = make("div", { class: "inside" },
      verdict.reason ? make("pre", { class: "reason" }, ...linked(verdict.reason)) : null,
      verdict.command ? make("div", { class: "command" }, make("code", {}, ...words(verdict.command)), make("button", { type: "button", class: "quiet copy" }, "Copy")) : null,
      verdict.checks.length ? table(["output", "check", "value", "limit"], checks(verdict)) : null,
      facts(verdict, machine));
    return make("tr", { class: "detail", id }, make("td", { colspan: 7 }, inside));
  }

  function line(verdict, place, [name, machine]) {
    const { status, elements } = verdict;
    const id = `v${place}`;
    const what = [verdict.operator, verdict.problem || many(verdict.cases, "case"), verdict.check].filter(Boolean).join(" ");
    const open = make("button", { type: "button", class: "open", "aria-expanded": "false", "aria-controls": id, "aria-label": `${status}: ${name} ${what}` },
      make("span", { class: "mark", "aria-hidden": "true" }), status);
    const first = verdict.reason.split("\n")[0].slice(0, 160);
    const cells = [
      make("td", {}, open),
      make("td", { class: "case" }, make("b", {}, name), ` ${what}`, first ? make("small", {}, first) : null),
      make("td", {}, verdict.dtype),
      make("td", {}, verdict.layout),
      make("td", {}, [verdict.distribution, verdict.storage].filter(Boolean).join(" ")),
      make("td", { class: verdict.worst > 1 || elements > 0 ? "n exceeds" : "n" }, elements === null ? share(verdict.worst) : many(elements, "element")),
      make("td", { class: "n" }, verdict.seconds === null ? "" : (verdict.seconds * 1000).toFixed(1)),
    ];
    const row = make("tr", { class: `s-${status}` }, ...cells);
    open.addEventListener("click", () => {
      const isOpen = open.getAttribute("aria-expanded") === "true";
      open.setAttribute("aria-expanded", String(!isOpen));
      if (isOpen) byId(id).remove(); else row.after(detail(verdict, machine, id));
    });
    return row;
  }

  class List {
    constructor(verdicts) {
      this.verdicts = verdicts;
      this.statuses = new Set();
      this.form = byId("filters");
      this.grouped = byId("f-group");
      this.fill();
      this.listen();
      this.restore();
      this.form.hidden = false;
      byId("list-box").hidden = false;
      this.show();
    }

    fill() {
      const choose = (name, all, options) => byId(`f-${name}`).append(...[all, ...options].map(([value, text]) => make("option", { value }, text)));
      choose("row", ["", "all"], this.verdicts.rows.map(([name], place) => [place, name]));
      if (this.grouped) choose("group", ["", "all"], this.verdicts.groups.map((title, place) => [place, title]));
      for (const name of ["operator", "dtype", "distribution"]) {
        choose(name, ["*", "all"], this.verdicts[name].map((text) => [text, text || "none (not attempted)"]));
      }
      this.chips = STATUSES.map((status) => {
        const count = make("span", { class: "number" });
        const chip = make("button", { type: "button", class: `chip s-${status}`, "aria-pressed": "false", "data-status": status },
          make("span", { class: "mark", "aria-hidden": "true" }), `${status} `, count);
        chip.addEventListener("click", () => { this.toggle(status); this.show(); });
        return { status, chip, count };
      });
      byId("f-status").append(...this.chips.map(({ chip }) => chip));
    }

    toggle(status) {
      if (!this.statuses.delete(status)) this.statuses.add(status);
    }

    listen() {
      let waiting = 0;
      this.form.addEventListener("submit", (event) => event.preventDefault());
      this.form.addEventListener("reset", () => setTimeout(() => { this.statuses.clear(); this.show(); }));
      this.form.addEventListener("change", () => this.show());
      byId("search").addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(() => this.show(), 120); });
      byId("more").addEventListener("click", () => this.extend(true));
      for (const button of document.querySelectorAll(".tile, .of-group")) {
        button.hidden = false;
        button.addEventListener("click", () => this.choose(button.dataset));
      }
    }

    /* From a cell of the matrix, or a group of failures, to its verdicts. */
    choose(wanted) {
      this.form.reset();
      this.statuses.clear();
      for (const [name, value] of Object.entries(wanted)) byId(`f-${name}`).value = value;
      this.show();
      reveal("verdicts");
      byId("verdicts-title").focus({ preventScroll: true });
    }

    get wanted() {
      const of = (name) => byId(`f-${name}`).value;
      return { row: of("row"), group: this.grouped ? of("group") : "", operator: of("operator"), dtype: of("dtype"), distribution: of("distribution"), search: byId("search").value, status: [...this.statuses] };
    }

    /* The address keeps the filters, so that a view can be passed on. */
    remember(wanted) {
      const known = new URLSearchParams();
      const rowName = wanted.row === "" ? "" : this.verdicts.rows[wanted.row][0];
      for (const [name, text] of Object.entries({ ...wanted, row: rowName, status: wanted.status.join(",") })) {
        const chosen = ["operator", "dtype", "distribution"].includes(name) ? text !== "*" : text !== "";
        if (chosen) known.set(name, text);
      }
      const text = known.toString();
      if (text || location.hash.startsWith("#?")) try { history.replaceState(null, "", text ? `#?${text}` : "#verdicts"); } catch { /* some pages may not */ }
    }

    restore() {
      if (!location.hash.startsWith("#?")) return;
      const known = new URLSearchParams(location.hash.slice(2));
      const row = this.verdicts.rows.findIndex(([name]) => name === known.get("row"));
      if (row >= 0) byId("f-row").value = row;
      if (this.grouped && known.get("group") in this.verdicts.groups) this.grouped.value = known.get("group");
      for (const name of ["operator", "dtype", "distribution"]) {
        if (this.verdicts[name].includes(known.get(name))) byId(`f-${name}`).value = known.get(name);
      }
      byId("search").value = known.get("search") || "";
      for (const status of (known.get("status") || "").split(",")) if (STATUSES.includes(status)) this.statuses.add(status);
      reveal("verdicts");
    }

    show() {
      const wanted = this.wanted;
      const { fitting, cases } = this.verdicts.found(wanted);
      for (const { status, chip, count } of this.chips) {
        count.textContent = (cases[status] || 0).toLocaleString("en");
        chip.setAttribute("aria-pressed", String(this.statuses.has(status)));
      }
      const held = fitting.reduce((sum, verdict) => sum + verdict.cases, 0);
      const verdictCount = many(fitting.length, "verdict");
      byId("found").textContent = held === fitting.length ? verdictCount : `${verdictCount}, ${many(held, "case")}`;
      this.fitting = fitting;
      this.shown = 0;
      byId("list").replaceChildren();
      this.extend(false);
      this.remember(wanted);
    }

    extend(focus) {
      const next = this.fitting.slice(this.shown, this.shown + PAGE)
        .map((verdict, place) => line(verdict, this.shown + place, this.verdicts.rows[verdict.row]));
      byId("list").append(...next);
      this.shown += next.length;
      byId("list-box").hidden = this.fitting.length === 0;
      const left = this.fitting.length - this.shown;
      byId("more").hidden = left === 0;
      byId("more").textContent = `Show ${Math.min(left, PAGE)} more of ${left.toLocaleString("en")}`;
      if (focus && next.length) next[0].querySelector("button").focus();
    }
  }

  function trouble(text) {
    byId("trouble").textContent = `${text} The records that this page was made from hold all verdicts.`;
    byId("trouble").hidden = false;
  }

  theme();
  copying();
  for (const link of document.querySelectorAll("nav a")) link.addEventListener("click", () => reveal(link.hash.slice(1)));
  reveal(location.hash.slice(1));
  const data = byId("data"); /* the page of a survey has no list: its tiles lead to the pages that have */
  if (data) unpacked(data.textContent)
    .then((text) => { new List(new Verdicts(text)); document.documentElement.dataset.ready = "yes"; })
    .catch((problem) => trouble(`This browser could not unpack the list of verdicts (${problem.message}).`));
})();
