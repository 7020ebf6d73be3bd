// What is new, as server-sent events. The whole comes again with every new connection.

import { setText, byId } from "./dom.js";

const WAIT_MS = 2000;

export function follow(address, handlers) {
  let source = null;
  let closed = false;

  function show(text, kind) {
    setText("link", text);
    byId("link").className = `link small ${kind}`;
  }

  function open() {
    source = new EventSource(address);
    source.onopen = () => show("live", "soft");
    source.onerror = () => {
      if (closed) return;
      show("no connection, trying again", "warn");
      // A browser tries again by itself unless it was answered with an error.
      if (source.readyState === EventSource.CLOSED) setTimeout(() => closed || open(), WAIT_MS);
    };
    for (const [name, handle] of Object.entries(handlers)) {
      source.addEventListener(name, (event) => handle(JSON.parse(event.data)));
    }
  }

  open();
  return function close(text) {
    closed = true;
    source.close();
    show(text, "soft");
  };
}
