// Fetches a page of an HTTP server over kept connections and answers with its text.
package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"time"
)

var client = &http.Client{
	Timeout:   10 * time.Second,
	Transport: &http.Transport{MaxIdleConnsPerHost: 64, MaxConnsPerHost: 64},
}

func run(query url.Values) (string, error) {
	page := query.Get("page")
	if page == "" {
		page = "4"
	}
	answer, err := client.Get(os.Getenv("PAGES_URL") + page)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return "", err
	}
	if answer.StatusCode != http.StatusOK || int64(len(body)) != answer.ContentLength {
		return "", fmt.Errorf("status %d, %d bytes of %d", answer.StatusCode, len(body), answer.ContentLength)
	}
	return string(body), nil
}
