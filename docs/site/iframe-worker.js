// Browsers start no worker for a page that is read from a disk. There the worker of the search runs in a hidden frame.
"use strict";

class FrameWorker extends EventTarget {
  constructor(url) {
    super();
    const frame = document.createElement("iframe");
    frame.hidden = true;
    this.inside = new Promise((resolve) => {
      frame.addEventListener("load", () => {
        const inside = frame.contentWindow;
        // What the worker sends; its own window would receive it otherwise.
        inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", {data}));
        const script = inside.document.createElement("script");
        script.addEventListener("load", () => resolve(inside));
        script.src = new URL(url, document.baseURI);
        inside.document.head.append(script);
      }, {once: true});
    });
    frame.srcdoc = "<!doctype html><title>search</title>";
    document.body.append(frame);
  }

  async postMessage(data) {
    const inside = await this.inside;
    inside.dispatchEvent(new inside.MessageEvent("message", {data}));
  }
}

if (location.protocol === "file:") window.Worker = FrameWorker;
