// Counts primes with the sieve of Eratosthenes: 168 up to 1000.
package main

import (
	"net/url"
	"strconv"
)

func run(query url.Values) (string, error) {
	limit := 1000
	if text := query.Get("limit"); text != "" {
		asked, err := strconv.Atoi(text)
		if err != nil {
			return "", err
		}
		limit = asked
	}
	isComposite := make([]bool, limit+1)
	count := 0
	for candidate := 2; candidate <= limit; candidate++ {
		if isComposite[candidate] {
			continue
		}
		count++
		for multiple := candidate * candidate; multiple <= limit; multiple += candidate {
			isComposite[multiple] = true
		}
	}
	return strconv.Itoa(count), nil
}
