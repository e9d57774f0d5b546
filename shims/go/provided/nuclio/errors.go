package nuclio

import (
	"errors"
	"net/http"
)

// WithStatusCode is an error that determines the status of the answer.
type WithStatusCode interface {
	StatusCode() int
}

// ErrorWithStatusCode is an error whose status and text the caller sees.
type ErrorWithStatusCode struct {
	err    error
	status int
}

// Error returns the text, or the usual text for the status.
func (e ErrorWithStatusCode) Error() string {
	if e.err == nil {
		return http.StatusText(e.status)
	}
	return e.err.Error()
}

// GetError returns the error that was wrapped.
func (e *ErrorWithStatusCode) GetError() error { return e.err }

// Unwrap returns the error that was wrapped.
func (e ErrorWithStatusCode) Unwrap() error { return e.err }

// StatusCode is what is answered.
func (e *ErrorWithStatusCode) StatusCode() int { return e.status }

// GetByStatusCode returns a function that makes errors with a status.
func GetByStatusCode(status int) func(string) error {
	return func(text string) error { return &ErrorWithStatusCode{errors.New(text), status} }
}

// GetWrapByStatusCode returns a function that gives errors a status.
func GetWrapByStatusCode(status int) func(error) error {
	return func(err error) error { return &ErrorWithStatusCode{err, status} }
}

// For every status, there are an error, a function that makes such an error from a text, and a
// function that gives an existing error the status.
var (
	ErrAccepted                      = ErrorWithStatusCode{status: http.StatusAccepted}
	ErrAlreadyReported               = ErrorWithStatusCode{status: http.StatusAlreadyReported}
	ErrBadGateway                    = ErrorWithStatusCode{status: http.StatusBadGateway}
	ErrBadRequest                    = ErrorWithStatusCode{status: http.StatusBadRequest}
	ErrConflict                      = ErrorWithStatusCode{status: http.StatusConflict}
	ErrContinue                      = ErrorWithStatusCode{status: http.StatusContinue}
	ErrCreated                       = ErrorWithStatusCode{status: http.StatusCreated}
	ErrEarlyHints                    = ErrorWithStatusCode{status: http.StatusEarlyHints}
	ErrExpectationFailed             = ErrorWithStatusCode{status: http.StatusExpectationFailed}
	ErrFailedDependency              = ErrorWithStatusCode{status: http.StatusFailedDependency}
	ErrForbidden                     = ErrorWithStatusCode{status: http.StatusForbidden}
	ErrFound                         = ErrorWithStatusCode{status: http.StatusFound}
	ErrGatewayTimeout                = ErrorWithStatusCode{status: http.StatusGatewayTimeout}
	ErrGone                          = ErrorWithStatusCode{status: http.StatusGone}
	ErrHTTPVersionNotSupported       = ErrorWithStatusCode{status: http.StatusHTTPVersionNotSupported}
	ErrIMUsed                        = ErrorWithStatusCode{status: http.StatusIMUsed}
	ErrInsufficientStorage           = ErrorWithStatusCode{status: http.StatusInsufficientStorage}
	ErrInternalServerError           = ErrorWithStatusCode{status: http.StatusInternalServerError}
	ErrLengthRequired                = ErrorWithStatusCode{status: http.StatusLengthRequired}
	ErrLocked                        = ErrorWithStatusCode{status: http.StatusLocked}
	ErrLoopDetected                  = ErrorWithStatusCode{status: http.StatusLoopDetected}
	ErrMethodNotAllowed              = ErrorWithStatusCode{status: http.StatusMethodNotAllowed}
	ErrMisdirectedRequest            = ErrorWithStatusCode{status: http.StatusMisdirectedRequest}
	ErrMovedPermanently              = ErrorWithStatusCode{status: http.StatusMovedPermanently}
	ErrMultiStatus                   = ErrorWithStatusCode{status: http.StatusMultiStatus}
	ErrMultipleChoices               = ErrorWithStatusCode{status: http.StatusMultipleChoices}
	ErrNetworkAuthenticationRequired = ErrorWithStatusCode{status: http.StatusNetworkAuthenticationRequired}
	ErrNoContent                     = ErrorWithStatusCode{status: http.StatusNoContent}
	ErrNonAuthoritativeInfo          = ErrorWithStatusCode{status: http.StatusNonAuthoritativeInfo}
	ErrNotAcceptable                 = ErrorWithStatusCode{status: http.StatusNotAcceptable}
	ErrNotExtended                   = ErrorWithStatusCode{status: http.StatusNotExtended}
	ErrNotFound                      = ErrorWithStatusCode{status: http.StatusNotFound}
	ErrNotImplemented                = ErrorWithStatusCode{status: http.StatusNotImplemented}
	ErrNotModified                   = ErrorWithStatusCode{status: http.StatusNotModified}
	ErrPartialContent                = ErrorWithStatusCode{status: http.StatusPartialContent}
	ErrPaymentRequired               = ErrorWithStatusCode{status: http.StatusPaymentRequired}
	ErrPermanentRedirect             = ErrorWithStatusCode{status: http.StatusPermanentRedirect}
	ErrPreconditionFailed            = ErrorWithStatusCode{status: http.StatusPreconditionFailed}
	ErrPreconditionRequired          = ErrorWithStatusCode{status: http.StatusPreconditionRequired}
	ErrProcessing                    = ErrorWithStatusCode{status: http.StatusProcessing}
	ErrProxyAuthRequired             = ErrorWithStatusCode{status: http.StatusProxyAuthRequired}
	ErrRequestEntityTooLarge         = ErrorWithStatusCode{status: http.StatusRequestEntityTooLarge}
	ErrRequestHeaderFieldsTooLarge   = ErrorWithStatusCode{status: http.StatusRequestHeaderFieldsTooLarge}
	ErrRequestTimeout                = ErrorWithStatusCode{status: http.StatusRequestTimeout}
	ErrRequestURITooLong             = ErrorWithStatusCode{status: http.StatusRequestURITooLong}
	ErrRequestedRangeNotSatisfiable  = ErrorWithStatusCode{status: http.StatusRequestedRangeNotSatisfiable}
	ErrResetContent                  = ErrorWithStatusCode{status: http.StatusResetContent}
	ErrSeeOther                      = ErrorWithStatusCode{status: http.StatusSeeOther}
	ErrServiceUnavailable            = ErrorWithStatusCode{status: http.StatusServiceUnavailable}
	ErrSwitchingProtocols            = ErrorWithStatusCode{status: http.StatusSwitchingProtocols}
	ErrTeapot                        = ErrorWithStatusCode{status: http.StatusTeapot}
	ErrTemporaryRedirect             = ErrorWithStatusCode{status: http.StatusTemporaryRedirect}
	ErrTooEarly                      = ErrorWithStatusCode{status: http.StatusTooEarly}
	ErrTooManyRequests               = ErrorWithStatusCode{status: http.StatusTooManyRequests}
	ErrUnauthorized                  = ErrorWithStatusCode{status: http.StatusUnauthorized}
	ErrUnavailableForLegalReasons    = ErrorWithStatusCode{status: http.StatusUnavailableForLegalReasons}
	ErrUnprocessableEntity           = ErrorWithStatusCode{status: http.StatusUnprocessableEntity}
	ErrUnsupportedMediaType          = ErrorWithStatusCode{status: http.StatusUnsupportedMediaType}
	ErrUpgradeRequired               = ErrorWithStatusCode{status: http.StatusUpgradeRequired}
	ErrUseProxy                      = ErrorWithStatusCode{status: http.StatusUseProxy}
	ErrVariantAlsoNegotiates         = ErrorWithStatusCode{status: http.StatusVariantAlsoNegotiates}
)

var (
	NewErrAccepted                      = GetByStatusCode(http.StatusAccepted)
	NewErrAlreadyReported               = GetByStatusCode(http.StatusAlreadyReported)
	NewErrBadGateway                    = GetByStatusCode(http.StatusBadGateway)
	NewErrBadRequest                    = GetByStatusCode(http.StatusBadRequest)
	NewErrConflict                      = GetByStatusCode(http.StatusConflict)
	NewErrContinue                      = GetByStatusCode(http.StatusContinue)
	NewErrCreated                       = GetByStatusCode(http.StatusCreated)
	NewErrEarlyHints                    = GetByStatusCode(http.StatusEarlyHints)
	NewErrExpectationFailed             = GetByStatusCode(http.StatusExpectationFailed)
	NewErrFailedDependency              = GetByStatusCode(http.StatusFailedDependency)
	NewErrForbidden                     = GetByStatusCode(http.StatusForbidden)
	NewErrFound                         = GetByStatusCode(http.StatusFound)
	NewErrGatewayTimeout                = GetByStatusCode(http.StatusGatewayTimeout)
	NewErrGone                          = GetByStatusCode(http.StatusGone)
	NewErrHTTPVersionNotSupported       = GetByStatusCode(http.StatusHTTPVersionNotSupported)
	NewErrIMUsed                        = GetByStatusCode(http.StatusIMUsed)
	NewErrInsufficientStorage           = GetByStatusCode(http.StatusInsufficientStorage)
	NewErrInternalServerError           = GetByStatusCode(http.StatusInternalServerError)
	NewErrLengthRequired                = GetByStatusCode(http.StatusLengthRequired)
	NewErrLocked                        = GetByStatusCode(http.StatusLocked)
	NewErrLoopDetected                  = GetByStatusCode(http.StatusLoopDetected)
	NewErrMethodNotAllowed              = GetByStatusCode(http.StatusMethodNotAllowed)
	NewErrMisdirectedRequest            = GetByStatusCode(http.StatusMisdirectedRequest)
	NewErrMovedPermanently              = GetByStatusCode(http.StatusMovedPermanently)
	NewErrMultiStatus                   = GetByStatusCode(http.StatusMultiStatus)
	NewErrMultipleChoices               = GetByStatusCode(http.StatusMultipleChoices)
	NewErrNetworkAuthenticationRequired = GetByStatusCode(http.StatusNetworkAuthenticationRequired)
	NewErrNoContent                     = GetByStatusCode(http.StatusNoContent)
	NewErrNonAuthoritativeInfo          = GetByStatusCode(http.StatusNonAuthoritativeInfo)
	NewErrNotAcceptable                 = GetByStatusCode(http.StatusNotAcceptable)
	NewErrNotExtended                   = GetByStatusCode(http.StatusNotExtended)
	NewErrNotFound                      = GetByStatusCode(http.StatusNotFound)
	NewErrNotImplemented                = GetByStatusCode(http.StatusNotImplemented)
	NewErrNotModified                   = GetByStatusCode(http.StatusNotModified)
	NewErrPartialContent                = GetByStatusCode(http.StatusPartialContent)
	NewErrPaymentRequired               = GetByStatusCode(http.StatusPaymentRequired)
	NewErrPermanentRedirect             = GetByStatusCode(http.StatusPermanentRedirect)
	NewErrPreconditionFailed            = GetByStatusCode(http.StatusPreconditionFailed)
	NewErrPreconditionRequired          = GetByStatusCode(http.StatusPreconditionRequired)
	NewErrProcessing                    = GetByStatusCode(http.StatusProcessing)
	NewErrProxyAuthRequired             = GetByStatusCode(http.StatusProxyAuthRequired)
	NewErrRequestEntityTooLarge         = GetByStatusCode(http.StatusRequestEntityTooLarge)
	NewErrRequestHeaderFieldsTooLarge   = GetByStatusCode(http.StatusRequestHeaderFieldsTooLarge)
	NewErrRequestTimeout                = GetByStatusCode(http.StatusRequestTimeout)
	NewErrRequestURITooLong             = GetByStatusCode(http.StatusRequestURITooLong)
	NewErrRequestedRangeNotSatisfiable  = GetByStatusCode(http.StatusRequestedRangeNotSatisfiable)
	NewErrResetContent                  = GetByStatusCode(http.StatusResetContent)
	NewErrSeeOther                      = GetByStatusCode(http.StatusSeeOther)
	NewErrServiceUnavailable            = GetByStatusCode(http.StatusServiceUnavailable)
	NewErrSwitchingProtocols            = GetByStatusCode(http.StatusSwitchingProtocols)
	NewErrTeapot                        = GetByStatusCode(http.StatusTeapot)
	NewErrTemporaryRedirect             = GetByStatusCode(http.StatusTemporaryRedirect)
	NewErrTooEarly                      = GetByStatusCode(http.StatusTooEarly)
	NewErrTooManyRequests               = GetByStatusCode(http.StatusTooManyRequests)
	NewErrUnauthorized                  = GetByStatusCode(http.StatusUnauthorized)
	NewErrUnavailableForLegalReasons    = GetByStatusCode(http.StatusUnavailableForLegalReasons)
	NewErrUnprocessableEntity           = GetByStatusCode(http.StatusUnprocessableEntity)
	NewErrUnsupportedMediaType          = GetByStatusCode(http.StatusUnsupportedMediaType)
	NewErrUpgradeRequired               = GetByStatusCode(http.StatusUpgradeRequired)
	NewErrUseProxy                      = GetByStatusCode(http.StatusUseProxy)
	NewErrVariantAlsoNegotiates         = GetByStatusCode(http.StatusVariantAlsoNegotiates)
)

var (
	WrapErrAccepted                      = GetWrapByStatusCode(http.StatusAccepted)
	WrapErrAlreadyReported               = GetWrapByStatusCode(http.StatusAlreadyReported)
	WrapErrBadGateway                    = GetWrapByStatusCode(http.StatusBadGateway)
	WrapErrBadRequest                    = GetWrapByStatusCode(http.StatusBadRequest)
	WrapErrConflict                      = GetWrapByStatusCode(http.StatusConflict)
	WrapErrContinue                      = GetWrapByStatusCode(http.StatusContinue)
	WrapErrCreated                       = GetWrapByStatusCode(http.StatusCreated)
	WrapErrEarlyHints                    = GetWrapByStatusCode(http.StatusEarlyHints)
	WrapErrExpectationFailed             = GetWrapByStatusCode(http.StatusExpectationFailed)
	WrapErrFailedDependency              = GetWrapByStatusCode(http.StatusFailedDependency)
	WrapErrForbidden                     = GetWrapByStatusCode(http.StatusForbidden)
	WrapErrFound                         = GetWrapByStatusCode(http.StatusFound)
	WrapErrGatewayTimeout                = GetWrapByStatusCode(http.StatusGatewayTimeout)
	WrapErrGone                          = GetWrapByStatusCode(http.StatusGone)
	WrapErrHTTPVersionNotSupported       = GetWrapByStatusCode(http.StatusHTTPVersionNotSupported)
	WrapErrIMUsed                        = GetWrapByStatusCode(http.StatusIMUsed)
	WrapErrInsufficientStorage           = GetWrapByStatusCode(http.StatusInsufficientStorage)
	WrapErrInternalServerError           = GetWrapByStatusCode(http.StatusInternalServerError)
	WrapErrLengthRequired                = GetWrapByStatusCode(http.StatusLengthRequired)
	WrapErrLocked                        = GetWrapByStatusCode(http.StatusLocked)
	WrapErrLoopDetected                  = GetWrapByStatusCode(http.StatusLoopDetected)
	WrapErrMethodNotAllowed              = GetWrapByStatusCode(http.StatusMethodNotAllowed)
	WrapErrMisdirectedRequest            = GetWrapByStatusCode(http.StatusMisdirectedRequest)
	WrapErrMovedPermanently              = GetWrapByStatusCode(http.StatusMovedPermanently)
	WrapErrMultiStatus                   = GetWrapByStatusCode(http.StatusMultiStatus)
	WrapErrMultipleChoices               = GetWrapByStatusCode(http.StatusMultipleChoices)
	WrapErrNetworkAuthenticationRequired = GetWrapByStatusCode(http.StatusNetworkAuthenticationRequired)
	WrapErrNoContent                     = GetWrapByStatusCode(http.StatusNoContent)
	WrapErrNonAuthoritativeInfo          = GetWrapByStatusCode(http.StatusNonAuthoritativeInfo)
	WrapErrNotAcceptable                 = GetWrapByStatusCode(http.StatusNotAcceptable)
	WrapErrNotExtended                   = GetWrapByStatusCode(http.StatusNotExtended)
	WrapErrNotFound                      = GetWrapByStatusCode(http.StatusNotFound)
	WrapErrNotImplemented                = GetWrapByStatusCode(http.StatusNotImplemented)
	WrapErrNotModified                   = GetWrapByStatusCode(http.StatusNotModified)
	WrapErrPartialContent                = GetWrapByStatusCode(http.StatusPartialContent)
	WrapErrPaymentRequired               = GetWrapByStatusCode(http.StatusPaymentRequired)
	WrapErrPermanentRedirect             = GetWrapByStatusCode(http.StatusPermanentRedirect)
	WrapErrPreconditionFailed            = GetWrapByStatusCode(http.StatusPreconditionFailed)
	WrapErrPreconditionRequired          = GetWrapByStatusCode(http.StatusPreconditionRequired)
	WrapErrProcessing                    = GetWrapByStatusCode(http.StatusProcessing)
	WrapErrProxyAuthRequired             = GetWrapByStatusCode(http.StatusProxyAuthRequired)
	WrapErrRequestEntityTooLarge         = GetWrapByStatusCode(http.StatusRequestEntityTooLarge)
	WrapErrRequestHeaderFieldsTooLarge   = GetWrapByStatusCode(http.StatusRequestHeaderFieldsTooLarge)
	WrapErrRequestTimeout                = GetWrapByStatusCode(http.StatusRequestTimeout)
	WrapErrRequestURITooLong             = GetWrapByStatusCode(http.StatusRequestURITooLong)
	WrapErrRequestedRangeNotSatisfiable  = GetWrapByStatusCode(http.StatusRequestedRangeNotSatisfiable)
	WrapErrResetContent                  = GetWrapByStatusCode(http.StatusResetContent)
	WrapErrSeeOther                      = GetWrapByStatusCode(http.StatusSeeOther)
	WrapErrServiceUnavailable            = GetWrapByStatusCode(http.StatusServiceUnavailable)
	WrapErrSwitchingProtocols            = GetWrapByStatusCode(http.StatusSwitchingProtocols)
	WrapErrTeapot                        = GetWrapByStatusCode(http.StatusTeapot)
	WrapErrTemporaryRedirect             = GetWrapByStatusCode(http.StatusTemporaryRedirect)
	WrapErrTooEarly                      = GetWrapByStatusCode(http.StatusTooEarly)
	WrapErrTooManyRequests               = GetWrapByStatusCode(http.StatusTooManyRequests)
	WrapErrUnauthorized                  = GetWrapByStatusCode(http.StatusUnauthorized)
	WrapErrUnavailableForLegalReasons    = GetWrapByStatusCode(http.StatusUnavailableForLegalReasons)
	WrapErrUnprocessableEntity           = GetWrapByStatusCode(http.StatusUnprocessableEntity)
	WrapErrUnsupportedMediaType          = GetWrapByStatusCode(http.StatusUnsupportedMediaType)
	WrapErrUpgradeRequired               = GetWrapByStatusCode(http.StatusUpgradeRequired)
	WrapErrUseProxy                      = GetWrapByStatusCode(http.StatusUseProxy)
	WrapErrVariantAlsoNegotiates         = GetWrapByStatusCode(http.StatusVariantAlsoNegotiates)
)
