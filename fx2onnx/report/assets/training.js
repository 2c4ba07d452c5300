'use strict';
// The page of a training: a curve for each number of a step, beside what was measured on the rows kept for the test.
const MOST_STEPS = 1000;
const short = (value) => value === null ? 'not finite' : typeof value === 'number' ? Number(value.toPrecision(4)).toString() : shown(value);
const NAMES = Object.keys(DATA.curves);

function drawCurve(name, index) {
  const tests = DATA.tests.filter(([, numbers]) => Object.hasOwn(numbers, name)).map(([step, numbers]) => [step, numbers[name]]);
  chart(`curve-${index}`, {
    legend: legend(),
    grid: { left: 4, right: 18, top: 36, bottom: 22, containLabel: true },
    tooltip: { trigger: 'axis', formatter: (hits) => make('div', {}, ...hits.map((hit) => tooltipOf(hit.color, `${hit.seriesName}, step ${hit.value[0]}`, short(hit.value[1])))) },
    xAxis: axis({ type: 'value', name: 'step', nameLocation: 'middle', nameGap: 26, min: 'dataMin', max: 'dataMax', minInterval: 1 }),
    yAxis: axis({ type: 'value', scale: true }),
    series: [
      { name: `${name} of a step`, type: 'line', showSymbol: false, lineStyle: { width: 1.5 }, color: PALETTE[index % PALETTE.length],
        data: DATA.curves[name].map((value, step) => [DATA.first + step + 1, value]) },
      ...(tests.length ? [{ name: 'test', type: 'scatter', symbolSize: 10, color: PALETTE[(index + 4) % PALETTE.length], data: tests }] : []),
    ],
  });
}

VIEWS.curves = { draw() {
  byId('curves').replaceChildren(...NAMES.map((name, index) => {
    const drawing = make('div', { id: `curve-${index}`, class: 'chart' });
    drawing.style.height = '280px';
    return make('article', {}, make('h2', {}, cut(name, 100)), drawing);
  }));
  NAMES.forEach(drawCurve);
} };

VIEWS.steps = { draw() {
  const columns = [{ title: 'step', key: 'step', number: true }, ...NAMES.map((name) => ({ title: name, key: name, notation: numbers, number: true }))];
  const rows = DATA.curves[NAMES[0]].map((_, step) => ({ step: DATA.first + step + 1, ...Object.fromEntries(NAMES.map((name) => [name, DATA.curves[name][step] ?? 'not finite'])) }));
  byId('step-table').replaceChildren(table(columns, rows.slice(-MOST_STEPS)));
} };

const [before, after] = DATA.tests.length > 1 ? [DATA.tests[0][1], DATA.tests[DATA.tests.length - 1][1]] : [{}, {}];
showHead(DATA.source, DATA.created, [
  ['steps', String(DATA.curves[NAMES[0]].length), DATA.first ? `after ${DATA.first} before` : ''],
  ...NAMES.map((name) => [name, short(DATA.curves[name][DATA.curves[name].length - 1]), `at first ${short(DATA.curves[name][0])}`]),
  ...Object.entries(after).map(([name, value]) => [`test ${name}`, short(value), Object.hasOwn(before, name) ? `before ${short(before[name])}` : '']),
]);
startTabs();
