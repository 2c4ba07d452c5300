'use strict';
// One flame graph for each exporter, drawn by d3-flame-graph; above it a bar at the scale that all of them share.
const flames = { kind: 'operator', charts: [] };

function scaleBar(item) {
  const bar = make('div', { class: 'scale' });
  bar.style.width = `${100 * item.median / Math.max(...measured().map((other) => other.median))}%`;
  return measured().length > 1 ? [bar] : [];
}

const depthOf = (frame) => 1 + Math.max(0, ...(frame.children || []).map(depthOf));

function drawFlames() {
  const holder = byId('flame-charts');
  flames.charts.forEach((made) => made.destroy());
  flames.charts = [];
  holder.replaceChildren();
  const boxes = measured().map(() => make('div', { class: 'flame' }));
  // All of them before any is drawn: how wide one is depends on how many there are.
  holder.append(...measured().map((item, index) => make('article', {}, make('h2', {}, `${item.exporter}: ${time(item.median)}`), ...(scaleBar(item)), boxes[index])));
  byId('flame-hint').textContent = `${measured().length > 1 ? 'The bars above the graphs show the times at one scale; each graph is as wide as its place. ' : ''}Width is time; siblings of one name are one bar. Click a bar to zoom into it.`;
  for (const [index, item] of measured().entries()) {
    const box = boxes[index];
    const root = item.flame[flames.kind];
    const made = flame.flamegraph().width(Math.max(200, box.clientWidth)).cellHeight(20).height(20 * depthOf(root)).inverted(true).sort(false).minFrameSize(1)
      .transitionDuration(250).selfValue(false).setColorMapper(flameColour)
      .setLabelHandler((frame) => `${frame.data.name}: ${time(frame.data.value)}, ${percent(frame.data.value / (root.value || 1))}${frame.data.count > 1 ? `, ${frame.data.count} times` : ''}`)
      .setDetailsHandler((text) => { byId('flame-details').textContent = text || '\u00a0'; })
      .setSearchHandler(() => {});
    flame.select(box).datum(structuredClone(root)).call(made);
    flames.charts.push(made);
  }
  search();
}

// Bars that fit, and the share of each exporter's time that the outermost of them cover.
function search() {
  const wanted = byId('flame-search').value.trim();
  const escaped = wanted.replace(/[.*+?^${}()|[\]\\]/g, '\\$&');
  flames.charts.forEach((made) => wanted ? made.search(escaped) : made.clear());
  const covered = (frame) => frame.name.toLowerCase().includes(wanted.toLowerCase()) ? frame.value : (frame.children || []).reduce((sum, child) => sum + covered(child), 0);
  byId('flame-found').textContent = !wanted ? '' : measured().map((item) => {
    const root = item.flame[flames.kind];
    return `${item.exporter} ${time(covered(root))} (${percent(covered(root) / (root.value || 1))})`;
  }).join(' · ');
}

VIEWS.flames = { has: () => measured().length > 0, draw() {
  const choice = byId('flame-kind');
  choice.replaceChildren(...['operator', 'module'].map((kind) => {
    const button = make('button', { type: 'button', 'aria-pressed': String(kind === flames.kind) }, `by ${kind}`);
    button.addEventListener('click', () => { flames.kind = kind; VIEWS.flames.draw(); });
    return button;
  }));
  byId('flame-search').oninput = search;
  byId('flame-reset').onclick = () => flames.charts.forEach((made) => made.resetZoom());
  drawFlames();
} };
