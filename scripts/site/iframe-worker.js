// Lets the search work in pages that are opened as files, where browsers refuse workers: what a worker would run,
// runs in a hidden frame. Material's own shim for this would be loaded from another server.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.waiting = []
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const inside = frame.contentWindow
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      inside.importScripts = () => {}
      const script = frame.contentDocument.createElement("script")
      script.src = new URL(url, location.href)
      script.onload = () => {
        this.deliver = data => inside.dispatchEvent(new inside.MessageEvent("message", { data }))
        this.waiting.forEach(this.deliver)
      }
      frame.contentDocument.body.append(script)
    }
    postMessage(data) {
      this.deliver ? this.deliver(data) : this.waiting.push(data)
    }
  }
}
