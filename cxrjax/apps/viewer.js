"use strict";
/* A viewer of radiographs with boxes, on OpenSeadragon. To have it on another page: put
   what cxrjax.apps.viewer.viewer_parts() gives into its <style> and <script>, make
   `new RadiographViewer(element, {})`, and call its `show(picture, layers)` for each picture.

picture  {url, preview, width, height, name}: width and height are what boxes are counted in;
         preview, if there, is shown until url is there, and instead where it can't be had
layers   [{name, title, colour, dash, editable, boxes: [{box: [x0, y0, x1, y1], label,
         confidence, kind}]}]; a box without a label shows its number alone
         A picture larger than the screen: RadiographViewer.closely(picture, layers, about) shows it
         in a dialog of its own, headed by its name and what `about` says.
options  onEdit(boxes): the editable layer has changed; onSelect(index or -1); onDraw(is drawing)
key(event) does what a key is for and says whether it was for anything: pages have keys too. */
class RadiographViewer {
  constructor(host, options) {
    this.options = options;
    this.layers = [];
    this.selected = -1;
    this.drawing = null; // what the box to be drawn will have: {label, kind}
    this.undone = [];
    this.level = 0.5;
    this.span = 1;
    this.inverted = false;
    this.number = ++RadiographViewer.made;
    this.build(host);
    this.osd = OpenSeadragon({
      element: this.stage, drawer: "canvas", showNavigationControl: false, maxZoomPixelRatio: 8,
      minZoomImageRatio: 0.6, visibilityRatio: 0.3, animationTime: 0.25, springStiffness: 12,
      keyboardNavEnabled: false, zoomPerClick: 2, zoomPerScroll: 1.25, preserveImageSizeOnResize: true,
      gestureSettingsMouse: {clickToZoom: false, dblClickToZoom: true, flickEnabled: false},
      gestureSettingsTouch: {clickToZoom: false, dblClickToZoom: true, flickEnabled: false},
      gestureSettingsPen: {clickToZoom: false, dblClickToZoom: true, flickEnabled: false},
    });
    this.osd.canvas.setAttribute("role", "group");
    this.osd.canvas.append(this.overlay);
    this.osd.addHandler("update-viewport", () => this.place());
    this.osd.addHandler("resize", () => requestAnimationFrame(() => this.place()));
    this.listen();
    this.filter();
  }

  // Buttons above, the picture below; all by DOM calls, so that no text of a record is HTML.
  build(host) {
    const make = (tag, attributes = {}, ...inside) => {
      const node = document.createElement(tag);
      for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
      node.append(...inside);
      return node;
    };
    const button = (text, title, act) => {
      const node = make("button", {type: "button", title, "aria-label": title}, text);
      node.addEventListener("click", act);
      return node;
    };
    const range = (text, title, low, high) => {
      const node = make("input", {type: "range", min: low, max: high, step: 0.01, title});
      node.addEventListener("input", () => {
        this.level = +this.levelRange.value;
        this.span = +this.spanRange.value;
        this.filter();
      });
      return [make("label", {class: "rv-range"}, make("span", {}, text), node), node];
    };
    this.make = make;
    this.invertButton = button("Invert", "Invert black and white (i)", () => this.invert());
    this.zoomShown = make("output", {class: "rv-zoom", "aria-label": "Zoom"});
    let level, span;
    [level, this.levelRange] = range("Level", "Window level: what grey is in the middle", -0.2, 1.2);
    [span, this.spanRange] = range("Width", "Window width: how many greys there are", 0.05, 2);
    this.toggles = make("div", {class: "rv-layers", role: "group", "aria-label": "Boxes shown"});
    this.bar = make("div", {class: "rv-bar", role: "group", "aria-label": "View"},
      make("span", {class: "rv-group"},
        button("Fit", "Fit the whole image (f)", () => this.fit()),
        button("1:1", "1:1, a pixel of the image is one of the screen (o)", () => this.original()),
        button("\u2212", "Smaller (-)", () => this.zoom(0.8)),
        button("+", "Larger (+)", () => this.zoom(1.25)), this.zoomShown),
      make("span", {class: "rv-group"}, level, span, this.invertButton,
        button("Reset", "Reset the window (w)", () => this.resetWindow())),
      button("Save", "Save the image with the boxes that are shown (PNG)", () => this.save()),
      this.toggles);
    this.stage = make("div", {class: "rv-stage"});
    this.note = make("p", {class: "rv-note", role: "status"});
    this.note.hidden = true;
    const svg = "http://www.w3.org/2000/svg";
    this.draw = (tag, attributes = {}) => {
      const node = document.createElementNS(svg, tag);
      for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
      return node;
    };
    this.overlay = this.draw("svg", {class: "rv-boxes", role: "img"});
    const filter = this.draw("filter", {id: `rv-window-${this.number}`, x: 0, y: 0, width: 1,
      height: 1, "color-interpolation-filters": "sRGB"});
    const transfer = this.draw("feComponentTransfer");
    this.functions = ["feFuncR", "feFuncG", "feFuncB"].map((name) => {
      const part = this.draw(name, {type: "linear"});
      transfer.append(part);
      return part;
    });
    filter.append(transfer);
    const holder = this.draw("svg", {class: "rv-filter", "aria-hidden": "true", width: 0, height: 0});
    holder.append(filter);
    host.classList.add("rv");
    host.append(this.bar, this.stage, this.note, holder);
  }

  show(picture, layers) {
    this.picture = picture;
    this.layers = layers.map((layer) => ({shown: true, ...layer,
      boxes: layer.boxes.map((one) => ({...one, box: [...one.box]}))}));
    this.undone = [];
    this.setDrawing(null);
    this.selected = -1;
    this.osd.close();
    this.tile = null;
    delete this.stage.dataset.shown;
    this.note.hidden = true;
    this.listLayers();
    this.redraw();
    this.resetWindow();
    // Preview and full resolution are one picture in two sizes: the second takes the first's place.
    this.opened = this.opened ? this.opened + 1 : 1;
    const mine = this.opened;
    if (picture.preview) this.load(picture.preview, mine);
    if (picture.url && picture.url !== picture.preview) this.load(picture.url, mine);
  }

  load(url, mine) {
    this.osd.addTiledImage({
      tileSource: {type: "image", url, buildPyramid: true},
      success: ({item}) => {
        const full = url === this.picture.url, before = this.tile;
        // One that was asked for earlier may arrive later: of another picture, or the preview.
        if (mine !== this.opened || (before && !full)) {
          this.osd.world.removeItem(item);
          return;
        }
        this.tile = item;
        if (before) this.osd.world.removeItem(before);
        else this.osd.viewport.goHome(true);
        this.stage.dataset.shown = full ? "full" : "preview";
        this.place();
      },
      error: () => {
        if (mine !== this.opened) return;
        const smaller = url === this.picture.url && this.picture.preview;
        if (smaller) this.say("Shown smaller: the file with all pixels is not beside this page.");
        else if (!this.tile) this.say("The image could not be loaded.");
      },
    });
  }

  say(text) {
    this.note.textContent = text;
    this.note.hidden = !text;
  }

  // Zoom, and what is seen of grey.
  fit() { this.osd.viewport.goHome(); }
  zoom(factor) { this.osd.viewport.zoomBy(factor); this.osd.viewport.applyConstraints(); }
  original() {
    if (!this.tile) return;
    const ratio = this.tile.getContentSize().x / this.picture.width || 1;
    this.osd.viewport.zoomTo(this.tile.imageToViewportZoom(1 / (ratio * devicePixelRatio || 1)));
  }
  invert(on = !this.inverted) { this.inverted = on; this.filter(); }
  resetWindow() { [this.level, this.span, this.inverted] = [0.5, 1, false]; this.filter(); }
  filter() {
    this.levelRange.value = this.level;
    this.spanRange.value = this.span;
    this.invertButton.setAttribute("aria-pressed", this.inverted);
    const sign = this.inverted ? -1 : 1;
    for (const part of this.functions) {
      part.setAttribute("slope", sign / this.span);
      part.setAttribute("intercept", 0.5 - sign * this.level / this.span);
    }
    this.plain = this.level === 0.5 && this.span === 1 && !this.inverted;
    const canvas = this.osd && this.osd.drawer && this.osd.drawer.canvas;
    if (canvas) canvas.style.filter = this.plain ? "" : `url(#rv-window-${this.number})`;
  }

  // The picture as it is seen, window and boxes, with all its pixels as a PNG file.
  async save() {
    const {url, preview, width, name} = this.picture;
    for (const source of [url, preview].filter(Boolean)) {
      try {
        const image = new Image();
        image.src = source;
        await image.decode();
        const link = this.make("a", {download: `${name.replace(/[^\w.-]+/g, "_")}_boxes.png`});
        link.href = URL.createObjectURL(await this.painted(image, image.naturalWidth / width));
        link.click();
        setTimeout(() => URL.revokeObjectURL(link.href), 1000);
        this.say(source === url ? "" : "Saved smaller: browsers do not hand on images of a disk.");
        return;
      } catch (error) {
        // Of a page that is opened from a disk, pictures beside it may be seen and not read.
      }
    }
    this.say("The image could not be saved: open the page from a web server.");
  }
  painted(image, ofRecord) {
    const canvas = this.make("canvas"), paint = canvas.getContext("2d");
    const {naturalWidth: width, naturalHeight: height} = image;
    // Small pictures are enlarged, or letters would cover them.
    const times = Math.max(1, Math.ceil(1000 / Math.max(width, height))), scale = ofRecord * times;
    [canvas.width, canvas.height] = [width * times, height * times];
    if (!this.plain) paint.filter = `url(#rv-window-${this.number})`;
    paint.drawImage(image, 0, 0, canvas.width, canvas.height);
    paint.filter = "none";
    const line = Math.max(2, canvas.width / 400), letters = Math.max(13, canvas.width / 50);
    paint.font = `600 ${letters}px system-ui, sans-serif`;
    for (const [place, layer] of this.layers.entries()) {
      if (!layer.shown) continue;
      const right = place % 2, below = place % 4 > 1; // as on the screen
      layer.boxes.forEach((one, index) => {
        const [x0, y0, x1, y1] = one.box.map((side) => side * scale);
        paint.setLineDash((layer.dash || "").split(" ").filter(Boolean).map((part) => part * line / 2));
        for (const [colour, thick] of [["rgb(0 0 0 / .5)", 2.5 * line], [layer.colour, line]]) {
          [paint.strokeStyle, paint.lineWidth] = [colour, thick];
          paint.strokeRect(x0, y0, x1 - x0, y1 - y0);
        }
        if (this.bare) return;
        paint.setLineDash([]);
        paint.textAlign = right ? "right" : "left";
        const inside = !below && y0 < letters * 1.5;
        const y = below ? y1 + letters : inside ? y0 + letters * 1.2 : y0 - letters / 2;
        [paint.strokeStyle, paint.lineWidth, paint.fillStyle] = ["#000", letters / 4, layer.colour];
        paint.strokeText(this.text(one, index), right ? x1 : x0, y);
        paint.fillText(this.text(one, index), right ? x1 : x0, y);
      });
    }
    return new Promise((done, failed) => {
      canvas.toBlob((blob) => (blob ? done(blob) : failed(new Error("too large"))), "image/png");
    });
  }

  // Between pixels of the record and pixels of the element.
  scale() {
    const size = this.tile.getContentSize();
    return [size.x / this.picture.width, size.y / this.picture.height];
  }
  toScreen(x, y) {
    const [across, down] = this.scale();
    return this.tile.imageToViewerElementCoordinates(new OpenSeadragon.Point(x * across, y * down));
  }
  toPicture(event) {
    const [across, down] = this.scale(), frame = this.stage.getBoundingClientRect();
    const at = this.tile.viewerElementToImageCoordinates(
      new OpenSeadragon.Point(event.clientX - frame.left, event.clientY - frame.top));
    return [at.x / across, at.y / down];
  }

  editable() { return this.layers.find((layer) => layer.editable); }

  listLayers() {
    const toggle = (title, on, act, colour, dash) => {
      const box = this.make("input", {type: "checkbox"});
      box.checked = on;
      box.addEventListener("change", () => { act(box.checked); this.redraw(); });
      const label = this.make("label", {}, box);
      if (colour) {
        const key = this.draw("svg", {class: "rv-key", viewBox: "0 0 22 6", "aria-hidden": "true"});
        key.append(this.draw("path", {d: "M0 3H22", stroke: colour, "stroke-dasharray": dash || ""}));
        label.append(key);
      }
      label.append(title);
      return label;
    };
    this.toggles.replaceChildren(
      ...this.layers.map((layer) => toggle(layer.title, layer.shown, (on) => {
        layer.shown = on;
      }, layer.colour, layer.dash)),
      toggle("labels", !this.bare, (on) => { this.bare = !on; }));
  }

  // All boxes on or off, as a key does it.
  toggle() {
    const on = !this.layers.some((layer) => layer.shown);
    for (const layer of this.layers) layer.shown = on;
    this.listLayers();
    this.redraw();
  }

  text(one, index) {
    const sure = one.confidence == null ? "" : ` ${Number(one.confidence).toFixed(2)}`;
    return `${index + 1}${one.label ? ` ${one.label.replaceAll("_", " ")}` : ""}${sure}`;
  }

  redraw() {
    this.drawn = [];
    this.overlay.replaceChildren();
    const told = [];
    for (const [place, layer] of this.layers.entries()) {
      if (layer.shown && layer.boxes.length) {
        told.push(`${layer.title}: ${layer.boxes.map((one, k) => this.text(one, k)).join(", ")}`);
      }
      layer.boxes.forEach((one, index) => {
        if (!layer.shown) return;
        const chosen = layer.editable && index === this.selected;
        const group = this.draw("g", {class: `rv-box rv-${layer.name}${chosen ? " rv-chosen" : ""}`});
        const dash = one.kind === "missed" ? "3 3" : layer.dash || "";
        const parts = ["rv-edge", "rv-line", "rv-grip"].map((name) => this.draw("rect", {class: name}));
        parts[1].setAttribute("stroke", layer.colour);
        parts[1].setAttribute("stroke-dasharray", dash);
        const name = this.draw("text", {fill: layer.colour});
        name.textContent = this.text(one, index);
        group.append(...parts, ...(this.bare ? [] : [name]));
        const grips = [];
        if (layer.editable) {
          group.dataset.index = index;
          if (chosen) {
            for (const corner of ["nw", "n", "ne", "e", "se", "s", "sw", "w"]) {
              const grip = this.draw("rect", {class: "rv-handle", width: 11, height: 11});
              grip.dataset.corner = corner;
              grips.push(grip);
            }
          }
        }
        group.append(...grips);
        this.overlay.append(group);
        this.drawn.push({one, parts, name: this.bare ? null : name, grips, layer: place});
      });
    }
    if (this.rubber) {
      const part = this.draw("rect", {class: "rv-rubber"});
      this.overlay.append(part);
      this.drawn.push({one: {box: this.rubber}, parts: [part], grips: []});
    }
    const about = this.picture ? this.picture.name : "";
    this.overlay.setAttribute("aria-label", [about, ...told].join(". "));
    this.place();
  }

  place() {
    if (!this.tile || !this.picture || !this.osd.world.getItemCount()) return;
    const zoom = this.tile.viewportToImageZoom(this.osd.viewport.getZoom(true)) * this.scale()[0];
    this.zoomShown.textContent = `${Math.round(100 * zoom)} %`;
    const names = [];
    for (const drawn of this.drawn || []) {
      const {one, parts, name, grips, layer} = drawn;
      const [x0, y0, x1, y1] = one.box;
      const from = this.toScreen(x0, y0), to = this.toScreen(x1, y1);
      const [width, height] = [Math.max(to.x - from.x, 1), Math.max(to.y - from.y, 1)];
      for (const part of parts) {
        for (const [key, value] of Object.entries({x: from.x, y: from.y, width, height})) {
          part.setAttribute(key, value);
        }
      }
      if (name) {
        // Each layer has a corner of its own, or near boxes would write over each other.
        const right = layer % 2, below = layer % 4 > 1;
        const x = right ? to.x - 3 : Math.max(from.x, 0) + 3, inside = !below && from.y < 18;
        let y = below ? to.y + 14 : inside ? Math.max(from.y, 0) + 15 : from.y - 5;
        drawn.length ??= name.getComputedTextLength();
        const left = right ? x - drawn.length : x, end = left + drawn.length;
        // Names of boxes that are nearly the same stand one below the other.
        while (names.some((n) => n.left < end && left < n.end && Math.abs(n.y - y) < 14)) {
          y += below || inside ? 15 : -15;
        }
        names.push({left, end, y});
        name.setAttribute("text-anchor", right ? "end" : "start");
        name.setAttribute("x", x);
        name.setAttribute("y", y);
      }
      for (const grip of grips) {
        const corner = grip.dataset.corner;
        const x = corner.includes("w") ? from.x : corner.includes("e") ? to.x : (from.x + to.x) / 2;
        const y = corner.includes("n") ? from.y : corner.includes("s") ? to.y : (from.y + to.y) / 2;
        grip.setAttribute("x", x - 5.5);
        grip.setAttribute("y", y - 5.5);
      }
    }
  }

  // Changing boxes.
  select(index) {
    const layer = this.editable(), count = layer ? layer.boxes.length : 0;
    this.selected = count && index >= 0 ? index % count : -1;
    this.redraw();
    if (this.options.onSelect) this.options.onSelect(this.selected);
  }

  remember() { this.undone.push(JSON.stringify(this.editable().boxes)); }

  changed() {
    this.redraw();
    if (this.options.onEdit) this.options.onEdit(this.editable().boxes);
  }

  undo() {
    if (!this.undone.length) return;
    this.editable().boxes = JSON.parse(this.undone.pop());
    this.selected = -1;
    this.changed();
    if (this.options.onSelect) this.options.onSelect(-1);
  }

  // Whole pixels on the picture, corners in order, no thinner than 4 pixels.
  clean([x0, y0, x1, y1]) {
    const {width, height} = this.picture, least = Math.min(4, width, height);
    const along = (a, b, most) => {
      const low = Math.round(Math.min(Math.max(Math.min(a, b), 0), most - least));
      return [low, Math.round(Math.max(Math.min(Math.max(a, b), most), low + least))];
    };
    const [left, right] = along(x0, x1, width), [top, bottom] = along(y0, y1, height);
    return [left, top, right, bottom];
  }

  moved([x0, y0, x1, y1], dx, dy) {
    const {width, height} = this.picture;
    const across = Math.min(Math.max(dx, -x0), width - x1);
    const down = Math.min(Math.max(dy, -y0), height - y1);
    return this.clean([x0 + across, y0 + down, x1 + across, y1 + down]);
  }

  stretched([x0, y0, x1, y1], corner, dx, dy) {
    return this.clean([corner.includes("w") ? x0 + dx : x0, corner.includes("n") ? y0 + dy : y0,
      corner.includes("e") ? x1 + dx : x1, corner.includes("s") ? y1 + dy : y1]);
  }

  add(box, told) {
    const layer = this.editable();
    this.remember();
    layer.shown = true;
    layer.boxes.push({...told, box: this.clean(box)});
    this.setDrawing(null);
    this.listLayers();
    this.changed();
    this.select(layer.boxes.length - 1);
  }

  remove(index = this.selected) {
    if (index < 0) return;
    this.remember();
    this.editable().boxes.splice(index, 1);
    this.selected = -1;
    this.changed();
    if (this.options.onSelect) this.options.onSelect(-1);
  }

  replaceBoxes(boxes) {
    this.editable().boxes = boxes.map((one) => ({...one, box: [...one.box]}));
    this.undone = [];
    this.select(-1);
  }

  setDrawing(told) {
    this.drawing = told;
    this.rubber = null;
    this.overlay.classList.toggle("rv-drawing", !!told);
    this.say(told ? "Drag a box on the image; Enter puts one in the middle, Esc leaves it." : "");
    if (this.options.onDraw) this.options.onDraw(!!told);
  }

  addInTheMiddle() {
    const frame = this.stage.getBoundingClientRect();
    const at = (x, y) => this.toPicture(
      {clientX: frame.left + x * frame.width, clientY: frame.top + y * frame.height});
    const [x0, y0] = at(0.4, 0.4), [x1, y1] = at(0.6, 0.6);
    this.add([x0, y0, x1, y1], this.drawing);
  }

  listen() {
    let hold = null; // {kind, index, corner, from, box}
    this.overlay.addEventListener("pointerdown", (event) => {
      if (event.button || !this.tile || !this.editable()) return;
      const group = event.target.closest("g[data-index]");
      if (!this.drawing && !group) return;
      event.stopPropagation();
      event.preventDefault();
      const from = this.toPicture(event);
      if (this.drawing) {
        hold = {kind: "draw", from};
      } else {
        const index = +group.dataset.index, corner = event.target.dataset.corner;
        if (index !== this.selected) this.select(index);
        hold = {kind: corner ? "stretch" : "move", index, corner, from,
          box: [...this.editable().boxes[index].box], kept: false};
      }
      this.overlay.setPointerCapture(event.pointerId);
    });
    this.overlay.addEventListener("pointermove", (event) => {
      if (!hold) return;
      event.stopPropagation();
      const [x, y] = this.toPicture(event);
      const [dx, dy] = [x - hold.from[0], y - hold.from[1]];
      if (hold.kind === "draw") {
        this.rubber = this.clean([...hold.from, x, y]);
        this.redraw();
        return;
      }
      if (!hold.kept) {
        if (Math.hypot(dx, dy) * this.scale()[0] < 1) return;
        this.remember();
        hold.kept = true;
      }
      const one = this.editable().boxes[hold.index];
      one.box = hold.kind === "move" ? this.moved(hold.box, dx, dy)
        : this.stretched(hold.box, hold.corner, dx, dy);
      this.redraw();
    });
    const end = (event) => {
      if (!hold) return;
      event.stopPropagation();
      const {kind, kept} = hold, rubber = this.rubber;
      hold = null;
      this.rubber = null;
      if (kind === "draw" && rubber && event.type === "pointerup") this.add(rubber, this.drawing);
      else if (kept) this.changed();
      else this.redraw();
    };
    this.overlay.addEventListener("pointerup", end);
    this.overlay.addEventListener("pointercancel", end);
    this.overlay.addEventListener("dblclick", (event) => event.stopPropagation());
    // Window by the right button, as at a workstation: across is width, down is level.
    let windowing = null;
    this.stage.addEventListener("contextmenu", (event) => event.preventDefault());
    this.stage.addEventListener("pointerdown", (event) => {
      if (event.button !== 2) return;
      windowing = [event.clientX, event.clientY, this.span, this.level];
      event.stopPropagation();
      this.stage.setPointerCapture(event.pointerId);
    }, true);
    this.stage.addEventListener("pointermove", (event) => {
      if (!windowing) return;
      event.stopPropagation();
      const [x, y, span, level] = windowing;
      this.span = Math.min(Math.max(span + (event.clientX - x) / 300, 0.05), 2);
      this.level = Math.min(Math.max(level + (event.clientY - y) / 300, -0.2), 1.2);
      this.filter();
    }, true);
    this.stage.addEventListener("pointerup", (event) => {
      if (!windowing) return;
      windowing = null;
      event.stopPropagation();
    }, true);
  }

  // Keys; nothing of them with Ctrl, Alt or Meta.
  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.picture) return false;
    const simple = {
      "+": () => this.zoom(1.25), "=": () => this.zoom(1.25), "-": () => this.zoom(0.8),
      f: () => this.fit(), 0: () => this.fit(), o: () => this.original(), i: () => this.invert(),
      w: () => this.resetWindow(), b: () => this.toggle(),
    };
    if (Object.hasOwn(simple, event.key)) { simple[event.key](); return true; }
    const ways = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]};
    const way = ways[event.key], layer = this.editable(), count = layer ? layer.boxes.length : 0;
    if (way && this.tile) { this.step(...way, event.shiftKey); return true; }
    if (!layer) return false;
    if (event.key === "]" && count) this.select(this.selected + 1);
    else if (event.key === "[" && count) this.select((Math.max(this.selected, 0) + count - 1) % count);
    else if (event.key === "z") this.undo();
    else if ((event.key === "Delete" || event.key === "Backspace") && this.selected >= 0) this.remove();
    else if (event.key === "Escape" && (this.drawing || this.selected >= 0)) {
      this.setDrawing(null);
      this.select(-1);
    } else if (event.key === "Enter" && this.drawing && this.tile) this.addInTheMiddle();
    else return false;
    return true;
  }

  // An arrow: the chosen box by some pixels of the screen (with Shift its lower right corner), or
  // the picture where none is chosen.
  step(right, down, stretch) {
    const size = this.osd.viewport.getContainerSize();
    if (this.selected < 0) {
      const by = new OpenSeadragon.Point(right * size.x / 8, down * size.y / 8);
      this.osd.viewport.panBy(this.osd.viewport.deltaPointsFromPixels(by));
      this.osd.viewport.applyConstraints();
      return;
    }
    const zoom = this.tile.viewportToImageZoom(this.osd.viewport.getZoom(true)) * this.scale()[0];
    const by = Math.max(1, Math.round(4 / zoom)), one = this.editable().boxes[this.selected];
    this.remember();
    one.box = stretch ? this.stretched(one.box, "se", right * by, down * by)
      : this.moved(one.box, right * by, down * by);
    this.changed();
  }

  static closely(picture, layers, about = "") {
    const dialog = RadiographViewer.dialog ??= RadiographViewer.makeDialog();
    dialog.querySelector("b").textContent = picture.name;
    dialog.querySelector("span").textContent = about;
    dialog.showModal();
    const viewer = RadiographViewer.inDialog ??=
      new RadiographViewer(dialog.querySelector("div"), {}); // which has a size only now
    viewer.show(picture, layers);
    viewer.osd.canvas.focus();
  }
  static makeDialog() {
    const dialog = document.createElement("dialog");
    dialog.id = "closely";
    dialog.setAttribute("aria-labelledby", "closely-name");
    dialog.innerHTML = `<header><b id="closely-name"></b> <span></span>
      <button type="button">Close (Esc)</button></header><div></div>`;
    document.body.append(dialog);
    dialog.querySelector("button").addEventListener("click", () => dialog.close());
    dialog.addEventListener("keydown", (event) => {
      if (event.target.type !== "range" && RadiographViewer.inDialog.key(event)) event.preventDefault();
    });
    return dialog;
  }
}
RadiographViewer.made = 0;
