package contract_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// A transcript is a conversation about one resource, in a workspace of its own.
// Its exchanges are in testdata/<resource>.http, in the order in which they are
// held:
//
//	### what it shows
//	# keep account "client_id": "([^"]+)"
//	POST /service_accounts
//	Authorization: Bearer {few}
//
//	{"name": "ci"}
//
//	=> 200
//	Content-Type: of what is not JSON
//
//	{"client_id": "{account}"}
//
// A path is below /v0; an address is taken as it is. What a request does not say
// about its credential is that of an admin; an empty header is not sent. A word
// in braces stands for what was kept, or changes with each run.
type transcript struct {
	name      string // of the resource
	about     string // what stands above the first exchange
	exchanges []*exchange
}

// An exchange is one request, and the answer that it must have.
type exchange struct {
	title  string
	asked  string // as it is written in the file
	notes  []note
	method string
	target string
	header http.Header
	body   string
	answer string // its status, headers and body
}

// inside reports whether it is about the API inside a sandbox, whose address is
// known as box.
func (tr *transcript) inside() bool { return strings.HasPrefix(tr.name, "sandbox-") }

// A note says what to do with an exchange besides: "keep" a part of the answer
// under a name, or just "know" it, which leaves answers as they are; ask "until"
// a line of the answer matches; take only so many "lines" of one that does not
// end; or put a "txt", a "cname" or a "host" into the DNS before.
type note struct{ verb, rest string }

const (
	begin   = "### " // of an exchange
	answers = "\n=> "
)

// load reads all transcripts.
func load(t *testing.T) (all []*transcript) {
	t.Helper()
	files, err := filepath.Glob("testdata/*.http")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		tr := &transcript{name: strings.TrimSuffix(filepath.Base(file), ".http")}
		parts := strings.Split("\n"+string(raw), "\n"+begin)
		tr.about = strings.TrimSpace(parts[0])
		for _, part := range parts[1:] {
			e, err := parse(part)
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			tr.exchanges = append(tr.exchanges, e)
		}
		all = append(all, tr)
	}
	return all
}

func parse(text string) (*exchange, error) {
	asked, answer, _ := strings.Cut(text, answers)
	e := &exchange{asked: strings.TrimSpace(asked), answer: strings.TrimSpace(answer), header: http.Header{}}
	head, body, _ := strings.Cut(e.asked, "\n\n")
	e.body = strings.TrimSpace(body)
	for i, line := range strings.Split(head, "\n") {
		rest, isNote := strings.CutPrefix(line, "# ")
		switch {
		case i == 0:
			e.title = line
		case isNote:
			verb, rest, _ := strings.Cut(rest, " ")
			e.notes = append(e.notes, note{verb, rest})
		case e.method == "":
			e.method, e.target, _ = strings.Cut(line, " ")
		default:
			name, value, ok := strings.Cut(line, ":")
			if !ok {
				return nil, fmt.Errorf("%s: %q is not a header", e.title, line)
			}
			e.header.Set(name, strings.TrimSpace(value))
		}
	}
	if e.target == "" {
		return nil, fmt.Errorf("%s: it has no request", e.title)
	}
	return e, nil
}

// save writes a transcript with the answers that it has now.
func (tr *transcript) save() error {
	var b strings.Builder
	b.WriteString(tr.about + "\n")
	for _, e := range tr.exchanges {
		fmt.Fprintf(&b, "\n%s%s\n%s%s\n", begin, e.asked, answers, e.answer)
	}
	return os.WriteFile(filepath.Join("testdata", tr.name+".http"), []byte(b.String()), 0o644)
}

// status is that of the answer.
func (e *exchange) status() int {
	line, _, _ := strings.Cut(e.answer, "\n")
	n, _ := strconv.Atoi(line) // 0 is that of an answer that is missing
	return n
}
