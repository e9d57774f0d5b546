// Package mote_nuclio calls a Go function written for Nuclio: it turns the worker's requests into
// the platform's context and events, and turns the function's results into answers. It is built
// into the function's program, against the package that the function itself imports.
package mote_nuclio

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nuclio/logger"
	nuclio "github.com/nuclio/nuclio-sdk-go"

	"mote/worker"
)

type handler = func(*nuclio.Context, nuclio.Event) (interface{}, error)

// Function is a handler, and the function that prepares its contexts, which may be nil.
type Function struct {
	Handler     handler
	InitContext func(*nuclio.Context) error

	// Contexts that no call uses. Each belongs to one call at a time, as it belongs to one worker
	// on the platform.
	lock sync.Mutex
	free []*nuclio.Context
	made int
}

// Load makes the first context, so that a function whose context cannot be made is not deployed.
func (f *Function) Load() (func(http.ResponseWriter, *http.Request) error, error) {
	first, err := f.take()
	if err != nil {
		return nil, err
	}
	f.give(first)
	return f.answer, nil
}

func (f *Function) take() (*nuclio.Context, error) {
	f.lock.Lock()
	if last := len(f.free) - 1; last >= 0 {
		defer f.lock.Unlock()
		one := f.free[last]
		f.free = f.free[:last]
		return one, nil
	}
	one := &nuclio.Context{
		Logger: lines{ctx: context.Background()}, DataBinding: map[string]nuclio.DataBinding{},
		Platform: &nuclio.Platform{}, WorkerID: f.made, FunctionName: os.Getenv("NUCLIO_FUNCTION_NAME"),
		TriggerKind: "http", TriggerName: "default-http",
	}
	f.made++
	f.lock.Unlock()
	if f.InitContext != nil {
		if err := f.InitContext(one); err != nil {
			return nil, fmt.Errorf("InitContext: %w", err)
		}
	}
	return one, nil
}

func (f *Function) give(one *nuclio.Context) {
	f.lock.Lock()
	f.free = append(f.free, one)
	f.lock.Unlock()
}

func (f *Function) answer(w http.ResponseWriter, r *http.Request) error {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	worker, err := f.take()
	if err != nil {
		return err
	}
	defer f.give(worker)
	if _, ours := worker.Logger.(lines); ours {
		worker.Logger = lines{ctx: r.Context()}
	}
	one := &event{request: r, body: body, query: r.URL.Query(), at: time.Now()}
	one.SetID(nuclio.ID(newID()))
	one.SetTriggerInfoProvider(trigger{})
	result, err := f.Handler(worker, one)
	if err != nil {
		return failed(w, err)
	}
	return write(w, result)
}

// failed answers with the status and the text of an error that has a status. Any other error is a
// failure of the function.
func failed(w http.ResponseWriter, err error) error {
	var withStatus interface{ StatusCode() int }
	var plain nuclio.ErrorWithStatusCode
	status := 0
	if errors.As(err, &withStatus) {
		status = withStatus.StatusCode()
	} else if errors.As(err, &plain) {
		status = plain.StatusCode()
	}
	if status < 200 || status > 599 {
		return err
	}
	w.WriteHeader(status)
	io.WriteString(w, err.Error())
	return nil
}

func write(w http.ResponseWriter, result interface{}) error {
	switch one := result.(type) {
	case nil:
	case string:
		io.WriteString(w, one)
	case []byte:
		w.Write(one)
	case nuclio.Response:
		head(w, one.ContentType, one.Headers, one.StatusCode)
		w.Write(one.Body)
	case *nuclio.Response:
		if one != nil {
			return write(w, *one)
		}
	default:
		return writeOther(w, result)
	}
	return nil
}

// writeOther sends JSON, or a stream, which not every version of the package has.
func writeOther(w http.ResponseWriter, result interface{}) error {
	stream, ok := result.(interface {
		GetHeaders() map[string]interface{}
		GetContentType() string
		GetStatusCode() int
		GetBody() interface{}
	})
	if !ok {
		text, err := json.Marshal(result)
		if err != nil {
			return fmt.Errorf("the answer is %T, which is not JSON: %w", result, err)
		}
		w.Header().Set("Content-Type", "application/json")
		w.Write(text)
		return nil
	}
	head(w, stream.GetContentType(), stream.GetHeaders(), stream.GetStatusCode())
	body, ok := stream.GetBody().(io.ReadCloser)
	if !ok {
		return fmt.Errorf("the answer is %T, whose body cannot be read", result)
	}
	defer body.Close()
	part := make([]byte, 32<<10)
	for {
		size, err := body.Read(part)
		if size > 0 {
			if _, gone := w.Write(part[:size]); gone != nil {
				return gone
			}
			w.(http.Flusher).Flush()
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func head(w http.ResponseWriter, kind string, fields map[string]interface{}, status int) {
	for name, value := range fields {
		w.Header().Set(name, text(value))
	}
	if kind != "" {
		w.Header().Set("Content-Type", kind)
	}
	if status != 0 {
		w.WriteHeader(status)
	}
}

func text(value interface{}) string {
	if bytes, ok := value.([]byte); ok {
		return string(bytes)
	}
	return fmt.Sprint(value)
}

// event is a request as the platform's HTTP trigger shows it. For parts that it leaves out, it
// behaves like an event without them.
type event struct {
	nuclio.AbstractEvent
	request *http.Request
	body    []byte
	query   url.Values
	at      time.Time
}

func (e *event) GetBody() []byte            { return e.body }
func (e *event) GetBodyObject() interface{} { return e.body }
func (e *event) GetSize() int               { return len(e.body) }
func (e *event) GetContentType() string     { return e.GetHeaderString("Content-Type") }
func (e *event) GetMethod() string          { return e.request.Method }
func (e *event) GetPath() string            { return e.request.URL.Path }
func (e *event) GetURL() string             { return e.request.URL.String() }
func (e *event) GetTimestamp() time.Time    { return e.at }

func (e *event) GetHeaderString(name string) string {
	if strings.EqualFold(name, "Host") {
		return e.request.Host
	}
	return e.request.Header.Get(name)
}

func (e *event) GetHeader(name string) interface{} { return e.GetHeaderByteSlice(name) }

func (e *event) GetHeaderByteSlice(name string) []byte { return []byte(e.GetHeaderString(name)) }

func (e *event) GetHeaderInt(name string) (int, error) { return strconv.Atoi(e.GetHeaderString(name)) }

func (e *event) GetHeaders() map[string]interface{} {
	fields := map[string]interface{}{"Host": e.request.Host}
	for name, values := range e.request.Header {
		fields[name] = values[0]
	}
	return fields
}

func (e *event) GetFieldString(name string) string { return e.query.Get(name) }

func (e *event) GetField(name string) interface{} {
	if values := e.query[name]; len(values) > 0 {
		return values[0]
	}
	return nil
}

func (e *event) GetFieldByteSlice(name string) []byte { return []byte(e.query.Get(name)) }

func (e *event) GetFieldInt(name string) (int, error) { return strconv.Atoi(e.query.Get(name)) }

func (e *event) GetFields() map[string]interface{} {
	fields := map[string]interface{}{}
	for name, values := range e.query {
		fields[name] = values[0]
	}
	return fields
}

// newID is a random UUID.
func newID() string {
	var bytes [16]byte
	rand.Read(bytes[:])
	bytes[6], bytes[8] = bytes[6]&0x0f|0x40, bytes[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", bytes[:4], bytes[4:6], bytes[6:8], bytes[8:10], bytes[10:])
}

// trigger is the source of all events.
type trigger struct{}

func (trigger) GetClass() string { return "sync" }
func (trigger) GetKind() string  { return "http" }
func (trigger) GetName() string  { return "default-http" }

// lines is the platform's logger. It writes to the function's log, and its lines belong to the call
// of ctx.
type lines struct {
	ctx  context.Context
	name string
}

var _ logger.Logger = lines{}

func (l lines) plain(level byte, format interface{}, vars []interface{}) {
	line := text(format)
	if len(vars) > 0 {
		line = fmt.Sprintf(line, vars...)
	}
	mote_worker.Log(l.ctx, level, l.name+line)
}

// with writes the pairs of names and values as JSON after the text.
func (l lines) with(level byte, format interface{}, vars []interface{}) {
	fields := map[string]interface{}{}
	for at := 0; at+1 < len(vars); at += 2 {
		value := vars[at+1]
		if err, ok := value.(error); ok {
			value = err.Error()
		} else if bytes, ok := value.([]byte); ok {
			value = string(bytes)
		}
		fields[text(vars[at])] = value
	}
	pairs, err := json.Marshal(fields)
	if err != nil {
		pairs = []byte(fmt.Sprint(fields))
	}
	mote_worker.Log(l.ctx, level, fmt.Sprintf("%s%s %s", l.name, text(format), pairs))
}

func (l lines) Error(format interface{}, vars ...interface{}) {
	l.plain(mote_worker.Error, format, vars)
}
func (l lines) Warn(format interface{}, vars ...interface{}) { l.plain(mote_worker.Warn, format, vars) }
func (l lines) Info(format interface{}, vars ...interface{}) { l.plain(mote_worker.Info, format, vars) }
func (l lines) Debug(format interface{}, vars ...interface{}) {
	l.plain(mote_worker.Debug, format, vars)
}

func (l lines) ErrorWith(format interface{}, vars ...interface{}) {
	l.with(mote_worker.Error, format, vars)
}
func (l lines) WarnWith(format interface{}, vars ...interface{}) {
	l.with(mote_worker.Warn, format, vars)
}
func (l lines) InfoWith(format interface{}, vars ...interface{}) {
	l.with(mote_worker.Info, format, vars)
}
func (l lines) DebugWith(format interface{}, vars ...interface{}) {
	l.with(mote_worker.Debug, format, vars)
}

func (l lines) ErrorCtx(_ context.Context, format interface{}, vars ...interface{}) {
	l.Error(format, vars...)
}
func (l lines) WarnCtx(_ context.Context, format interface{}, vars ...interface{}) {
	l.Warn(format, vars...)
}
func (l lines) InfoCtx(_ context.Context, format interface{}, vars ...interface{}) {
	l.Info(format, vars...)
}
func (l lines) DebugCtx(_ context.Context, format interface{}, vars ...interface{}) {
	l.Debug(format, vars...)
}

func (l lines) ErrorWithCtx(_ context.Context, format interface{}, vars ...interface{}) {
	l.ErrorWith(format, vars...)
}
func (l lines) WarnWithCtx(_ context.Context, format interface{}, vars ...interface{}) {
	l.WarnWith(format, vars...)
}
func (l lines) InfoWithCtx(_ context.Context, format interface{}, vars ...interface{}) {
	l.InfoWith(format, vars...)
}
func (l lines) DebugWithCtx(_ context.Context, format interface{}, vars ...interface{}) {
	l.DebugWith(format, vars...)
}

func (l lines) Flush() {}

func (l lines) GetChild(name string) logger.Logger { return lines{l.ctx, l.name + name + ": "} }
