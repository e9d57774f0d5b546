// Package nuclio has the types that Nuclio passes to a Go function, so that functions that import
// the platform's package build without a download. The adapter in shims/go/adapters/nuclio.go fills
// them.
package nuclio

import (
	"errors"
	"strconv"
	"time"

	"github.com/nuclio/logger"
)

var (
	// ErrUnsupported says that an event has no such part.
	ErrUnsupported = errors.New("the event does not offer this")
	// ErrTypeConversion says that a header or field does not have the requested type.
	ErrTypeConversion = errors.New("the value cannot be converted")
)

// Logger is the logger of a context, under the name that it had before it moved to a separate
// module.
type Logger = logger.Logger

// ID tells events apart.
type ID string

// DataBinding is a client of a data source. A node has none.
type DataBinding interface{}

// Context is the state that one worker keeps between the events that it handles.
type Context struct {
	Logger              logger.Logger
	DataBinding         map[string]DataBinding
	Platform            *Platform
	WorkerID            int
	UserData            interface{}
	FunctionName        string
	FunctionVersion     int
	TriggerKind         string
	TriggerName         string
	WorkerAllocatorName string
}

// Platform would call other functions.
type Platform struct{}

// NewPlatform returns a platform without functions.
func NewPlatform(parent logger.Logger, kind string, namespace string) (*Platform, error) {
	return &Platform{}, nil
}

// CallFunction is not offered on a node.
func (p *Platform) CallFunction(function string, event Event) (Response, error) {
	return Response{}, errors.New("Platform.CallFunction is not offered on a mote node: send an HTTP request to the function " + function)
}

// TriggerInfoProvider describes the source of an event.
type TriggerInfoProvider interface {
	GetClass() string
	GetKind() string
	GetName() string
}

// Event is the argument of a function.
type Event interface {
	GetID() ID
	SetID(ID)
	SetTriggerInfoProvider(TriggerInfoProvider)
	GetTriggerInfo() TriggerInfoProvider
	GetContentType() string
	GetBody() []byte
	GetBodyObject() interface{}
	GetHeader(string) interface{}
	GetHeaderByteSlice(string) []byte
	GetHeaderString(string) string
	GetHeaderInt(string) (int, error)
	GetHeaders() map[string]interface{}
	GetField(string) interface{}
	GetFieldByteSlice(string) []byte
	GetFieldString(string) string
	GetFieldInt(string) (int, error)
	GetFields() map[string]interface{}
	GetTimestamp() time.Time
	GetPath() string
	GetURL() string
	GetMethod() string
	GetShardID() int
	GetTotalNumShards() int
	GetType() string
	GetTypeVersion() string
	GetVersion() string
	GetLastInBatch() bool
	GetOffset() int
	GetTopic() string
}

// AbstractEvent is an empty event. Events that have only some parts are built on it.
type AbstractEvent struct {
	id      ID
	trigger TriggerInfoProvider
}

func (e *AbstractEvent) GetID() ID                                          { return e.id }
func (e *AbstractEvent) SetID(id ID)                                        { e.id = id }
func (e *AbstractEvent) GetTriggerInfo() TriggerInfoProvider                { return e.trigger }
func (e *AbstractEvent) SetTriggerInfoProvider(trigger TriggerInfoProvider) { e.trigger = trigger }
func (e *AbstractEvent) GetContentType() string                             { return "" }
func (e *AbstractEvent) GetBody() []byte                                    { return nil }
func (e *AbstractEvent) GetBodyObject() interface{}                         { return e.GetBody() }
func (e *AbstractEvent) GetHeader(string) interface{}                       { return nil }
func (e *AbstractEvent) GetHeaderByteSlice(string) []byte                   { return nil }
func (e *AbstractEvent) GetHeaderString(string) string                      { return "" }
func (e *AbstractEvent) GetHeaderInt(name string) (int, error)              { return number(e.GetHeader(name)) }
func (e *AbstractEvent) GetHeaders() map[string]interface{}                 { return nil }
func (e *AbstractEvent) GetField(string) interface{}                        { return nil }
func (e *AbstractEvent) GetFieldByteSlice(string) []byte                    { return nil }
func (e *AbstractEvent) GetFieldString(string) string                       { return "" }
func (e *AbstractEvent) GetFieldInt(name string) (int, error)               { return number(e.GetField(name)) }
func (e *AbstractEvent) GetFields() map[string]interface{}                  { return nil }
func (e *AbstractEvent) GetTimestamp() time.Time                            { return time.Now() }
func (e *AbstractEvent) GetPath() string                                    { return "" }
func (e *AbstractEvent) GetURL() string                                     { return "" }
func (e *AbstractEvent) GetMethod() string                                  { return "" }
func (e *AbstractEvent) GetShardID() int                                    { return -1 }
func (e *AbstractEvent) GetTotalNumShards() int                             { return 0 }
func (e *AbstractEvent) GetType() string                                    { return "" }
func (e *AbstractEvent) GetTypeVersion() string                             { return "" }
func (e *AbstractEvent) GetVersion() string                                 { return "" }
func (e *AbstractEvent) GetLastInBatch() bool                               { return false }
func (e *AbstractEvent) GetOffset() int                                     { return 0 }
func (e *AbstractEvent) GetTopic() string                                   { return "" }

// number converts the value of a header or field.
func number(value interface{}) (int, error) {
	switch held := value.(type) {
	case int:
		return held, nil
	case string:
		return strconv.Atoi(held)
	case []byte:
		return strconv.Atoi(string(held))
	}
	return 0, ErrTypeConversion
}

// MemoryEvent is an event that a function makes itself.
type MemoryEvent struct {
	AbstractEvent
	Method      string
	ContentType string
	Body        []byte
	Headers     map[string]interface{}
	Path        string
}

func (e *MemoryEvent) GetMethod() string                  { return e.Method }
func (e *MemoryEvent) GetContentType() string             { return e.ContentType }
func (e *MemoryEvent) GetBody() []byte                    { return e.Body }
func (e *MemoryEvent) GetHeader(name string) interface{}  { return e.Headers[name] }
func (e *MemoryEvent) GetHeaders() map[string]interface{} { return e.Headers }
func (e *MemoryEvent) GetPath() string                    { return e.Path }
