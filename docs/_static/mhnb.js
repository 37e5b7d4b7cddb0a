/* A button on each input that copies its code: of a terminal's lines the commands alone, without their prompt. Outputs have none. */
document.addEventListener("DOMContentLoaded", () => {
  if (!navigator.clipboard) return;  // a browser allows it on https and local pages only
  for (const box of document.querySelectorAll("div[class*='highlight-']:not(.highlight-text)")) {
    const code = box.querySelector("pre");
    if (!code || box.closest(".cell_output")) continue;
    const button = document.createElement("button");
    Object.assign(button, { type: "button", className: "mhnb-copy", textContent: "Copy" });
    button.addEventListener("click", async () => {
      const lines = code.textContent.trimEnd().split("\n");
      const commands = lines.filter((line) => line.startsWith("$ ")).map((line) => line.slice(2));
      await navigator.clipboard.writeText((commands.length ? commands : lines).join("\n"));
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
    box.append(button);
  }
});
