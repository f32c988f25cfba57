// Browsers start no workers for pages that are opened from the disk. There a hidden frame stands in
// for one, so that the search works without a server; elsewhere nothing happens.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.appendChild(frame)
      this.room = frame.contentWindow
      this.room.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const load = source => new Promise((done, failed) => {
        const script = frame.contentDocument.createElement("script")
        script.src = new URL(source, document.baseURI)
        script.onload = done
        script.onerror = failed
        frame.contentDocument.body.appendChild(script)
      })
      this.room.importScripts = (...sources) =>
        sources.reduce((before, source) => before.then(() => load(source)), Promise.resolve())
      this.ready = load(url)
    }

    postMessage(data) {
      this.ready.then(() => this.room.dispatchEvent(new MessageEvent("message", { data })))
    }

    terminate() {
      this.room.frameElement.remove()
    }
  }
  window.Worker = window.IFrameWorker
}
