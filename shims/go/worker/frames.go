// Package mote_worker is the Go worker of mote: it answers the invocations of one function over
// file descriptor 3. It is built into the function's program; docs/reference/worker-protocol.md is
// the contract. It uses only the standard library.
//
// Start reading at Serve in worker.go, then contracts.go, which turns any kind of function into an
// http.Handler. http.go calls that handler, and this file reads and writes the bytes.
package mote_worker

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

const (
	version      = 1
	headerBytes  = 12
	payloadMax   = 1 << 20
	inlineMax    = 64 << 10
	chunkMax     = 64 << 10
	windowBytes  = 256 << 10
	headersMax   = 64 << 10
	messageMax   = 4096
	traceMax     = 16384
	invokeHead   = 40
	resultHead   = 24
	flagEnd      = 1
	exitProtocol = 65
)

const (
	kindHello = 1 + iota
	kindLoad
	kindReady
	kindInvoke
	kindBody
	kindResult
	kindError
	kindCancel
	kindCredit
	kindLog
	kindDrain
	kindRequest
	kindResponse
)

var errProtocol = errors.New("protocol violation")

var little = binary.LittleEndian

// frame is one frame as it arrived. payload is a slice of the bytes that were read.
type frame struct {
	kind    byte
	end     bool
	stream  uint32
	payload []byte
}

// splitFrame splits the first whole frame off data. A size of 0 means that more bytes are needed.
func splitFrame(data []byte) (one frame, size int, err error) {
	if len(data) < headerBytes {
		return one, 0, nil
	}
	length := little.Uint32(data)
	kind, flags := data[4], data[5]
	if length > payloadMax || kind < kindHello || kind > kindResponse || flags > flagEnd || data[6] != 0 || data[7] != 0 {
		return one, 0, fmt.Errorf("%w: frame header %x", errProtocol, data[:headerBytes])
	}
	size = headerBytes + int(length)
	if len(data) < size {
		return one, 0, nil
	}
	one = frame{kind: kind, end: flags == flagEnd, stream: little.Uint32(data[8:]), payload: data[headerBytes:size:size]}
	return one, size, nil
}

// putFrame appends one frame.
func putFrame(out []byte, kind byte, end bool, stream uint32, payload []byte) []byte {
	return append(putHeader(out, kind, end, stream, len(payload)), payload...)
}

func putHeader(out []byte, kind byte, end bool, stream uint32, size int) []byte {
	out = little.AppendUint32(out, uint32(size))
	flags := byte(0)
	if end {
		flags = flagEnd
	}
	out = append(out, kind, flags, 0, 0)
	return little.AppendUint32(out, stream)
}

// invoke is the payload of an INVOKE, split into its parts.
type invoke struct {
	sentNs      uint64
	id          [16]byte
	remainingMs uint32
	trigger     byte
	method      string
	path        string
	query       string
	headers     []byte
	body        []byte
}

func parseInvoke(payload []byte) (one invoke, err error) {
	if len(payload) < invokeHead {
		return one, fmt.Errorf("%w: INVOKE too short", errProtocol)
	}
	one.sentNs = little.Uint64(payload)
	copy(one.id[:], payload[8:24])
	one.remainingMs = little.Uint32(payload[24:])
	one.trigger = payload[28]
	method, path, query := int(payload[29]), int(little.Uint16(payload[30:])), int(little.Uint16(payload[32:]))
	headers := uint64(little.Uint32(payload[36:]))
	if uint64(invokeHead+method+path+query)+headers > uint64(len(payload)) {
		return one, fmt.Errorf("%w: INVOKE lengths pass its end", errProtocol)
	}
	rest := payload[invokeHead:]
	text := string(rest[:method+path+query])
	one.method, one.path, one.query = text[:method], text[method:method+path], text[method+path:]
	rest = rest[method+path+query:]
	one.headers, one.body = rest[:headers], rest[headers:]
	return one, nil
}

// parseHeaders converts a header block to an http.Header.
func parseHeaders(block []byte) http.Header {
	text := string(block)
	lines := strings.Count(text, "\n")
	header := make(http.Header, lines/2)
	values := make([]string, 0, lines/2)
	for len(text) > 0 {
		name, rest, _ := strings.Cut(text, "\n")
		value, after, _ := strings.Cut(rest, "\n")
		text = after
		key := http.CanonicalHeaderKey(name)
		if known, ok := header[key]; ok {
			header[key] = append(known, value)
			continue
		}
		values = append(values, value)
		// All single values share one array. An append to one of them allocates a new one.
		header[key] = values[len(values)-1 : len(values) : len(values)]
	}
	return header
}

// framing contains fields that the front writes itself. A function's own values could contradict
// the bytes that are sent.
var framing = map[string]bool{
	"Connection": true, "Content-Length": true, "Keep-Alive": true, "Proxy-Connection": true, "Te": true,
	"Trailer": true, "Transfer-Encoding": true, "Upgrade": true,
}

// lowered contains the names that answers use most often.
var lowered = map[string]string{
	"Content-Type": "content-type", "Location": "location", "Set-Cookie": "set-cookie", "Cache-Control": "cache-control",
}

// putHeaders appends a checked header block.
func putHeaders(out []byte, header http.Header) ([]byte, error) {
	start := len(out)
	for name, values := range header {
		if framing[name] || framing[http.CanonicalHeaderKey(name)] {
			continue
		}
		lower, known := lowered[name]
		if !known {
			if !isToken(name) {
				return nil, fmt.Errorf("header name %q is not a token", name)
			}
			lower = strings.ToLower(name)
		}
		for _, value := range values {
			if strings.ContainsAny(value, "\r\n\x00") {
				return nil, fmt.Errorf("header %s holds a line break or NUL", lower)
			}
			out = append(append(out, lower...), '\n')
			out = append(append(out, strings.Trim(value, " \t")...), '\n')
		}
	}
	if len(out)-start > headersMax {
		return nil, fmt.Errorf("headers of %d bytes, at most 64 KiB are allowed", len(out)-start)
	}
	return out, nil
}

func isToken(name string) bool {
	for i := 0; i < len(name); i++ {
		c := name[i]
		letter := c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return name != ""
}

const crockford = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

// text shows an invocation's id as the log does.
func idText(id [16]byte) string {
	high, low := binary.BigEndian.Uint64(id[:8]), binary.BigEndian.Uint64(id[8:])
	var text [26]byte
	for i := 25; i >= 0; i-- {
		text[i] = crockford[low&31]
		low = low>>5 | high<<59
		high >>= 5
	}
	return string(text[:])
}
