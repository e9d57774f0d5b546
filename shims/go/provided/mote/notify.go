package mote

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

const (
	notify         = 3
	publish, asked = 1, 2
	withQuery      = 1
	noticeBodyMax  = 256 << 10
)

// NotifyOptions describe a state. The zero value stands for text.
type NotifyOptions struct {
	// ContentType is the type of the body. The default is text/plain.
	ContentType string
	// MaxAge is how long the state is fresh. 0 leaves the decision to the observers.
	MaxAge time.Duration
}

// Notify sends a resource's new state to its observers, and returns how many there are. With a nil
// body, the node asks the function for the state with GET. The path is as in a request, with its
// leading slash. If the path has a query, only observers with the same query are notified.
func Notify(ctx context.Context, path string, body []byte, options ...NotifyOptions) (int, error) {
	ask, ok := ctx.Value(key).(asker)
	if !ok {
		return 0, errors.New("mote.Notify needs the context of an invocation")
	}
	option, operation, flags := one(options), byte(publish), uint16(0)
	block := ""
	if body == nil {
		operation = asked
	} else {
		if option.ContentType == "" {
			option.ContentType = "text/plain; charset=utf-8"
		}
		block = "content-type\n" + option.ContentType + "\n"
	}
	if strings.ContainsAny(option.ContentType, "\r\n\x00") {
		return 0, &Error{Code: words[invalid], Message: "a header field holds a line break or NUL"}
	}
	if option.MaxAge > 0 {
		block += fmt.Sprintf("cache-control\nmax-age=%d\n", int64(option.MaxAge.Seconds()))
	}
	if len(body) > noticeBodyMax {
		return 0, &Error{Code: words[invalid], Message: "the body of a notice has at most 256 KiB"}
	}
	path, query, found := strings.Cut(path, "?")
	if found {
		flags = withQuery
	}
	if len(path) > partMax || len(query) > partMax {
		return 0, &Error{Code: words[invalid], Message: "the path of a notice is too long"}
	}
	content := little.AppendUint16(make([]byte, 0, 8+len(path)+len(query)+len(block)+len(body)), uint16(len(path)))
	content = little.AppendUint16(content, uint16(len(query)))
	content = little.AppendUint32(content, uint32(len(block)))
	content = append(append(append(append(content, path...), query...), block...), body...)
	status, answer, err := ask(ctx, notify, operation, flags, content)
	if err != nil {
		return 0, err
	}
	if status != done || len(answer) < 4 {
		return 0, refused(status, answer)
	}
	return int(little.Uint32(answer)), nil
}
