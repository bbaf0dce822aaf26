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

  /* What a chart's point says, when it is pointed at. */
  function pointing() {
    for (const mark of document.querySelectorAll(".chart svg [aria-label]")) {
      const title = document.createElementNS("http://www.w3.org/2000/svg", "title");
      title.textContent = mark.getAttribute("aria-label");
      mark.append(title);
    }
  }

  async function unpacked(text) {
    const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  }

  class Verdicts {
    constructor(data) {
      this.rows = data.rows;
      this.groups = data.groups;
      this.values = data.values;
      this.options = data.options;
      this.columns = data.columns;
      this.count = data.columns.row.length;
      this.haystacks = new Array(this.count);
    }

    text(place, name) {
      return this.values[name][this.columns[name][place]];
    }

    /* Everything that a search looks through, in small letters, made when first needed. */
    haystack(place) {
      if (this.haystacks[place] === undefined) {
        const names = ["operator", "problem", "descriptor", "dtype", "layout", "distribution", "storage", "status", "check", "reason"];
        const texts = names.map((name) => this.text(place, name));
        texts.push(this.rows[this.columns.row[place]][1], this.columns.command[place]);
        this.haystacks[place] = texts.join("\n").toLowerCase();
      }
      return this.haystacks[place];
    }

    fits(place, wanted, words) {
      return (wanted.row === "" || this.columns.row[place] === Number(wanted.row))
        && (wanted.group === "" || this.columns.group[place] === Number(wanted.group))
        && ["operator", "dtype", "distribution"].every((name) => wanted[name] === "*" || this.text(place, name) === wanted[name])
        && words.every((word) => this.haystack(place).includes(word));
    }

    /* Fitting verdicts, worst status first; and cases by status, whatever statuses are wanted. */
    found(wanted) {
      const words = wanted.search.toLowerCase().split(/\s+/).filter(Boolean);
      const cases = {};
      const groups = Object.fromEntries(STATUSES.map((status) => [status, []]));
      for (let place = 0; place < this.count; place += 1) {
        if (!this.fits(place, wanted, words)) continue;
        const status = this.text(place, "status");
        cases[status] = (cases[status] || 0) + this.columns.cases[place];
        if (!wanted.status.length || wanted.status.includes(status)) groups[status].push(place);
      }
      return { places: WORST_FIRST.flatMap((status) => groups[status]), cases };
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

  /* The figures of a verdict lie one after the other, in the order of the shapes of checks and profiles. */
  function figures(verdicts, place) {
    const rest = [...verdicts.columns.figures[place]];
    const checks = verdicts.text(place, "checks").flatMap(([output, names]) => names.map((name) => {
      const [value, limit] = rest.splice(0, 2);
      const row = [output, name, number(value), number(limit)];
      row.exceeds = !(Math.abs(Number(value === "inf" ? Infinity : value)) <= Number(limit === "inf" ? Infinity : limit));
      return row;
    }));
    const profile = verdicts.text(place, "profile").map(([output, names]) => [output, names.map((name) => `${name} ${number(rest.shift())}`).join(", ")]);
    return { checks, profile };
  }

  function facts(verdicts, place) {
    const columns = verdicts.columns;
    const { profile } = figures(verdicts, place);
    const contract = verdicts.text(place, "contract");
    const pairs = [
      ["problem", [verdicts.text(place, "problem"), verdicts.text(place, "descriptor")].filter(Boolean).join(" = ")],
      ["check", verdicts.text(place, "check")],
      ["cases", columns.cases[place] === 1 ? "" : String(columns.cases[place])],
      ["contraction length", columns.terms[place] ? String(columns.terms[place]) : ""],
      ["method", verdicts.text(place, "method")],
      ["contract", contract ? Object.entries(contract).map(([name, value]) => `${name} ${value}`).join(", ") : ""],
      ["inferred precision", Object.entries(verdicts.text(place, "inferred")).map(([output, name]) => `${output}: ${name}`).join("; ")],
      ...profile.map(([output, text]) => [`profile ${output}`, text]),
      ["machine", verdicts.rows[columns.row[place]][2]],
      ["versions", Object.entries(verdicts.text(place, "versions")).map(([name, text]) => `${name} ${text}`).join(", ")],
      ["note", [columns.marks[place] & 1 ? "replaces the verdict of an earlier file" : "", columns.marks[place] & 2 ? "stale: a later file has another source of this implementation" : ""].filter(Boolean).join("; ")],
    ];
    return make("dl", {}, ...pairs.filter(([, text]) => text).flatMap(([name, text]) => [make("dt", {}, name), make("dd", {}, text)]));
  }

  function detail(verdicts, place, id) {
    const { checks } = figures(verdicts, place);
    const command = verdicts.columns.command[place];
    const reason = verdicts.text(place, "reason");
    const inside = make("div", { class: "inside" },
      reason ? make("pre", { class: "reason" }, ...linked(reason)) : null,
      command ? make("div", { class: "command" }, make("code", {}, ...words(command)), make("button", { type: "button", class: "quiet copy" }, "Copy")) : null,
      checks.length ? table(["output", "check", "value", "limit"], checks) : null,
      facts(verdicts, place));
    return make("tr", { class: "detail", id }, make("td", { colspan: 7 }, inside));
  }

  function line(verdicts, place) {
    const columns = verdicts.columns;
    const status = verdicts.text(place, "status");
    const id = `v${place}`;
    const name = verdicts.rows[columns.row[place]][1];
    const problem = verdicts.text(place, "problem") || many(columns.cases[place], "case");
    const check = verdicts.text(place, "check");
    const elements = columns.elements[place];
    const what = [verdicts.text(place, "operator"), problem, check].filter(Boolean).join(" ");
    const open = make("button", { type: "button", class: "open", "aria-expanded": "false", "aria-controls": id, "aria-label": `${status}: ${name} ${what}` },
      make("span", { class: "mark", "aria-hidden": "true" }), status);
    const first = verdicts.text(place, "reason").split("\n")[0].slice(0, 160);
    const marks = [columns.marks[place] & 1 ? "replaced" : "", columns.marks[place] & 2 ? "stale" : ""].filter(Boolean).join(", ");
    const cells = [
      make("td", {}, open),
      make("td", { class: "case" }, make("b", {}, name), ` ${what}${marks ? ` (${marks})` : ""}`, first ? make("small", {}, first) : null),
      ...["dtype", "layout"].map((column) => make("td", {}, verdicts.text(place, column))),
      make("td", {}, ["distribution", "storage"].map((column) => verdicts.text(place, column)).filter(Boolean).join(" ")),
      make("td", { class: columns.worst[place] > 1 || elements > 0 ? "n exceeds" : "n" }, elements === null ? share(columns.worst[place]) : many(elements, "element")),
      make("td", { class: "n" }, columns.seconds[place] === null ? "" : (columns.seconds[place] * 1000).toFixed(1)),
    ];
    const row = make("tr", { class: `s-${status}` }, ...cells);
    open.addEventListener("click", () => {
      const isOpen = open.getAttribute("aria-expanded") === "true";
      open.setAttribute("aria-expanded", String(!isOpen));
      if (isOpen) byId(id).remove(); else row.after(detail(verdicts, place, id));
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
      choose("row", ["", "all"], this.verdicts.rows.map((row, place) => [place, row[1]]));
      if (this.grouped) choose("group", ["", "all"], this.verdicts.groups.map((title, place) => [place, title]));
      for (const name of ["operator", "dtype", "distribution"]) {
        choose(name, ["*", "all"], this.verdicts.options[name].map((text) => [text, text || "none (not attempted)"]));
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
      byId("verdicts").scrollIntoView();
      byId("verdicts-title").focus({ preventScroll: true });
    }

    get wanted() {
      const of = (name) => byId(`f-${name}`).value;
      return { row: of("row"), group: this.grouped ? of("group") : "", operator: of("operator"), dtype: of("dtype"), distribution: of("distribution"), search: byId("search").value, status: [...this.statuses] };
    }

    /* The address keeps the filters, so that a view can be passed on. */
    remember(wanted) {
      const known = new URLSearchParams();
      const rowName = wanted.row === "" ? "" : this.verdicts.rows[wanted.row][1];
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
      const row = this.verdicts.rows.findIndex((one) => one[1] === known.get("row"));
      if (row >= 0) byId("f-row").value = row;
      if (this.grouped && known.get("group") in this.verdicts.groups) this.grouped.value = known.get("group");
      for (const name of ["operator", "dtype", "distribution"]) {
        if (this.verdicts.values[name].includes(known.get(name))) byId(`f-${name}`).value = known.get(name);
      }
      byId("search").value = known.get("search") || "";
      for (const status of (known.get("status") || "").split(",")) if (STATUSES.includes(status)) this.statuses.add(status);
      byId("verdicts").scrollIntoView();
    }

    show() {
      const wanted = this.wanted;
      const { places, cases } = this.verdicts.found(wanted);
      for (const { status, chip, count } of this.chips) {
        count.textContent = (cases[status] || 0).toLocaleString("en");
        chip.setAttribute("aria-pressed", String(this.statuses.has(status)));
      }
      const held = places.reduce((sum, place) => sum + this.verdicts.columns.cases[place], 0);
      const verdictCount = `${places.length.toLocaleString("en")} of ${many(this.verdicts.count, "verdict")}`;
      byId("found").textContent = held === places.length ? verdictCount : `${verdictCount}, ${many(held, "case")}`;
      this.places = places;
      this.shown = 0;
      byId("list").replaceChildren();
      this.extend(false);
      this.remember(wanted);
    }

    extend(focus) {
      const next = this.places.slice(this.shown, this.shown + PAGE).map((place) => line(this.verdicts, place));
      byId("list").append(...next);
      this.shown += next.length;
      byId("list-box").hidden = this.places.length === 0;
      const left = this.places.length - this.shown;
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
  pointing();
  unpacked(byId("data").textContent)
    .then((data) => { new List(new Verdicts(data)); document.documentElement.dataset.ready = "yes"; })
    .catch((problem) => trouble(`This browser could not unpack the list of verdicts (${problem.message}).`));
})();
