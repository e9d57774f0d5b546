// Command shapes is the function to which the dialogues of shims/conformance talk. It is the twin
// of shapes.py.
package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"mote/provided/mote"
	"mote/worker"
)

// waiting passes each release to one waiting goroutine, whichever of the two arrives first.
var waiting = make(chan struct{})

func handle(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/hello":
		io.WriteString(w, "mote")
	case "/kv":
		if entry, err := mote.KV(r.Context()).Get("k"); err == nil {
			w.Header().Set("Content-Type", "application/octet-stream")
			w.Write(entry.Value)
		}
	case "/kv-put":
		five := uint64(5)
		options := mote.PutOptions{TTL: time.Minute, Version: &five, NotDurable: true}
		version, _ := mote.KV(r.Context()).Shared("site").Put("key", []byte("value"), options)
		fmt.Fprint(w, version)
	case "/kv-increment":
		sum, _ := mote.KV(r.Context()).Increment("n", -2)
		fmt.Fprint(w, sum)
	case "/notify":
		count, _ := mote.Notify(r.Context(), "/t", []byte("21.5"), mote.NotifyOptions{MaxAge: time.Minute})
		fmt.Fprint(w, count)
	case "/notify-ask":
		if _, err := mote.Notify(r.Context(), "/t?unit=k", nil); err != nil {
			fmt.Fprintf(w, "%s %s", err.(*mote.Error).Code, err)
		}
	case "/call":
		options := mote.CallOptions{Path: "/x", Query: "a=b", Timeout: 250 * time.Millisecond}
		options.Header = http.Header{"Content-Type": {"text/plain; charset=utf-8"}, "X-A": {"1"}}
		reply, err := mote.Call(r.Context(), "other", []byte("body"), options)
		if err == nil {
			fmt.Fprintf(w, "%d %s %s", reply.Status, reply.Header.Get("X-B"), reply.Body)
		}
	case "/publish":
		two := byte(2)
		options := mote.PublishOptions{QoS: &two, Retain: true, ContentType: "text/plain; charset=utf-8"}
		options.ResponseTopic, options.Correlation = "r", []byte("c")
		options.User = [][2]string{{"k", "v"}}
		var refused *mote.Error
		if errors.As(mote.Publish(r.Context(), "a/b", []byte("body"), options), &refused) {
			fmt.Fprintf(w, "%s %s", refused.Code, refused.Message)
		} else {
			io.WriteString(w, "published")
		}
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
