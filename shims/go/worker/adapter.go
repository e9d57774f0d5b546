package mote_worker

import (
	"context"
	"net/http"
	"strings"
)

// Adapter is a function behind the types of its platform's packages, which this package does not
// know. Those of shims/go/adapters are built into the program beside it.
type Adapter interface {
	// Load makes the function ready, before the first call, and returns what answers. An error of
	// that is the function's: its text reaches the log and not the caller.
	Load() (func(http.ResponseWriter, *http.Request) error, error)
}

// Levels of lines for Log.
const (
	Debug = 1 + iota
	Info
	Warn
	Error
)

// fromLogger says of a line that it came through a logger, not by way of an output.
const fromLogger = 3

// Log writes a line to the function's log, as one of the call whose context it is. Line feeds in it
// become spaces; what is longer than a line may be is cut.
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
