"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const count = data.paths.length;
  const element = (id) => document.getElementById(id);

  // ---- data ----
  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const view = (text) => new DataView(bytes(text).buffer);
  const uint16 = (text) => {
    const from = view(text);
    return Uint16Array.from({ length: from.byteLength / 2 }, (_, i) => from.getUint16(2 * i, true));
  };
  const int16 = (text) => Int16Array.from(uint16(text));
  const positions = Float32Array.from(uint16(data.positions), (v) => v / 65535);
  const clusters = bytes(data.clusters);
  const classes = bytes(data.classes);
  const neighbours = uint16(data.neighbours);
  const cosines = int16(data.cosines);
  const sheets = data.sheets.map((source) => {
    const image = new Image();
    image.src = source;
    return image;
  });

  // ---- words and colours ----
  const COLOURS = [
    "#4e79d6", "#efa91c", "#f2665a", "#3fb6a8", "#54a83f", "#f08bbb", "#9d6be8", "#86b6f0",
    "#a9774f", "#8b93a1", "#c9405c", "#128096",
  ];
  const colour = (i) => COLOURS[i] ?? `hsl(${(i * 137.5) % 360} 55% 58%)`;
  const number = (n) => n.toLocaleString("en");
  const several = (n, one, many = one + "s") => `${number(n)} ${n === 1 ? one : many}`;
  const sizes = data.typical.map((_, c) => clusters.reduce((n, other) => n + (other === c), 0));
  const groupings = [
    { name: "Clusters", of: clusters, names: data.typical.map((_, c) => `Cluster ${c + 1}`) },
  ];
  if (data.classNames.length) {
    groupings.push({ name: "Folders", of: classes, names: data.classNames });
  }

  const make = (tag, properties = {}, ...children) => {
    const made = document.createElement(tag);
    for (const [key, value] of Object.entries(properties)) {
      if (key in made && key !== "role") made[key] = value;
      else made.setAttribute(key, value);
    }
    made.append(...children);
    return made;
  };

  // ---- pictures ----
  const place = (i) => {
    const within = i % data.perSheet;
    const x = (within % data.columns) * data.size;
    const y = Math.floor(within / data.columns) * data.size;
    const inside = 0.5; // of a pixel: smoothing must not mix in the pictures beside it
    const side = data.size - 2 * inside;
    return [sheets[Math.floor(i / data.perSheet)], x + inside, y + inside, side, side];
  };
  const picture = (i, pixels, name = "") => {
    const side = Math.round(pixels * Math.min(2, window.devicePixelRatio || 1));
    const canvas = make("canvas", { width: side, height: side, className: name });
    const context = canvas.getContext("2d");
    context.imageSmoothingQuality = "high";
    context.drawImage(...place(i), 0, 0, side, side);
    canvas.setAttribute("aria-hidden", "true");
    return canvas;
  };
  const tile = (i, caption, pixels = 96) => {
    const button = make("button", { type: "button", className: "tile", title: data.paths[i] });
    button.dataset.image = i;
    button.setAttribute("aria-label", `${data.paths[i]}${caption ? ", " + caption : ""}`);
    button.append(picture(i, pixels));
    if (caption) button.append(make("span", { textContent: caption }));
    button.addEventListener("click", () => choose(i));
    return button;
  };
  const tiles = (images, captions = () => "") =>
    make("div", { className: "tiles" }, ...images.map((i, rank) => tile(i, captions(i, rank))));
  const chip = (grouping, group, kind = "span") =>
    make(
      kind,
      { className: "chip" },
      make("span", { className: "dot" }),
      make("span", { textContent: grouping.names[group] }),
    );
  const coloured = (made, group) => {
    made.querySelector(".dot").style.background = colour(group);
    return made;
  };

  // ---- the chosen image ----
  let chosen = -1;
  const neighboursOf = (i) =>
    i < 0 ? [] : Array.from(neighbours.subarray(i * data.k, (i + 1) * data.k));
  const hints = () => {
    const touched = ["Tap an image to see its nearest neighbours.", "Drag with one finger to move the map, pinch with two to zoom."];
    const pointed = ["Point at an image to see it, click it to see its nearest neighbours.", "Drag to move the map, turn the wheel to zoom."];
    const isTouched = matchMedia("(pointer: coarse)").matches;
    const lines = isTouched ? touched.map((line) => [line]) : [
      ...pointed.map((line) => [line]),
      ["On the map ", "←", " ", "↑", " ", "→", " ", "↓", " go from image to image, ", "+", " and ", "−", " zoom, ", "0", " shows all, ", "Esc", " clears."],
    ];
    const list = make("ul", { className: "hints" });
    for (const line of lines) {
      const parts = line.map((part, i) => (i % 2 ? make("kbd", { textContent: part }) : part));
      list.append(make("li", {}, ...parts));
    }
    return list;
  };
  const showChosen = () => {
    const panel = element("chosen");
    if (chosen < 0) {
      panel.replaceChildren(make("h2", { textContent: "No image is chosen" }), hints());
      return;
    }
    const chips = groupings.map((g) => coloured(chip(g, g.of[chosen]), g.of[chosen]));
    const near = neighboursOf(chosen);
    const pixels = Math.min(256, 5 * data.size);
    const large = picture(chosen, pixels, "large");
    large.style.maxWidth = `${pixels}px`;
    panel.replaceChildren(
      large,
      make("p", { className: "path", textContent: data.paths[chosen] }),
      make("div", { className: "chips" }, ...chips),
    );
    if (near.length) {
      const cosine = (_, rank) => (cosines[chosen * data.k + rank] / 10000).toFixed(3);
      panel.append(
        make("h3", { textContent: "Nearest neighbours" }),
        tiles(near, cosine),
        make("p", { className: "quiet", textContent: "Below each image: the cosine of both embeddings; 1 is the same." }),
      );
    }
    panel.scrollTop = 0;
  };
  const choose = (i) => {
    const focused = document.activeElement?.closest("#chosen") !== null;
    chosen = i;
    showChosen();
    element("said").textContent = i < 0 ? "" : data.paths[i];
    for (const button of document.querySelectorAll(".tile[aria-current]")) button.removeAttribute("aria-current");
    for (const button of document.querySelectorAll(`.view .tile[data-image="${i}"]`)) button.setAttribute("aria-current", "true");
    if (focused) element("chosen").querySelector(".tile")?.focus();
    draw();
  };

  // ---- the map ----
  const canvas = element("map");
  const context = canvas.getContext("2d");
  const map = { width: 0, height: 0, zoom: 1, x: 0.5, y: 0.5, pictures: false, grouping: 0, only: -1 };
  const MIDDLE = 8; // pixels by which the map's middle is above the canvas's: the legend is below
  let words = "";
  let matching = null; // of the search: a flag for each image
  let drawing = false;
  let shown = []; // rectangles of the pictures that are drawn: [image, left, top, side]

  const extent = [0, 1].map((axis) => {
    const along = positions.filter((_, i) => i % 2 === axis);
    return Math.max(0.05, along.reduce((a, b) => Math.max(a, b)) - along.reduce((a, b) => Math.min(a, b)));
  });
  const fit = () => Math.min((map.width - 90) / extent[0], (map.height - 190) / extent[1]);
  const toScreen = (i) => {
    const side = fit() * map.zoom;
    return [
      map.width / 2 + (positions[2 * i] - map.x) * side,
      map.height / 2 - MIDDLE + (positions[2 * i + 1] - map.y) * side,
    ];
  };
  const lit = (i) =>
    (map.only < 0 || groupings[map.grouping].of[i] === map.only) && (!matching || matching[i]);
  const draw = () => {
    if (drawing) return;
    drawing = true;
    requestAnimationFrame(() => {
      drawing = false;
      drawNow();
    });
  };
  const drawNow = () => {
    if (!map.width) return;
    const style = getComputedStyle(document.documentElement);
    const [ink, card, accent] = ["--ink", "--card", "--accent"].map((n) => style.getPropertyValue(n));
    const ratio = Math.min(2, window.devicePixelRatio || 1);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, map.width, map.height);
    const of = groupings[map.grouping].of;
    const radius = Math.min(7, Math.max(1.8, (fit() * Math.sqrt(map.zoom)) / (5.5 * Math.sqrt(count))));
    shown = [];
    for (const bright of [false, true]) {
      for (let i = 0; i < count; i++) {
        if (lit(i) !== bright) continue;
        const [x, y] = toScreen(i);
        if (x < -9 || y < -9 || x > map.width + 9 || y > map.height + 9) continue;
        context.globalAlpha = bright ? (map.pictures ? 0.45 : 0.85) : 0.1;
        context.fillStyle = colour(of[i]);
        context.beginPath();
        context.arc(x, y, radius, 0, 7);
        context.fill();
      }
    }
    context.globalAlpha = 1;
    if (map.pictures) drawPictures(of, card);
    drawChosen(of, ink, card, accent);
  };
  const drawPictures = (of, card) => {
    const side = Math.min(96, Math.max(26, 30 * Math.pow(map.zoom, 0.45)));
    const taken = new Set();
    const order = [...neighboursOf(chosen), ...data.typical.flatMap((all) => all.slice(0, 4)), ...Array(count).keys()];
    const cell = (v) => Math.floor(v / (side * 0.5));
    context.imageSmoothingQuality = "high";
    for (const i of order) {
      if (!lit(i)) continue;
      const [x, y] = toScreen(i);
      if (x < -side || y < -side || x > map.width + side || y > map.height + side) continue;
      const cells = [-1, 0, 1].flatMap((a) => [-1, 0, 1].map((b) => `${cell(x) + a},${cell(y) + b}`));
      if (cells.some((name) => taken.has(name))) continue;
      taken.add(`${cell(x)},${cell(y)}`);
      drawPicture(i, x, y, side, colour(of[i]), card);
    }
  };
  const drawPicture = (i, x, y, side, frame, card) => {
    const left = x - side / 2;
    const top = y - side / 2;
    context.fillStyle = frame;
    context.beginPath();
    context.roundRect(left - 2, top - 2, side + 4, side + 4, 5);
    context.fill();
    context.save();
    context.beginPath();
    context.roundRect(left, top, side, side, 3.5);
    context.clip();
    context.fillStyle = card;
    context.fillRect(left, top, side, side);
    context.drawImage(...place(i), left, top, side, side);
    context.restore();
    shown.push([i, left, top, side]);
  };
  const drawChosen = (of, ink, card, accent) => {
    if (chosen < 0) return;
    const [x, y] = toScreen(chosen);
    const near = neighboursOf(chosen);
    context.strokeStyle = accent;
    context.lineWidth = 1.5;
    context.globalAlpha = 0.75;
    for (const i of near) {
      const [toX, toY] = toScreen(i);
      context.beginPath();
      context.moveTo(x, y);
      context.lineTo(toX, toY);
      context.stroke();
    }
    context.globalAlpha = 1;
    for (const i of near) {
      const [toX, toY] = toScreen(i);
      context.fillStyle = colour(of[i]);
      context.strokeStyle = card;
      context.lineWidth = 2;
      context.beginPath();
      context.arc(toX, toY, 6, 0, 7);
      context.fill();
      context.stroke();
    }
    drawPicture(chosen, x, y, Math.max(48, Math.min(96, 40 * Math.sqrt(map.zoom))), accent, card);
  };
  const imageAt = (x, y) => {
    for (let n = shown.length - 1; n >= 0; n--) {
      const [i, left, top, side] = shown[n];
      if (x >= left && y >= top && x <= left + side && y <= top + side) return i;
    }
    let best = -1;
    let nearest = 14 ** 2;
    for (let i = 0; i < count; i++) {
      if (!lit(i)) continue;
      const [px, py] = toScreen(i);
      const distance = (px - x) ** 2 + (py - y) ** 2;
      if (distance < nearest) [best, nearest] = [i, distance];
    }
    return best;
  };
  const zoomBy = (factor, x = map.width / 2, y = map.height / 2 - MIDDLE) => {
    const before = fit() * map.zoom;
    map.zoom = Math.min(60, Math.max(0.6, map.zoom * factor));
    const after = fit() * map.zoom;
    map.x += (x - map.width / 2) * (1 / before - 1 / after);
    map.y += (y - map.height / 2 + MIDDLE) * (1 / before - 1 / after);
    draw();
  };
  const showAll = () => {
    [map.zoom, map.x, map.y] = [1, 0.5, 0.5];
    draw();
  };
  const bringIntoView = (i) => {
    const [x, y] = toScreen(i);
    if (x < 40 || y < 40 || x > map.width - 40 || y > map.height - 90) {
      [map.x, map.y] = [positions[2 * i], positions[2 * i + 1]];
    }
  };
  const resize = () => {
    const box = canvas.getBoundingClientRect();
    const ratio = Math.min(2, window.devicePixelRatio || 1);
    [map.width, map.height] = [box.width, box.height];
    [canvas.width, canvas.height] = [Math.round(box.width * ratio), Math.round(box.height * ratio)];
    drawNow();
  };

  // ---- pointer on the map ----
  let drag = null;
  const fingers = new Map(); // where each of several pointers is
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const hover = element("hover");
  const showHover = (i, event) => {
    hover.hidden = i < 0;
    canvas.classList.toggle("on-image", i >= 0);
    if (i < 0) {
      hover.dataset.image = "";
      return;
    }
    if (hover.dataset.image !== String(i)) {
      hover.dataset.image = i;
      const told = groupings.map((g) => g.names[g.of[i]]).join(" · ");
      hover.replaceChildren(
        picture(i, 128),
        make("p", { textContent: data.paths[i] }),
        make("p", { className: "quiet", textContent: told }),
      );
    }
    const box = hover.getBoundingClientRect();
    const left = event.clientX + 18 + box.width > window.innerWidth ? event.clientX - 18 - box.width : event.clientX + 18;
    hover.style.left = `${Math.max(4, left)}px`;
    hover.style.top = `${Math.max(4, Math.min(event.clientY + 12, window.innerHeight - box.height - 8))}px`;
  };
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    fingers.set(event.pointerId, at(event));
    drag = { from: at(event), x: map.x, y: map.y, moved: false };
  });
  const pinch = (event) => {
    const span = () => {
      const [[ax, ay], [bx, by]] = fingers.values();
      return [Math.hypot(ax - bx, ay - by), (ax + bx) / 2, (ay + by) / 2];
    };
    const [before] = span();
    fingers.set(event.pointerId, at(event));
    const [after, x, y] = span();
    if (before > 0 && after > 0) zoomBy(after / before, x, y);
    drag = { moved: true };
  };
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = at(event);
    if (fingers.size === 2 && fingers.has(event.pointerId)) {
      pinch(event);
      return;
    }
    if (drag && !drag.from) return; // the finger that is left after a pinch
    if (!drag) {
      showHover(imageAt(x, y), event);
      return;
    }
    const [dx, dy] = [x - drag.from[0], y - drag.from[1]];
    if (!drag.moved && Math.hypot(dx, dy) < 5) return;
    drag.moved = true;
    canvas.classList.add("dragged");
    showHover(-1);
    const side = fit() * map.zoom;
    [map.x, map.y] = [drag.x - dx / side, drag.y - dy / side];
    draw();
  });
  canvas.addEventListener("pointerup", (event) => {
    const moved = drag?.moved;
    fingers.delete(event.pointerId);
    if (fingers.size) return;
    drag = null;
    canvas.classList.remove("dragged");
    if (!moved) choose(imageAt(...at(event)));
  });
  canvas.addEventListener("pointercancel", (event) => {
    fingers.delete(event.pointerId);
    drag = null;
  });
  canvas.addEventListener("pointerleave", () => showHover(-1));
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    showHover(-1);
    zoomBy(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0015)), ...at(event));
  }, { passive: false });

  // ---- keys on the map ----
  const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  const step = ([dx, dy]) => {
    if (chosen < 0) return data.typical[0][0];
    let best = chosen;
    let least = Infinity;
    for (let i = 0; i < count; i++) {
      if (i === chosen || !lit(i)) continue;
      const [x, y] = [positions[2 * i] - positions[2 * chosen], positions[2 * i + 1] - positions[2 * chosen + 1]];
      const along = x * dx + y * dy;
      const across = Math.abs(x * dy) + Math.abs(y * dx);
      if (along <= 0 || across > 2 * along) continue;
      const cost = along + 2 * across;
      if (cost < least) [best, least] = [i, cost];
    }
    return best;
  };
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in ARROWS) choose(step(ARROWS[event.key]));
    else if (event.key === "+" || event.key === "=") zoomBy(1.4);
    else if (event.key === "-") zoomBy(1 / 1.4);
    else if (event.key === "0") showAll();
    else if (event.key === "Escape") choose(-1);
    else return;
    event.preventDefault();
    if (chosen >= 0 && event.key in ARROWS) bringIntoView(chosen);
  });

  // ---- tools of the map ----
  const pressed = (parent, index) =>
    [...parent.children].forEach((button, i) => button.setAttribute("aria-pressed", String(i === index)));
  const switchOf = (parent, names, act) => {
    names.forEach((name, index) => {
      const button = make("button", { type: "button", textContent: name });
      button.addEventListener("click", () => {
        pressed(parent, index);
        act(index);
        draw();
      });
      parent.append(button);
    });
    pressed(parent, 0);
  };
  const showLegend = () => {
    const grouping = groupings[map.grouping];
    const chips = grouping.names.map((_, group) => {
      const button = coloured(chip(grouping, group, "button"), group);
      button.type = "button";
      button.addEventListener("click", () => {
        map.only = map.only === group ? -1 : group;
        pressed(element("legend"), map.only);
        draw();
      });
      return button;
    });
    element("legend").replaceChildren(...chips);
    pressed(element("legend"), map.only);
  };
  const group = (grouping, only) => {
    [map.grouping, map.only] = [grouping, only];
    pressed(element("colours"), grouping);
    showLegend();
    draw();
  };

  // ---- the other views ----
  const commonest = (images) => {
    const counts = new Map();
    for (const i of images) counts.set(classes[i], (counts.get(classes[i]) ?? 0) + 1);
    return [...counts].sort((a, b) => b[1] - a[1]).slice(0, 3)
      .map(([c, n]) => `${data.classNames[c]}: ${Math.round((100 * n) / images.length)} %`).join(", ");
  };
  const intro = (text) => make("p", { className: "intro", textContent: text });
  const fillClusters = (section) => {
    const cards = make("div", { className: "cards" });
    data.typical.forEach((typical, c) => {
      const link = make("button", { type: "button", className: "link", textContent: "Show on the map" });
      link.addEventListener("click", () => {
        group(0, c);
        show("map");
      });
      const dot = make("span", { className: "dot" });
      dot.style.background = colour(c);
      const title = make("header", {}, dot, make("h2", { textContent: `Cluster ${c + 1}` }), link);
      const members = [...Array(count).keys()].filter((i) => clusters[i] === c);
      const facts = [several(members.length, "image")];
      if (data.classNames.length) facts.push(commonest(members));
      cards.append(make("article", { className: "card cluster" }, title,
        make("p", { className: "quiet", textContent: facts.join(" · ") }), tiles(typical)));
    });
    section.append(intro("Groups that k-means finds in the embeddings, the largest first. Each is shown by the images nearest to its centre."), cards);
  };
  const fillDuplicates = (section) => {
    const none = "No two images are so near to each other that they could be copies.";
    const some = "Images that are ten times nearer to each other than images here usually are: copies, other sizes or edits of one photograph, or one scene taken twice.";
    section.append(intro(data.duplicates.length ? some : none));
    for (const images of data.duplicates) {
      const name = make("h3", { textContent: several(images.length, "image") });
      section.append(make("article", { className: "card group" }, name, tiles(images, (i) => data.paths[i])));
    }
  };
  const fillOutliers = (section) => {
    const none = "No image is much farther from its ten nearest neighbours than the others are.";
    const some = "Images that are much farther from their ten nearest neighbours than the others are (beyond Tukey's fence), the farthest first: rare ones, mistakes, or images that do not belong here.";
    section.append(intro(data.outliers.length ? some : none), tiles(data.outliers, (i) => data.paths[i]));
  };
  const fillUnreadable = (section) => {
    const rows = data.broken.map(([path, reason]) =>
      make("tr", {}, make("td", { textContent: path }), make("td", { textContent: reason })));
    const head = make("tr", {}, make("th", { textContent: "File" }), make("th", { textContent: "Reason" }));
    section.append(intro("Files that could not be read and are left out."),
      make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows)));
  };

  // ---- tabs ----
  const views = [
    ["map", "Map", null, () => {}],
    ["clusters", "Clusters", data.typical.length, fillClusters],
    ["duplicates", "Near-duplicates", data.duplicates.length, fillDuplicates],
    ["outliers", "Outliers", data.outliers.length, fillOutliers],
  ];
  if (data.broken.length) views.push(["unreadable", "Unreadable", data.broken.length, fillUnreadable]);
  const filled = new Set();
  const tabOf = (name) => element(`tab-${name}`);
  const show = (name) => {
    for (const [other, , , fill] of views) {
      const active = other === name;
      const section = element(`view-${other}`);
      section.hidden = !active;
      tabOf(other).setAttribute("aria-selected", String(active));
      tabOf(other).tabIndex = active ? 0 : -1;
      if (active && !filled.has(name)) {
        filled.add(name);
        fill(section);
      }
    }
    if (name === "map") resize();
    showHover(-1);
  };
  const fillTabs = () => {
    views.forEach(([name, label, size], index) => {
      const tab = make("button", { type: "button", id: `tab-${name}`, role: "tab", textContent: label });
      tab.setAttribute("aria-controls", `view-${name}`);
      element(`view-${name}`).setAttribute("aria-labelledby", `tab-${name}`);
      if (size !== null) tab.append(make("span", { className: "count", textContent: number(size) }));
      tab.addEventListener("click", () => show(name));
      tab.addEventListener("keydown", (event) => {
        const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!by) return;
        const next = views[(index + by + views.length) % views.length][0];
        show(next);
        tabOf(next).focus();
      });
      element("tabs").append(tab);
    });
  };

  // ---- search ----
  element("search").addEventListener("input", (event) => {
    words = event.target.value.trim().toLowerCase();
    matching = words ? data.paths.map((path) => path.toLowerCase().includes(words)) : null;
    const found = matching ? matching.filter(Boolean).length : 0;
    element("found").textContent = words ? several(found, "image") : "";
    draw();
  });
  element("search").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !matching) return;
    const hits = matching.flatMap((yes, i) => (yes ? [i] : []));
    if (hits.length) choose(hits[(hits.indexOf(chosen) + 1) % hits.length]);
  });

  // ---- start ----
  const start = () => {
    element("title").textContent = data.title;
    const facts = [count < data.total ? `${number(count)} of ${number(data.total)} images, drawn at random` : several(count, "image")];
    facts.push(several(sizes.length, "cluster"));
    element("facts").textContent = facts.join(" · ");
    fillTabs();
    switchOf(element("marks"), ["Points", "Pictures"], (index) => { map.pictures = index === 1; });
    switchOf(element("colours"), groupings.map((g) => g.name), (index) => group(index, -1));
    element("colours").hidden = groupings.length < 2;
    element("zoom-in").addEventListener("click", () => zoomBy(1.5));
    element("zoom-out").addEventListener("click", () => zoomBy(1 / 1.5));
    element("zoom-all").addEventListener("click", showAll);
    new ResizeObserver(resize).observe(canvas);
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
    showLegend();
    show("map");
    showChosen();
    document.body.dataset.ready = "true";
  };
  Promise.all(sheets.map((image) => image.decode())).then(start, () => {
    element("title").textContent = "The pictures are missing";
    element("facts").textContent = "The files pictures-*.webp must lie beside this page.";
  });
})();
