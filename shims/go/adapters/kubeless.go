// Package mote_kubeless calls a Go function written for Kubeless: it turns the worker's requests
// into the platform's event and context. It is built into the function's program, against the
// package that the function itself imports.
package mote_kubeless

import (
	"io"
	"net/http"
	"os"

	"github.com/kubeless/kubeless/pkg/functions"
)

// Function is a function of the platform.
type Function struct {
	Handler func(functions.Event, functions.Context) (string, error)
}

// Load finds the function ready.
func (f *Function) Load() (func(http.ResponseWriter, *http.Request) error, error) {
	described := functions.Context{
		FunctionName: os.Getenv("FUNC_HANDLER"), Timeout: os.Getenv("FUNC_TIMEOUT"),
		Runtime: os.Getenv("FUNC_RUNTIME"), MemoryLimit: os.Getenv("FUNC_MEMORY_LIMIT"),
	}
	if described.Timeout == "" {
		described.Timeout = "180"
	}
	return func(w http.ResponseWriter, r *http.Request) error { return f.answer(w, r, described) }, nil
}

func (f *Function) answer(w http.ResponseWriter, r *http.Request, described functions.Context) error {
	w.Header().Set("Access-Control-Allow-Origin", "*")
	if r.Method == http.MethodOptions {
		w.Header().Set("Access-Control-Allow-Methods", "GET, POST, PUT, PATCH, DELETE, OPTIONS")
		w.Header().Set("Access-Control-Allow-Headers", "Content-Type, Authorization")
		w.WriteHeader(http.StatusOK)
		return nil
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	text, err := f.Handler(functions.Event{
		Data: string(body), EventID: r.Header.Get("Event-Id"), EventType: r.Header.Get("Event-Type"),
		EventTime: r.Header.Get("Event-Time"), EventNamespace: r.Header.Get("Event-Namespace"),
		Extensions: functions.Extension{Request: r, Response: w, Context: r.Context()},
	}, described)
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, text)
	return err
}
