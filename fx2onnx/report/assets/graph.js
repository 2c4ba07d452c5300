'use strict';
// The model's graph, nodes of one module as one box, drawn by Cytoscape.js and laid out by dagre.
const MOST_BOXES = 400, LEAST_ZOOM = 0.8;
const picture = { shown: null };

// Boxes at a depth of module names: {id, key, name, scope, ops: Map(op -> count)}, and the edges between their ids. Names of a
// model are keys of Maps alone: of an object, some of them would be its own parts.
function grouped(depth) {
  const boxes = new Map();
  const keys = DATA.graph.nodes.map(([op, scope], index) => {
    const parts = scope ? scope.split('.') : [];
    return depth === Infinity ? index : parts.length ? parts.slice(0, depth).join('.') : `\0${op}`;
  });
  keys.forEach((key, index) => {
    const [op, scope] = DATA.graph.nodes[index];
    const name = depth === Infinity || !scope ? op : key.split('.').slice(-4).join('.');
    const box = boxes.get(key) || { id: `box${boxes.size}`, key, name, scope, ops: new Map() };
    box.ops.set(op, (box.ops.get(op) || 0) + 1);
    boxes.set(key, box);
  });
  const edges = new Map();
  for (const [from, to] of DATA.graph.edges) {
    const [source, target] = [boxes.get(keys[from]).id, boxes.get(keys[to]).id];
    if (source !== target) edges.set(`${source}>${target}`, [source, target]);
  }
  return { boxes: [...boxes.values()], edges: [...edges.values()] };
}

function depths() {
  const deepest = Math.max(1, ...DATA.graph.nodes.map(([, scope]) => scope ? scope.split('.').length : 0));
  const levels = Array.from({ length: deepest }, (_, index) => index + 1);
  const found = [];
  let last = -1;
  for (const level of [...levels, Infinity]) {
    const count = grouped(level).boxes.length;
    if (count === last) found.pop();
    if (count <= MOST_BOXES || !found.length) found.push({ level, count });
    last = count;
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
  const { boxes, edges } = grouped(level);
  if (picture.shown) picture.shown.destroy();
  const total = (box) => [...box.ops.values()].reduce((sum, count) => sum + count, 0);
  byId('graph-count').textContent = `${boxes.length} boxes, ${edges.length} arrows, ${DATA.graph.nodes.length} nodes`;
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
    byId('graph-details').textContent = `${level === Infinity ? `${box.name} in ${box.scope || 'the model itself'}` : box.scope ? box.key : box.name}: ${counts.join(', ')}`;
  });
  window.graphPicture = picture.shown;
}

VIEWS.graph = { has: () => DATA.graph.nodes && DATA.graph.nodes.length > 0, draw() {
  const select = byId('graph-depth');
  if (!select.options.length) {
    const found = depths();
    for (const { level, count } of found) select.append(make('option', { value: String(level) }, level === Infinity ? `every node (${count})` : `modules to depth ${level} (${count})`));
    const best = found.filter(({ count }) => count <= 40).pop() || found[0];
    select.value = String(best.level);
    select.addEventListener('change', () => drawGraph(Number(select.value)));
    byId('graph-fit').addEventListener('click', () => picture.shown.fit(undefined, 20));
  }
  drawGraph(Number(select.value));
} };

showHeader();
startTabs();
