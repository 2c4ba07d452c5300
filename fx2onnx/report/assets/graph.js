'use strict';
// The model's graph, nodes of one module as one box, drawn by Cytoscape.js and laid out by dagre.
const MOST_BOXES = 400, LEAST_ZOOM = 0.8;
const picture = { shown: null, root: '' };

// Boxes at a depth of module names below the module that is looked into: {id, key, name, scope, ops: Map(op -> count)}, and the
// edges between their ids. Names of a model are keys of Maps alone: of an object, some of them would be its own parts.
function grouped(depth) {
  const boxes = new Map(), keys = new Map();
  const above = picture.root ? picture.root.split('.').length : 0;
  DATA.graph.nodes.forEach(([op, scope], index) => {
    if (picture.root && scope !== picture.root && !scope.startsWith(`${picture.root}.`)) return;
    const parts = scope ? scope.split('.') : [];
    const key = depth === Infinity ? index : parts.length > above ? parts.slice(0, above + depth).join('.') : `\0${op}`;
    const isModule = typeof key === 'string' && key[0] !== '\0';
    const name = isModule ? key.split('.').slice(-4).join('.') : op;
    const box = boxes.get(key) || { id: `box${boxes.size}`, key, name, scope, isModule, ops: new Map() };
    box.ops.set(op, (box.ops.get(op) || 0) + 1);
    boxes.set(key, box);
    keys.set(index, box.id);
  });
  const edges = new Map();
  for (const [from, to] of DATA.graph.edges) {
    const [source, target] = [keys.get(from), keys.get(to)];
    if (source && target && source !== target) edges.set(`${source}>${target}`, [source, target]);
  }
  return { boxes: [...boxes.values()], edges: [...edges.values()] };
}

function depths() {
  const above = picture.root ? picture.root.split('.').length : 0;
  const deepest = Math.max(1, ...DATA.graph.nodes.map(([, scope]) => (scope ? scope.split('.').length : 0) - above));
  const levels = Array.from({ length: deepest }, (_, index) => index + 1);
  const found = [];
  for (const level of [...levels, Infinity]) {
    const count = grouped(level).boxes.length;
    if (found.length && found[found.length - 1].count === count) found.pop();
    if (count <= MOST_BOXES || !found.length) found.push({ level, count });
  }
  return found;
}

// All of it where that can be read, else the beginning.
function startReadable(shown) {
  shown.fit(undefined, 20);
  if (shown.zoom() >= LEAST_ZOOM) return;
  const box = shown.elements().boundingBox();
  shown.zoom(LEAST_ZOOM);
  shown.pan({ x: shown.width() / 2 - LEAST_ZOOM * shown.nodes()[0].position('x'), y: 24 - LEAST_ZOOM * box.y1 });
}

function drawGraph(level) {
  const all = grouped(level);
  const boxes = all.boxes.slice(0, MOST_BOXES), drawn = new Set(boxes.map((box) => box.id));
  const edges = all.edges.filter(([source, target]) => drawn.has(source) && drawn.has(target));
  if (picture.shown) picture.shown.destroy();
  const total = (box) => [...box.ops.values()].reduce((sum, count) => sum + count, 0);
  byId('graph-count').textContent = `${boxes.length} boxes, ${edges.length} arrows, ${DATA.graph.nodes.length} nodes${all.boxes.length > boxes.length ? `; ${all.boxes.length - boxes.length} more boxes are too many to draw` : ''}`;
  picture.shown = graph.default({
    container: byId('graph-picture'),
    elements: [
      ...boxes.map((box) => ({ data: { id: box.id, label: cut(box.name, 60) + (total(box) > 1 ? `\n${total(box)} nodes` : ''), box, tint: phaseColour(box.name.replace(/\d+/g, '')) } })),
      ...edges.map(([source, target]) => ({ data: { source, target } })),
    ],
    style: [
      { selector: 'node', style: { shape: 'round-rectangle', label: 'data(label)', 'text-wrap': 'wrap', 'text-valign': 'center', 'font-size': 13, width: (node) => 20 + 7.4 * Math.max(...node.data('label').split('\n').map((line) => line.length)), height: (node) => 14 + 17 * node.data('label').split('\n').length, 'background-color': 'data(tint)', 'background-opacity': 0.28, 'border-width': 1.2, 'border-color': 'data(tint)', color: ink('ink'), 'font-family': 'system-ui, sans-serif' } },
      { selector: 'edge', style: { width: 1.4, 'line-color': ink('soft'), opacity: 0.6, 'curve-style': 'bezier', 'target-arrow-shape': 'triangle', 'target-arrow-color': ink('soft'), 'arrow-scale': 0.9 } },
      { selector: ':selected', style: { 'border-width': 3, 'border-color': ink('accent') } },
    ],
    layout: { name: 'dagre', rankDir: 'TB', nodeSep: 18, rankSep: 34 },
    minZoom: 0.05, maxZoom: 3, autoungrabify: true,
  });
  startReadable(picture.shown);
  picture.shown.on('tap', 'node', (event) => {
    const box = event.target.data('box');
    const counts = [...box.ops].sort((a, b) => b[1] - a[1]).map(([op, count]) => count > 1 ? `${op} × ${count}` : op);
    byId('graph-details').textContent = `${level === Infinity ? `${box.name} in ${box.scope || 'the model itself'}` : box.isModule ? box.key : box.name}: ${counts.join(', ')}`;
  });
  picture.shown.on('dbltap', 'node', (event) => {
    const box = event.target.data('box');
    if (box.isModule && box.key !== picture.root) lookInto(box.key);
  });
  window.graphPicture = picture.shown;
}

// The choice of depths, and the way back from the module that is looked into.
function offer() {
  const select = byId('graph-depth'), found = depths();
  const inside = picture.root ? 'inside it' : 'modules';
  select.replaceChildren(...found.map(({ level, count }) => make('option', { value: String(level) }, level === Infinity ? `every node (${count})` : `${inside} to depth ${level} (${count})`)));
  const best = found.filter(({ count }) => count <= 40).pop() || found[0];
  select.value = String(best.level);
  const parts = picture.root ? picture.root.split('.') : [];
  byId('graph-path').replaceChildren(...['', ...parts].map((part, index) => {
    const button = make('button', { type: 'button' }, part || 'all');
    button.addEventListener('click', () => lookInto(parts.slice(0, index).join('.')));
    return button;
  }));
}

function lookInto(module) {
  picture.root = module;
  offer();
  drawGraph(Number(byId('graph-depth').value));
}

VIEWS.graph = { has: () => DATA.graph.nodes && DATA.graph.nodes.length > 0, draw() {
  const select = byId('graph-depth');
  if (!select.options.length) {
    offer();
    select.addEventListener('change', () => drawGraph(Number(select.value)));
    byId('graph-fit').addEventListener('click', () => picture.shown.fit(undefined, 20));
  }
  drawGraph(Number(select.value));
} };
