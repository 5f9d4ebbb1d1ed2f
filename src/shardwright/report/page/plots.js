"use strict";

// Plots: unpacks Plotly, draws every plot in the page's own colours, and again when the colour scheme changes.
(async () => {
  const specs = JSON.parse(document.getElementById("plots").textContent);
  const canvases = [...document.querySelectorAll("[data-plot]")];

  async function unpacked(packed) {
    const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  }

  // Colours in a spec are names of CSS variables.
  function coloured(part, style) {
    if (typeof part === "string") return part.startsWith("--") ? style.getPropertyValue(part).trim() : part;
    if (Array.isArray(part)) return part.map((each) => coloured(each, style));
    if (part && typeof part === "object") {
      return Object.fromEntries(Object.entries(part).map(([key, each]) => [key, coloured(each, style)]));
    }
    return part;
  }

  function axis(own, style) {
    const grid = style.getPropertyValue("--grid").trim();
    const title = { standoff: 8, font: { size: 12 }, ...own.title };
    return { gridcolor: grid, zerolinecolor: grid, linecolor: grid, automargin: true, fixedrange: true, ...own, title };
  }

  // Labels are cut in the middle where there is no room: both ends tell them apart.
  const pen = document.createElement("canvas").getContext("2d");
  function fitting(text, width) {
    if (pen.measureText(text).width <= width) return text;
    let kept = text.length;
    while (kept > 2 && pen.measureText(shortened(text, kept)).width > width) kept -= 1;
    return shortened(text, kept);
  }
  function shortened(text, kept) {
    return text.slice(0, Math.ceil(kept / 2)) + "…" + text.slice(text.length - Math.floor(kept / 2));
  }
  function escaped(text) {
    return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
  }
  function label({ text, strong, y }, font, width) {
    pen.font = `${strong ? "bold " : ""}${font.size}px ${font.family}`;
    const shown = escaped(fitting(text, width));
    const place = { xref: "paper", yref: "y", x: 0, y, xanchor: "left", yanchor: "bottom", align: "left", borderpad: 0 };
    return { ...place, showarrow: false, font, text: strong ? `<b>${shown}</b>` : shown };
  }

  function draw(canvas) {
    const style = getComputedStyle(document.documentElement);
    const get = (name) => style.getPropertyValue(name).trim();
    const spec = coloured(specs[canvas.dataset.plot], style);
    const font = { family: get("--sans"), size: 12.5, color: get("--ink") };
    const width = canvas.clientWidth;
    const layout = {
      width,
      height: canvas.clientHeight,
      margin: { l: 0, r: 7, t: 4, b: 4 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: get("--sans"), size: 12, color: get("--soft") },
      showlegend: false,
      hoverlabel: { bgcolor: get("--card"), bordercolor: get("--edge"), font, align: "left", namelength: -1 },
      ...spec.layout,
      annotations: [
        ...(spec.layout.annotations ?? []),
        ...(spec.labels ?? []).map((each) => label(each, font, width - 8)),
      ],
      xaxis: axis(spec.layout.xaxis ?? {}, style),
      yaxis: axis(spec.layout.yaxis ?? {}, style),
    };
    return Plotly.react(canvas, spec.data, layout, { displayModeBar: false });
  }

  try {
    const script = document.createElement("script");
    script.textContent = await unpacked(document.getElementById("plotly").textContent);
    document.head.append(script);
  } catch (error) {
    for (const canvas of canvases) canvas.textContent = "This browser cannot draw the plot; the table has its figures.";
    return;
  }
  for (const canvas of canvases) await draw(canvas);
  const sizes = new ResizeObserver((found) => {
    for (const { target } of found) if (target.clientWidth !== target.layout?.width) draw(target);
  });
  canvases.forEach((canvas) => sizes.observe(canvas));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => canvases.forEach(draw));
  document.documentElement.dataset.plots = "drawn";
})();
