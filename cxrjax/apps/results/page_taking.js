// Buttons that save a figure as SVG and CSV, and a table as CSV. Nothing is sent anywhere.
(() => {
  'use strict';
  const LOOKS = ['fill', 'stroke', 'stroke-width', 'stroke-dasharray', 'stroke-linejoin', 'stroke-opacity', 'fill-opacity', 'opacity', 'text-anchor', 'font-family', 'font-size', 'font-weight'];
  const save = (name, type, text) => {
    const link = Object.assign(document.createElement('a'), { href: URL.createObjectURL(new Blob([text], { type })), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  const fileName = text => text.trim().replace(/[^\w.-]+/g, '_').slice(0, 80) || 'figure';
  // The page's style does not go with the file: what it makes of each element does.
  const drawing = svg => {
    const copy = svg.cloneNode(true), [, , width, height] = svg.getAttribute('viewBox').split(' ');
    const copies = copy.querySelectorAll('*');
    svg.querySelectorAll('*').forEach((node, at) => {
      const style = getComputedStyle(node);
      for (const look of LOOKS) copies[at].setAttribute(look, style.getPropertyValue(look));
      copies[at].removeAttribute('style');
    });
    const paper = document.createElementNS(copy.namespaceURI, 'rect');
    for (const [key, value] of Object.entries({ width, height, fill: getComputedStyle(svg.parentElement).backgroundColor })) paper.setAttribute(key, value);
    copy.prepend(paper);
    for (const [key, value] of Object.entries({ xmlns: copy.namespaceURI, width: 2 * width, height: 2 * height })) copy.setAttribute(key, value);
    copy.removeAttribute('style');
    return new XMLSerializer().serializeToString(copy);
  };
  const quoted = text => /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  const cellText = cell => [...cell.childNodes].map(node => node.textContent.trim()).filter(Boolean).join(' ').replace(/\s+/g, ' ');
  const values = table => [...table.rows].map(row => [...row.cells].flatMap(cell =>
    [quoted(cellText(cell)), ...Array(cell.colSpan - 1).fill('')]).join(',')).join('\n') + '\n';
  const button = (text, what, act) => {
    const made = Object.assign(document.createElement('button'), { type: 'button', className: 'take', textContent: text });
    made.setAttribute('aria-label', `${text} of ${what}`);
    made.addEventListener('click', act);
    return made;
  };
  const bar = (...buttons) => {
    const made = Object.assign(document.createElement('p'), { className: 'takes' });
    made.append(...buttons);
    return made;
  };
  for (const figure of document.querySelectorAll('figure.curve')) {
    const { name, csv } = figure.dataset, what = figure.querySelector('figcaption').textContent.trim();
    figure.append(bar(
      button('SVG', what, () => save(`${fileName(name)}.svg`, 'image/svg+xml', drawing(figure.querySelector('svg')))),
      button('CSV', what, () => save(`${fileName(name)}.csv`, 'text/csv', csv))));
  }
  for (const scroll of document.querySelectorAll('.scroll:has(> table)')) {
    const what = scroll.getAttribute('aria-label') || document.getElementById(scroll.getAttribute('aria-labelledby'))?.textContent || 'table';
    scroll.after(bar(button('CSV', what, () => save(`${fileName(what)}.csv`, 'text/csv', values(scroll.querySelector('table'))))));
  }
})();
