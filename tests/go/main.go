// Apache's Go client, driven by a test (V1): one process runs one command and speaks in JSON lines, like TernPeer in
// tests/java. The first line of the standard input has the options of the command; the end of the input ends it.
//
//	ternpeer produce     sends messages: one order a line
//	ternpeer transact    the same in transactions
//	ternpeer push        tells of each message that it receives
//
// The options and orders of a command are the fields of its structs.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/apache/rocketmq-client-go/v2/rlog"
)

// The longest line: a message of 4 MiB in base64.
const lineBytesMax = 16 << 20

type event map[string]any

var out sync.Mutex

func tell(one event) {
	data, err := json.Marshal(one)
	if err != nil {
		panic(err)
	}
	out.Lock()
	defer out.Unlock()
	os.Stdout.Write(append(data, '\n'))
}

// input reads orders, one a line.
type input struct{ lines *bufio.Scanner }

// next fills in an order; false at the end of the input.
func (in *input) next(order any) (bool, error) {
	if !in.lines.Scan() {
		return false, in.lines.Err()
	}
	return true, json.Unmarshal(in.lines.Bytes(), order)
}

// wait returns at the end of the input.
func (in *input) wait() {
	for in.lines.Scan() {
	}
}

func run(command string, source io.Reader) error {
	lines := bufio.NewScanner(source)
	lines.Buffer(make([]byte, 64<<10), lineBytesMax)
	in := &input{lines}
	switch command {
	case "produce":
		return produce(in)
	case "transact":
		return transact(in)
	case "push":
		return push(in)
	}
	return fmt.Errorf("unknown command %q; use produce, transact or push", command)
}

func main() {
	rlog.SetLogLevel("warn")
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: ternpeer produce|transact|push")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Stdin); err != nil {
		tell(event{"event": "failed", "error": err.Error()})
		os.Exit(1)
	}
	tell(event{"event": "done"})
}
