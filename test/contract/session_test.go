package contract_test

import (
	"archive/tar"
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze/internal/testkit"
	"github.com/dozehq/doze/internal/testkit/dnstest"
)

const (
	// patience is for one exchange, on a busy machine.
	patience = 2 * time.Minute
	// again is how soon an exchange that waits for something asks again.
	again = 50 * time.Millisecond
	// answerMax is more than any answer has.
	answerMax = 8 << 20
)

// A session is one conversation, by an admin of a workspace of its own.
type session struct {
	http  *http.Client
	zone  *dnstest.Zone     // the DNS
	known map[string]string // what words in braces stand for
	named []string          // the words that stand for it in answers too
}

// talk begins a conversation.
func talk(t *testing.T, p *testkit.Platform, workspace string) *session {
	t.Helper()
	s := &session{http: caller(p), known: map[string]string{
		"key":       p.Key,
		"admin":     p.Key,
		"address":   p.Address,
		"escaped":   url.QueryEscape(p.Address),
		"port":      p.Address[strings.LastIndex(p.Address, ":")+1:],
		"workspace": workspace,
		"large":     strings.Repeat("x", 1<<20), // a body is too large with it
		"tar":       archive(t),
	}}
	t.Cleanup(s.http.CloseIdleConnections)
	s.hold(t, ask(t, `POST /workspaces

{"name": "{workspace}"}`))
	return s
}

// admit returns a key of the workspace with one scope.
func (s *session) admit(t *testing.T, scope string) string {
	t.Helper()
	s.hold(t, ask(t, `# keep made "apiKey": "([^"]+)"
POST /api_keys?workspace={workspace}
Authorization: Bearer {key}

{"scopes": ["`+scope+`"]}`))
	s.named = nil
	return s.known["made"]
}

// archive is a tar of one file.
func archive(t *testing.T) string {
	t.Helper()
	const text = "hello\n"
	var b strings.Builder
	w := tar.NewWriter(&b)
	err := w.WriteHeader(&tar.Header{Name: "hello.txt", Mode: 0o644, Size: int64(len(text)), Format: tar.FormatUSTAR})
	if err == nil {
		_, err = io.WriteString(w, text)
	}
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// ask returns an exchange without an answer.
func ask(t *testing.T, text string) *exchange {
	t.Helper()
	e, err := parse("a workspace of its own\n" + text)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// hold sends the request of an exchange, and returns the answer as a transcript
// has it.
func (s *session) hold(t *testing.T, e *exchange) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	until := regexp.MustCompile("")
	for _, n := range e.notes {
		name, value, _ := strings.Cut(s.fill(t, n.rest), " ")
		switch n.verb {
		case "until":
			until = regexp.MustCompile("(?m)" + n.rest)
		case "txt":
			s.zone.TXT(name, value)
		case "host":
			s.zone.A(name, [4]byte{192, 0, 2, 1})
		case "cname":
			s.zone.CNAME(name, value)
		}
	}
	for {
		answer, err := s.send(ctx, t, e)
		if err != nil {
			t.Fatalf("%s: %v", e.title, err)
		}
		if until.MatchString(answer) {
			s.remember(t, e, answer)
			return s.settle(answer)
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: the answer never has %s; it is\n%s", e.title, until, answer)
		case <-time.After(again):
		}
	}
}

// words are those in braces. JSON has none: its names are in quotes.
var words = regexp.MustCompile(`\{([a-z0-9_]+)\}`)

// fill puts what is known in the place of words in braces.
func (s *session) fill(t *testing.T, text string) string {
	t.Helper()
	return words.ReplaceAllStringFunc(text, func(word string) string {
		value, ok := s.known[strings.Trim(word, "{}")]
		if !ok {
			t.Fatalf("nothing is known as %s in %q", word, text)
		}
		return value
	})
}

// caller finds every host at the platform, as its DNS would say, and follows no
// redirect: that is an answer like others.
func caller(p *testkit.Platform) *http.Client {
	return &http.Client{
		Transport: &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, strings.TrimPrefix(p.Address, "http://"))
		}},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// send sends the request and returns the answer in the form of a transcript.
func (s *session) send(ctx context.Context, t *testing.T, e *exchange) (string, error) {
	t.Helper()
	target := s.fill(t, e.target)
	if strings.HasPrefix(target, "/") {
		target = s.known["address"] + "/v0" + target
	}
	r, err := http.NewRequestWithContext(ctx, e.method, target, strings.NewReader(s.fill(t, e.body)))
	if err != nil {
		return "", err
	}
	r.Header.Set("Authorization", "Bearer "+s.known["admin"])
	for name := range e.header {
		if value := s.fill(t, e.header.Get(name)); value != "" {
			r.Header.Set(name, value)
		} else {
			r.Header.Del(name)
		}
	}
	resp, err := s.http.Do(r)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	most, err := e.lines()
	if err != nil {
		return "", err
	}
	body, err := read(resp, most)
	if err != nil {
		return "", err
	}
	return write(resp, body, most), nil
}

// lines is how many lines of the answer count; 0 means all.
func (e *exchange) lines() (int, error) {
	i := slices.IndexFunc(e.notes, func(n note) bool { return n.verb == "lines" })
	if i < 0 {
		return 0, nil
	}
	return strconv.Atoi(e.notes[i].rest)
}

// read returns the body of an answer, or the first lines of a stream. A
// connection that speaks another protocol from here on has none.
func read(resp *http.Response, most int) (body []byte, err error) {
	switch {
	case resp.StatusCode == http.StatusSwitchingProtocols:
		return nil, nil
	case most == 0 || isJSON(resp):
		return io.ReadAll(io.LimitReader(resp.Body, answerMax))
	}
	lines := bufio.NewReader(resp.Body)
	for range most {
		line, fail := lines.ReadBytes('\n')
		body, err = append(body, line...), errors.Join(err, fail)
	}
	return body, err
}

func isJSON(resp *http.Response) bool {
	kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	return err == nil && kind == "application/json"
}

// telling are the headers of answers that callers go by.
var telling = []string{
	"Allow", "Cache-Control", "Content-Disposition", "Content-Range", "Content-Type", "Location", "Retry-After", "WWW-Authenticate",
	"X-Blaxel-Error-Code", "X-Blaxel-Source", "X-Blaxel-Upload-Url", "X-Should-Retry",
}

// write is an answer as a transcript has it: JSON, which is the rule, in many
// lines, and a page by its title.
func write(resp *http.Response, body []byte, most int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d\n", resp.StatusCode)
	kind := resp.Header.Get("Content-Type")
	for _, name := range telling {
		if value := resp.Header.Get(name); value != "" && (name != "Content-Type" || !isJSON(resp)) {
			fmt.Fprintf(&b, "%s: %s\n", name, value)
		}
	}
	text := string(body)
	var lines bytes.Buffer
	switch {
	case json.Indent(&lines, body, "", "  ") == nil:
		text = lines.String()
		if most > 0 && isJSON(resp) {
			text = strings.Join(strings.SplitAfterN(text, "\n", most+1)[:most], "")
		}
	case strings.HasPrefix(kind, "text/html"):
		text = title.FindString(text)
	}
	return strings.TrimSpace(b.String() + "\n" + text)
}

var title = regexp.MustCompile(`<title>[^<]*</title>`)

// remember stores what the notes of an exchange say.
func (s *session) remember(t *testing.T, e *exchange, answer string) {
	t.Helper()
	for _, n := range e.notes {
		if n.verb != "keep" && n.verb != "know" {
			continue
		}
		name, pattern, _ := strings.Cut(n.rest, " ")
		found := regexp.MustCompile(pattern).FindStringSubmatch(answer)
		if len(found) != 2 {
			t.Fatalf("%s: there is nothing to keep as %s in\n%s", e.title, name, answer)
		}
		s.known[name] = found[1]
		if n.verb == "keep" {
			s.named = append(s.named, name)
		}
	}
}

// passing is what differs from run to run, in the order in which it is looked
// for.
var passing = []struct {
	pattern *regexp.Regexp
	word    string
}{
	{regexp.MustCompile(`eyJ[\w-]+\.[\w-]+\.[\w-]+`), "{jwt}"},
	{regexp.MustCompile(`"(nextCursor)": "[\w-]+"`), `"$1": "{cursor}"`},
	{regexp.MustCompile(`\bdz[a-z]*_[\w{}-]{20,}`), "{secret}"},
	{regexp.MustCompile(`"id": "[a-z2-7]{16}"`), `"id": "{id}"`},
	{regexp.MustCompile(`\b[a-z2-7]{20}\b`), "{id}"},
	{regexp.MustCompile(`\b[a-z2-7]{16}\b(\.|/|$)`), "{label}$1"},
	{regexp.MustCompile(`\b(sandbox|snapshot)-[a-z2-7]{10}\b`), "$1-{random}"},
	{regexp.MustCompile(`\blinux/(amd64|arm64)\b`), "{platform}"},
	{regexp.MustCompile(`sha256:[0-9a-f]{64}`), "{digest}"},
	{regexp.MustCompile(`"(size)": \d{4,}`), `"$1": {number}`}, // in bytes; megabytes have fewer digits
	{regexp.MustCompile(`(try again in) [^\s"]+`), "$1 {duration}"},
	{regexp.MustCompile(`"(expiresIn|bytes|totalBytes|restoredBytes)": \d+`), `"$1": {number}`},
	{regexp.MustCompile(`\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT`), "{date}"},
	{regexp.MustCompile(`(\\?"pid\\?": ?(?:\\?")?)\d+`), "${1}{number}"},
	{regexp.MustCompile(`\bproc-[a-z0-9]{8}\b`), "proc-{random}"},
	{regexp.MustCompile(`"(gitCommit|buildTime|goVersion|uptime|duration)": "[^"]+"`), `"$1": "{text}"`},
	{regexp.MustCompile(`("name": "diskMb",\s+"unit": "MiB",\s+"used"|"unit": "requests per second",\s+"used"): \d+`), "$1: {number}"},
	{regexp.MustCompile(`"(uptimeSeconds)": [\d.]+`), `"$1": {number}`},
	{regexp.MustCompile(`"(residentBytes|guestBytes|engineBytes|cacheBytes|scratchBytes|seconds|receivedBytes|sentBytes)": [\d.]+`), `"$1": {number}`},
	{regexp.MustCompile(`"(waitedUs|startUs|tookUs)": \d+`), `"$1": {number}`},
	{regexp.MustCompile(`("id": ?)"[0-9a-f]{16}"`), `$1"{id}"`}, // of a line of the audit log
	{regexp.MustCompile(`("(?:key|requestId)": ?)"[A-Za-z0-9]{16,26}"`), `$1"{text}"`},
	{regexp.MustCompile(`\b[A-Z2-7]{12}(\.\d+\n)`), "{epoch}$1"}, // of the feed
	{regexp.MustCompile(`"(arch)": "(amd64|arm64)"`), `"$1": "{text}"`},
}

// moment is a time in an answer.
var moment = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`)

// recent is how near to now a time is that the platform chose.
const recent = 30 * 24 * time.Hour

// settle puts words in the place of what differs from run to run.
func (s *session) settle(answer string) string {
	slices.SortFunc(s.named, func(a, b string) int { return cmp.Compare(len(s.known[b]), len(s.known[a])) })
	for _, name := range append(slices.Clone(s.named), "address", "escaped", "port") {
		answer = strings.ReplaceAll(answer, s.known[name], "{"+name+"}")
	}
	for _, p := range passing {
		answer = p.pattern.ReplaceAllString(answer, p.word)
	}
	return moment.ReplaceAllStringFunc(answer, func(text string) string {
		at, err := time.Parse(time.RFC3339, text)
		if err != nil || time.Since(at).Abs() > recent {
			return text
		}
		return "{time}"
	})
}
