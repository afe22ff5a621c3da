"use strict";
// Filters of the scenes. Without it the page shows all of them.
(() => {
  const scenes = [...document.querySelectorAll("details.scene")];
  const fields = [...document.querySelectorAll("[data-filter]")];
  const search = document.getElementById("search");
  const told = document.getElementById("told");
  const none = document.getElementById("none");
  const texts = new WeakMap();
  const textOf = (scene) => {
    if (!texts.has(scene)) texts.set(scene, scene.textContent.toLowerCase());
    return texts.get(scene);
  };
  const fits = (scene, field, value) => {
    if (!value) return true;
    if (field !== "flags") return scene.dataset[field] === value;
    const flags = scene.dataset.flags.split(" ").filter(Boolean);
    if (value === "any") return flags.length > 0;
    return value === "none" ? flags.length === 0 : flags.includes(value);
  };
  const apply = () => {
    const wanted = search.value.trim().toLowerCase();
    let shown = 0;
    for (const scene of scenes) {
      const fit = fields.every((f) => fits(scene, f.dataset.filter, f.value))
        && (!wanted || textOf(scene).includes(wanted));
      scene.hidden = !fit;
      shown += fit;
    }
    told.textContent = `${shown} of ${scenes.length} scenes`;
    none.hidden = shown > 0;
  };
  for (const field of fields) field.addEventListener("change", apply);
  let waiting;
  search.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(apply, 120);
  });
  for (const row of document.querySelectorAll("[data-flag]")) {
    row.addEventListener("click", () => {
      const field = document.querySelector('[data-filter="flags"]');
      field.value = row.dataset.flag;
      apply();
      const first = scenes.find((scene) => !scene.hidden);
      if (first) first.open = true;
      document.getElementById("scenes").scrollIntoView();
    });
  }
  document.getElementById("unfold").addEventListener("click", () => {
    const visible = scenes.filter((scene) => !scene.hidden);
    const open = !visible.every((scene) => scene.open);
    for (const scene of visible) scene.open = open;
  });
  document.getElementById("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme
      ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });
  document.getElementById("tools").hidden = false;
  apply();
})();
