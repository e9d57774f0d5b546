// Package handler has the types of OpenFaaS' template golang-http, so that functions whose module
// names the platform's package build without a download.
package handler

import (
	"context"
	"net/http"
)

// Request is the argument of a function.
type Request struct {
	Body        []byte
	Header      http.Header
	QueryString string
	Method      string
	Host        string

	ctx context.Context
}

// Context returns a context that is cancelled when nobody waits for the answer any longer.
func (r *Request) Context() context.Context {
	if r.ctx == nil {
		return context.Background()
	}
	return r.ctx
}

// WithContext sets the context of the request.
func (r *Request) WithContext(ctx context.Context) { r.ctx = ctx }

// Response is a function's answer. A StatusCode of 0 stands for 200.
type Response struct {
	Body       []byte
	StatusCode int
	Header     http.Header
}

// FunctionHandler is an object that answers requests.
type FunctionHandler interface {
	Handle(req Request) (Response, error)
}
