// The cases of the page: filters, order, pages of cards, boxes over pictures. Nothing is requested
// but the page's own parts, and all text goes in as text.
(() => {
  'use strict';
  const byId = id => document.getElementById(id);
  const index = JSON.parse(byId('case-index').textContent);
  const { questions: Q, images } = index;
  const total = Q.id.length, systems = index.systems, CARDS = 10, WIDTH = 400;
  const LINE = 11.5, GLYPH = 6.1, SVG = 'http://www.w3.org/2000/svg';

  const element = (tag, attributes = {}, ...children) => {
    const node = tag.startsWith('svg:') ? document.createElementNS(SVG, tag.slice(4)) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) if (value !== null && value !== false) node.setAttribute(name, value === true ? '' : value);
    node.append(...children.filter(child => child !== null && child !== ''));
    return node;
  };
  const swatch = system => {
    const svg = element('svg:svg', { class: 'swatch', viewBox: '0 0 22 10', 'aria-hidden': 'true' },
      element('svg:line', { class: `line-${system.style}`, x1: 0, y1: 5, x2: 22, y2: 5 }));
    svg.style.setProperty('--c', system.colour);
    return svg;
  };

  // Parts: elements of this page, or scripts beside it that call `cxrjaxPart`.
  const parts = new Map(), waiting = new Map();
  window.cxrjaxPart = (number, content) => waiting.get(number)?.(content);
  const part = number => {
    if (!parts.has(number)) {
      const here = byId(`part-${number}`);
      parts.set(number, here ? Promise.resolve(JSON.parse(here.textContent)) : new Promise((resolve, reject) => {
        waiting.set(number, resolve);
        document.head.append(Object.assign(element('script', { src: `${index.folder}/part-${number}.js` }), {
          onerror: () => reject(new Error(`${index.folder}/part-${number}.js cannot be read: it belongs beside this page`)) }));
      }));
    }
    return parts.get(number);
  };

  // Questions of each image, and where each question stands.
  const of = images.id.map(() => []);
  Q.image.forEach((image, question) => of[image].push(question));
  const numberOf = new Map(Q.id.map((id, question) => [id, question]));

  const form = byId('toolbar'), cards = byId('cards');
  const value = name => form.elements[name]?.value ?? '';
  let shown = [], page = 0, wanted = null, drawing = 0;

  const passes = (code, question, system) => {
    if (code === 'parse') return Q.parse[system][question] !== 0;
    if (code[0] === 'e') return (Q.errors[system][question] & Number(code.slice(1))) !== 0;
    return Q.right[system][question] === code;
  };
  // 0 to 1, the mean of right or wrong and of the boxes' IoU; null where there is neither.
  const goodness = (question, system) => {
    const right = Q.right[system][question], iou = Q.iou[system][question], known = [];
    if (right !== 'u') known.push(right === 'r' ? 1 : 0);
    if (iou >= 0) known.push(iou / 100);
    return known.length ? known.reduce((a, b) => a + b) / known.length : null;
  };

  const select = () => {
    const type = value('type'), subject = value('subject'), words = value('words').trim().toLowerCase();
    const outcomes = systems.map((_, system) => value(`outcome-${system}`));
    const matches = words ? new Set(index.texts.flatMap((text, number) => text.toLowerCase().includes(words) ? [number] : [])) : null;
    const sample = form.elements.sampled?.checked, rank = Number(value('rank') || 0), order = value('order');
    shown = [];
    let count = 0;
    for (let image = 0; image < of.length; image++) {
      if (sample && images.sampled[image] !== '1') continue;
      const inImage = matches && images.id[image].toLowerCase().includes(words);
      const visible = of[image].filter(question =>
        (type === '' || Q.type[question] === Number(type)) &&
        (subject === '' || Q.subjects[question].includes(Number(subject))) &&
        (!matches || inImage || matches.has(Q.text[question]) || Q.id[question].toLowerCase().includes(words)) &&
        outcomes.every((code, system) => code === '' || passes(code, question, system)));
      if (!visible.length) continue;
      const known = systems.length ? visible.map(question => goodness(question, rank)).filter(good => good !== null) : [];
      shown.push({ image, visible: new Set(visible), good: known.length ? known.reduce((a, b) => a + b) / known.length : null });
      count += visible.length;
    }
    if (order !== 'file') {
      const sign = order === 'best' ? -1 : 1;
      shown.sort((a, b) => (a.good === null) - (b.good === null) || sign * (a.good - b.good) || a.image - b.image);
    }
    const many = n => n.toLocaleString('en');
    byId('count').textContent = `${many(shown.length)} images, ${many(count)} of ${many(total)} questions`;
  };

  // Sentences, each with the numbers of the boxes behind it.
  const pieces = (list, node) => {
    let sentence = null, over = true;
    for (const piece of list) {
      const [text, kind] = typeof piece === 'string' ? [piece] : piece;
      for (const words of kind === 'box' ? [text] : text.split(/(?<=[.!?]\s)(?=\S)/)) {
        if (!sentence || (over && kind !== 'box' && /\w/.test(words))) sentence = node.appendChild(element('span', { class: 'sentence', 'data-boxes': '' }));
        sentence.append(!kind ? words : kind === 'box' ? element('span', { class: 'numbered' }, words) : element('mark', { class: kind, title: marks[kind] }, words));
        if (kind === 'box') sentence.dataset.boxes += ` ${words.match(/\d+/g)?.join(' ') ?? ''}`;
        over = kind === 'box' || /[.!?]\s*$/.test(words) || (over && !/\w/.test(words));
      }
    }
    if (!list.length) node.append('–');
    return node;
  };
  // Of a sentence or a box under the pointer: `question/system/number` of each box; all of these are lit.
  const boxesBelow = node => node.dataset.box ? [node.dataset.box] : node.dataset.boxes.split(' ').filter(Boolean)
    .map(number => `${node.closest('tr').dataset.q}/${node.closest('td').dataset.system}/${number}`);
  const light = (card, under, on) => {
    const lit = new Set(under ? boxesBelow(under) : []);
    for (const one of card.querySelectorAll('.sentence, [data-box]')) one.classList.toggle('lit', on && boxesBelow(one).some(key => lit.has(key)));
  };
  const marks = { incorrect: 'differs from the reference', added: 'not in the reference', missing: 'missing from the answer', redundant: 'said before', correct: 'as in the reference' };
  const outcomeNames = { r: ['✓', 'right'], w: ['✗', 'wrong'], u: ['?', 'cannot be decided'], n: ['∅', 'no prediction'] };

  const answerCell = (question, content, system) => {
    const cell = element('td', { 'data-label': systems[system].name, 'data-system': system }, element('span', { class: 'key' }, swatch(systems[system]), ` ${systems[system].name}`));
    const code = Q.right[system][question], [sign, name] = outcomeNames[code], iou = Q.iou[system][question], answer = content.answers[system];
    const line = element('div', { class: 'outcome' });
    if (code !== 'u' || index.judged) line.append(element('span', { class: `sign ${code}`, title: name }, sign, element('span', { class: 'hidden' }, ` ${name}`)));
    for (const [bit, [kind, why]] of Object.entries(index.kinds)) if (bit < 8 && Q.errors[system][question] & bit) line.append(element('span', { class: 'bad', title: why }, kind));
    if (iou >= 0) line.append(element('span', {}, `IoU ${(iou / 100).toFixed(2)}`));
    if (Q.parse[system][question]) line.append(element('span', { class: 'bad' }, index.parses[Q.parse[system][question]].replaceAll('_', ' ')));
    if (answer?.note !== undefined) line.append(element('span', {}, index.notes[answer.note]));
    if (!answer) line.append(element('span', { class: 'bad' }, 'no prediction'));
    if (line.childNodes.length) cell.append(line);
    if (answer) cell.append(pieces(answer.text, element('div', { class: 'said' })));
    return cell;
  };

  const row = (question, content) => {
    const id = Q.id[question], rank = Number(value('rank') || 0);
    const head = element('th', { scope: 'row' },
      element('button', { type: 'button', class: 'ask', 'aria-pressed': 'false' }, index.texts[Q.text[question]] || '(no question)'), ' ',
      element('small', {}, index.types[Q.type[question]], ' ', element('a', { href: `#q=${encodeURIComponent(id)}`, title: `Link to ${id}`, 'aria-label': `Link to question ${id}` }, '#')));
    if (content.choices) head.append(element('ul', { class: 'choices' }, ...content.choices.map(choice => element('li', {}, choice))));
    return element('tr', { 'data-q': question, id: `row-${question}` }, head,
      pieces(content.answers[rank]?.ref ?? content.ref, element('td', { 'data-system': -1 }, element('span', { class: 'key' }, swatch(index.truth), ' reference'))),
      ...systems.map((_, system) => answerCell(question, content, system)));
  };

  // Names of boxes: one after the other, truth first, at the first corner of their box where they fit
  // into the picture and cover no name placed before; not where a box of that name has one already.
  const place = (label, [x0, y0, x1, y1], height, placed) => {
    const length = GLYPH * label.length, spots = [];
    for (const y of [y0 - 4, y1 + 11, y0 + 12, y1 - 5]) for (const x of [x0, x1 - length]) spots.push({ left: x, right: x + length, y });
    return spots.find(s => s.left >= 0 && s.right <= WIDTH && s.y + 2 >= LINE && s.y + 2 <= height &&
      !placed.some(p => p.right > s.left && s.right > p.left && Math.abs(p.y - s.y) < LINE));
  };
  const overlap = (a, b) => {
    const side = i => Math.max(0, Math.min(a[i + 2], b[i + 2]) - Math.max(a[i], b[i]));
    const area = c => (c[2] - c[0]) * (c[3] - c[1]), both = side(0) * side(1);
    return both / (area(a) + area(b) - both || 1);
  };
  const looks = [[-1, index.truth], ...systems.entries()];
  const hidden = () => new Set([...form.querySelectorAll('[name=system]:not(:checked)')].map(box => Number(box.value)));
  // What a system (-1: truth) has on a card's picture, of the question by itself if one is chosen.
  const boxesOf = ({ item, content, node }, system, width, height) => {
    const alone = node.querySelector('.ask[aria-pressed=true]')?.closest('tr').dataset.q, s = width / index.scale, t = height / index.scale;
    return of[item.image].flatMap((question, at) => {
      if (!item.visible.has(question) || (alone !== undefined && Number(alone) !== question)) return [];
      const { boxes } = system < 0 ? content.q[at] : content.q[at].answers[system] ?? { boxes: [] };
      // A question by itself has its boxes numbered, as its answers call them.
      return boxes.map(([x0, y0, x1, y1, label, confidence], number) => ({ label: index.labels[label], confidence, number: alone === undefined ? '' : `${number + 1} `, key: `${question}/${system}/${number + 1}`,
        box: [Math.min(x0, x1) * s, Math.min(y0, y1) * t, Math.max(x0, x1) * s, Math.max(y0, y1) * t] }));
    });
  };
  const draw = card => {
    const { svg, height } = card, off = hidden(), names = form.elements.labels.checked;
    svg.replaceChildren();
    const placed = [], named = [], texts = [], counts = [];
    // Dark edges lie below all boxes, so that no system's hides another's box.
    const edges = svg.appendChild(element('svg:g', { class: 'edges', 'aria-hidden': 'true' }));
    for (const [system, look] of looks) {
      let count = 0;
      if (!off.has(system)) {
        const layer = element('svg:g', { class: `layer line-${look.style}`, 'data-system': look.name });
        layer.style.setProperty('--c', look.colour);
        for (const { box, number, key, ...told } of boxesOf(card, system, WIDTH, height)) {
          const label = `${number}${told.label}`.trim();
          const rect = { x: box[0].toFixed(1), y: box[1].toFixed(1), width: (box[2] - box[0]).toFixed(1), height: (box[3] - box[1]).toFixed(1) };
          edges.append(element('svg:rect', rect));
          layer.append(element('svg:rect', { ...rect, 'data-box': key }, element('svg:title', {}, `${look.name}: ${label}`)));
          count += 1;
          if (!names || !label || named.some(other => other.label === label && overlap(other.box, box) > 0.3)) continue;
          const spot = place(label, box, height, placed);
          if (!spot) continue;
          placed.push(spot); named.push({ label, box });
          const text = element('svg:text', { x: spot.left.toFixed(1), y: spot.y.toFixed(1) }, label);
          text.style.setProperty('--c', look.colour);
          texts.push(text);
        }
        svg.append(layer);
      }
      counts.push(`${look.name} ${count}`);
    }
    // Above all boxes, so that none strikes a name through.
    svg.append(element('svg:g', { class: 'names', 'aria-hidden': 'true' }, ...texts));
    svg.setAttribute('aria-label', `Boxes: ${counts.join(', ')}`);
  };

  // A card's picture in the viewer, with the boxes that the card has; those off on the page are off at first.
  const DASHES = ['', '5 3', '8 4', '3 3'];  // of .line-0 and so on
  const lookAt = ({ item, content, ...card }) => {
    const id = images.id[item.image], off = hidden(), [width, height] = content.size;
    const picture = { url: content.full ?? content.src, preview: content.full ? content.src : '', width, height, name: id };
    RadiographViewer.closely(picture, looks.map(([system, { name, colour, style }]) => ({
      name: system < 0 ? 'truth' : `system-${system}`, title: name, colour, dash: DASHES[style], shown: !off.has(system),
      // Questions about one finding have the same box: it is there once.
      boxes: [...new Map(boxesOf({ item, content, ...card }, system, width, height).map(one => [`${one.box} ${one.label} ${one.confidence}`, one])).values()],
    })), [images.about[item.image], `${width} x ${height} pixels`].filter(Boolean).join(' · '));
  };

  const makeCard = (item, content) => {
    const id = images.id[item.image], height = Math.round(WIDTH * content.size[1] / content.size[0]), boxed = content.q.some(q => q.boxes.length || q.answers.some(a => a?.boxes.length));
    const svg = element('svg:svg', { viewBox: `0 0 ${WIDTH} ${height}`, role: 'img' });
    const pictured = content.src !== null || boxed;
    const frame = element(content.src === null ? 'div' : 'button', { class: 'frame', type: content.src !== null && 'button' }, content.src === null ? '' : element('img', { src: content.src, alt: `Radiograph ${id}`, loading: 'lazy', width: WIDTH, height }), svg);
    if (content.src === null) frame.classList.add('blank');
    const rank = systems[Number(value('rank') || 0)]?.name;
    const body = element('tbody');
    of[item.image].forEach((question, at) => { if (item.visible.has(question)) body.append(row(question, content.q[at])); });
    const heads = [element('th', { scope: 'col' }, 'Question'), element('th', { scope: 'col' }, swatch(index.truth), ' reference'),
      ...systems.map(system => element('th', { scope: 'col' }, swatch(system), ` ${system.name}`))];
    const node = element('article', { class: pictured ? 'card' : 'card plain', 'aria-label': `Radiograph ${id}` },
      pictured ? element('div', { class: 'shot' }, frame) : '',
      element('div', { class: 'talk' }, element('div', {},
        element('header', {}, element('b', {}, id), images.about[item.image] ? element('small', {}, images.about[item.image]) : '',
          item.good === null ? '' : element('small', {}, `${rank}: ${item.good.toFixed(2)}`)),
        element('div', { class: 'answers', role: 'region', tabindex: '0', 'aria-label': `Questions about ${id}` },
          element('table', {}, element('thead', {}, element('tr', {}, ...heads)), body)))));
    const card = { item, content, svg, height, node };
    if (content.src !== null) frame.addEventListener('click', () => lookAt(card));
    node.addEventListener('click', event => {
      const ask = event.target.closest('.ask');
      if (!ask) return;
      const on = ask.getAttribute('aria-pressed') !== 'true';
      for (const other of node.querySelectorAll('.ask')) other.setAttribute('aria-pressed', String(on && other === ask));
      draw(card);
    });
    for (const on of [true, false]) node.addEventListener(on ? 'mouseover' : 'mouseout', event => light(node, event.target.closest('.sentence, [data-box]'), on));
    draw(card);
    return card;
  };

  let current = [];
  const render = async () => {
    const mine = ++drawing, pages = Math.max(1, Math.ceil(shown.length / CARDS));
    page = Math.min(Math.max(page, 0), pages - 1);
    const items = shown.slice(page * CARDS, (page + 1) * CARDS);
    let made;
    try {
      made = await Promise.all(items.map(async item =>
        makeCard(item, (await part(Math.floor(item.image / index.perPart)))[item.image % index.perPart])));
    } catch (error) {
      byId('problem').textContent = error.message;
      byId('problem').hidden = false;
      return;
    }
    if (mine !== drawing) return;  // a later choice overtook this one
    current = made;
    cards.replaceChildren(...made.map(card => card.node));
    byId('nothing').hidden = shown.length > 0;
    for (const pager of document.querySelectorAll('.pager')) {
      pager.hidden = pages === 1;
      pager.querySelector('output').textContent = `page ${page + 1} of ${pages}`;
      pager.querySelector('[value=back]').disabled = page === 0;
      pager.querySelector('[value=on]').disabled = page === pages - 1;
    }
    if (wanted !== null) {
      const found = byId(`row-${wanted}`);
      if (found) {
        found.classList.add('wanted');
        const ask = found.querySelector('.ask');
        if (ask.getAttribute('aria-pressed') !== 'true') ask.click();
        // Below the filters, where these stay in view.
        const filters = byId('filters'), covered = getComputedStyle(filters).position === 'sticky' ? filters.offsetHeight : 0;
        const { top } = found.closest('.card').getBoundingClientRect();
        window.scrollTo({ top: top + window.scrollY - covered - 8, behavior: 'instant' });
        const list = found.closest('.answers');
        list.scrollTop = found.offsetTop - list.querySelector('thead').offsetHeight;
        ask.focus({ preventScroll: true });
      }
      wanted = null;
    }
    document.body.dataset.drawn = String(mine);  // for those who wait for it
  };

  const open = () => {
    if (!location.hash.startsWith('#q=')) return false;
    let id;
    try { id = decodeURIComponent(location.hash.slice(3)); } catch { id = location.hash.slice(3); }
    const question = numberOf.get(id), problem = byId('problem');
    problem.hidden = question !== undefined;
    if (question === undefined) { problem.textContent = `No question ${id} is on this page.`; return false; }
    if (!shown.some(item => item.visible.has(question))) { form.reset(); select(); }
    wanted = question;
    page = Math.floor(shown.findIndex(item => item.image === Q.image[question]) / CARDS);
    render();
    return true;
  };

  const refresh = () => { page = 0; select(); render(); };
  let typing;
  form.addEventListener('change', event => {
    if (['system', 'labels'].includes(event.target.name)) current.forEach(draw);
    else if (event.target.name !== 'words') refresh();  // words are followed as they are typed
  });
  form.addEventListener('input', event => {
    if (event.target.name === 'words') { clearTimeout(typing); typing = setTimeout(refresh, 150); }
  });
  byId('clear').addEventListener('click', () => { form.reset(); refresh(); });
  form.addEventListener('submit', event => { event.preventDefault(); refresh(); });
  for (const pager of document.querySelectorAll('.pager')) pager.addEventListener('click', event => {
    const step = { back: -1, on: 1 }[event.target.value];
    if (!step) return;
    page += step;
    render().then(() => byId('cases').scrollIntoView({ block: 'start', behavior: 'instant' }));
  });
  window.addEventListener('hashchange', open);
  if (matchMedia('(max-width: 760px)').matches) byId('filters').open = false;
  select();
  if (!open()) render();
})();
