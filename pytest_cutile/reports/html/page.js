"use strict";
// Sorts and filters the table of cases, and opens the case that an address names. The page is whole without it.
(() => {
  // Returns a function that shows all rows.
  const setUp = (table) => {
    const body = table.tBodies[0];
    const heads = [...table.tHead.rows[0].cells];
    const columns = heads.map((head) => head.textContent);
    const rows = [...body.rows].map((row) => ({
      row,
      text: row.textContent.toLowerCase(),
      cells: [...row.cells].map(({ dataset, textContent }) => (dataset.v ? Number(dataset.v) : textContent)),
    }));

    const collator = new Intl.Collator("en", { numeric: true });
    const compare = (a, b) => (typeof a === "number" ? a - b : collator.compare(a, b));
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const other of heads) other.setAttribute("aria-sort", "none");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        // Rows without a value stay last, whichever way the others are sorted.
        const empty = (one) => one.cells[column] === "" || Number.isNaN(one.cells[column]);
        rows.sort((a, b) => empty(a) - empty(b) || (down ? -1 : 1) * compare(a.cells[column], b.cells[column]));
        body.append(...rows.map((one) => one.row));
      });
    });

    const form = document.getElementById("filters");
    const count = document.getElementById("count");
    const filter = () => {
      const wanted = [...new FormData(form)].filter(([, value]) => value !== "");
      let shown = 0;
      for (const { row, text, cells } of rows) {
        row.hidden = !wanted.every(([name, value]) =>
          name === "text" ? text.includes(value.toLowerCase()) : cells[columns.indexOf(name)] === value);
        shown += !row.hidden;
      }
      count.textContent = shown === rows.length ? `${shown} rows` : `${shown} of ${rows.length} rows`;
    };
    form.addEventListener("input", filter);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.hidden = false;
    return () => {
      form.reset();
      filter();
    };
  };

  const table = document.getElementById("table");
  const showAll = table ? setUp(table) : () => {};
  const openTarget = () => {
    const target = document.getElementById(location.hash.slice(1)); // names are of a-z, 0-9 and -
    if (target?.hidden) showAll(); // a filter hides the row
    for (let node = target; node; node = node.parentElement) {
      if (node.tagName === "DETAILS") node.open = true;
    }
    if (target) target.scrollIntoView();
  };
  addEventListener("hashchange", openTarget);
  addEventListener("click", (event) => { // the address may be the same as before
    if (event.target.closest("a[href^='#']")) setTimeout(openTarget);
  });
  openTarget();
})();
