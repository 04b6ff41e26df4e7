// Grey levels at the left and the right edge of the picture that is shown.
async () => {
  const image = new Image();
  const told = document.querySelector('#picture .to-show').dataset.shown;
  image.src = JSON.parse(told).picture.url;
  await image.decode();
  const c = document.createElement('canvas');
  [c.width, c.height] = [image.naturalWidth, image.naturalHeight];
  const context = c.getContext('2d');
  context.drawImage(image, 0, 0);
  return [2, c.width - 3].map(x => context.getImageData(x, 30, 1, 1).data[0]);
}
