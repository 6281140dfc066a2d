// Browsers start no worker from a page that was opened as a file. The search of such a copy of the site runs in a hidden
// frame: a script in it finds `postMessage` and `addEventListener` as in a worker.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.title = "search";
      const begin = () => {
        const inside = this.frame.contentWindow;
        inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
        inside.importScripts = () => {};
        const script = inside.document.createElement("script");
        script.src = url;
        script.onload = () => {
          this.inside = inside;
          this.waiting.splice(0).forEach((data) => this.postMessage(data));
        };
        inside.document.head.append(script);
      };
      const attach = () => {
        document.body.append(this.frame);
        begin();
      };
      if (document.body) attach();
      else addEventListener("DOMContentLoaded", attach);
    }
    postMessage(data) {
      if (this.inside) this.inside.dispatchEvent(new MessageEvent("message", { data }));
      else this.waiting.push(data);
    }
    terminate() {
      this.frame.remove();
    }
  };
}
