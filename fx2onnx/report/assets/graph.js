'use strict';
// The model's graph, nodes of one module as one box, drawn by Cytoscape.js and laid out by dagre.
const MOST_BOXES = 400, FEW_BOXES = 40, LEAST_ZOOM = 0.8, MOST_ZOOM = 1.3;
const picture = { shown: null, root: '' };

// Boxes at a depth of module names below the module that is looked into: {id, key, name, scope, ops: Map(op -> count)}, and the
// edges between their ids. A module at that depth is one box, and so is one above it that has no other inside. Nodes of no such
// module are one box where they are connected and nothing lies between them. Names of a model are keys of Maps alone: of an
// object, some of them would be its own parts.
function grouped(depth) {
  const nodes = DATA.graph.nodes, above = picture.root ? picture.root.split('.').length : 0;
  const isInside = ([, scope]) => !picture.root || scope === picture.root || scope.startsWith(`${picture.root}.`);
  const split = new Set(picture.root ? [picture.root, ''] : ['']);
  for (const [, scope] of nodes.filter(isInside)) {
    const parts = scope ? scope.split('.') : [];
    for (let length = above + 1; length < Math.min(parts.length, above + depth); length++) split.add(parts.slice(0, length).join('.'));
  }
  const units = nodes.map(([, scope]) => scope ? scope.split('.').slice(0, above + depth).join('.') : '');
  const keys = depth === Infinity ? nodes.map((_, index) => index) : runs(units, (unit) => split.has(unit));
  const boxes = new Map(), ids = new Map();
  nodes.forEach(([op, scope], index) => {
    if (!isInside(nodes[index])) return;
    const key = keys[index], isModule = typeof key === 'string';
    const box = boxes.get(key) || { id: `box${boxes.size}`, key, scope, isModule, ops: new Map() };
    box.ops.set(op, (box.ops.get(op) || 0) + 1);
    box.name = depth === Infinity ? op : isModule ? key.split('.').slice(-4).join('.') : `${scope ? `${scope.split('.').slice(-2).join('.')}: ` : ''}${cut([...box.ops.keys()].join(', '), 30)}`;
    boxes.set(key, box);
    ids.set(index, box.id);
  });
  const edges = new Map();
  for (const [from, to] of DATA.graph.edges) {
    const [source, target] = [ids.get(from), ids.get(to)];
    if (source && target && source !== target) edges.set(`${source}>${target}`, [source, target]);
  }
  return { boxes: [...boxes.values()], edges: [...edges.values()] };
}

// For each node the unit that it is in, or of a unit that ``isSplit`` the number of a node: that of the first of those that are
// connected and as many units away from the inputs. So no path leaves such nodes and comes back to them.
function runs(units, isSplit) {
  const stages = units.map(() => 0), first = units.map((_, index) => index);
  const find = (index) => { while (first[index] !== index) index = first[index] = first[first[index]]; return index; };
  const edges = [...DATA.graph.edges].sort((one, other) => one[1] - other[1]);
  for (const [from, to] of edges) stages[to] = Math.max(stages[to], stages[from] + (units[from] === units[to] ? 0 : 1));
  for (const [from, to] of edges) {
    if (units[from] === units[to] && stages[from] === stages[to]) first[Math.max(find(from), find(to))] = Math.min(find(from), find(to));
  }
  return units.map((unit, index) => isSplit(unit) ? find(index) : unit);
}

function depths() {
  const above = picture.root ? picture.root.split('.').length : 0;
  const deepest = Math.max(1, ...DATA.graph.nodes.map(([, scope]) => (scope ? scope.split('.').length : 0) - above));
  const nodes = DATA.graph.nodes, hasModules = nodes.some(([, scope]) => scope) || nodes.length > MOST_BOXES;
  const levels = Array.from({ length: hasModules ? deepest : 0 }, (_, index) => index + 1);
  const found = [];
  for (const level of [...levels, Infinity]) {
    const count = grouped(level).boxes.length;
    if (found.length && found[found.length - 1].count === count) found.pop();
    if (count <= MOST_BOXES || found.every((one) => one.count < 2)) found.push({ level, count });
  }
  return found;
}

// All of it where that can be read, else the beginning: what fits of its height, in the middle of what is seen.
function startReadable(shown) {
  shown.fit(undefined, 20);
  if (shown.zoom() > MOST_ZOOM) { shown.zoom(MOST_ZOOM); shown.center(); }
  if (shown.zoom() >= LEAST_ZOOM) return;
  const top = shown.elements().boundingBox().y1, bottom = top + shown.height() / LEAST_ZOOM;
  const box = shown.nodes().filter((node) => node.position('y') < bottom).boundingBox();
  shown.zoom(LEAST_ZOOM);
  shown.pan({ x: shown.width() / 2 - LEAST_ZOOM * (box.x1 + box.x2) / 2, y: 24 - LEAST_ZOOM * top });
}

function drawGraph(level) {
  const all = grouped(level);
  const boxes = all.boxes.slice(0, MOST_BOXES), drawn = new Set(boxes.map((box) => box.id));
  const edges = all.edges.filter(([source, target]) => drawn.has(source) && drawn.has(target));
  if (picture.shown) picture.shown.destroy();
  const total = (box) => [...box.ops.values()].reduce((sum, count) => sum + count, 0);
  byId('graph-count').textContent = `${counted(boxes.length, 'box').replace('boxs', 'boxes')}, ${counted(edges.length, 'arrow')}, ${counted(DATA.graph.nodes.length, 'node')}${all.boxes.length > boxes.length ? `; ${all.boxes.length - boxes.length} more boxes are too many to draw` : ''}`;
  picture.shown = graph.default({
    container: byId('graph-picture'),
    elements: [
      ...boxes.map((box) => ({ data: { id: box.id, label: cut(box.name, 60) + (total(box) > 1 ? `\n${total(box)} nodes` : ''), box, tint: phaseColour(box.name.replace(/\d+/g, '')) } })),
      ...edges.map(([source, target]) => ({ data: { source, target } })),
    ],
    style: [
      { selector: 'node', style: { shape: 'round-rectangle', label: 'data(label)', 'text-wrap': 'wrap', 'text-valign': 'center', 'font-size': 13, width: (node) => 20 + 7.4 * Math.max(...node.data('label').split('\n').map((line) => line.length)), height: (node) => 14 + 17 * node.data('label').split('\n').length, 'background-color': 'data(tint)', 'background-opacity': 0.28, 'underlay-color': ink('card'), 'underlay-opacity': 1, 'underlay-padding': 0, 'border-width': 1.2, 'border-color': 'data(tint)', color: ink('ink'), 'font-family': 'system-ui, sans-serif' } },
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
    byId('graph-details').textContent = `${level === Infinity ? `${[...box.ops.keys()][0]} in ${box.scope || 'the model itself'}` : box.isModule ? box.key : box.name}: ${counts.join(', ')}`;
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
  const some = found.filter(({ count }) => count > 1);
  const best = some.filter(({ count }) => count <= FEW_BOXES).pop() || some[0] || found[0];
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
