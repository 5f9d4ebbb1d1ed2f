"use strict";

// Tables: a click on a column's header sorts by it, text in the box above leaves only the rows that have it.
(() => {
  const collator = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

  function sort(table, header) {
    const row = header.parentElement;
    const column = [...row.children].indexOf(header);
    const numeric = header.classList.contains("number");
    const before = header.getAttribute("aria-sort");
    const first = numeric ? "descending" : "ascending";
    const other = numeric ? "ascending" : "descending";
    const direction = before === first ? other : first;
    for (const each of row.children) each.setAttribute("aria-sort", each === header ? direction : "none");

    const body = table.tBodies[0];
    const sign = direction === "ascending" ? 1 : -1;
    const keyed = [...body.rows].map((line) => {
      const cell = line.cells[column];
      return { line, key: numeric ? parseFloat(cell.dataset.value) : cell.textContent };
    });
    keyed.sort((a, b) => {
      if (!numeric) return sign * collator.compare(a.key, b.key);
      // Cells without a number stay at the end, whichever way the others go.
      if (Number.isNaN(a.key) || Number.isNaN(b.key)) return Number.isNaN(a.key) - Number.isNaN(b.key);
      return sign * (a.key - b.key);
    });
    body.append(...keyed.map((each) => each.line));
  }

  function filter(box, words) {
    const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = [...box.querySelectorAll("tbody tr")];
    let left = 0;
    for (const row of rows) {
      const text = [...row.cells].map((cell) => cell.textContent).join(" ").toLowerCase();
      row.hidden = !wanted.every((word) => text.includes(word));
      left += !row.hidden;
    }
    const all = rows.length.toLocaleString("en");
    const count = left === rows.length ? all : `${left.toLocaleString("en")} of ${all}`;
    box.querySelector("output").textContent = `${count} ${rows.length === 1 ? "row" : "rows"}`;
    box.querySelector(".nothing").hidden = left > 0 || rows.length === 0;
  }

  for (const box of document.querySelectorAll(".table")) {
    const table = box.querySelector("table");
    for (const button of table.querySelectorAll("th button")) {
      button.addEventListener("click", () => sort(table, button.parentElement));
    }
    const input = box.querySelector("input");
    input.addEventListener("input", () => filter(box, input.value));
  }
})();
