package mote_worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"
)

// call is one invocation in progress.
type call struct {
	w         *worker
	stream    uint32
	head      invoke
	incoming  *incoming // nil where the whole body came with the head
	ctx       context.Context
	stop      context.CancelFunc
	enteredNs int64

	// The following fields are about the answer. Only the goroutine that does the work reads ended.
	started bool
	ended   bool
	lock    sync.Mutex
	wake    sync.Cond
	window  int
	gone    bool
	over    atomic.Bool
}

func newCall(w *worker, stream uint32, head invoke, whole bool) *call {
	c := &call{w: w, stream: stream, head: head, window: windowBytes}
	c.wake.L = &c.lock
	inner, stop := context.WithCancel(context.Background())
	left := int64(head.sentNs) + int64(head.remainingMs)*1_000_000 - nanotime()
	c.ctx, c.stop = &invocationContext{inner, time.Now().Add(time.Duration(left)), stream, c}, stop
	if !whole {
		c.incoming = newIncoming(c)
	}
	return c
}

// finish ends a call, even if its function returned without ending the answer.
func (c *call) finish() {
	c.over.Store(true)
	c.stop()
	if !c.ended {
		c.fail("BadReply", "the function returned without a complete answer", "")
	}
	if c.incoming != nil {
		c.incoming.close(io.ErrClosedPipe)
	}
}

// cancelled tells the function that nobody waits any longer.
func (c *call) cancelled() {
	c.lock.Lock()
	c.gone = true
	c.wake.Broadcast()
	c.lock.Unlock()
	c.stop()
	if c.incoming != nil {
		c.incoming.close(context.Canceled)
	}
}

func (c *call) isGone() bool {
	c.lock.Lock()
	defer c.lock.Unlock()
	return c.gone
}

func (c *call) credit(size uint32) {
	c.lock.Lock()
	c.window += int(size)
	c.wake.Broadcast()
	c.lock.Unlock()
}

// reader reads the body in parts; whole returns all of it.
func (c *call) reader() io.ReadCloser {
	if c.incoming != nil {
		return c.incoming
	}
	if len(c.head.body) == 0 {
		return http.NoBody
	}
	return io.NopCloser(bytes.NewReader(c.head.body))
}

func (c *call) whole() ([]byte, error) {
	if c.incoming == nil {
		return c.head.body, nil
	}
	return io.ReadAll(c.incoming)
}

func (c *call) fail(kind, message, trace string) {
	if c.isGone() {
		kind, message, trace = "Cancelled", "the caller is gone", ""
	}
	c.ended = true
	c.w.putError(c.stream, kind, message, trace, c.enteredNs)
}

// answer sends a whole answer.
func (c *call) answer(status int, header http.Header, body []byte) {
	c.begin(status, header, body, true)
}

// begin sends RESULT with as much of first as fits. With last, it also sends the rest and the end.
func (c *call) begin(status int, header http.Header, first []byte, last bool) {
	if c.isGone() {
		c.fail("Cancelled", "", "")
		return
	}
	if status < 200 || status > 599 {
		c.fail("BadReply", fmt.Sprintf("status %d is not 200 to 599", status), "")
		return
	}
	inline := first
	if len(inline) > inlineMax {
		inline = inline[:inlineMax]
	}
	whole := last && len(inline) == len(first)
	out := make([]byte, headerBytes+resultHead, headerBytes+resultHead+256+len(inline))
	block, err := putHeaders(out, header)
	if err != nil {
		c.fail("BadReply", err.Error(), "")
		return
	}
	fields := len(block) - headerBytes - resultHead
	block = append(block, inline...)
	putHeader(block[:0], kindResult, whole, c.stream, len(block)-headerBytes)
	head := block[headerBytes:]
	little.PutUint64(head, uint64(c.enteredNs))
	little.PutUint64(head[8:], uint64(nanotime()))
	little.PutUint32(head[16:], uint32(status))
	little.PutUint32(head[20:], uint32(fields))
	c.started, c.ended = true, whole
	c.w.send(block)
	if !whole {
		c.push(first[len(inline):], last)
	}
}

// push sends chunks of a body as the engine's credit allows, and waits for credit. It returns false
// if nobody wants more.
func (c *call) push(body []byte, last bool) bool {
	for len(body) > 0 || last {
		c.lock.Lock()
		for c.window == 0 && !c.gone && len(body) > 0 {
			c.wake.Wait()
		}
		size := smaller(len(body), chunkMax, c.window)
		c.window -= size
		gone := c.gone
		c.lock.Unlock()
		if gone {
			if !c.ended {
				c.fail("Cancelled", "", "")
			}
			return false
		}
		end := last && size == len(body)
		c.w.send(putFrame(nil, kindBody, end, c.stream, body[:size]))
		body = body[size:]
		if end {
			c.ended = true
			return true
		}
	}
	return true
}

// incoming is a body that arrives in chunks.
type incoming struct {
	c      *call
	lock   sync.Mutex
	wake   sync.Cond
	chunks [][]byte
	inline int
	owed   int
	ended  bool
	err    error
}

func newIncoming(c *call) *incoming {
	in := &incoming{c: c, inline: len(c.head.body)}
	in.wake.L = &in.lock
	if in.inline > 0 {
		in.chunks = append(in.chunks, c.head.body)
	}
	return in
}

func (in *incoming) add(chunk []byte, last bool) {
	in.lock.Lock()
	if len(chunk) > 0 {
		in.chunks = append(in.chunks, bytes.Clone(chunk))
	}
	in.ended = in.ended || last
	in.wake.Broadcast()
	in.lock.Unlock()
}

func (in *incoming) close(err error) {
	in.lock.Lock()
	if !in.ended && in.err == nil {
		in.err = err
	}
	in.wake.Broadcast()
	in.lock.Unlock()
}

// Read returns the next bytes, and credits the bytes that were taken, a quarter of the window at a
// time.
func (in *incoming) Read(into []byte) (int, error) {
	in.lock.Lock()
	for len(in.chunks) == 0 && !in.ended && in.err == nil {
		in.wake.Wait()
	}
	if in.err != nil || len(in.chunks) == 0 {
		defer in.lock.Unlock()
		if in.err != nil {
			return 0, in.err
		}
		return 0, io.EOF
	}
	size := copy(into, in.chunks[0])
	in.chunks[0] = in.chunks[0][size:]
	if len(in.chunks[0]) == 0 {
		in.chunks = in.chunks[1:]
	}
	free := smaller(size, in.inline)
	in.inline -= free
	in.owed += size - free
	owed := 0
	if in.owed >= chunkMax && !in.ended {
		owed, in.owed = in.owed, 0
	}
	in.lock.Unlock()
	if owed > 0 {
		in.c.w.send(putFrame(nil, kindCredit, false, in.c.stream, little.AppendUint32(nil, uint32(owed))))
	}
	return size, nil
}

func (in *incoming) Close() error { return nil }

// request makes the call's http.Request.
func (c *call) request() *http.Request {
	header := parseHeaders(c.head.headers)
	target := c.head.path
	if c.head.query != "" {
		target += "?" + c.head.query
	}
	address := &url.URL{Path: c.head.path, RawQuery: c.head.query}
	if strings.IndexByte(c.head.path, '%') >= 0 {
		if parsed, err := url.ParseRequestURI(target); err == nil {
			address = parsed
		}
	}
	length := int64(len(c.head.body))
	if c.incoming != nil {
		length = -1
	}
	host := ""
	if values := header["Host"]; len(values) > 0 {
		host = values[0]
		delete(header, "Host")
	}
	remote := "127.0.0.1:0"
	if values := header["X-Forwarded-For"]; len(values) > 0 {
		first, _, _ := strings.Cut(values[0], ",")
		remote = strings.TrimSpace(first) + ":0"
	}
	request := &http.Request{
		Method: c.head.method, URL: address, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: header,
		Body: c.reader(), ContentLength: length, Host: host, RemoteAddr: remote, RequestURI: target,
	}
	return request.WithContext(c.ctx)
}

// response is the http.ResponseWriter of one call. It holds as much as fits into one frame until
// the end.
type response struct {
	c      *call
	header http.Header
	status int
	held   []byte
}

func (r *response) Header() http.Header { return r.header }

func (r *response) WriteHeader(status int) {
	if r.status == 0 && status >= 200 {
		r.status = status
	}
}

func (r *response) Write(body []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	if !r.c.started && len(r.held)+len(body) <= inlineMax {
		r.held = append(r.held, body...)
		return len(body), nil
	}
	rest := body
	if !r.c.started {
		fits := inlineMax - len(r.held)
		r.held, rest = append(r.held, body[:fits]...), body[fits:]
	}
	if !r.start() || !r.c.push(rest, false) {
		return 0, context.Canceled
	}
	return len(body), nil
}

func (r *response) WriteString(text string) (int, error) { return r.Write([]byte(text)) }

// Flush sends what there is.
func (r *response) Flush() {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	r.start()
}

func (r *response) start() bool {
	if r.c.started {
		return !r.c.ended
	}
	r.typed()
	r.c.begin(r.status, r.header, r.held, false)
	r.held = nil
	return !r.c.ended
}

// typed sets the type of a body that has none, as net/http does.
func (r *response) typed() {
	if len(r.held) == 0 || r.header["Content-Type"] != nil || r.header["Content-Encoding"] != nil {
		return
	}
	kind := "text/plain; charset=utf-8"
	if r.held[0] == '<' || !utf8.Valid(r.held[:smaller(len(r.held), 512)]) {
		kind = http.DetectContentType(r.held)
	}
	r.header["Content-Type"] = []string{kind}
}

func (r *response) end() {
	if r.c.started {
		if !r.c.ended {
			r.c.push(nil, true)
		}
		return
	}
	if r.status == 0 {
		r.status = http.StatusOK
	}
	if r.status == http.StatusNoContent || r.status == http.StatusNotModified {
		r.held = nil
	}
	r.typed()
	r.c.begin(r.status, r.header, r.held, true)
}

// serveHTTP answers a call with handler.
func serveHTTP(c *call, handler http.HandlerFunc) {
	c.enteredNs = nanotime()
	writer := &response{c: c, header: http.Header{}}
	defer caught(c)
	handler(writer, c.request())
	writer.end()
}

// caught turns a panic of the function into an ERROR. The panic's text goes to the log.
func caught(c *call) {
	thrown := recover()
	if thrown == nil || c.ended {
		return
	}
	if err, ok := thrown.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		c.fail("Cancelled", "the function ended the answer", "")
		return
	}
	message := fmt.Sprint(thrown)
	c.fail("panic", message, "panic: "+message+"\n"+stack())
}

// stack returns the stack of a panic, without the frames around the function's own.
func stack() string {
	text := string(debug.Stack())
	if at := strings.Index(text, "\npanic("); at >= 0 {
		text = text[at+1:]
		// The frame of panic itself takes two lines.
		for i := 0; i < 2; i++ {
			_, text, _ = strings.Cut(text, "\n")
		}
	}
	if at := strings.Index(text, "/mote_worker."); at >= 0 {
		text = text[:strings.LastIndexByte(text[:at], '\n')+1]
	}
	return text
}

func smaller(first int, others ...int) int {
	for _, other := range others {
		if other < first {
			first = other
		}
	}
	return first
}

func complain(format string, values ...interface{}) { fmt.Fprintf(os.Stderr, format+"\n", values...) }
