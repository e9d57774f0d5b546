package mote

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"strings"
	"testing"

	"context"
)

type wantedEvent struct {
	Event    map[string]any
	Data     json.RawMessage
	DataText *string `json:"data_text"`
	DataHex  *string `json:"data_hex"`
}

type message struct {
	wantedEvent
	Name    string
	Headers [][2]string
	Body    string
	BodyHex string `json:"body_hex"`
	MQTT    bool
	None    bool
	Error   *string
	Events  *[]wantedEvent
}

func (one message) request(t *testing.T) *http.Request {
	body := []byte(one.Body)
	if one.BodyHex != "" {
		body, _ = hex.DecodeString(one.BodyHex)
	}
	r := httptest.NewRequest("POST", "/", bytes.NewReader(body))
	for _, pair := range one.Headers {
		r.Header.Add(pair[0], pair[1])
	}
	if one.MQTT {
		r = r.WithContext(context.WithValue(r.Context(), triggerKey, triggerMQTT))
	}
	return r
}

func attributesOf(event CloudEvent) map[string]any {
	all := map[string]any{}
	for i, text := range event.texts() {
		if *text != "" {
			all[defined[i]] = *text
		}
	}
	for name, value := range event.Extensions {
		if number, ok := value.(int32); ok {
			value = float64(number)
		}
		all[name] = value
	}
	return all
}

func (one wantedEvent) compare(t *testing.T, event CloudEvent) {
	if found := attributesOf(event); !reflect.DeepEqual(found, one.Event) {
		t.Errorf("found %v, wanted %v", found, one.Event)
	}
	switch {
	case one.DataText != nil:
		if string(event.Data) != *one.DataText {
			t.Errorf("found %q, wanted %q", event.Data, *one.DataText)
		}
	case one.DataHex != nil:
		if hex.EncodeToString(event.Data) != *one.DataHex {
			t.Errorf("found %x, wanted %s", event.Data, *one.DataHex)
		}
	case one.Data != nil:
		var found, wanted any
		json.Unmarshal(event.Data, &found)
		json.Unmarshal(one.Data, &wanted)
		if !reflect.DeepEqual(found, wanted) {
			t.Errorf("found %s, wanted %s", event.Data, one.Data)
		}
	default:
		if event.Data != nil {
			t.Errorf("found %q, wanted no data", event.Data)
		}
	}
}

func TestMessages(t *testing.T) {
	text, err := os.ReadFile("../../../conformance/cloudevents.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Cloudevents []message }
	if err := json.Unmarshal(text, &file); err != nil || len(file.Cloudevents) == 0 {
		t.Fatal("no fixtures: ", err)
	}
	for _, one := range file.Cloudevents {
		t.Run(one.Name, func(t *testing.T) {
			events, err := ReadCloudEvents(one.request(t))
			if one.Error != nil {
				if _, ok := err.(*CloudEventError); !ok || !strings.Contains(err.Error(), *one.Error) {
					t.Errorf("found %v, wanted an error with %q", err, *one.Error)
				}
				return
			}
			wanted := []wantedEvent{}
			if one.Events != nil {
				wanted = *one.Events
			} else if !one.None {
				wanted = append(wanted, one.wantedEvent)
			}
			if err != nil || len(events) != len(wanted) {
				t.Fatalf("found %v %v, wanted %d events", events, err, len(wanted))
			}
			for i, event := range events {
				wanted[i].compare(t, event)
			}
			single, err := ReadCloudEvent(one.request(t))
			if err != nil || (single != nil) != (one.Events == nil && !one.None) {
				t.Errorf("the only event: %v %v", single, err)
			}
		})
	}
}

func TestWriting(t *testing.T) {
	for _, data := range [][]byte{[]byte(`{"a":"ü"}`), {0xff}, nil} {
		subject := ` "50%" + grün\ `
		event := CloudEvent{Source: "/a b", Type: "t", Subject: subject, Data: data, Extensions: map[string]any{"n": int32(-1), "flag": true}}
		recorder := httptest.NewRecorder()
		if err := WriteCloudEvent(recorder, event); err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequest("POST", "/", recorder.Body)
		r.Header = recorder.Header()
		read, err := ReadCloudEvent(r)
		if err != nil || read == nil || read.Subject != subject || !bytes.Equal(read.Data, data) || read.ID == "" || read.Time == "" {
			t.Errorf("found %+v %v", read, err)
		}
		if fmt.Sprint(read.Extensions) != "map[flag:true n:-1]" {
			t.Errorf("found %v", read.Extensions)
		}
	}
	for _, wrong := range []CloudEvent{{Type: "t"}, {Source: "/s", Type: "t", Time: "now"}, {Source: "/s", Type: "t", Extensions: map[string]any{"A": "b"}}, {Source: "/s", Type: "t", Extensions: map[string]any{"id": "b"}}} {
		recorder := httptest.NewRecorder()
		if err := WriteCloudEvent(recorder, wrong); err == nil || len(recorder.Header()) > 0 {
			t.Errorf("%+v was written", wrong)
		}
	}
}
