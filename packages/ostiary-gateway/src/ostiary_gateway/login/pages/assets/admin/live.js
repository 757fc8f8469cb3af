{
  const MOST_ROWS = 200, MOST_WAITING = 200, SAY_EVERY = 10000;
  const live = document.getElementById("live"), texts = live.dataset;
  const state = document.getElementById("live-state"), missedText = document.getElementById("live-missed");
  const button = document.getElementById("live-pause");
  const rows = document.getElementById("decisions"), template = document.getElementById("live-row").content;
  const known = new Set();
  let waiting = [], paused = false, missed = 0, unsaid = 0, ended = false;

  const say = (text) => { if (state.textContent !== text) state.textContent = text; };
  const with_count = (text, count) => text.replace("%", count);

  function show(decision) {
    if (known.has(decision.id)) return;
    known.add(decision.id);
    const row = template.cloneNode(true).querySelector("tr");
    for (const place of row.querySelectorAll("[data-field]")) {
      if (place.dataset.field === "explain") {
        const name = place.dataset.name.replace("%1", () => decision.request).replace("%2", () => decision.user);
        place.href = "/auth/admin/refusals?id=" + encodeURIComponent(decision.id);
        place.setAttribute("aria-label", name);
      } else if (place.dataset.field in decision) place.textContent = decision[place.dataset.field];
      if (place.dataset.field === "outcome") place.className = decision.allowed ? "tag good" : "tag bad";
    }
    row.className = "new";
    rows.prepend(row);
    unsaid += 1;
    while (rows.rows.length > MOST_ROWS) rows.deleteRow(-1);
    if (known.size > 5 * MOST_ROWS) known.delete(known.values().next().value);
  }

  function miss(count) {
    missed += count;
    missedText.textContent = missed ? with_count(texts.missed, missed) : "";
  }

  function tell() {
    if (ended) return;
    if (paused) say(with_count(texts.paused, waiting.length));
    else say(unsaid ? with_count(texts.new, unsaid) : texts.on);
    if (!paused) unsaid = 0;
  }

  function stop(text) {
    ended = true;
    source.close();
    say(text);
    button.hidden = true;
  }

  for (const link of rows.querySelectorAll("a[href*='id=']")) known.add(new URL(link.href).searchParams.get("id"));
  const source = new EventSource(texts.stream);
  source.addEventListener("open", () => say(texts.on));
  source.addEventListener("decision", (event) => {
    const decision = JSON.parse(event.data);
    if (!paused) show(decision);
    else if (waiting.length < MOST_WAITING) { waiting.push(decision); tell(); }
    else miss(1);
  });
  source.addEventListener("missed", (event) => miss(JSON.parse(event.data).count));
  source.addEventListener("full", () => stop(texts.full));
  source.addEventListener("end", () => stop(texts.ended));
  source.addEventListener("error", () => {
    if (source.readyState === EventSource.CLOSED) stop(texts.ended);
    else if (!ended) say(texts.lost);
  });
  button.addEventListener("click", () => {
    paused = !paused;
    button.setAttribute("aria-pressed", String(paused));
    if (!paused) {
      for (const decision of waiting) show(decision);
      waiting = [];
    }
    tell();
  });
  // Not with each row: a screen reader would never stop.
  setInterval(tell, SAY_EVERY);
}
