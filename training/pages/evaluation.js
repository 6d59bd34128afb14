// Tables are sorted by their headings' buttons: by click, or by Enter and Space. What has no number stays at the end.
"use strict";
document.querySelectorAll("button[data-sort]").forEach(function (button) {
  button.addEventListener("click", function () {
    const head = button.closest("th"), body = head.closest("table").tBodies[0];
    const isNumber = button.dataset.sort === "number";
    const down = head.getAttribute("aria-sort") === "none" ? isNumber : head.getAttribute("aria-sort") === "ascending";
    const keyOf = function (row) {
      const cell = row.cells[head.cellIndex];
      if (!isNumber) return cell.dataset.value === undefined ? cell.textContent.trim() : cell.dataset.value;
      return cell.dataset.value === "" ? NaN : Number(cell.dataset.value);
    };
    const keyed = Array.from(body.rows, function (row) { return { row: row, key: keyOf(row) }; });
    keyed.sort(function (a, b) {
      if (!isNumber) return (down ? -1 : 1) * a.key.localeCompare(b.key, "en", { numeric: true });
      if (Number.isNaN(a.key) || Number.isNaN(b.key)) return Number.isNaN(a.key) - Number.isNaN(b.key);
      return (down ? -1 : 1) * (a.key - b.key);
    });
    keyed.forEach(function (item) { body.appendChild(item.row); });
    head.parentElement.querySelectorAll("th[aria-sort]").forEach(function (other) { other.setAttribute("aria-sort", "none"); });
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
  });
});
