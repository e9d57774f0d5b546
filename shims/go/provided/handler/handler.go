// Package handler has the types of OpenFaaS' template golang-http, for functions whose module names
// the platform's package: they build without a download.
package handler

import (
	"context"
	"net/http"
)

// Request is what a function is called with.
type Request struct {
	Body        []byte
	Header      http.Header
	QueryString string
	Method      string
	Host        string

	ctx context.Context
}

// Context is cancelled when nobody waits for the answer any more.
func (r *Request) Context() context.Context {
	if r.ctx == nil {
		return context.Background()
	}
	return r.ctx
}

// WithContext sets the context of the request.
func (r *Request) WithContext(ctx context.Context) { r.ctx = ctx }

// Response is what a function answers; a StatusCode of 0 is 200.
type Response struct {
	Body       []byte
	StatusCode int
	Header     http.Header
}

// FunctionHandler is an object that answers requests.
type FunctionHandler interface {
	Handle(req Request) (Response, error)
}
