package hello

import (
	"net/http/httptest"
	"strings"
	"testing"
)

func TestGreetsByName(t *testing.T) {
	answer := httptest.NewRecorder()
	Handle(answer, httptest.NewRequest("GET", "/?name=Ada", nil))
	if body := answer.Body.String(); !strings.Contains(body, "Hello, Ada!") {
		t.Errorf("the answer is %s", body)
	}
}
