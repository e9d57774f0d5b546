package mote_worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// A function sends requests to its node through the value that its context has under this key. The
// value is a function of the same type as (*requests).ask. The package mote.internal/mote knows
// what the requests mean, but it cannot import this package, which is part of the function's own
// module.
const requestsKey = "mote.internal/requests"

// Under this key, the context has the cause of the invocation, as the byte in INVOKE.
const triggerKey = "mote.internal/trigger"

const (
	requestsMax     = 256
	requestBytesMax = 4 << 20
	requestHead     = 8
	statusCancelled = 7
)

// requests are the requests of one worker that are in progress.
type requests struct {
	w       *worker
	lock    sync.Mutex
	room    sync.Cond
	next    uint32
	bytes   int
	waiting map[uint32]chan nodeAnswer
}

type nodeAnswer struct {
	status  byte
	content []byte
}

func newRequests(w *worker) *requests {
	r := &requests{w: w, waiting: map[uint32]chan nodeAnswer{}}
	r.room.L = &r.lock
	return r
}

// ask sends a request and waits for its answer, or for the end of the context.
func (r *requests) ask(ctx context.Context, service, operation byte, flags uint16, content []byte) (byte, []byte, error) {
	word := map[byte]string{1: "state", 2: "functions", 3: "notify", 4: "publish"}[service]
	if !r.w.offers(word) {
		return 0, nil, fmt.Errorf("this node offers no %s", word)
	}
	size := requestHead + len(content)
	if size > payloadMax {
		return 0, nil, errors.New("the request is longer than 1 MiB")
	}
	answered := make(chan nodeAnswer, 1)
	r.lock.Lock()
	for len(r.waiting) >= requestsMax || r.bytes+size > requestBytesMax {
		r.room.Wait()
	}
	r.next++
	id := r.next
	r.waiting[id] = answered
	r.bytes += size
	r.lock.Unlock()
	payload := little.AppendUint32(make([]byte, 0, size), id)
	payload = append(payload, service, operation)
	payload = append(little.AppendUint16(payload, flags), content...)
	r.w.sendRequest(ctx, payload)
	var got nodeAnswer
	select {
	case got = <-answered:
	case <-ctx.Done():
		// The node still answers, although nobody waits for the answer.
		go func() { <-answered; r.ended(size) }()
		return 0, nil, ctx.Err()
	}
	r.ended(size)
	if got.status == statusCancelled {
		return 0, nil, context.Canceled
	}
	return got.status, got.content, nil
}

func (r *requests) ended(size int) {
	r.lock.Lock()
	r.bytes -= size
	r.room.Broadcast()
	r.lock.Unlock()
}

// file takes a RESPONSE.
func (r *requests) file(one frame) error {
	if len(one.payload) < requestHead {
		return fmt.Errorf("%w: RESPONSE too short", errProtocol)
	}
	id := little.Uint32(one.payload)
	r.lock.Lock()
	answered, known := r.waiting[id]
	delete(r.waiting, id)
	r.lock.Unlock()
	if !known {
		return fmt.Errorf("%w: RESPONSE to nothing", errProtocol)
	}
	answered <- nodeAnswer{one.payload[4], append([]byte(nil), one.payload[requestHead:]...)}
	return nil
}

func (w *worker) offers(service string) bool {
	for _, word := range w.spec.Services {
		if word == service {
			return true
		}
	}
	return false
}

// sendRequest sends a request for the invocation of the context, or for no invocation if that one
// has ended.
func (w *worker) sendRequest(ctx context.Context, payload []byte) {
	stream := uint32(0)
	if c, ok := ctx.Value(callKey{}).(*call); ok && !c.over.Load() {
		stream = c.stream
	}
	w.send(putFrame(nil, kindRequest, false, stream, payload))
}

// callKey finds the call of a context.
type callKey struct{}
