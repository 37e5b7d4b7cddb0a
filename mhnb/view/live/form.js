// A form that the kernel draws: it sends HTML for each part, and gets the name and text of each field that changes.
// No build step: the kernel sends this file unchanged.

function render({ model, el }) {
  const root = document.createElement("div");
  root.className = `mhnb mhnb-form ${model.get("uid")}`;
  // JupyterLab would take letters for its own shortcuts.
  root.dataset.lmSuppressShortcuts = "true";
  el.append(root);
  const nodes = new Map();
  const sent = new Map();

  function send(node) {
    sent.set(node.id, node.value);
    model.send({ field: node.dataset.field, text: node.value });
  }
  root.addEventListener("change", ({ target }) => { if (target.dataset.field) send(target); });
  // JupyterLab's notebook would also keep arrows from radio buttons, and Enter from text fields.
  root.addEventListener("keydown", (event) => event.stopPropagation());
  root.addEventListener("click", ({ target }) => { if (target.matches("button[data-field]")) send(target); });

  function draw() {
    const focused = root.contains(document.activeElement) ? document.activeElement : null;
    const parts = model.get("parts");
    const keys = new Set(parts.map(([key]) => key));
    for (const [key, { node }] of nodes) if (!keys.has(key)) { node.remove(); nodes.delete(key); }
    parts.forEach(([key, html], at) => {
      if (!nodes.has(key)) nodes.set(key, { node: document.createElement("div"), html: "" });
      const part = nodes.get(key);
      if (key === "status") part.node.setAttribute("role", "status");
      if (root.children[at] !== part.node) root.insertBefore(part.node, root.children[at] ?? null);
      // Only what has changed is drawn again, so that the rest keeps its focus and its open folds.
      if (part.html !== html) part.node.innerHTML = part.html = html;
    });
    if (focused && !focused.isConnected) focusAgain(focused);
  }

  // The kernel may answer after the user has moved on: the focus, and what is being typed, stay.
  function focusAgain(old) {
    const next = (old.id && root.querySelector(`#${CSS.escape(old.id)}`)) || root.querySelector("[data-field=add]");
    if (next.id === old.id && next.type === "text" && old.value !== old.defaultValue && old.value !== sent.get(old.id)) {
      next.value = old.value;
    }
    next.focus({ preventScroll: true });
    if (next.type === "text" && old.type === "text") next.setSelectionRange(old.selectionStart, old.selectionEnd);
  }

  model.on("change:parts", draw);
  draw();
  return () => model.off("change:parts", draw);
}

export default { render };
