'use strict';
// What all views share: the data, numbers as text, colours, tabs. A view registers itself in VIEWS under its tab's id.
const DATA = JSON.parse(document.getElementById('data').textContent);
const VIEWS = {};
const byId = (id) => document.getElementById(id);
const dark = window.matchMedia('(prefers-color-scheme: dark)');
const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

const time = (s) => s === 0 ? '0' : s < 0 ? `-${time(-s)}` : s >= 1 ? `${s.toFixed(2)} s` : s >= 0.001 ? `${(s * 1e3).toFixed(s < 0.01 ? 2 : 1)} ms` : `${(s * 1e6).toFixed(0)} µs`;
const size = (b) => b < 0 ? `-${size(-b)}` : b >= 1e9 ? `${(b / 1e9).toFixed(2)} GB` : b >= 1e6 ? `${(b / 1e6).toFixed(1)} MB` : b >= 1e3 ? `${(b / 1e3).toFixed(1)} kB` : `${b} B`;
const percent = (part) => part === 0 ? '0%' : part < 0.0005 ? '<0.1%' : `${(part * 100).toFixed(part < 0.1 ? 1 : 0)}%`;
const counted = (count, word) => `${count} ${word}${count === 1 ? '' : 's'}`;

// Times of one column as text, all in the unit that the longest needs.
function times(all) {
  const most = Math.max(0, ...all.map(Math.abs));
  const [unit, factor] = most >= 10 ? ['s', 1] : most >= 1e-3 ? ['ms', 1e3] : ['µs', 1e6];
  const digits = unit === 'µs' ? 0 : most * factor >= 1000 ? 1 : most * factor >= 10 ? 2 : 3;
  return (seconds) => Number((seconds * factor).toFixed(digits)) === 0 ? '0' : `${(seconds * factor).toFixed(digits)} ${unit}`;
}

// Numbers of one column as text in one notation: with an exponent where one of them needs it, else with as many digits each.
function numbers(all) {
  const sizes = all.filter((value) => typeof value === 'number' && value !== 0).map(Math.abs);
  const [least, most] = [Math.min(...sizes), Math.max(...sizes)];
  const digits = sizes.every(Number.isInteger) ? 0 : Math.max(0, 2 - Math.floor(Math.log10(least)));
  const isPlain = most < 1e6 && digits < 6;
  return (value) => typeof value !== 'number' ? shown(value) : value === 0 ? '0' : isPlain ? value.toFixed(digits) : value.toExponential(2);
}

const change = (found) => found.share === null ? 'new' : found.share === 0 ? '±0%' : `${found.share > 0 ? '+' : ''}${(found.share * 100).toFixed(Math.abs(found.share) < 0.1 ? 1 : 0)}%`;

const PALETTE = ['#4e8ef7', '#f2a33c', '#3fb68b', '#e8637c', '#9a7ff0', '#35b5cf', '#c9a227', '#e07ac3', '#7fa650', '#8d99ae'];
const PHASES = ['import', 'registry', 'capture', 'decompose', 'lower', 'translate', 'convert', 'convert version', 'optimize', 'fit to target', 'serialize', 'save', 'verify', '(between)'];
const PHASE_COLOURS = new Map(Object.entries({ import: '#7fa650', registry: '#c9a227', capture: '#4e8ef7', decompose: '#9a7ff0', lower: '#3fb68b', translate: '#2f9a74',
  convert: '#74cfae', 'convert version': '#d9825b', optimize: '#f2a33c', serialize: '#e07ac3', save: '#e8637c', verify: '#35b5cf', 'fit to target': '#a3623a', 'add functions': '#b08968', '(between)': '#a9b4c2' }));
const phaseColour = (name) => PHASE_COLOURS.get(name) || PALETTE[[...name].reduce((sum, c) => sum + c.charCodeAt(0), 0) % PALETTE.length];

// The one way into the page: text becomes text nodes, and no string is ever read as HTML.
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// What a chart shows beside the pointer: a coloured square before the first line, which is bold.
function tooltipOf(colour, title, ...lines) {
  const square = make('span', { class: 'square' });
  square.style.background = colour;
  return make('div', { class: 'tooltip' }, square, make('b', {}, cut(title, 300)), ...lines.flatMap((line) => [make('br'), cut(line, 300)]));
}

// Pictures have no room for long names; tables show all of them.
const cut = (text, most) => text.length > most ? `${text.slice(0, most - 1)}…` : text;

// Any value of the JSON as text.
const shown = (value) => typeof value === 'string' ? value : typeof value === 'boolean' ? (value ? 'yes' : 'no') : Array.isArray(value) ? value.map((each) => Array.isArray(each) ? `[${shown(each)}]` : shown(each)).join(', ')
  : isObject(value) ? Object.entries(value).map(([name, inner]) => `${name} ${shown(inner)}`).join(', ') : value === null ? '' : String(value);
const isObject = (value) => value !== null && typeof value === 'object' && !Array.isArray(value);
const isEmpty = (value) => value === undefined || value === null || value === '' || (typeof value === 'object' && !Object.keys(value).length);

// A frame of a flame graph: the colour of its outermost part, lighter the deeper it is.
function flameColour(frame) {
  if (frame.highlight) return '#ff4fd8';
  let top = frame;
  while (top.parent && top.parent.parent) top = top.parent;
  if (!frame.parent) return dark.matches ? '#8c97a8' : '#c5ccd6';
  const base = phaseColour(top.data.name);
  const lift = frame === top ? 0 : 12 + ([...frame.data.name].reduce((sum, c) => sum + c.charCodeAt(0), 0) % 5) * 7;
  return `color-mix(in srgb, ${base} ${100 - lift}%, white)`;
}

// Text may go on in a new line after a dot, a slash or an underscore, or before a capital; short text on a phone alone.
const breakable = (text) => text.split(/(?<=[._/])|(?<=[a-z])(?=[A-Z])/).flatMap((part, index) => index ? [make('wbr', text.length < 25 ? { class: 'phone' } : {}), part] : [part]);

// A table that sorts by the clicked heading; columns that are empty in all rows are left out. rows: objects.
// columns: [{title, key, format?, notation?, wide?, number?, words?, desk?, tone?}]. notation: makes the format from all values of the column.
// words: numbers with words, which may go on in a new line on a phone. desk: not shown on a phone.
function table(all, rows, options = {}) {
  const columns = all.map((column) => {
    const format = column.notation ? column.notation(rows.map((row) => row[column.key]).filter((value) => !isEmpty(value))) : column.format || shown;
    return { ...column, text: (row) => isEmpty(row[column.key]) ? '' : format(row[column.key]) };
  }).filter((column) => !rows.length || rows.some((row) => column.text(row)));
  const body = make('tbody');
  const head = make('tr');
  let sorted = null, falling = true;
  const kind = (column) => `${column.number ? 'number' : column.wide ? 'wide' : 'name'}${column.words ? ' words' : ''}${column.desk ? ' desk' : ''}`;
  const fill = () => {
    const order = sorted === null ? rows : [...rows].sort((a, b) => {
      const [x, y] = [a[sorted], b[sorted]];
      return (falling ? -1 : 1) * (typeof x === 'number' ? x - y : String(x).localeCompare(String(y)));
    });
    body.replaceChildren(...order.map((row) => {
      const line = make('tr', row.isStep ? { class: 'step' } : {});
      for (const column of columns) {
        const text = column.text(row);
        line.append(make('td', { class: [kind(column), column.tone ? column.tone(row) : ''].join(' ') }, ...(column.number ? [text] : breakable(text))));
      }
      return line;
    }));
  };
  for (const column of columns) {
    const cell = make('th', { scope: 'col', class: kind(column) }, column.title);
    if (!options.fixed) cell.addEventListener('click', () => {
      falling = sorted === column.key ? !falling : true;
      sorted = column.key;
      head.querySelectorAll('th').forEach((other) => other.removeAttribute('aria-sort'));
      cell.setAttribute('aria-sort', falling ? 'descending' : 'ascending');
      fill();
    });
    head.append(cell);
  }
  fill();
  return make('table', {}, make('thead', {}, head), body);
}

// How far an output is off, as a share of what is allowed: null where no number was compared or the numbers must be equal.
const shareOf = (row) => isEmpty(row.max_abs_error) ? null : row.max_abs_error === 0 ? 0 : row.allowed ? row.max_abs_error / row.allowed : null;
const MANY_TIMES = 1000;
const ofAllowed = (share) => share <= 1 ? percent(share) : share < MANY_TIMES ? `${share.toFixed(share < 10 ? 1 : 0)} times` : `over ${MANY_TIMES} times`;

// The comparisons of a verdict, each in words, as a share of what is allowed, and in numbers.
function verdictTable(rows) {
  const tone = (row) => row.ok ? 'good' : 'bad';
  const notation = () => numbers(rows.flatMap((row) => [row.max_abs_error, row.allowed]));
  const unlessCompared = (row) => isEmpty(row.max_abs_error) ? { allowed: null, scale: null } : {};
  return table([
    { title: 'engine', key: 'engine' }, { title: 'output', key: 'output' }, { title: 'verdict', key: 'verdict', tone, desk: true }, { title: 'of allowed', key: 'share', format: ofAllowed, number: true, words: true, tone },
    { title: 'inputs', key: 'inputs', wide: true }, { title: 'problem', key: 'problem', wide: true }, { title: 'largest error', key: 'max_abs_error', notation, number: true, desk: true },
    { title: 'allowed', key: 'allowed', notation, number: true, desk: true }, { title: 'largest number', key: 'scale', notation: numbers, number: true, desk: true }, { title: 'rule', key: 'by', desk: true },
  ], rows.map((row) => ({ ...row, ...unlessCompared(row), verdict: row.ok ? 'agrees' : 'differs', share: shareOf(row) })));
}

// The head of every page. cards: [title, value, small text, tone].
function showHead(source, line, cards) {
  byId('source').textContent = source;
  byId('machine').textContent = line;
  const toneOf = (value) => value === 'agrees' ? 'good' : ['failed', 'differs'].includes(value) ? 'bad' : '';
  byId('cards').replaceChildren(...cards.map(([title, value, small, tone]) =>
    make('div', {}, make('dt', {}, cut(title, 80)), make('dd', { class: tone || toneOf(value) }, value, make('small', {}, ...breakable(cut(small, 200)))))));
}

// The names of views stand behind '#view=' in the address: a browser would scroll to an element of that name, past the head.
function startTabs() {
  const sections = [...document.querySelectorAll('main > section')].filter((section) => {
    const view = VIEWS[section.id];
    section.hidden = true;
    return view && (!view.has || view.has());
  });
  const bar = byId('tabs');
  const show = (section, isAsked, focus) => {
    for (const other of sections) {
      other.hidden = other !== section;
      const button = byId(`tab-${other.id}`);
      button.setAttribute('aria-selected', String(other === section));
      button.tabIndex = other === section ? 0 : -1;
      if (other !== section) continue;
      const left = button.offsetLeft - bar.offsetLeft;
      bar.scrollLeft = Math.min(left, Math.max(bar.scrollLeft, left + button.offsetWidth - bar.clientWidth));
      if (isAsked) history.replaceState(null, '', `#view=${section.id}`);
      if (focus) button.focus();
    }
    VIEWS[section.id].draw();
  };
  sections.forEach((section, index) => {
    section.setAttribute('role', 'tabpanel');
    section.setAttribute('aria-labelledby', `tab-${section.id}`);
    const button = make('button', { role: 'tab', id: `tab-${section.id}`, 'aria-controls': section.id, type: 'button' }, section.dataset.title);
    button.addEventListener('click', () => show(section, true));
    button.addEventListener('keydown', (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step) show(sections[(index + step + sections.length) % sections.length], true, true);
    });
    bar.append(button);
  });
  show(sections.find((section) => `#view=${section.id}` === location.hash) || sections[0]);
  const again = () => { const open = sections.find((section) => !section.hidden); if (open) VIEWS[open.id].draw(); };
  dark.addEventListener('change', again);
  let width = window.innerWidth, waiting = 0;
  window.addEventListener('resize', () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(again, 120);
  });
}
