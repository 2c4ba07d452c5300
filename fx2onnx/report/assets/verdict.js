'use strict';
// The page of a verdict: its rows, and whatever else it says, in the form that each value has.
const MOST_ROWS = 1000;
const ON_DESK = ['sizes', 'values', 'dtype']; // the name of inputs has the first two
const PARTS = ['weights', 'scales', 'file']; // of the file, where an engine has its name: no output of it was compared
const HEADINGS = new Map(Object.entries({ tried: 'Inputs that were compared', ranges: 'Ranges of the inputs', baked: 'Constant inputs', left_out: 'Inputs that were left out' }));
const heading = (key) => HEADINGS.get(key) || (key.charAt(0).toUpperCase() + key.slice(1)).replaceAll('_', ' ');
const keysOf = (rows) => [...new Set(rows.flatMap((row) => Object.keys(row)))];

// Any value of the JSON: rows as a table, fields and texts as a list, the rest as text.
function rendered(value) {
  if (Array.isArray(value) && value.every(isObject)) {
    const columns = keysOf(value).filter((key) => value.some((row) => row[key] !== false)).map((key) => value.some((row) => typeof row[key] === 'number') ? { title: key, key, notation: numbers, number: true } : { title: key.replaceAll('_', ' '), key, wide: true, desk: ON_DESK.includes(key) });
    return make('div', { class: 'scroll' }, table(columns, value.slice(0, MOST_ROWS)));
  }
  if (isObject(value) && Object.values(value).every(isObject)) {
    return rendered(Object.entries(value).map(([name, inner]) => ({ name, ...inner })));
  }
  if (isObject(value)) {
    return make('dl', { class: 'facts' }, ...Object.entries(value).flatMap(([name, inner]) => [make('dt', {}, name.replaceAll('_', ' ')), make('dd', {}, isObject(inner) ? rendered(inner) : shown(inner))]));
  }
  return make('div', {}, ...(Array.isArray(value) && value.some((each) => typeof each === 'string') ? value : [value]).map((each) => make('p', { class: 'hint' }, shown(each))));
}

const ROWS = DATA.verdict.rows;
const isPart = (row) => PARTS.includes(row.engine);
const TITLE = DATA.verdict.ok ? 'Agrees with eager PyTorch' : DATA.verdict.unverified ? 'Not verified' : 'Differs from eager PyTorch';

VIEWS.rows = { draw() {
  byId('verdict').textContent = TITLE;
  byId('names').href = DATA.names;
  byId('verdict').className = DATA.verdict.ok ? 'good' : 'bad';
  const fill = () => {
    const wanted = byId('row-search').value.trim().toLowerCase();
    const found = ROWS.filter((row) => (!byId('row-failing').checked || !row.ok) && Object.values(row).some((value) => String(value).toLowerCase().includes(wanted)));
    byId('row-found').textContent = `${found.length} of ${counted(ROWS.length, 'comparison')}${found.length > MOST_ROWS ? `, the first ${MOST_ROWS} shown` : ''}`;
    const parts = found.filter(isPart).slice(0, MOST_ROWS);
    byId('row-table').replaceChildren(verdictTable(found.filter((row) => !isPart(row)).slice(0, MOST_ROWS)));
    byId('part-table').closest('article').hidden = !parts.length;
    byId('part-table').replaceChildren(table([{ title: 'part', key: 'engine', desk: true }, { title: 'name', key: 'output', wide: true }, { title: 'problem', key: 'problem', wide: true }], parts));
  };
  byId('row-search').oninput = byId('row-failing').onchange = fill;
  fill();
  const notes = DATA.verdict.notes || [];
  byId('notes').closest('article').hidden = !notes.length;
  byId('notes').replaceChildren(...notes.map((note) => make('p', { class: 'hint' }, shown(note))));
} };

const REST = Object.entries(DATA.verdict).filter(([name, value]) => !['ok', 'rows', 'notes', 'worst'].includes(name) && !isEmpty(value));

VIEWS.more = { has: () => REST.length > 0, draw() {
  byId('more').replaceChildren(...REST.map(([name, value]) => make('article', {}, make('h2', {}, heading(name)), rendered(value))));
} };

const failing = ROWS.filter((row) => !row.ok);
const worst = ROWS.reduce((most, row) => shareOf(row) !== null && shareOf(row) > (most ? shareOf(most) : -1) ? row : most, null);
const kinds = (key) => new Set(ROWS.filter((row) => !isPart(row) && !['', '(all)'].includes(row[key])).map((row) => row[key]));
showHead(DATA.source, `${DATA.file} · ${DATA.created}`, [
  ['verdict', DATA.verdict.ok ? 'agrees' : DATA.verdict.unverified ? 'not verified' : 'differs', failing.length ? `${failing.length} of ${counted(ROWS.length, 'comparison')} differ` : `${counted(ROWS.length, 'comparison')}`],
  ['engines', String(kinds('engine').size), [...kinds('engine')].join(', ')],
  ['outputs', String(kinds('output').size), `on ${counted(kinds('inputs').size, 'set')} of inputs`],
  ...(worst ? [['largest error', ofAllowed(shareOf(worst)), `${shareOf(worst) > 1 ? '' : 'of '}what is allowed, ${worst.engine}: ${worst.output} (${worst.inputs})`]] : []),
]);
startTabs();
