'use strict';
// The page of a verdict: its rows, and whatever else it says, in the form that each value has.
const MOST_ROWS = 1000;
const number = (value) => typeof value === 'number' && !Number.isInteger(value) ? value.toPrecision(3) : shown(value);
const isObject = (value) => value !== null && typeof value === 'object' && !Array.isArray(value);
const keysOf = (rows) => [...new Set(rows.flatMap((row) => Object.keys(row)))];
const HEADINGS = new Map(Object.entries({ max_abs_error: 'error', ok: 'verdict', share: 'of allowed' }));
const heading = (key) => HEADINGS.get(key) || key.replaceAll('_', ' ');

// Any value of the JSON: rows as a table, fields as a list, the rest as text.
function rendered(value) {
  if (Array.isArray(value) && value.length && value.every(isObject)) {
    return make('div', { class: 'scroll' }, table(keysOf(value).map((key) => ({ title: heading(key), key, format: number, wide: true })), value.slice(0, MOST_ROWS)));
  }
  if (isObject(value) && Object.values(value).length && Object.values(value).every(isObject)) {
    return rendered(Object.entries(value).map(([name, inner]) => ({ name, ...inner })));
  }
  if (isObject(value)) {
    return make('dl', { class: 'facts' }, ...Object.entries(value).flatMap(([name, inner]) => [make('dt', {}, heading(name)), make('dd', {}, rendered(inner))]));
  }
  return make('span', {}, number(value));
}

const ROWS = DATA.verdict.rows.map((row) => ({ ...row, share: row.allowed ? row.max_abs_error === null ? null : row.max_abs_error / row.allowed : null }));

VIEWS.rows = { draw() {
  byId('verdict').textContent = DATA.verdict.ok ? 'Agrees with eager PyTorch' : 'Differs from eager PyTorch';
  byId('verdict').className = DATA.verdict.ok ? 'good' : 'bad';
  const format = { ok: (ok) => ok ? 'agrees' : 'differs', share: (share) => percent(share) };
  const tone = (row) => row.ok ? 'good' : 'bad';
  const columns = keysOf(ROWS).map((key) => ({ title: heading(key), key, format: Object.hasOwn(format, key) ? format[key] : number,
    number: ROWS.some((row) => typeof row[key] === 'number'), wide: key === 'problem', tone: key === 'ok' ? tone : undefined }));
  const fill = () => {
    const wanted = byId('row-search').value.trim().toLowerCase();
    const found = ROWS.filter((row) => (!byId('row-failing').checked || !row.ok) && Object.values(row).some((value) => String(value).toLowerCase().includes(wanted)));
    byId('row-found').textContent = `${found.length} of ${ROWS.length} comparisons${found.length > MOST_ROWS ? `, the first ${MOST_ROWS} shown` : ''}`;
    byId('row-table').replaceChildren(table(columns, found.slice(0, MOST_ROWS)));
  };
  byId('row-search').oninput = byId('row-failing').onchange = fill;
  fill();
  const notes = DATA.verdict.notes || [];
  byId('notes').replaceChildren(...(notes.length ? notes : ['none']).map((note) => make('p', { class: 'hint' }, shown(note))));
} };

const REST = Object.entries(DATA.verdict).filter(([name]) => !['ok', 'rows', 'notes'].includes(name));

VIEWS.more = { has: () => REST.length > 0, draw() {
  byId('more').replaceChildren(...REST.map(([name, value]) => make('article', {}, make('h2', {}, heading(name)), rendered(value))));
} };

byId('source').textContent = DATA.source;
byId('machine').textContent = `${DATA.file} · ${DATA.created}`;
const failing = ROWS.filter((row) => !row.ok).length;
const worst = ROWS.reduce((most, row) => row.share !== null && row.share > (most ? most.share : -1) ? row : most, null);
byId('cards').replaceChildren(...[
  ['verdict', DATA.verdict.ok ? 'agrees' : 'differs', `${failing} of ${ROWS.length} comparisons differ`],
  ['engines', String(new Set(ROWS.map((row) => row.engine)).size), [...new Set(ROWS.map((row) => row.engine))].join(', ')],
  ['outputs', String(new Set(ROWS.map((row) => row.output)).size), `on ${new Set(ROWS.map((row) => row.inputs)).size} sets of inputs`],
  ...(worst ? [['largest error', `${percent(worst.share)} of allowed`, `${worst.engine}: ${worst.output} (${worst.inputs})`]] : []),
].map(([title, value, small]) => make('div', {}, make('dt', {}, title), make('dd', { class: value === 'agrees' ? 'good' : value === 'differs' ? 'bad' : '' }, value, make('small', {}, cut(small, 200))))));
startTabs();
