package alarm

import (
	"net/http/httptest"
	"strings"
	"testing"
)

func TestOnlyAHighTemperatureIsAnAlarm(t *testing.T) {
	for body, expected := range map[string]string{
		`{"celsius": 20}`: "",
		`{"celsius": 71}`: "sensors/attic/temp reports 71 degrees",
	} {
		message := httptest.NewRequest("POST", "/", strings.NewReader(body))
		message.Header.Set("mqtt-topic", "sensors/attic/temp")
		answer := httptest.NewRecorder()
		Handle(answer, message)
		if found := answer.Body.String(); found != expected {
			t.Errorf("%s: %q instead of %q", body, found, expected)
		}
	}
}
