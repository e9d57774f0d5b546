package mote_worker

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

var (
	clockBase  = time.Now()
	clockStart = monotonic()
)

// monotonic asks the kernel for CLOCK_MONOTONIC, the clock of the engine's time stamps.
func monotonic() int64 {
	var now syscall.Timespec
	syscall.Syscall(syscall.SYS_CLOCK_GETTIME, 1, uintptr(unsafe.Pointer(&now)), 0)
	return now.Nano()
}

// nanotime is that clock, read without a system call.
func nanotime() int64 { return clockStart + int64(time.Since(clockBase)) }

// load is the part of LOAD's payload that a program with a single function needs.
type load struct {
	Function    string            `json:"function"`
	Revision    uint64            `json:"revision"`
	CodeDir     string            `json:"code_dir"`
	Concurrency *int              `json:"concurrency"`
	Env         map[string]string `json:"env"`
	Compat      string            `json:"compat"`
	Template    string            `json:"template"`
	Services    []string          `json:"services"`
}

const (
	concurrencyDefault = 64
	readBytes          = 256 << 10
)

// worker holds the connection and the running calls.
type worker struct {
	conn  io.ReadWriter
	spec  *load
	serve func(*call)
	stop  func()
	limit int

	requests *requests

	// state guards the following fields.
	state   sync.Mutex
	running map[uint32]*call
	waiting []*call
	active  int
	drains  bool
	drained chan struct{}

	// sending is true while a goroutine writes. Meanwhile, further frames collect in outgoing.
	output   sync.Mutex
	outgoing []byte
	spare    []byte
	sending  bool
	idle     *sync.Cond
}

// running is the worker of this program, for code that does not know its worker, such as Log.
var running *worker

// Serve answers invocations with function until the engine drains or closes the connection.
// contracts.go lists the kinds of functions.
func Serve(function interface{}) {
	// Reads go through the runtime's poller, so that a goroutine that waits for frames holds no
	// thread.
	syscall.SetNonblock(3, true)
	syscall.CloseOnExec(3)
	conn := os.NewFile(3, "engine")
	w := newWorker(conn)
	running = w
	os.Exit(w.run(function))
}

func newWorker(conn io.ReadWriter) *worker {
	w := &worker{conn: conn, running: map[uint32]*call{}, drained: make(chan struct{}, 1), stop: func() {}}
	w.idle = sync.NewCond(&w.output)
	w.requests = newRequests(w)
	return w
}

// run serves until the worker ends, and returns the exit code.
func (w *worker) run(function interface{}) int {
	hello := little.AppendUint16(nil, version)
	w.send(putFrame(nil, kindHello, false, 0, append(hello, "go/"+runtime.Version()[2:]...)))
	ended := make(chan int, 1)
	go func() { ended <- w.receive(function) }()
	select {
	case code := <-ended:
		return code
	case <-w.drained:
		w.stop()
		w.settle()
		return 0
	}
}

// receive reads frames until the engine closes the connection or violates the protocol.
func (w *worker) receive(function interface{}) int {
	// Bodies and heads refer to parts of the buffer, so a full buffer is left to them and not
	// reused.
	buffer := make([]byte, 0, readBytes)
	at := 0
	for {
		if cap(buffer)-len(buffer) < inlineMax {
			fresh := make([]byte, len(buffer)-at, len(buffer)-at+readBytes)
			copy(fresh, buffer[at:])
			buffer, at = fresh, 0
		}
		got, err := w.conn.Read(buffer[len(buffer):cap(buffer)])
		if got == 0 || err != nil {
			return 0 // the engine is gone, nobody is left to answer to
		}
		buffer = buffer[:len(buffer)+got]
		for {
			one, size, err := splitFrame(buffer[at:])
			if err == nil && size > 0 {
				err = w.handle(one, function)
			}
			if err != nil {
				if err == errLoad {
					w.settle()
					return 1
				}
				fmt.Fprintln(os.Stderr, "mote_worker:", err)
				return exitProtocol
			}
			if size == 0 {
				break
			}
			at += size
		}
	}
}

var errLoad = fmt.Errorf("the function did not load")

func (w *worker) handle(one frame, function interface{}) error {
	if w.spec == nil && one.kind != kindLoad && one.kind != kindDrain {
		return fmt.Errorf("%w: frame kind %d before LOAD", errProtocol, one.kind)
	}
	switch one.kind {
	case kindInvoke:
		return w.invoke(one)
	case kindBody:
		return w.body(one)
	case kindCredit:
		if len(one.payload) != 4 {
			return fmt.Errorf("%w: CREDIT is not 4 bytes", errProtocol)
		}
		if c := w.find(one.stream); c != nil {
			c.credit(little.Uint32(one.payload))
		}
	case kindCancel:
		w.cancel(one.stream)
	case kindResponse:
		return w.requests.file(one)
	case kindDrain:
		w.state.Lock()
		w.drains = true
		w.maybeLeave()
		w.state.Unlock()
	case kindLoad:
		if w.spec != nil {
			return fmt.Errorf("%w: a second LOAD", errProtocol)
		}
		return w.load(one.payload, function)
	default:
		return fmt.Errorf("%w: frame kind %d is not for a worker", errProtocol, one.kind)
	}
	return nil
}

// load prepares the function, and reports that it is ready.
func (w *worker) load(payload []byte, function interface{}) (err error) {
	started := nanotime()
	spec := &load{}
	if err := json.Unmarshal(payload, spec); err != nil {
		return fmt.Errorf("%w: LOAD: %v", errProtocol, err)
	}
	w.spec = spec
	for name, value := range spec.Env {
		os.Setenv(name, value)
	}
	defer func() {
		if thrown := recover(); thrown != nil {
			w.putError(0, "panic", fmt.Sprint(thrown), stack(), 0)
			err = errLoad
		}
	}()
	shape, err := w.bind(function)
	if err != nil {
		w.putError(0, "Load", err.Error(), "", 0)
		return errLoad
	}
	w.limit = concurrencyDefault
	if spec.Concurrency != nil {
		w.limit = *spec.Concurrency
	}
	// HTTP handlers read their body as it arrives. Other functions get the whole body with the
	// call.
	whole := shape == "fn" || shape == "action" || shape == "adapter"
	ready := fmt.Sprintf(`{"init_ns":%d,"concurrency":%d,"shape":%q,"whole_bodies":%t}`, nanotime()-started, w.limit, shape, whole)
	w.send(putFrame(nil, kindReady, false, 0, []byte(ready)))
	return nil
}

// Invocations

func (w *worker) invoke(one frame) error {
	head, err := parseInvoke(one.payload)
	if err != nil {
		return err
	}
	if one.stream == 0 {
		return fmt.Errorf("%w: INVOKE on stream 0", errProtocol)
	}
	c := newCall(w, one.stream, head, one.end)
	w.state.Lock()
	w.running[one.stream] = c
	if w.active >= w.limit {
		w.waiting = append(w.waiting, c)
		w.state.Unlock()
		return nil
	}
	w.active++
	w.state.Unlock()
	go w.work(c)
	return nil
}

// work runs one call, and then calls that wait. There is one goroutine per place.
func (w *worker) work(c *call) {
	for c != nil {
		w.serve(c)
		c.finish()
		w.state.Lock()
		// The end of the call was sent, so the engine may already have reused the number.
		if w.running[c.stream] == c {
			delete(w.running, c.stream)
		}
		c = nil
		if len(w.waiting) > 0 {
			c = w.waiting[0]
			w.waiting = w.waiting[1:]
		} else {
			w.active--
			w.maybeLeave()
		}
		w.state.Unlock()
	}
}

func (w *worker) find(stream uint32) *call {
	w.state.Lock()
	defer w.state.Unlock()
	return w.running[stream]
}

func (w *worker) body(one frame) error {
	if len(one.payload) > chunkMax {
		return fmt.Errorf("%w: BODY above 64 KiB", errProtocol)
	}
	// Without an entry, this frame has crossed our END, and the stream is already over here.
	if c := w.find(one.stream); c != nil && c.incoming != nil {
		c.incoming.add(one.payload, one.end)
	}
	return nil
}

// cancel ends a stream for which nobody waits: at once if its call has not started, otherwise by
// asking the function.
func (w *worker) cancel(stream uint32) {
	w.state.Lock()
	c := w.running[stream]
	for at, one := range w.waiting {
		if one == c {
			w.waiting = append(w.waiting[:at:at], w.waiting[at+1:]...)
			delete(w.running, stream)
			w.state.Unlock()
			w.putError(stream, "Cancelled", "the caller is gone", "", 0)
			return
		}
	}
	w.state.Unlock()
	if c != nil {
		// Shows the engine that the worker still reads, even if the function continues.
		w.send(putFrame(nil, kindCredit, false, stream, make([]byte, 4)))
		c.cancelled()
	}
}

// maybeLeave ends the worker once it drains and nothing runs. Called with the state held.
func (w *worker) maybeLeave() {
	if w.drains && w.active == 0 {
		select {
		case w.drained <- struct{}{}:
		default:
		}
	}
}

// Frames out

// send writes frames. If no goroutine is writing, the caller writes, including frames that others
// add meanwhile.
func (w *worker) send(frames []byte) {
	w.output.Lock()
	w.outgoing = append(w.outgoing, frames...)
	if w.sending {
		w.output.Unlock()
		return
	}
	w.sending = true
	for len(w.outgoing) > 0 {
		out := w.outgoing
		w.outgoing = w.spare[:0]
		w.output.Unlock()
		if _, err := w.conn.Write(out); err != nil {
			os.Exit(1) // the engine is gone
		}
		w.output.Lock()
		w.spare = out
		if cap(out) > 4*chunkMax {
			w.spare = nil
		}
	}
	w.sending = false
	w.idle.Broadcast()
	w.output.Unlock()
}

// settle waits until all sent frames are written.
func (w *worker) settle() {
	w.output.Lock()
	defer w.output.Unlock()
	for w.sending {
		w.idle.Wait()
	}
}

func (w *worker) putError(stream uint32, kind, message, trace string, enteredNs int64) {
	if len(message) > messageMax {
		message = message[:messageMax]
	}
	if len(trace) > traceMax {
		trace = trace[:traceMax]
	}
	returned := int64(0)
	if enteredNs != 0 {
		returned = nanotime()
	}
	payload, _ := json.Marshal(map[string]interface{}{
		"kind": kind, "message": message, "trace": trace, "entered_ns": enteredNs, "returned_ns": returned,
	})
	w.send(putFrame(nil, kindError, true, stream, payload))
}

// invocationContext is a request's context. It is cancelled with its call. It shows the call's
// deadline but has no timer, because the engine cancels the call at the deadline.
type invocationContext struct {
	context.Context
	deadline time.Time
	stream   uint32
	call     *call
}

// Value also finds the function for requests to the node.
func (c *invocationContext) Value(key interface{}) interface{} {
	switch key {
	case triggerKey:
		return c.call.head.trigger
	case requestsKey:
		return c.call.w.requests.ask
	case callKey{}:
		return c.call
	}
	return c.Context.Value(key)
}

func (c *invocationContext) Deadline() (time.Time, bool) { return c.deadline, true }
