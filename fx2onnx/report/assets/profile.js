'use strict';
// The head of a profile's page. It comes last, and starts the page.
function showHeader() {
  const known = Object.entries(DATA.machine).filter(([name, value]) => value !== '' && !['platform', 'fx2onnx'].includes(name));
  const first = DATA.exports[0];
  const cards = [[first.exporter, time(first.median), first.runs > 1 ? `${time(first.least)} to ${time(first.most)}, ${first.runs} runs` : 'one run']];
  for (const other of DATA.exports.slice(1)) {
    cards.push([other.exporter, other.error ? 'failed' : time(other.median), other.error || `${(other.median / first.median).toFixed(1)} times ${first.exporter}'s`]);
  }
  for (const found of DATA.comparisons) {
    cards.push([`against ${found.before}`, change(found.total), `${time(found.total.before)} then, ${time(found.total.after)} now`, found.total.difference > 0 ? 'bad' : 'good']);
  }
  if (first.grown) cards.push(['peak memory', size(first.grown), 'above the loaded model']);
  cards.push(['nodes', String(first.nodes), first.file_bytes ? `${size(first.file_bytes)} on disk` : 'no file written']);
  if (DATA.verification) cards.push(['verified', DATA.verification.ok ? 'agrees' : 'differs', DATA.verification.summary || counted(DATA.verification.rows.length, 'comparison')]);
  showHead(DATA.source, `${DATA.created.replace('T', ' ').replace('+00:00', ' UTC')} · ${known.map(([name, value]) => `${name} ${shown(value)}`).join(' · ')}`, cards);
}

showHeader();
startTabs();
