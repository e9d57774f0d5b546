package mote_worker

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// bind finds out how the function is called. It looks at the function's type and not only at the
// platform named by LOAD, because types say more and cannot be wrong.
func (w *worker) bind(function interface{}) (shape string, err error) {
	if adapter, ok := function.(Adapter); ok {
		return "adapter", w.adapted(adapter)
	}
	switch w.spec.Compat {
	case "tinyfaas":
		call, ok := function.(func(string, map[string]string) (string, error))
		if !ok {
			return "", fmt.Errorf("tinyFaaS calls fn(string, map[string]string) (string, error), this is %T", function)
		}
		w.serve = tinyFaaS(call)
		return "fn", nil
	case "openwhisk":
		call, err := action(function)
		if err != nil {
			return "", err
		}
		w.serve = openWhisk(w.spec, call)
		return "action", nil
	case "knative":
		return w.knative(function)
	}
	handler, err := httpHandler(function)
	if err != nil {
		return "", err
	}
	w.serve = func(c *call) { serveHTTP(c, handler) }
	return "http", nil
}

// httpHandler converts functions with similar signatures to a handler with the usual one.
func httpHandler(function interface{}) (http.HandlerFunc, error) {
	switch call := function.(type) {
	case func(http.ResponseWriter, *http.Request):
		return call, nil
	case func(context.Context, http.ResponseWriter, *http.Request):
		return func(w http.ResponseWriter, r *http.Request) { call(r.Context(), w, r) }, nil
	case http.Handler:
		return call.ServeHTTP, nil
	}
	if call := requestHandler(reflect.ValueOf(function)); call != nil {
		return call, nil
	}
	return nil, fmt.Errorf("the function is %T, and not func(http.ResponseWriter, *http.Request)", function)
}

// requestHandler follows OpenFaaS's template golang-http: the function takes a struct with the
// request's parts and returns one with the answer's. Both types come from a package of the
// function, and are recognised by their fields.
func requestHandler(call reflect.Value) http.HandlerFunc {
	kind := call.Type()
	if kind.Kind() != reflect.Func || kind.NumIn() != 1 || kind.NumOut() != 2 || kind.In(0).Kind() != reflect.Struct || kind.Out(0).Kind() != reflect.Struct {
		return nil
	}
	if _, ok := kind.In(0).FieldByName("QueryString"); !ok {
		return nil
	}
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		in := reflect.New(kind.In(0)).Elem()
		for name, value := range map[string]interface{}{
			"Body": body, "Header": r.Header, "QueryString": r.URL.RawQuery, "Method": r.Method, "Host": r.Host,
		} {
			if field := in.FieldByName(name); field.IsValid() && field.CanSet() && field.Type() == reflect.TypeOf(value) {
				field.Set(reflect.ValueOf(value))
			}
		}
		if method := in.Addr().MethodByName("WithContext"); method.IsValid() && method.Type().NumIn() == 1 {
			method.Call([]reflect.Value{reflect.ValueOf(r.Context())})
		}
		results := call.Call([]reflect.Value{in})
		out := results[0]
		for name, values := range out.FieldByName("Header").Interface().(http.Header) {
			w.Header()[name] = values
		}
		status := int(out.FieldByName("StatusCode").Int())
		text, _ := out.FieldByName("Body").Interface().([]byte)
		if failed, ok := results[1].Interface().(error); ok && failed != nil {
			complain("%v", failed)
			if status == 0 {
				status = http.StatusInternalServerError
			}
		}
		if status != 0 {
			w.WriteHeader(status)
		}
		w.Write(text)
	}
}

// tinyFaaS answers 200 and the text whatever the function did, as the platform does. With
// TINYFAAS_PASS_STATUS=1 in the environment, an error becomes 500.
func tinyFaaS(function func(string, map[string]string) (string, error)) func(*call) {
	failed := http.StatusOK
	if os.Getenv("TINYFAAS_PASS_STATUS") == "1" {
		failed = http.StatusInternalServerError
	}
	plain := http.Header{"Content-Type": {"text/plain; charset=utf-8"}}
	return func(c *call) {
		c.enteredNs = nanotime()
		defer caught(c)
		if c.head.path != "" && c.head.path != "/" {
			c.answer(http.StatusNotFound, nil, nil) // one address there, and nothing below it
			return
		}
		body, err := c.whole()
		if err != nil {
			c.fail("Cancelled", "", "")
			return
		}
		headers := map[string]string{}
		for name, values := range parseHeaders(c.head.headers) {
			headers[name] = values[0]
		}
		text, err := function(string(body), headers)
		if err != nil {
			complain("%v", err)
			c.answer(failed, plain, []byte(err.Error()))
			return
		}
		c.answer(http.StatusOK, plain, []byte(text))
	}
}

// Knative: the function is Handle, or New, which returns an object with a method Handle.

type (
	starter interface {
		Start(context.Context, map[string]string) error
	}
	stopper interface{ Stop(context.Context) error }
	aliver  interface {
		Alive(context.Context) (bool, error)
	}
	readier interface {
		Ready(context.Context) (bool, error)
	}
)

func (w *worker) knative(function interface{}) (string, error) {
	made := reflect.ValueOf(function)
	handle := made
	if made.Kind() == reflect.Func && made.Type().NumIn() == 0 && made.Type().NumOut() == 1 {
		object := made.Call(nil)[0]
		handle = object.MethodByName("Handle")
		if !handle.IsValid() {
			return "", fmt.Errorf("what New returns, %s, has no method Handle", object.Type())
		}
		function = object.Interface()
		if err := w.start(function); err != nil {
			return "", err
		}
	}
	handler, err := httpHandler(handle.Interface())
	shape := "http"
	if err != nil {
		shape = "cloudevents"
		if handler, err = eventHandler(handle); err != nil {
			return "", err
		}
	}
	checks := map[string]func(context.Context) (bool, error){"/health/liveness": nil, "/health/readiness": nil}
	if one, ok := function.(aliver); ok {
		checks["/health/liveness"] = one.Alive
	}
	if one, ok := function.(readier); ok {
		checks["/health/readiness"] = one.Ready
	}
	w.serve = func(c *call) {
		if check, ok := checks[c.head.path]; ok {
			serveHTTP(c, func(w http.ResponseWriter, r *http.Request) { healthy(w, r, check) })
			return
		}
		serveHTTP(c, handler)
	}
	return shape, nil
}

// start calls the object's Start if it has one, and arranges that its Stop is called at the end.
func (w *worker) start(object interface{}) error {
	if one, ok := object.(starter); ok {
		settings := map[string]string{}
		for _, pair := range os.Environ() {
			name, value, _ := strings.Cut(pair, "=")
			settings[name] = value
		}
		if err := one.Start(context.Background(), settings); err != nil {
			return fmt.Errorf("Start: %w", err)
		}
	}
	if one, ok := object.(stopper); ok {
		w.stop = func() {
			within, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			if err := one.Stop(within); err != nil {
				complain("Stop: %v", err)
			}
		}
	}
	return nil
}

func healthy(w http.ResponseWriter, r *http.Request, check func(context.Context) (bool, error)) {
	good, text := true, "OK"
	if check != nil {
		var err error
		if good, err = check(r.Context()); err != nil {
			complain("%s: %v", r.URL.Path, err)
			good = false
		}
		if !good {
			text = "NOT OK"
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}
	io.WriteString(w, text)
}

var (
	contextType = reflect.TypeOf((*context.Context)(nil)).Elem()
	errorType   = reflect.TypeOf((*error)(nil)).Elem()
)

// eventHandler calls a function that handles events. Its arguments are (), (context), (event) or
// (context, event), and it returns nothing, an error, an event or both. The event has the
// function's own type, which is read from and written as JSON. The type of the usual package has
// methods for this.
func eventHandler(call reflect.Value) (http.HandlerFunc, error) {
	refused := fmt.Errorf("%s is no way to handle requests or events", call.Type())
	if call.Kind() != reflect.Func || call.Type().NumIn() > 2 || call.Type().NumOut() > 2 {
		return nil, refused
	}
	kind := call.Type()
	var event reflect.Type
	for at := 0; at < kind.NumIn(); at++ {
		switch one := kind.In(at); {
		case one == contextType && at == 0:
		case at == kind.NumIn()-1:
			event = one
		default:
			return nil, refused
		}
	}
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		text, err := readEvent(r.Header, body)
		var in []reflect.Value
		if err == nil {
			in, err = eventArguments(kind, event, r.Context(), text)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		answerEvent(w, call.Call(in))
	}, nil
}

func eventArguments(kind, event reflect.Type, ctx context.Context, text []byte) ([]reflect.Value, error) {
	var in []reflect.Value
	if kind.NumIn() > 0 && kind.In(0) == contextType {
		in = append(in, reflect.ValueOf(ctx))
	}
	if event == nil {
		return in, nil
	}
	pointed := event.Kind() == reflect.Pointer
	base := event
	if pointed {
		base = event.Elem()
	}
	value := reflect.New(base)
	if err := json.Unmarshal(text, value.Interface()); err != nil {
		return nil, fmt.Errorf("not an event: %w", err)
	}
	if pointed {
		return append(in, value), nil
	}
	return append(in, value.Elem()), nil
}

func answerEvent(w http.ResponseWriter, results []reflect.Value) {
	for _, result := range results {
		if result.Type() == errorType {
			if !result.IsNil() {
				panic(result.Interface())
			}
			continue
		}
		if result.Kind() == reflect.Pointer && result.IsNil() {
			continue
		}
		if result.Kind() != reflect.Pointer {
			pointer := reflect.New(result.Type())
			pointer.Elem().Set(result)
			result = pointer
		}
		text, err := json.Marshal(result.Interface())
		if err != nil {
			panic(err)
		}
		header, body, err := writeEvent(text, strconv.FormatInt(nanotime(), 36))
		if err != nil {
			panic(err)
		}
		for name, values := range header {
			w.Header()[name] = values
		}
		w.Write(body)
		return
	}
	w.WriteHeader(http.StatusOK)
}
