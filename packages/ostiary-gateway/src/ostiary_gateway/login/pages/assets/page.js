const texts = document.currentScript.dataset;
document.documentElement.classList.add("scripted");
for (const button of document.querySelectorAll("button[data-copy]")) {
  button.addEventListener("click", async () => {
    const source = document.getElementById(button.dataset.copy);
    const said = document.getElementById(button.dataset.says);
    try {
      await navigator.clipboard.writeText(source.textContent);
      said.textContent = texts.copied;
    } catch {
      getSelection().selectAllChildren(source);
      said.textContent = texts.selected;
    }
  });
}
const language = document.documentElement.lang;
const locale = navigator.languages.find((each) => each.split("-")[0] === language) ?? language;
for (const time of document.querySelectorAll("time[datetime]")) {
  const moment = new Date(time.dateTime);
  time.title = time.textContent;
  time.textContent = moment.toLocaleString(locale, {
    day: "numeric", month: "long", year: "numeric", hour: "2-digit", minute: "2-digit", timeZoneName: "short",
  });
}
for (const form of document.querySelectorAll("form[data-submit]")) {
  form.submit();
}
