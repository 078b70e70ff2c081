"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const tip = document.getElementById("tip"), reply = document.getElementById("reply");
const timeline = document.querySelector("svg");
const of = {};
for (const span of reply.children) (of[data.tokens[span.dataset.i].round] ||= []).push(span);

const ms = (ns) => `${(ns / 1e6).toFixed(1)} ms`;
const percent = (p) => `${(100 * p).toFixed(1)} %`;
const quoted = (text) => (text == null ? "(no text kept)" : JSON.stringify(text));

function row(table, cells, chosen) {
  const line = table.insertRow();
  if (chosen) line.className = "chosen";
  for (const cell of cells) line.insertCell().textContent = cell;
}

function block(parent, words) {
  parent.appendChild(document.createElement("div")).textContent = words;
}

function ofToken(token) {
  const box = document.createDocumentFragment();
  block(box, `${quoted(token.text)}: ${token.origin}${token.thinking ? ", thinking" : ""}`);
  block(box, token.round ? `round ${token.round}, at ${ms(token.at)}` : `no round, at ${ms(token.at)}`);
  if (token.confidence != null) block(box, `draft confidence ${percent(token.confidence)}`);
  if (token.logprob != null)
    block(box, `target log-probability ${token.logprob.toFixed(3)} (${percent(Math.exp(token.logprob))})`);
  if (token.top.length) {
    const table = box.appendChild(document.createElement("table"));
    for (const each of token.top) {
      const known = each.logprob != null;
      row(table, [quoted(each.text), known ? each.logprob.toFixed(3) : "", known ? percent(Math.exp(each.logprob)) : ""],
        token.text != null && each.text === token.text);
    }
  }
  return box;
}

function ofRound(round) {
  const box = document.createDocumentFragment();
  block(box, round.round ? `round ${round.round}${round.source ? ", drafted by " + round.source : ""}` : "nothing drafted");
  block(box, `draft ${ms(round.drafting)}, verify ${ms(round.scoring)}, waiting before ${ms(round.waiting)}`);
  if (round.round) block(box, `${round.drafted.length} drafted, ${round.sent} sent, ${round.accepted} accepted, ` +
    `${round.emitted} emitted`);
  if (round.drafted.length) {
    const table = box.appendChild(document.createElement("table"));
    round.drafted.forEach((token, place) => row(table, [quoted(token.text),
      token.confidence == null ? "" : percent(token.confidence),
      place < round.accepted ? "accepted" : place < round.tested ? "rejected" : place < round.sent ? "not tested" : "not sent"]));
  }
  return box;
}

function show(content, near) {
  tip.replaceChildren(content);
  tip.hidden = false;
  const place = near.getBoundingClientRect(), size = tip.getBoundingClientRect();
  const below = place.bottom + 8 + size.height < window.innerHeight;
  tip.style.left = `${Math.max(8, Math.min(place.left, window.innerWidth - size.width - 8))}px`;
  tip.style.top = `${below ? place.bottom + 8 : Math.max(8, place.top - size.height - 8)}px`;
}

function light(number, on) {
  for (const span of (number && of[number]) || []) span.classList.toggle("lit", on);
  if (number && timeline)
    for (const round of timeline.querySelectorAll(`[data-n="${number}"]`)) round.classList.toggle("lit", on);
}

function listen(root, selector, enter) {
  let current = null;
  const leave = () => {
    if (current) light(current.number, false);
    current = null;
    tip.hidden = true;
  };
  const come = (event) => {
    const found = event.target.closest(selector);
    if (!found) return leave();
    if (current && current.element === found) return;
    leave();
    current = { element: found, number: enter(found) };
    light(current.number, true);
  };
  root.addEventListener("mouseover", come);
  root.addEventListener("focusin", come);
  root.addEventListener("mouseleave", leave);
  root.addEventListener("focusout", leave);
}

listen(reply, "span[data-i]", (span) => {
  const token = data.tokens[span.dataset.i];
  show(ofToken(token), span);
  return token.round;
});
if (timeline)
  listen(timeline, "g.round", (group) => {
    const round = data.rounds[group.dataset.i];
    show(ofRound(round), group);
    return round.round;
  });
reply.addEventListener("keydown", (event) => {
  const step = { ArrowRight: "nextElementSibling", ArrowLeft: "previousElementSibling" }[event.key];
  const next = step && document.activeElement[step];
  if (next) next.focus();
});
