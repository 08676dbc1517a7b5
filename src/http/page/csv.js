// Rows as a CSV file. A cell that a spreadsheet would take for a formula begins with an apostrophe.

const COLUMNS = ['tenant', 'run_id', 'state', 'type', 'queue', 'priority', 'round', 'attempt', 'max_attempts', 'enqueued_at', 'started_at', 'ended_at', 'node', 'tags', 'error_kind', 'error'];

export function cell(value) {
  const text = String(value ?? '');
  const harmless = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(harmless) ? `"${harmless.replaceAll('"', '""')}"` : harmless;
}

export function rows(runs) {
  const flat = (run) => ({ ...run, tags: (run.tags ?? []).join(' '), error_kind: run.error?.kind, error: run.error?.message });
  return [COLUMNS.join(','), ...runs.map(flat).map((run) => COLUMNS.map((name) => cell(run[name])).join(','))].join('\r\n');
}

export function download(runs, name = 'runs.csv') {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([`${rows(runs)}\r\n`], { type: 'text/csv' }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
