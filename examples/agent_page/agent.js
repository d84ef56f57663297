const $ = (id) => document.getElementById(id);
let agent = null;   // the id of the agent that is shown
let sources = [];   // its open connections

async function post(path, body = {}) {
  const headers = { "content-type": "application/json" };
  const answer = await fetch(path, { method: "POST", headers, body: JSON.stringify(body) });
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}

async function show(id) {
  close();
  agent = id;
  location.hash = id;   // a reload shows the same agent
  $("agent").hidden = false;
  $("answer").replaceChildren();
  let urls;
  try {
    urls = await (await fetch(`/agents/${id}`)).json();
  } catch {
    return setTimeout(() => agent === id && show(id), 2000);
  }
  listen(id, urls.changes, "change", showChange);
  listen(id, urls.tokens, "item", showToken);
}

function listen(id, url, type, handle) {
  const source = new EventSource(url);
  sources.push(source);
  source.addEventListener(type, (event) => handle(JSON.parse(event.data)));
  source.addEventListener("end", () => source.close());
  source.addEventListener("error", () => {
    // A browser reconnects by itself, unless the server refuses: then the URL has expired, or the database is down.
    if (source.readyState === EventSource.CLOSED && agent === id) setTimeout(() => agent === id && show(id), 2000);
  });
}

function close() {
  for (const source of sources) source.close();
  sources = [];
}

function showChange(change) {
  const hasEnded = ["done", "failed", "cancelled"].includes(change.status);
  $("status").textContent = change.status.replace("_", " ");
  $("status").dataset.status = change.status;
  $("step").textContent = `step ${change.step}`;
  $("cancel").hidden = hasEnded;
  $("approval").hidden = !(change.status === "awaiting_signal" && change.awaits.includes("decision"));
  const progress = hasEnded ? null : change.progress;
  $("progress").hidden = progress === null;
  if (progress !== null) {
    $("bar").max = progress.total ?? 1;
    $("bar").value = progress.done;
    $("message").textContent = progress.message;
  }
}

function showToken(item) {
  // One paragraph per step. A step that runs again begins its paragraph anew.
  let text = $("answer").lastElementChild;
  if (text === null || text.dataset.step !== item.step) {
    text = document.createElement("p");
    text.dataset.step = item.step;
    $("answer").append(text);
  } else if (text.dataset.execution !== String(item.execution)) {
    text.textContent = "";
  }
  text.dataset.execution = item.execution;
  text.textContent += item.value;
}

$("ask").addEventListener("submit", async (event) => {
  event.preventDefault();
  const { id } = await post("/agents", { text: $("question").value });
  show(id);
});
$("approve").addEventListener("click", () => post(`/agents/${agent}/decision`, { approved: true }));
$("reject").addEventListener("click", () => post(`/agents/${agent}/decision`, { approved: false }));
$("cancel").addEventListener("click", () => post(`/agents/${agent}/cancel`));
if (location.hash) show(Number(location.hash.slice(1)));
