package alarm

import (
	"encoding/json"
	"fmt"
	"net/http"
)

const celsiusMax = 60

func Handle(w http.ResponseWriter, r *http.Request) {
	var reading struct{ Celsius float64 }
	if err := json.NewDecoder(r.Body).Decode(&reading); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	// An empty answer is not published.
	if reading.Celsius > celsiusMax {
		fmt.Fprintf(w, "%s reports %g degrees", r.Header.Get("Mqtt-Topic"), reading.Celsius)
	}
}
