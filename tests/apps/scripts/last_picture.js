// Shows pictures and their previews in turn; what is shown in the end.
async () => {
  const {url} = v.picture, pause = (ms) => new Promise((done) => setTimeout(done, ms));
  const square = document.createElement("canvas");
  square.width = square.height = 64;
  const other = square.toDataURL();
  const wide = {url: other, preview: url, width: 64, height: 64, name: "B"};
  const tall = {url, preview: other, width: 400, height: 600, name: "A"};
  for (let k = 0; k < 8; k++) {
    v.show(k % 2 ? wide : tall, []);
    await pause(k);
  }
  v.show(tall, []);
  await pause(1500);
  const size = v.osd.world.getItemAt(0).getContentSize();
  return [v.osd.world.getItemCount(), size.x, size.y, v.stage.dataset.shown];
}
