// Command shapes is the function the dialogues of shims/conformance talk to; the twin of shapes.py.
package main

import (
	"io"
	"net/http"
	"strconv"
	"strings"

	"mote/worker"
)

// waiting hands each release to one that waits, whichever goroutine came first.
var waiting = make(chan struct{})

func handle(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/hello":
		io.WriteString(w, "mote")
	case "/none":
		w.WriteHeader(http.StatusNoContent)
	case "/wait":
		<-waiting
		io.WriteString(w, "waited")
	case "/release":
		waiting <- struct{}{}
		io.WriteString(w, "released")
	case "/big":
		io.WriteString(w, strings.Repeat("x", (64+320)<<10))
	case "/echo":
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
		w.Header().Set("X-Seen", strings.Join(r.Header["X-Twice"], ", "))
		w.WriteHeader(http.StatusCreated)
		w.Write(body)
	case "/size":
		body, err := io.ReadAll(r.Body)
		if err == nil {
			io.WriteString(w, strconv.Itoa(len(body)))
		}
	case "/fail":
		panic("boom")
	case "/bad-header":
		w.Header().Set("X-Bad", "a\nb")
	case "/bad-status":
		w.WriteHeader(600)
	case "/hang":
		<-r.Context().Done()
	case "/stream":
		for _, part := range []string{"a", "b"} {
			io.WriteString(w, part)
			w.(http.Flusher).Flush()
		}
	default:
		http.NotFound(w, r)
	}
}

func main() { mote_worker.Serve(handle) }
