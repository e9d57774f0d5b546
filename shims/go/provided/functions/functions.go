// Package functions has the types that Kubeless passes to a Go function, so that functions that
// import the platform's package build without a download.
package functions

import (
	"context"
	"net/http"
)

// Extension is the HTTP request behind an event.
type Extension struct {
	Request  *http.Request
	Response http.ResponseWriter
	Context  context.Context
}

// Event is the argument of a function.
type Event struct {
	Data           string
	EventID        string
	EventType      string
	EventTime      string
	EventNamespace string
	Extensions     Extension
}

// Context describes the function.
type Context struct {
	FunctionName string
	Timeout      string
	Runtime      string
	MemoryLimit  string
}
