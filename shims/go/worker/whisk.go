package mote_worker

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
)

type object = map[string]interface{}

// action converts OpenWhisk's Go actions, which take an object and return an object or an array, to
// one signature.
func action(function interface{}) (func(object) interface{}, error) {
	switch call := function.(type) {
	case func(object) object:
		return func(args object) interface{} { return call(args) }, nil
	case func(object) interface{}:
		return call, nil
	case func(object) []interface{}:
		return func(args object) interface{} { return call(args) }, nil
	}
	return nil, fmt.Errorf("OpenWhisk calls Main(map[string]interface{}) map[string]interface{}, this is %T", function)
}

// openWhisk calls an action in the way in which web actions are called.
func openWhisk(spec *load, act func(object) interface{}) func(*call) {
	defaults := os.Getenv("OPENWHISK_PARAMETERS")
	os.Setenv("__OW_ACTION_NAME", "/_/"+spec.Function)
	os.Setenv("__OW_ACTION_VERSION", fmt.Sprintf("0.0.%d", spec.Revision))
	if os.Getenv("__OW_NAMESPACE") == "" {
		os.Setenv("__OW_NAMESPACE", "_")
	}
	return func(c *call) {
		c.enteredNs = nanotime()
		defer caught(c)
		body, err := c.whole()
		if err != nil {
			c.fail("Cancelled", "", "")
			return
		}
		// A caller that uses the platform's API sends only arguments, and receives the result
		// unchanged.
		activation := ""
		headers := lowerHeaders(c.head.headers)
		if named, ok := headers["x-mote-activation"].(string); ok {
			activation = named
		}
		args, err := whiskArguments(&c.head, headers, body, defaults, activation != "")
		if err != nil {
			c.answer(http.StatusBadRequest, jsonType(), []byte(`{"error":"The request content was malformed."}`))
			return
		}
		os.Setenv("__OW_ACTIVATION_ID", orElse(activation, idText(c.head.id)))
		deadline, _ := c.ctx.Deadline()
		os.Setenv("__OW_DEADLINE", strconv.FormatInt(deadline.UnixMilli(), 10))
		if result := act(args); activation == "" {
			answerWhisk(c, result)
		} else {
			answerPlain(c, result)
		}
	}
}

func jsonType() http.Header { return http.Header{"Content-Type": {"application/json"}} }

// whiskArguments returns the defaults, the query, the facts about the request, and the body's
// values.
func whiskArguments(head *invoke, headers object, body []byte, defaults string, plain bool) (object, error) {
	args := object{}
	if defaults != "" {
		json.Unmarshal([]byte(defaults), &args)
	}
	if plain {
		if len(body) == 0 {
			return args, nil
		}
		return args, json.Unmarshal(body, &args)
	}
	if head.query != "" {
		query, _ := url.ParseQuery(head.query)
		putValues(args, query)
	}
	args["__ow_method"] = strings.ToLower(head.method)
	args["__ow_headers"] = headers
	args["__ow_path"] = strings.TrimSuffix(head.path, "/")
	if head.query != "" {
		args["__ow_query"] = head.query
	}
	if len(body) == 0 {
		return args, nil
	}
	kind, _ := headers["content-type"].(string)
	media, _, _ := strings.Cut(kind, ";")
	media = strings.ToLower(strings.TrimSpace(media))
	if media == "" || media == "application/json" {
		var value interface{}
		if err := json.Unmarshal(body, &value); err != nil && media != "" {
			return nil, err
		}
		if members, ok := value.(object); ok {
			for name, one := range members {
				args[name] = one
			}
			return args, nil
		}
	}
	if media == "application/x-www-form-urlencoded" {
		form, _ := url.ParseQuery(string(body))
		putValues(args, form)
	} else if isTextual(media) {
		args["__ow_body"] = string(body)
	} else {
		args["__ow_body"] = base64.StdEncoding.EncodeToString(body)
	}
	return args, nil
}

// lowerHeaders returns the fields by their lower-case names, with their values unchanged.
// Duplicates are joined.
func lowerHeaders(block []byte) object {
	headers := object{}
	text := string(block)
	for len(text) > 0 {
		name, rest, _ := strings.Cut(text, "\n")
		value, after, _ := strings.Cut(rest, "\n")
		text = after
		if known, ok := headers[name].(string); ok {
			value = known + ", " + value
		}
		headers[name] = value
	}
	return headers
}

func putValues(args object, values url.Values) {
	for name, all := range values {
		if len(all) == 1 {
			args[name] = all[0]
			continue
		}
		args[name] = all
	}
}

func isTextual(kind string) bool {
	kind, _, _ = strings.Cut(kind, ";")
	kind = strings.ToLower(strings.TrimSpace(kind))
	for _, start := range []string{"text/", "application/json", "application/javascript", "application/xml"} {
		if strings.HasPrefix(kind, start) {
			return true
		}
	}
	return strings.HasSuffix(kind, "+json") || strings.HasSuffix(kind, "+xml")
}

// answerPlain sends a result unchanged. An error becomes 502.
func answerPlain(c *call, result interface{}) {
	whole, isObject := result.(object)
	if _, failed := whole["error"]; isObject && failed {
		c.answerJSON(http.StatusBadGateway, whole)
		return
	}
	if isObject && whole == nil {
		result = object{}
	}
	c.answerJSON(http.StatusOK, result)
}

// answerWhisk sends a result. An error becomes 502, an object with statusCode, headers or body is
// an answer, and any other result is sent as JSON.
func answerWhisk(c *call, result interface{}) {
	whole, isObject := result.(object)
	if result == nil || isObject && whole == nil {
		whole, isObject = object{}, true
	}
	web := whole
	if failed, ok := whole["error"]; isObject && ok {
		inner, isWeb := failed.(object)
		if _, ok := inner["statusCode"]; !isWeb || !ok {
			c.answerJSON(http.StatusBadGateway, object{"error": failed})
			return
		}
		web = inner
	}
	_, status := web["statusCode"]
	_, headers := web["headers"]
	content, body := web["body"]
	if !isObject || !status && !headers && !body {
		if isObject {
			result = whole
		}
		c.answerJSON(http.StatusOK, result)
		return
	}
	answerWeb(c, web, content)
}

func answerWeb(c *call, web object, content interface{}) {
	header := http.Header{}
	if fields, ok := web["headers"].(object); ok {
		for name, value := range fields {
			for _, one := range asList(value) {
				header.Add(name, asText(one))
			}
		}
	}
	kind := header.Get("Content-Type")
	var body []byte
	switch value := content.(type) {
	case nil:
	case string:
		body = []byte(value)
		if kind == "" {
			header.Set("Content-Type", "text/html; charset=UTF-8")
		} else if !isTextual(kind) {
			if decoded, err := base64.StdEncoding.DecodeString(value); err == nil {
				body = decoded
			}
		}
	default:
		body, _ = json.Marshal(value)
		if kind == "" {
			header.Set("Content-Type", "application/json")
		}
	}
	status := http.StatusOK
	if len(body) == 0 {
		status = http.StatusNoContent
	}
	if written, err := strconv.Atoi(asText(web["statusCode"])); err == nil {
		status = written
	}
	c.answer(status, header, body)
}

func asList(value interface{}) []interface{} {
	if list, ok := value.([]interface{}); ok {
		return list
	}
	return []interface{}{value}
}

func asText(value interface{}) string {
	if text, ok := value.(string); ok {
		return text
	}
	text, _ := json.Marshal(value)
	return string(text)
}

func (c *call) answerJSON(status int, value interface{}) {
	text, err := json.Marshal(value)
	if err != nil {
		c.fail("BadReply", "the result is not JSON: "+err.Error(), "")
		return
	}
	c.answer(status, jsonType(), text)
}
