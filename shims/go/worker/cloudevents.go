package mote_worker

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const structuredType = "application/cloudevents+json"

func isJSON(kind string) bool {
	kind, _, _ = strings.Cut(kind, ";")
	kind = strings.ToLower(strings.TrimSpace(kind))
	return strings.HasSuffix(kind, "/json") || strings.HasSuffix(kind, "+json")
}

// readEvent turns a request in either mode into one JSON object, which is an event in structured
// mode.
func readEvent(header http.Header, body []byte) ([]byte, error) {
	kind := header.Get("Content-Type")
	members := map[string]interface{}{}
	media, _, _ := strings.Cut(kind, ";")
	switch media = strings.ToLower(strings.TrimSpace(media)); {
	case media == structuredType:
		if err := json.Unmarshal(body, &members); err != nil {
			return nil, fmt.Errorf("the event is not JSON")
		}
	case strings.HasPrefix(media, "application/cloudevents"):
		return nil, fmt.Errorf("events of type %s are not read", kind)
	default:
		for name, values := range header {
			if rest, ok := strings.CutPrefix(name, "Ce-"); ok {
				value, err := url.PathUnescape(values[0])
				if err != nil {
					value = values[0]
				}
				members[strings.ToLower(rest)] = value
			}
		}
		if kind != "" {
			members["datacontenttype"] = kind
		}
		switch {
		case len(body) == 0:
		case isJSON(kind):
			if !json.Valid(body) {
				return nil, fmt.Errorf("the event's data is not JSON")
			}
			members["data"] = json.RawMessage(body)
		case kind == "" || strings.HasPrefix(media, "text/"):
			members["data"] = string(body)
		default:
			members["data_base64"] = base64.StdEncoding.EncodeToString(body)
		}
	}
	if err := checkEvent(members); err != nil {
		return nil, err
	}
	return json.Marshal(members)
}

func checkEvent(members map[string]interface{}) error {
	for _, name := range []string{"id", "source", "type", "specversion"} {
		if text, ok := members[name].(string); !ok || text == "" {
			return fmt.Errorf("the event has no %s", name)
		}
	}
	if version := members["specversion"]; version != "1.0" && version != "0.3" {
		return fmt.Errorf("the event's specversion is %v", version)
	}
	return nil
}

// writeEvent turns an event, as its own MarshalJSON writes it, into fields and body in binary mode.
func writeEvent(event []byte, number string) (http.Header, []byte, error) {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(event, &raw); err != nil {
		return nil, nil, fmt.Errorf("the event is not JSON: %w", err)
	}
	members := map[string]interface{}{"specversion": "1.0", "id": number, "time": time.Now().UTC().Format(time.RFC3339Nano)}
	for name, value := range raw {
		var text interface{}
		if name != "data" && json.Unmarshal(value, &text) == nil && text != nil && text != "" {
			members[name] = text
		}
	}
	if err := checkEvent(members); err != nil {
		return nil, nil, err
	}
	header := http.Header{}
	kind, _ := members["datacontenttype"].(string)
	for name, value := range members {
		if name != "datacontenttype" && name != "data_base64" {
			header["Ce-"+strings.ToUpper(name[:1])+name[1:]] = []string{escaped(fmt.Sprint(value))}
		}
	}
	body := []byte(raw["data"])
	if coded, ok := members["data_base64"].(string); ok {
		decoded, err := base64.StdEncoding.DecodeString(coded)
		if err != nil {
			return nil, nil, fmt.Errorf("data_base64: %w", err)
		}
		body = decoded
		kind = orElse(kind, "application/octet-stream")
	} else if kind != "" && !isJSON(kind) {
		var text string
		if json.Unmarshal(body, &text) == nil {
			body = []byte(text)
		}
	}
	if body != nil {
		header["Content-Type"] = []string{orElse(kind, "application/json")}
	}
	return header, body, nil
}

func orElse(text, other string) string {
	if text == "" {
		return other
	}
	return text
}

// escaped writes an attribute in the form in which a field may contain it.
func escaped(text string) string {
	var out strings.Builder
	for _, letter := range []byte(text) {
		if letter < 0x21 && letter != ' ' || letter > 0x7e || letter == '%' || letter == '"' {
			fmt.Fprintf(&out, "%%%02X", letter)
		} else {
			out.WriteByte(letter)
		}
	}
	return out.String()
}
