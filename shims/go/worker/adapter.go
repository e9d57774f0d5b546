package mote_worker

import (
	"context"
	"net/http"
	"strings"
)

// Adapter is a function that uses the types of its platform's packages, which this package does not
// know. The adapters in shims/go/adapters are built into the program next to this package.
type Adapter interface {
	// Load prepares the function before the first call, and returns a function that answers
	// requests. An error of the returned function counts as the function's own: its text reaches
	// the log and not the caller.
	Load() (func(http.ResponseWriter, *http.Request) error, error)
}

// Levels of lines for Log.
const (
	Debug = 1 + iota
	Info
	Warn
	Error
)

// fromLogger marks a line that came through a logger and not through an output.
const fromLogger = 3

// Log writes a line to the function's log, for the call to which the context belongs. Line feeds
// become spaces, and a line that is too long is cut.
func Log(ctx context.Context, level byte, line string) {
	w, stream := running, uint32(0)
	if w == nil {
		return
	}
	if c, ok := ctx.(*invocationContext); ok {
		stream = c.stream
	}
	line = strings.ReplaceAll(line, "\n", " ")
	payload := append([]byte{fromLogger, level}, line[:smaller(len(line), traceMax)]...)
	w.send(putFrame(nil, kindLog, false, stream, payload))
}

// adapted serves by an adapter.
func (w *worker) adapted(adapter Adapter) error {
	answer, err := adapter.Load()
	if err != nil {
		return err
	}
	w.serve = func(c *call) {
		c.enteredNs = nanotime()
		writer := &response{c: c, header: http.Header{}}
		defer caught(c)
		err := answer(writer, c.request())
		switch {
		case err == nil:
			writer.end()
		case !c.ended:
			c.fail("error", err.Error(), "")
		}
	}
	return nil
}
