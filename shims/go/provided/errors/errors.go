// Package errors has the errors with causes that Nuclio's Go functions import, so that these
// functions build without a download.
package errors

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
)

// ShowLineInfo makes new errors record where they were made.
var ShowLineInfo bool

// Error is a text, with the error that caused it.
type Error struct {
	message string
	cause   error
	file    string
	line    int
}

func made(message string, cause error) error {
	err := &Error{message: message, cause: cause}
	if ShowLineInfo {
		_, err.file, err.line, _ = runtime.Caller(2)
	}
	return err
}

// New returns an error without a cause.
func New(message string) error { return made(message, nil) }

// Errorf returns an error without a cause.
func Errorf(format string, args ...interface{}) error { return made(fmt.Sprintf(format, args...), nil) }

// Wrap returns an error with a cause, or nil if there is no cause.
func Wrap(err error, message string) error {
	if err == nil {
		return nil
	}
	return made(message, err)
}

// Wrapf returns an error with a cause, or nil if there is no cause.
func Wrapf(err error, format string, args ...interface{}) error {
	if err == nil {
		return nil
	}
	return made(fmt.Sprintf(format, args...), err)
}

func (err *Error) Error() string           { return err.message }
func (err *Error) Cause() error            { return err.cause }
func (err *Error) Unwrap() error           { return err.cause }
func (err *Error) LineInfo() (string, int) { return err.file, err.line }

// Format writes the text. With %+v, it also writes the texts of the causes.
func (err *Error) Format(s fmt.State, verb rune) {
	switch {
	case verb == 'q':
		fmt.Fprintf(s, "%q", err.message)
	case verb == 'v' && s.Flag('+'):
		PrintErrorStack(s, err, -1)
	default:
		io.WriteString(s, err.message)
	}
}

// Is reports whether base, or one of its causes, is target.
func Is(base, target error) bool { return errors.Is(base, target) }

// Cause returns the direct cause of this error, or the error itself if it has none.
func Cause(err error) error {
	if known, ok := err.(*Error); ok && known.cause != nil {
		return known.cause
	}
	return err
}

// RootCause returns the first error in the chain of causes.
func RootCause(err error) error {
	for {
		cause := Cause(err)
		if cause == err {
			return err
		}
		err = cause
	}
}

// GetErrorStack returns the error's causes and the error itself, beginning with the root cause. It
// returns at most depth of them, or all if depth is -1.
func GetErrorStack(err error, depth int) []error {
	var stack []error
	for err != nil && (depth < 0 || len(stack) < depth) {
		stack = append([]error{err}, stack...)
		cause := Cause(err)
		if cause == err {
			break
		}
		err = cause
	}
	return stack
}

// GetErrorStackString returns what PrintErrorStack writes.
func GetErrorStackString(err error, depth int) string {
	var text strings.Builder
	PrintErrorStack(&text, err, depth)
	return text.String()
}

// PrintErrorStack writes the error and its causes, one per line.
func PrintErrorStack(out io.Writer, err error, depth int) {
	stack := GetErrorStack(err, depth)
	if len(stack) == 0 {
		return
	}
	fmt.Fprintf(out, "Error - %s\n\nCall stack:\n", stack[0].Error())
	for at := len(stack) - 1; at >= 0; at-- {
		fmt.Fprintln(out, stack[at].Error())
	}
}
