'use strict';
// Bars, lines, points and the treemap, drawn by ECharts.
const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, sans-serif'; // ECharts measures text with it, so not 'inherit'
const narrow = () => window.innerWidth < 560;

function chart(id, option) {
  const element = byId(id);
  const old = echarts.getInstanceByDom(element);
  if (old) old.dispose();
  const made = echarts.init(element, dark.matches ? 'dark' : null, { renderer: 'svg' });
  const text = { color: ink('ink'), fontFamily: FONT };
  made.setOption({
    backgroundColor: 'transparent', animationDuration: 300, textStyle: text, aria: { enabled: true },
    ...option,
    tooltip: { confine: true, backgroundColor: ink('card'), borderColor: ink('line'), textStyle: { color: ink('ink'), fontSize: 12 }, ...option.tooltip },
  });
  return made;
}
const axis = (more) => ({ axisLine: { lineStyle: { color: ink('line') } }, axisLabel: { color: ink('soft') }, splitLine: { lineStyle: { color: ink('line') } }, nameTextStyle: { color: ink('soft') }, ...more });
const legend = (more) => ({ type: 'plain', top: 0, left: 0, textStyle: { color: ink('soft') }, formatter: (name) => cut(name, 40), itemWidth: 14, itemHeight: 10, ...more });
const LEAST_SEEN = 0.005; // of a bar's length: phases below it have no entry in the legend
const LEAST_READINGS = 8; // of memory: fewer make no curve
const measured = () => DATA.exports.filter((item) => item.phases.length);

function drawPhases(id, share) {
  const exporters = measured();
  byId(id).closest('article').hidden = share && exporters.length < 2;
  if (byId(id).closest('article').hidden) return;
  const names = [...new Set(exporters.flatMap((item) => item.phases.map((phase) => phase.name)))];
  names.sort((a, b) => (PHASES.indexOf(a) + 1 || 50) - (PHASES.indexOf(b) + 1 || 50));
  const total = (item) => item.phases.reduce((sum, phase) => sum + phase.seconds, 0);
  const most = Math.max(...exporters.map(total));
  const of = (item, name) => item.phases.filter((phase) => phase.name === name).reduce((sum, phase) => sum + phase.seconds, 0);
  const isSeen = (name) => exporters.some((item) => of(item, name) >= LEAST_SEEN * (share ? total(item) : most));
  const seen = names.filter(isSeen);
  const rows = narrow() ? Math.ceil(seen.length / 3) : 1;
  byId(id).style.height = `${70 + rows * 22 + exporters.length * 44}px`;
  chart(id, {
    legend: legend({ data: seen }),
    grid: { left: 4, right: 24, top: 18 + rows * 24, bottom: 4, containLabel: true },
    tooltip: { formatter: (hit) => {
      const item = exporters[hit.dataIndex], seconds = of(item, names[hit.seriesIndex]);
      return tooltipOf(hit.color, `${names[hit.seriesIndex]}: ${item.exporter}`, `${time(seconds)} · ${percent(seconds / (total(item) || 1))}`);
    } },
    xAxis: axis({ type: 'value', max: share ? 1 : undefined, splitNumber: narrow() ? 3 : 6, axisLabel: { color: ink('soft'), hideOverlap: true, formatter: (value) => share ? percent(value) : time(value) } }),
    yAxis: axis({ type: 'category', inverse: true, data: exporters.map((item) => cut(item.exporter, 40)), axisLabel: { color: ink('ink') } }),
    series: names.map((name) => ({
      name, type: 'bar', stack: 'all', barMaxWidth: 26, itemStyle: { color: phaseColour(name), borderColor: ink('card'), borderWidth: 0.5 },
      data: exporters.map((item) => share ? of(item, name) / (total(item) || 1) : of(item, name)),
    })),
  });
}

function drawMemory() {
  const exporters = measured().filter((item) => item.memory.length >= LEAST_READINGS);
  byId('memory').closest('article').hidden = !exporters.length;
  if (exporters.length) chart('memory', {
    legend: legend(),
    grid: { left: 4, right: 18, top: 36, bottom: 4, containLabel: true },
    tooltip: { trigger: 'axis', formatter: (hits) => make('div', {}, ...hits.map((hit) => tooltipOf(hit.color, hit.seriesName, size(Math.max(0, hit.value[1] || 0))))) },
    xAxis: axis({ type: 'value', min: 0, max: 1, axisLabel: { color: ink('soft'), formatter: percent }, axisPointer: { label: { formatter: (at) => percent(at.value) } } }),
    yAxis: axis({ type: 'value', axisLabel: { color: ink('soft'), formatter: size } }),
    series: exporters.map((item) => {
      const end = item.memory[item.memory.length - 1][0] || 1, base = item.memory[0][1];
      return { name: item.exporter, type: 'line', showSymbol: false, lineStyle: { width: 2 }, areaStyle: { opacity: 0.12 }, color: PALETTE[measured().indexOf(item)],
        data: item.memory.map(([at, bytes]) => [at / end, bytes - base]) };
    }),
  });
}

const some = (bytes) => bytes ? size(bytes) : '';

VIEWS.overview = { draw() {
  drawPhases('phase-seconds', false);
  drawPhases('phase-share', true);
  drawMemory();
  byId('phase-tables').replaceChildren(...measured().map((item) => {
    const total = item.phases.reduce((sum, phase) => sum + phase.seconds, 0) || 1;
    const rows = item.phases.flatMap((phase) => [{ ...phase, share: phase.seconds / total },
      ...phase.steps.map((step) => ({ ...step, share: step.seconds / total, isStep: true }))]);
    return make('article', {}, make('h2', {}, `${item.exporter}: ${time(item.median)}`), make('div', { class: 'scroll whole' }, table([
      { title: 'phase', key: 'name' }, { title: 'time', key: 'seconds', notation: times, number: true },
      { title: 'share', key: 'share', format: percent, number: true },
      { title: 'peak memory', key: 'grown', format: some, number: true }, { title: 'written', key: 'bytes', format: some, number: true, desk: true }, { title: 'calls', key: 'count', number: true, desk: true },
    ], rows, { fixed: true })));
  }));
} };

function drawSlowest(rows) {
  const top = rows.slice(0, 14).reverse();
  byId('slowest').style.height = `${60 + top.length * 24}px`;
  chart('slowest', {
    grid: { left: 4, right: 60, top: 6, bottom: 4, containLabel: true },
    tooltip: { formatter: (hit) => { const row = top[hit.dataIndex]; return tooltipOf(hit.color, `${row.name} (${row.phase})`, `${time(row.seconds)} in ${counted(row.count, 'call')}`, row.line || ''); } },
    xAxis: axis({ type: 'value', show: !narrow(), splitNumber: 4, axisLabel: { color: ink('soft'), formatter: time, hideOverlap: true } }),
    yAxis: axis({ type: 'category', data: top.map((row) => `${cut(row.name, narrow() ? 18 : 60)} · ${row.phase}`), axisLabel: { color: ink('ink'), fontSize: 11 }, axisTick: { show: false } }),
    series: [{ type: 'bar', barMaxWidth: 16, data: top.map((row) => ({ value: row.seconds, itemStyle: { color: phaseColour(row.phase), borderRadius: [0, 4, 4, 0] } })),
      label: { show: true, position: 'right', color: ink('soft'), formatter: (hit) => time(hit.value) } }],
  });
}

VIEWS.operations = { draw() {
  const fill = () => {
    const wanted = byId('row-search').value.toLowerCase();
    const fits = (row) => `${row.name} ${row.phase} ${row.line}`.toLowerCase().includes(wanted);
    const operations = DATA.operations.filter(fits);
    drawSlowest(operations);
    byId('operation-table').replaceChildren(table([
      { title: 'operation', key: 'name' }, { title: 'phase', key: 'phase' }, { title: 'time', key: 'seconds', notation: times, number: true },
      { title: 'calls', key: 'count', number: true }, { title: 'slowest', key: 'slowest', notation: times, number: true, desk: true }, { title: 'line of the slowest', key: 'line', wide: true, desk: true },
    ], operations));
    byId('line-table').replaceChildren(table([
      { title: 'line', key: 'line', wide: true }, { title: 'time', key: 'seconds', notation: times, number: true }, { title: 'calls', key: 'count', number: true },
    ], DATA.lines.filter(fits)));
  };
  byId('row-search').oninput = fill;
  fill();
} };

// What became slower or faster since an earlier profile, one article for each.
VIEWS.changes = { has: () => DATA.comparisons.length > 0, draw() {
  const tone = (row) => row.difference > 0 ? 'bad' : 'good';
  const columns = (title) => [{ title, key: 'name' }, { title: 'phase', key: 'phase' }, { title: 'before', key: 'before', notation: times, number: true, desk: true },
    { title: 'after', key: 'after', notation: times, number: true, desk: true }, { title: 'difference', key: 'difference', notation: (all) => { const text = times(all); return (s) => s > 0 && text(s) !== '0' ? `+${text(s)}` : text(s); }, number: true, tone },
    { title: 'change', key: 'change', number: true, tone }];
  byId('changes').replaceChildren(...DATA.comparisons.flatMap((found) => {
    const rows = (changes) => changes.map((row) => ({ ...row, phase: row.phase === row.name ? '' : row.phase, change: change(row) }));
    const title = `Against ${found.before}: ${time(found.total.before)} then, ${time(found.total.after)} now (${change(found.total)})`;
    return [
      make('article', {}, make('h2', {}, title), ...found.notes.map((note) => make('p', { class: 'hint' }, note)), make('div', { class: 'scroll whole' }, table(columns('phase').filter(({ key }) => key !== 'phase'), rows(found.phases)))),
      make('article', {}, make('h2', {}, 'Operations'), make('div', { class: 'scroll' }, table(columns('operation'), rows(found.operations)))),
    ];
  }));
} };

function drawSeries(holder, series, number) {
  const id = `series-${number}`;
  const refused = series.exporters.flatMap((item) => item.points.filter((point) => point.error).map((point) => `${item.exporter} at ${point.value}: ${point.error}`));
  holder.append(make('article', {}, make('h2', {}, `Export time over ${series.label}`), make('div', { class: 'chart tall', id }),
    ...refused.map((text) => make('p', { class: 'hint bad' }, text))));
  const values = series.exporters.flatMap((item) => item.points.map((point) => point.value));
  const seconds = series.exporters.flatMap((item) => item.points.flatMap((point) => point.seconds));
  const ticks = [...new Set(values)].sort((a, b) => a - b);
  const isWide = (numbers) => Math.min(...numbers) > 0 && Math.max(...numbers) > 6 * Math.min(...numbers);
  const wide = isWide(seconds);
  chart(id, {
    legend: legend({ data: series.exporters.map((item) => item.exporter) }),
    grid: { left: 4, right: 30, top: 40, bottom: 24, containLabel: true },
    tooltip: { formatter: (hit) => tooltipOf(hit.color, `${hit.seriesName} at ${hit.value[0]}`, time(hit.value[1])) },
    xAxis: axis({ type: isWide(values) ? 'log' : 'value', logBase: 2, name: cut(series.label, 60), nameLocation: 'middle', nameGap: 26, min: ticks[0], max: ticks[ticks.length - 1],
      axisLabel: { color: ink('soft'), customValues: ticks, hideOverlap: true }, axisTick: { customValues: ticks } }),
    yAxis: axis({ type: wide ? 'log' : 'value', min: wide ? undefined : 0, axisLabel: { color: ink('soft'), formatter: time } }),
    series: series.exporters.flatMap((item, index) => {
      const good = item.points.filter((point) => point.seconds.length);
      return [
        { name: item.exporter, type: 'line', color: PALETTE[index], symbolSize: 7, lineStyle: { width: 2.5 }, data: good.map((point) => [point.value, point.median]) },
        { name: item.exporter, type: 'scatter', color: PALETTE[index], symbolSize: 5, itemStyle: { opacity: 0.6 }, data: good.flatMap((point) => point.seconds.map((run) => [point.value, run])) },
      ];
    }),
  });
}

VIEWS.sizes = { has: () => DATA.series.length > 0, draw() {
  byId('series').replaceChildren();
  DATA.series.forEach((series, number) => drawSeries(byId('series'), series, number));
} };

// A colour for each part, where one part is nearly all for each of its parts; no two of them the same while colours last.
function paint(parts, total, colour, used = { count: 0 }) {
  parts.forEach((part, index) => {
    const isNearlyAll = !colour && part.children && part.value > 0.6 * total;
    const mine = colour || (isNearlyAll ? '#a9b4c2' : PALETTE[used.count++ % PALETTE.length]);
    part.itemStyle = { color: mine, borderColor: mine };
    if (part.children) paint(part.children, total, isNearlyAll ? undefined : mine, used);
    else part.itemStyle = { color: mine, opacity: index % 2 ? 0.82 : 1 };
  });
}

// Names of which fewer than four letters fit are hidden: the tooltip has them.
function hideStumps(element, tree) {
  const whole = new Set(['all weights']);
  const add = ({ name, value, children }) => { [name, size(value), `${name}  ${size(value)}`].forEach((text) => whole.add(text)); (children || []).forEach(add); };
  tree.forEach(add);
  for (const text of element.querySelectorAll('text')) {
    const [stump, rest] = text.textContent.split('...');
    text.classList.toggle('stump', rest === undefined ? !whole.has(stump) : stump.length < 4);
  }
}

VIEWS.weights = { has: () => DATA.weights.length > 0, draw() {
  const total = DATA.weights.reduce((sum, weight) => sum + weight.bytes, 0);
  byId('weight-hint').textContent = `${counted(DATA.weights.length, 'weight')}, ${size(total)}. Area is bytes; tap a module to go into it.`;
  const tree = structuredClone(DATA.weight_tree);
  paint(tree, total);
  const map = chart('weight-map', {
    tooltip: { formatter: (hit) => tooltipOf(hit.color, hit.treePathInfo.slice(1).map((step) => step.name).join('.') || DATA.source, `${size(hit.value)} · ${percent(hit.value / (total || 1))}`) },
    series: [{ type: 'treemap', name: 'all weights', data: tree, roam: false, leafDepth: 20, width: '100%', height: '92%', top: 0, left: 0, visibleMin: 60, childrenVisibleMin: 400,
      label: { formatter: (hit) => `${hit.name}\n${size(hit.value)}`, color: '#10151d', fontSize: 11, lineHeight: 15, overflow: 'truncate' },
      upperLabel: { show: true, height: 20, formatter: (hit) => `${hit.name}  ${size(hit.value)}`, color: '#10151d', fontSize: 11, fontWeight: 600, overflow: 'truncate' },
      itemStyle: { borderColor: ink('card'), borderWidth: 1, gapWidth: 1 },
      levels: [{ upperLabel: { show: false }, itemStyle: { borderWidth: 0, gapWidth: 3 } }],
      breadcrumb: { bottom: 0, itemStyle: { color: ink('line'), borderColor: ink('line'), textStyle: { color: ink('ink') } } } }],
  });
  const hide = () => hideStumps(byId('weight-map'), tree);
  map.on('rendered', hide); // also where a module is gone into; the first time is over here
  hide();
  byId('weight-table').replaceChildren(table([
    { title: 'weight', key: 'name' }, { title: 'dtype', key: 'dtype', desk: true }, { title: 'shape', key: 'shape', format: (shape) => shape.join(' × ') },
    { title: 'size', key: 'bytes', format: size, number: true },
  ], DATA.weights.slice(0, 300)));
} };

const fact = (name, value) => typeof value !== 'number' ? shown(value) : name === 'seconds' ? time(value) : name.endsWith('bytes') ? size(value) : String(value);
const FACTS = { seconds: 'time', strategy: 'capture strategy', strategy_reason: 'why', nodes_captured: 'ATen calls', nodes_onnx: 'ONNX nodes', file_bytes: 'size of the file' };
const FORMER = ['rung', 'rung_reason']; // names that other facts have had before

VIEWS.verification = { draw() {
  const verdict = DATA.verification;
  byId('verdict').textContent = verdict ? (verdict.ok ? 'Agrees with eager PyTorch' : 'Differs from eager PyTorch') : 'Not verified';
  byId('verdict').className = verdict ? (verdict.ok ? 'good' : 'bad') : '';
  byId('verdict-text').textContent = verdict ? [verdict.summary, ...(verdict.notes || [])].filter(Boolean).join(' · ') : 'Export with verify=True, or leave out --no-verify.';
  if (verdict) byId('verdict-table').replaceChildren(verdictTable(verdict.rows));
  const facts = Object.entries(DATA.report).filter(([name, value]) => !isEmpty(value) && !isObject(value) && !FORMER.includes(name) && !(Array.isArray(value) && value.some(isObject)));
  byId('facts').closest('article').hidden = !facts.length;
  byId('facts').replaceChildren(...facts.flatMap(([name, value]) => [make('dt', {}, FACTS[name] || name.replaceAll('_', ' ')),
    make('dd', {}, ...(name.endsWith('names') || !Array.isArray(value) ? [fact(name, value)] : value.map((each) => make('div', {}, shown(each)))))]));
} };
