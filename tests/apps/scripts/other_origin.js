// What a page of another origin gets of places below a link, each as a path and the options of fetch.
async ([link, places]) => {
  const tried = [];
  for (const mode of ["cors", "no-cors"])
    for (const [place, options] of places)
      tried.push(await fetch(link + place, {mode, ...options}).then(
        async (answer) => answer.type + (await answer.text()), () => "refused"));
  return tried;
}
