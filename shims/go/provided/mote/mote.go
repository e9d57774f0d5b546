// Package mote lets a Go function use its node's services: the state that the node keeps for the
// function, calls of other functions, notices to observers of its resources, and messages for an
// MQTT broker. Each function takes the context of an invocation, for instance r.Context(). The node
// provides this package, so that functions need no download.
package mote

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"sort"
	"strings"
	"time"
)

// The worker puts a function of this type into the context of each invocation.
type asker = func(ctx context.Context, service, operation byte, flags uint16, content []byte) (byte, []byte, error)

const key = "mote.internal/requests"

const (
	state, functions, messages             = 1, 2, 4
	get, put, remove, list, increment      = 1, 2, 3, 4, 5
	call, accept, send                     = 1, 2, 1
	notDurable, condition, keysOnly        = 1, 2, 4
	done, notFound, conflict, full         = 0, 1, 2, 3
	invalid, denied, unavailable, failed   = 4, 5, 6, 8
	callBodyMax, valueMax, keyMax, partMax = 960 << 10, 1000 << 10, 0xffff, 8 << 10
)

var words = map[byte]string{full: "full", invalid: "invalid", denied: "denied", unavailable: "unavailable", failed: "failed"}

var little = binary.LittleEndian

// Error says why the node did not carry out a request.
type Error struct {
	// Code is full, invalid, denied, unavailable, failed or conflict.
	Code    string
	Message string
	// Version is the entry's version, for a conflict. It is 0 if there is no entry.
	Version uint64
	// Status is the status that a caller over HTTP would get, for a call that failed.
	Status int
}

func (e *Error) Error() string { return e.Message }

func refused(status byte, content []byte) error {
	code, known := words[status]
	if !known {
		code = words[unavailable]
	}
	return &Error{Code: code, Message: string(content)}
}

// Store is a namespace of the state.
type Store struct {
	ctx       context.Context
	namespace string
}

// KV returns the function's state: keys and values that the node keeps.
func KV(ctx context.Context) Store { return Store{ctx: ctx} }

// Shared returns the shared namespace with this name, which the manifest must list in [kv] shared.
func (s Store) Shared(name string) Store { return Store{s.ctx, name} }

// Entry is a value with the version that a change can require.
type Entry struct {
	Key     string
	Value   []byte
	Version uint64
	// Expires is the time at which the entry expires, or zero for never.
	Expires time.Time
}

// PutOptions say how something is written.
type PutOptions struct {
	// TTL is the time after which the entry expires, or 0 for never.
	TTL time.Duration
	// Version is the version that the entry must have: 0 if there must be no entry, nil for any
	// version.
	Version *uint64
	// NotDurable permits a power cut to lose the change.
	NotDurable bool
}

// ListOptions say which entries are listed.
type ListOptions struct {
	// Limit is the maximum number of entries. 0 stands for as many as one listing may have.
	Limit int
	// After is the key after which the listing begins.
	After string
	// KeysOnly leaves out the values.
	KeysOnly bool
}

func (s Store) ask(operation byte, flags uint16, name string, limit uint32, number, ttlMs uint64, rest []byte) (byte, []byte, error) {
	ask, ok := s.ctx.Value(key).(asker)
	if !ok {
		return 0, nil, errors.New("mote.KV needs the context of an invocation")
	}
	if len(name) > keyMax || len(s.namespace) > 0xff || len(rest) > valueMax {
		return 0, nil, &Error{Code: words[invalid], Message: "a key has at most 512 bytes, and a value at most 256 KiB"}
	}
	content := make([]byte, 0, 24+len(s.namespace)+len(name)+len(rest))
	content = append(content, byte(len(s.namespace)), 0)
	content = little.AppendUint16(content, uint16(len(name)))
	content = little.AppendUint32(content, limit)
	content = little.AppendUint64(content, number)
	content = little.AppendUint64(content, ttlMs)
	content = append(append(append(content, s.namespace...), name...), rest...)
	return ask(s.ctx, state, operation, flags, content)
}

func (o PutOptions) parts() (flags uint16, number, ttlMs uint64) {
	if o.NotDurable {
		flags |= notDurable
	}
	if o.Version != nil {
		flags, number = flags|condition, *o.Version
	}
	if o.TTL > 0 {
		ttlMs = uint64(max(o.TTL.Milliseconds(), 1))
	}
	return flags, number, ttlMs
}

// Get returns the entry of a key, or nil if there is none.
func (s Store) Get(name string) (*Entry, error) {
	status, content, err := s.ask(get, 0, name, 0, 0, 0, nil)
	switch {
	case err != nil:
		return nil, err
	case status == notFound:
		return nil, nil
	case status != done:
		return nil, refused(status, content)
	}
	entry := &Entry{Key: name, Value: content[16:], Version: little.Uint64(content)}
	if expires := little.Uint64(content[8:]); expires != 0 {
		entry.Expires = time.UnixMilli(int64(expires))
	}
	return entry, nil
}

func written(status byte, content []byte, err error) (uint64, error) {
	switch {
	case err != nil:
		return 0, err
	case status == done:
		return little.Uint64(content), nil
	case status == conflict:
		version := little.Uint64(content)
		return 0, &Error{Code: "conflict", Message: fmt.Sprintf("the entry has version %d", version), Version: version}
	}
	return 0, refused(status, content)
}

// Put writes a value, and returns its version.
func (s Store) Put(name string, value []byte, options ...PutOptions) (uint64, error) {
	flags, number, ttlMs := one(options).parts()
	return written(s.ask(put, flags, name, 0, number, ttlMs, value))
}

// Delete removes a key, and returns whether it existed.
func (s Store) Delete(name string, options ...PutOptions) (bool, error) {
	flags, number, _ := one(options).parts()
	status, content, err := s.ask(remove, flags, name, 0, number, 0, nil)
	if err == nil && (status == done || status == notFound) {
		return status == done, nil
	}
	_, err = written(status, content, err)
	return false, err
}

// List returns the entries whose keys begin with prefix, in the order of their keys: at most 1,000
// entries and about 512 KiB. Its second result, passed as After, continues the listing. It is empty
// at the end.
func (s Store) List(prefix string, options ...ListOptions) ([]Entry, string, error) {
	option, flags := one(options), uint16(0)
	if option.KeysOnly {
		flags = keysOnly
	}
	status, content, err := s.ask(list, flags, prefix, uint32(max(option.Limit, 0)), 0, 0, []byte(option.After))
	if err != nil {
		return nil, "", err
	}
	if status != done {
		return nil, "", refused(status, content)
	}
	more, entries := content[0] != 0, make([]Entry, 0, little.Uint32(content[4:]))
	for rest := content[8:]; len(rest) > 0; {
		value, name := little.Uint32(rest[8:]), little.Uint32(rest[12:])
		end := 16 + name
		entries = append(entries, Entry{Key: string(rest[16:end]), Value: rest[end : end+value], Version: little.Uint64(rest)})
		rest = rest[end+value:]
	}
	after := ""
	if more {
		after = entries[len(entries)-1].Key
	}
	return entries, after, nil
}

// Increment adds to a whole number, which is 0 if there is no entry, and returns the sum.
func (s Store) Increment(name string, by int64, options ...PutOptions) (int64, error) {
	flags, _, ttlMs := one(options).parts()
	status, content, err := s.ask(increment, flags&notDurable, name, 0, uint64(by), ttlMs, nil)
	if err != nil {
		return 0, err
	}
	if status != done {
		return 0, refused(status, content)
	}
	return int64(little.Uint64(content[8:])), nil
}

func one[T any](options []T) (option T) {
	if len(options) > 0 {
		option = options[0]
	}
	return option
}

// CallOptions describe a call. The zero value is a POST to /.
type CallOptions struct {
	Method, Path, Query string
	Header              http.Header
	// Timeout is the longest time that Call waits. 0 stands for the rest of the caller's own
	// deadline.
	Timeout time.Duration
	// Delay, Key and Order are for CallAsync: how long the call is put off, its idempotency key, and
	// the order key, under which calls run one after another.
	Delay      time.Duration
	Key, Order string
}

// Reply is the answer from a called function.
type Reply struct {
	Status int
	Header http.Header
	Body   []byte
}

// Call calls another function of the node, which the manifest must list in [allow] functions.
func Call(ctx context.Context, name string, body []byte, options ...CallOptions) (*Reply, error) {
	status, content, err := ask(ctx, call, name, body, one(options))
	if err != nil {
		return nil, err
	}
	if status != done {
		return nil, notCalled(status, content)
	}
	end := 8 + little.Uint32(content[4:])
	reply := &Reply{Status: int(little.Uint16(content)), Header: http.Header{}, Body: content[end:]}
	for parts := strings.Split(string(content[8:end]), "\n"); len(parts) > 1; parts = parts[2:] {
		reply.Header.Add(parts[0], parts[1])
	}
	return reply, nil
}

// CallAsync hands a call to the node, which makes it later, and returns its id.
func CallAsync(ctx context.Context, name string, body []byte, options ...CallOptions) (string, error) {
	status, content, err := ask(ctx, accept, name, body, one(options))
	if err != nil {
		return "", err
	}
	if status != done {
		return "", notCalled(status, content)
	}
	return string(content), nil
}

func ask(ctx context.Context, operation byte, name string, body []byte, option CallOptions) (byte, []byte, error) {
	ask, ok := ctx.Value(key).(asker)
	if !ok {
		return 0, nil, errors.New("mote.Call needs the context of an invocation")
	}
	if option.Method == "" {
		option.Method = http.MethodPost
	}
	if option.Path == "" {
		option.Path = "/"
	}
	var block []byte
	if len(body) > 0 && option.Header.Get("Content-Type") == "" {
		block = append(block, "content-type\napplication/octet-stream\n"...)
	}
	fields := make([]string, 0, len(option.Header))
	for field := range option.Header {
		fields = append(fields, field)
	}
	sort.Strings(fields)
	for _, field := range fields {
		for _, value := range option.Header[field] {
			if strings.ContainsAny(field+value, "\r\n\x00") {
				return 0, nil, &Error{Code: words[invalid], Message: "a header field holds a line break or NUL"}
			}
			block = append(append(append(append(block, strings.ToLower(field)...), '\n'), value...), '\n')
		}
	}
	if len(body) > callBodyMax {
		return 0, nil, &Error{Code: words[invalid], Message: "the body of a call has at most 960 KiB"}
	}
	if len(name) > 0xff || len(option.Method) > 0xff || len(option.Path) > partMax || len(option.Query) > partMax ||
		len(option.Key) > partMax || len(option.Order) > partMax {
		return 0, nil, &Error{Code: words[invalid], Message: "the name, the path or another part of the call is too long"}
	}
	timeoutMs, delayMs := uint64(0), uint64(0)
	if option.Timeout > 0 && operation == call {
		timeoutMs = uint64(max(option.Timeout.Milliseconds(), 1))
	}
	if option.Delay > 0 {
		delayMs = uint64(max(option.Delay.Milliseconds(), 1))
	}
	content := little.AppendUint32(make([]byte, 0, 64+len(block)+len(body)), uint32(min(timeoutMs, 0xffffffff)))
	content = append(content, byte(len(name)), byte(len(option.Method)))
	content = little.AppendUint16(content, uint16(len(option.Path)))
	content = little.AppendUint16(content, uint16(len(option.Query)))
	content = little.AppendUint16(content, uint16(len(option.Key)))
	content = little.AppendUint32(content, uint32(len(block)))
	content = little.AppendUint64(content, delayMs)
	content = little.AppendUint16(content, uint16(len(option.Order)))
	content = append(content, 0, 0, 0, 0, 0, 0)
	for _, part := range []string{name, option.Method, option.Path, option.Query, option.Key, option.Order} {
		content = append(content, part...)
	}
	content = append(append(content, block...), body...)
	return ask(ctx, functions, operation, 0, content)
}

func notCalled(status byte, content []byte) error {
	if status == failed && len(content) >= 2 {
		return &Error{Code: words[failed], Message: string(content[2:]), Status: int(little.Uint16(content))}
	}
	return refused(status, content)
}

// PublishOptions say how a message is published. The zero value stands for QoS 1, and a message
// that the broker does not keep.
type PublishOptions struct {
	// QoS is nil for 1.
	QoS *byte
	// Retain makes the broker keep the message for later subscribers.
	Retain                     bool
	ContentType, ResponseTopic string
	Correlation                []byte
	// User are user properties: names and values.
	User [][2]string
}

// Publish publishes a message through the function's MQTT broker. The manifest must list the topic
// in [allow] mqtt. It returns once the broker has the message.
func Publish(ctx context.Context, topic string, body []byte, options ...PublishOptions) error {
	ask, ok := ctx.Value(key).(asker)
	if !ok {
		return errors.New("mote.Publish needs the context of an invocation")
	}
	option, qos, retain := one(options), byte(1), byte(0)
	if option.QoS != nil {
		qos = *option.QoS
	}
	if option.Retain {
		retain = 1
	}
	var user []byte
	for _, pair := range option.User {
		if strings.ContainsAny(pair[0]+pair[1], "\n") {
			return &Error{Code: words[invalid], Message: "a user property holds a line break"}
		}
		user = append(append(append(append(user, pair[0]...), '\n'), pair[1]...), '\n')
	}
	parts := [][]byte{[]byte(topic), []byte(option.ContentType), []byte(option.ResponseTopic), option.Correlation, user}
	content := append(make([]byte, 0, 16+len(topic)+len(user)+len(body)), qos, retain)
	for _, part := range parts {
		if len(part) > keyMax || len(body) > callBodyMax {
			return &Error{Code: words[invalid], Message: "a message has at most 960 KiB, and its topic and properties a few KiB"}
		}
		content = little.AppendUint16(content, uint16(len(part)))
	}
	content = append(content, 0, 0, 0, 0)
	for _, part := range parts {
		content = append(content, part...)
	}
	status, answer, err := ask(ctx, messages, send, 0, append(content, body...))
	if err == nil && status != done {
		err = refused(status, answer)
	}
	return err
}
