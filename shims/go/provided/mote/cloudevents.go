package mote

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// The worker's context contains the invocation's trigger under this key.
const triggerKey = "mote.internal/trigger"

const (
	structuredType = "application/cloudevents+json"
	batchType      = "application/cloudevents-batch+json"
	triggerMQTT    = byte(5)
)

// CloudEvent is an event in the sense of CloudEvents 1.0.
type CloudEvent struct {
	ID, Source, Type string
	// SpecVersion is "1.0".
	SpecVersion string
	// These are optional, and empty if they have no value.
	Subject, Time, DataContentType, DataSchema string
	// Extensions are further attributes: string, bool or int32.
	Extensions map[string]any
	// Data is JSON if the type is JSON, text if the type is text, and bytes otherwise. It is nil if
	// there is no data.
	Data []byte
}

// CloudEventError reports a message that claims to be an event but breaks a rule.
type CloudEventError struct{ Message string }

func (e *CloudEventError) Error() string { return "not a CloudEvent: " + e.Message }

func malformed(format string, values ...any) error {
	return &CloudEventError{fmt.Sprintf(format, values...)}
}

var (
	attributeName = regexp.MustCompile(`^[a-z0-9]+$`)
	timestamp     = regexp.MustCompile(`^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])[Tt]([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)$`)
	mediaTypes    = regexp.MustCompile("^[!#$%&'*+\\-.^_`|~0-9A-Za-z]+/[!#$%&'*+\\-.^_`|~0-9A-Za-z]+\\s*(;|$)")
	absolute      = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.\-]*:.`)
	quoted        = regexp.MustCompile(`^"(?:[^"\\]|\\.)*"$`)
	escape        = regexp.MustCompile(`\\(.)`)
)

// ReadCloudEvent returns the event in a request, or nil if the request contains none or a batch. If
// there is an event, it reads the body. The usual answer to a *CloudEventError is http.Error(w,
// err.Error(), 400).
func ReadCloudEvent(r *http.Request) (*CloudEvent, error) {
	isBatch, events, err := received(r)
	if err != nil || isBatch || len(events) == 0 {
		return nil, err
	}
	return &events[0], nil
}

// ReadCloudEvents returns all events in a request: those of a batch, a single one, or none.
func ReadCloudEvents(r *http.Request) ([]CloudEvent, error) {
	_, events, err := received(r)
	return events, err
}

// WriteCloudEvent answers with an event, in binary mode. It fills in the version, the id and the time.
func WriteCloudEvent(w http.ResponseWriter, event CloudEvent) error {
	if event.SpecVersion == "" {
		event.SpecVersion = "1.0"
	}
	if event.ID == "" {
		var id [16]byte
		rand.Read(id[:])
		event.ID = fmt.Sprintf("%x", id)
	}
	if event.Time == "" {
		event.Time = time.Now().UTC().Format(time.RFC3339Nano)
	}
	attributes := map[string]any{}
	for name, value := range event.Extensions {
		if slices.Contains(defined, name) {
			return malformed("%s is not an extension", name)
		}
		attributes[name] = value
	}
	for i, text := range event.texts() {
		if *text != "" {
			attributes[defined[i]] = *text
		}
	}
	if err := checkAttributes(attributes); err != nil {
		return err
	}
	for name, value := range attributes {
		if name != "datacontenttype" {
			w.Header().Set("Ce-"+name, encoded(fmt.Sprint(value)))
		}
	}
	kind := event.DataContentType
	if kind == "" && event.Data != nil {
		kind = "application/octet-stream"
		if json.Valid(event.Data) {
			kind = "application/json"
		}
	}
	if kind != "" {
		w.Header().Set("Content-Type", kind)
	}
	_, err := w.Write(event.Data)
	return err
}

// The attributes that the specification defines; the first four are required.
var defined = []string{"specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema"}

// texts returns the fields of an event in the order of defined.
func (e *CloudEvent) texts() []*string {
	return []*string{&e.SpecVersion, &e.ID, &e.Source, &e.Type, &e.Subject, &e.Time, &e.DataContentType, &e.DataSchema}
}

func eventOf(attributes map[string]any, data []byte) (CloudEvent, error) {
	event := CloudEvent{Data: data}
	if err := checkAttributes(attributes); err != nil {
		return event, err
	}
	for i, text := range event.texts() {
		*text, _ = attributes[defined[i]].(string)
		delete(attributes, defined[i])
	}
	for name, value := range attributes {
		if number, ok := value.(json.Number); ok {
			whole, _ := number.Int64()
			attributes[name] = int32(whole)
		}
	}
	event.Extensions = attributes
	return event, nil
}

func received(r *http.Request) (isBatch bool, events []CloudEvent, err error) {
	isMQTT := r.Context().Value(triggerKey) == triggerMQTT
	kinds := slices.Clone(r.Header["Content-Type"])
	if isMQTT {
		for i, kind := range kinds {
			if kinds[i], err = plain(kind, "content-type"); err != nil {
				return false, nil, err
			}
		}
	}
	kind := ""
	if len(kinds) > 0 {
		kind = mediaType(kinds[0])
	}
	prefix, marks := "Ce-", []string{"Ce-Specversion", "Ce-Id", "Ce-Type", "Ce-Source"}
	if isMQTT {
		prefix, marks = "Mqtt-User-", []string{"Mqtt-User-Specversion"}
	}
	isStructured := strings.HasPrefix(kind, "application/cloudevents")
	if !isStructured && !slices.ContainsFunc(marks, func(name string) bool { return len(r.Header[name]) > 0 }) {
		return false, nil, nil
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return false, nil, err
	}
	var event CloudEvent
	switch {
	case isStructured && len(kinds) > 1:
		return false, nil, malformed("there are two fields content-type")
	case kind == structuredType:
		event, err = fromJSON(body)
	case kind == batchType:
		events, err = batch(body)
		return true, events, err
	case isStructured:
		return false, nil, malformed("the format %s is not known", kind)
	default:
		event, err = fromFields(r.Header, prefix, kinds, body)
	}
	if err != nil {
		return false, nil, err
	}
	return false, []CloudEvent{event}, nil
}

func fromFields(header http.Header, prefix string, kinds []string, body []byte) (event CloudEvent, err error) {
	attributes := map[string]any{}
	if len(kinds) > 1 {
		return event, malformed("the attribute datacontenttype is there twice")
	}
	if len(kinds) == 1 {
		attributes["datacontenttype"] = kinds[0]
	}
	for field, values := range header {
		rest, ok := strings.CutPrefix(field, prefix)
		if !ok {
			continue
		}
		field, name := strings.ToLower(field), strings.ToLower(rest)
		if prefix != "Ce-" && !attributeName.MatchString(name) {
			continue // a user property that is no attribute
		}
		if name == "datacontenttype" {
			return event, malformed("datacontenttype has a field of its own, which is content-type")
		}
		if len(values) > 1 {
			return event, malformed("the attribute %s is there twice", name)
		}
		value := values[0]
		if prefix == "Ce-" && strings.HasPrefix(value, `"`) {
			if !quoted.MatchString(value) {
				return event, malformed("%s has an opening quote without an end", field)
			}
			value = escape.ReplaceAllString(value[1:len(value)-1], "$1")
		}
		if attributes[name], err = plain(value, field); err != nil {
			return event, err
		}
	}
	if len(body) == 0 {
		body = nil
	}
	if event, err = eventOf(attributes, body); err != nil {
		return event, err
	}
	return event, checkData(event)
}

// checkData checks data that came as bytes: JSON must be valid, and text must be UTF-8 unless its
// type says otherwise.
func checkData(event CloudEvent) error {
	kind := event.DataContentType
	isText := isText(kind) && !strings.Contains(strings.ToLower(kind), "charset") && !utf8.Valid(event.Data)
	if event.Data != nil && (isJSON(kind) && !json.Valid(event.Data) || isText) {
		return malformed("the data is not %s", kind)
	}
	return nil
}

func fromJSON(body []byte) (event CloudEvent, err error) {
	var raw map[string]json.RawMessage
	if !json.Valid(bytes.TrimPrefix(body, []byte("\ufeff"))) {
		return event, malformed("the body is not JSON")
	}
	body = bytes.TrimPrefix(body, []byte("\ufeff"))
	if json.Unmarshal(body, &raw) != nil || raw == nil {
		return event, malformed("the event is no JSON object")
	}
	attributes := map[string]any{}
	for name, text := range raw {
		if name == "data" || name == "data_base64" || string(text) == "null" {
			continue
		}
		decoder := json.NewDecoder(bytes.NewReader(text))
		decoder.UseNumber()
		var value any
		if err := decoder.Decode(&value); err != nil {
			return event, malformed("the body is not JSON")
		}
		attributes[name] = value
	}
	if event, err = eventOf(attributes, nil); err != nil {
		return event, err
	}
	data, hasData := raw["data"]
	if coded, ok := raw["data_base64"]; ok && string(coded) != "null" {
		if hasData {
			return event, malformed("the event has both data and data_base64")
		}
		var text string
		if json.Unmarshal(coded, &text) == nil {
			event.Data, err = base64.StdEncoding.DecodeString(text)
		} else {
			err = errors.New("not a text")
		}
		if err != nil || strings.ContainsAny(text, "\r\n") {
			return event, malformed("data_base64 is not base64")
		}
		return event, checkData(event)
	}
	if hasData && string(data) != "null" {
		event.Data = data
		var text string
		if event.DataContentType != "" && !isJSON(event.DataContentType) && json.Unmarshal(data, &text) == nil {
			event.Data = []byte(text)
		}
	}
	return event, nil
}

func batch(body []byte) ([]CloudEvent, error) {
	var all []json.RawMessage
	body = bytes.TrimPrefix(body, []byte("\ufeff"))
	if !json.Valid(body) {
		return nil, malformed("the body is not JSON")
	}
	if json.Unmarshal(body, &all) != nil || all == nil {
		return nil, malformed("the batch is no JSON array")
	}
	events := make([]CloudEvent, 0, len(all))
	for number, one := range all {
		event, err := fromJSON(one)
		var wrong *CloudEventError
		if errors.As(err, &wrong) {
			return nil, malformed("event %d of the batch: %s", number, wrong.Message)
		}
		events = append(events, event)
	}
	return events, nil
}

// checkAttributes returns an error for attributes that break a rule of the specification.
func checkAttributes(attributes map[string]any) error {
	for _, name := range defined[:4] {
		if text, ok := attributes[name].(string); !ok || text == "" {
			return malformed("the event has no %s", name)
		}
	}
	if version := attributes["specversion"]; version != "1.0" {
		return malformed("specversion is %v, not 1.0", version)
	}
	for name, value := range attributes {
		if name == "data" {
			return malformed("no attribute may be called data")
		}
		if !attributeName.MatchString(name) {
			return malformed("the attribute name %q has other characters than a-z and 0-9", name)
		}
		text, isString := value.(string)
		if slices.Contains(defined, name) && text == "" {
			return malformed("%s is not a text, or is empty", name)
		}
		if isString {
			if !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return r < 0x20 || r >= 0x7f && r <= 0x9f }) {
				return malformed("%s holds a control character", name)
			}
			continue
		}
		switch value := value.(type) {
		case bool, int32:
		case json.Number:
			if whole, err := value.Int64(); err != nil || whole < math.MinInt32 || whole > math.MaxInt32 {
				return malformed("%s is not a number of 32 bits", name)
			}
		default:
			return malformed("%s is neither a text, a whole number nor a boolean", name)
		}
	}
	for _, rule := range []struct {
		name string
		is   *regexp.Regexp
		what string
	}{
		{"time", timestamp, "a timestamp of RFC 3339"}, {"datacontenttype", mediaTypes, "a media type"}, {"dataschema", absolute, "an absolute URI"},
	} {
		if text, ok := attributes[rule.name].(string); ok && !rule.is.MatchString(text) {
			return malformed("%s is not %s", rule.name, rule.what)
		}
	}
	return nil
}

func mediaType(kind string) string {
	kind, _, _ = strings.Cut(kind, ";")
	return strings.ToLower(strings.Trim(kind, " \t"))
}

func isJSON(kind string) bool {
	kind = mediaType(kind)
	return strings.HasSuffix(kind, "/json") || strings.HasSuffix(kind, "+json")
}

func isText(kind string) bool {
	kind = mediaType(kind)
	return strings.HasPrefix(kind, "text/") || strings.HasSuffix(kind, "/xml") || strings.HasSuffix(kind, "+xml")
}

// plain removes percent-encoding. The node encodes MQTT user properties in the same way.
func plain(value, field string) (string, error) {
	out := make([]byte, 0, len(value))
	for i := 0; i < len(value); i++ {
		letter := value[i]
		if letter >= 0x80 {
			return "", malformed("%s holds characters that are not percent-encoded", field)
		}
		if letter == '%' {
			if i+2 >= len(value) || digit(value[i+1]) > 15 || digit(value[i+2]) > 15 {
				return "", malformed("%s holds a %% without two hexadecimal digits", field)
			}
			letter = digit(value[i+1])<<4 | digit(value[i+2])
			i += 2
		}
		out = append(out, letter)
	}
	if !utf8.Valid(out) {
		return "", malformed("%s is not UTF-8", field)
	}
	return string(out), nil
}

func digit(letter byte) byte {
	switch {
	case letter >= '0' && letter <= '9':
		return letter - '0'
	case letter|0x20 >= 'a' && letter|0x20 <= 'f':
		return letter | 0x20 - 'a' + 10
	}
	return 255
}

// encoded returns an attribute in the form in which a field contains it.
func encoded(text string) string {
	var out strings.Builder
	for _, letter := range []byte(text) {
		if letter < 0x21 || letter > 0x7e || letter == '%' || letter == '"' {
			fmt.Fprintf(&out, "%%%02X", letter)
		} else {
			out.WriteByte(letter)
		}
	}
	return out.String()
}
