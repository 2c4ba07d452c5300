'use strict';
// The page of a model: its modules as bars inside each other, drawn by d3-flame-graph, with the nodes of the one looked at.
const MOST_ROWS = 100;
const NODES = DATA.nodes.map(([op, scope, name, source, results, reads], index) =>
  ({ op, scope: DATA.scopes[scope], name, source: DATA.lines[source], results, reads, index }));
for (const node of NODES) node.text = `${node.op} ${node.name} ${node.scope} ${node.source} ${node.results}`.toLowerCase();
DATA.graph = { nodes: NODES.map((node) => [node.op, node.scope]), edges: NODES.flatMap((node) => node.reads.map((from) => [from, node.index])) };
const MOST_BESIDE = 40, LEAST_PIXELS = 5; // of bars: a browser draws some hundreds at once
const looked = { module: '', kind: 'nodes', chart: null };

// Modules inside each other. Names of a model are keys of Maps alone.
function moduleTree(items) {
  const root = { name: DATA.source, path: '', value: 0, children: [], inside: new Map() };
  for (const { module, value } of items) {
    let place = root;
    place.value += value;
    let path = '';
    for (const part of module ? module.split('.') : []) {
      path = path ? `${path}.${part}` : part;
      if (!place.inside.has(part)) {
        const made = { name: part, path, value: 0, children: [], inside: new Map() };
        place.inside.set(part, made);
        place.children.push(made);
      }
      place = place.inside.get(part);
      place.value += value;
    }
  }
  bunch(root);
  return root;
}

// Where many are beside each other, some at a time are one bar, so that each can be seen and zoomed into.
function bunch(place) {
  place.children.forEach(bunch);
  while (place.children.length > MOST_BESIDE) {
    const bunches = [];
    for (let start = 0; start < place.children.length; start += MOST_BESIDE) {
      const children = place.children.slice(start, start + MOST_BESIDE);
      const [first, last] = [children[0], children[children.length - 1]];
      bunches.push({ name: first === last ? first.name : `${first.first || first.name} … ${last.last || last.name}`, first: first.first || first.name, last: last.last || last.name,
        path: place.path, value: children.reduce((sum, child) => sum + child.value, 0), children });
    }
    place.children = bunches;
  }
}

const leaves = {
  nodes: () => NODES.map((node) => ({ module: node.scope, value: 1 })),
  weights: () => DATA.weights.map((weight) => ({ module: weight.module, value: weight.bytes })),
};
const amount = (value) => looked.kind === 'nodes' ? counted(value, 'node') : size(value);

function drawModules() {
  if (looked.chart) looked.chart.destroy();
  const box = byId('module-chart');
  box.replaceChildren();
  const tree = moduleTree(leaves[looked.kind]());
  byId('module-hint').textContent = tree.children.length ? 'Modules inside each other. Click a bar to zoom into it; the table shows its nodes.' : 'The file names no modules.';
  for (const part of [box.closest('article'), byId('module-kind'), byId('module-reset')]) part.hidden = !tree.children.length;
  looked.module = '';
  const depthOf = (place) => 1 + Math.max(0, ...place.children.map(depthOf));
  looked.chart = flame.flamegraph().width(Math.max(200, box.clientWidth)).cellHeight(20).height(20 * depthOf(tree)).inverted(true).sort(false).minFrameSize(LEAST_PIXELS)
    .transitionDuration(0).selfValue(false).setColorMapper(flameColour)
    .setLabelHandler((frame) => `${frame.data.first ? frame.data.name : frame.data.path || frame.data.name}: ${amount(frame.data.value)}, ${percent(frame.data.value / (tree.value || 1))}`)
    .setDetailsHandler((text) => { byId('module-details').textContent = text || '\u00a0'; })
    .setSearchHandler(() => {})
    .onClick((frame) => { looked.module = frame.data.path; fillNodes(); });
  flame.select(box).datum(tree).call(looked.chart);
  findNodes();
}

// The nodes of the module looked at that fit the search, and the bars whose names fit.
function findNodes() {
  const wanted = byId('node-search').value.trim();
  const escaped = wanted.replace(/[.*+?^${}()|[\]\\]/g, '\\$&');
  if (wanted) looked.chart.search(escaped);
  else looked.chart.clear();
  fillNodes();
}

function fillNodes() {
  const wanted = byId('node-search').value.trim().toLowerCase();
  const inside = looked.module ? NODES.filter((node) => node.scope === looked.module || node.scope.startsWith(`${looked.module}.`)) : NODES;
  const found = wanted ? inside.filter((node) => node.text.includes(wanted)) : inside;
  byId('node-title').textContent = looked.module ? `Nodes of ${looked.module}` : 'Nodes';
  byId('node-found').textContent = `${found.length} of ${counted(inside.length, 'node')}${found.length > MOST_ROWS ? `, the first ${MOST_ROWS} shown` : ''}`;
  byId('node-table').replaceChildren(table([
    { title: 'operator', key: 'op' }, { title: 'name', key: 'name', wide: true }, { title: 'makes', key: 'results', wide: true, desk: true }, { title: 'line', key: 'source', wide: true, desk: true },
  ], found.slice(0, MOST_ROWS)));
}

function waits(act) {
  let waiting = 0;
  return () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(act); };
}

VIEWS.modules = { draw() {
  byId('module-kind').replaceChildren(...[['nodes', 'nodes'], ['weights', 'size of weights']].map(([kind, title]) => {
    const button = make('button', { type: 'button', 'aria-pressed': String(kind === looked.kind) }, title);
    button.addEventListener('click', () => { looked.kind = kind; VIEWS.modules.draw(); });
    return button;
  }));
  byId('node-search').oninput = waits(findNodes);
  byId('module-reset').onclick = () => { looked.chart.resetZoom(); looked.module = ''; fillNodes(); };
  drawModules();
} };

VIEWS.interface = { draw() {
  const sides = [['input', DATA.facts.inputs], ['output', DATA.facts.outputs]];
  byId('value-table').replaceChildren(table([
    { title: '', key: 'side' }, { title: 'name', key: 'name' }, { title: 'dtype', key: 'dtype' }, { title: 'shape', key: 'shape', wide: true, format: (shape) => `[${shape.map((dim) => dim === null ? '?' : dim).join(', ')}]` },
  ], sides.flatMap(([side, values]) => values.map((value) => ({ side, ...value })))));
  const dims = [...Object.entries(DATA.facts.dims).map(([dim, places]) => ({ dim, where: places.join('; ') })),
    ...DATA.facts.conditions.map((row) => ({ dim: row.dims.join(', '), where: `right where ${row.condition}${row.where ? ` (${row.where})` : ''}` }))];
  byId('dim-table').closest('article').hidden = !dims.length;
  byId('dim-table').replaceChildren(table([{ title: 'size', key: 'dim' }, { title: 'where', key: 'where', wide: true }], dims));
  byId('operator-table').replaceChildren(table([{ title: 'operator', key: 'op' }, { title: 'nodes', key: 'count', number: true }],
    Object.entries(DATA.facts.operators).map(([op, count]) => ({ op, count }))));
  const known = { graph: DATA.facts.graph, producer: DATA.facts.producer, 'IR version': DATA.facts.ir_version, opsets: DATA.facts.opsets, functions: DATA.facts.functions, ...DATA.facts.state, ...DATA.facts.metadata };
  byId('facts').replaceChildren(...Object.entries(known).filter(([, value]) => !isEmpty(value)).flatMap(([name, value]) => [make('dt', {}, cut(name, 80)), make('dd', {}, cut(shown(value), 1000))]));
} };

VIEWS.weights = { has: () => DATA.weights.length > 0, draw() {
  const fill = () => {
    const wanted = byId('weight-search').value.trim().toLowerCase();
    const found = DATA.weights.filter((weight) => `${weight.name} ${weight.module} ${weight.dtype}`.toLowerCase().includes(wanted));
    byId('weight-found').textContent = `${found.length} of ${counted(DATA.weights.length, 'weight')}, ${size(found.reduce((sum, weight) => sum + weight.bytes, 0))}`;
    byId('weight-table').replaceChildren(table([
      { title: 'weight', key: 'name', wide: true }, { title: 'module', key: 'module', desk: true }, { title: 'dtype', key: 'dtype', desk: true }, { title: 'shape', key: 'shape', format: (shape) => shape.join(' × ') }, { title: 'size', key: 'bytes', format: size, number: true },
    ], found.slice(0, MOST_ROWS)));
  };
  byId('tied-table').closest('article').hidden = !DATA.facts.tied.length;
  byId('tied-table').replaceChildren(table([
    { title: 'weights', key: 'weights', wide: true, format: (names) => names.join(' = ') }, { title: 'read by', key: 'modules', wide: true, format: (modules) => modules.map((module) => module || '(the model itself)').join(', ') }, { title: 'size', key: 'bytes', format: size, number: true },
  ], DATA.facts.tied.slice(0, MOST_ROWS)));
  byId('weight-search').oninput = waits(fill);
  fill();
} };

VIEWS.sources = { has: () => DATA.facts.sources.length > 0, draw() {
  const made = table([{ title: 'line', key: 'source', wide: true }, { title: 'nodes', key: 'nodes', number: true }], DATA.facts.sources.slice(0, 1000));
  made.tBodies[0].addEventListener('click', (event) => {
    const row = event.target.closest('tr');
    byId('node-search').value = row.cells[0].textContent;
    byId('tab-modules').click();
  });
  byId('source-table').replaceChildren(made);
} };

showHead(DATA.source, [DATA.facts.producer, `opset ${shown(DATA.facts.opsets)}`, `IR version ${DATA.facts.ir_version}`].filter(Boolean).join(' · '), [
  ['nodes', String(DATA.facts.nodes), counted(Object.keys(DATA.facts.operators).length, 'operator')],
  ['parameters', DATA.facts.parameters.toLocaleString('en'), counted(DATA.facts.weights.tensors, 'tensor')],
  ['weights', size(DATA.facts.weights.bytes), DATA.facts.weights.external.length ? DATA.facts.weights.external.map((file) => file.file).join(', ') : 'in the file'],
  ['inputs', String(DATA.facts.inputs.length), counted(DATA.facts.outputs.length, 'output')],
  ['modules', String(DATA.facts.modules.filter((row) => row.module).length), DATA.facts.tied.length ? `${counted(DATA.facts.tied.length, 'weight')} tied` : ''],
]);
startTabs();
