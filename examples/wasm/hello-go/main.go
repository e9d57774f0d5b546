// A program for WASI: its standard input is the body of the request, and its standard output is the
// answer.
package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
)

func main() {
	if os.Getenv("MOTE_PATH") != "/upper" {
		fmt.Print("hello from Go")
		return
	}
	body, err := io.ReadAll(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Stdout.Write(bytes.ToUpper(body))
}
