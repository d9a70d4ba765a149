package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
)

// TestFormats prints one record in every format.
func TestFormats(t *testing.T) {
	t.Parallel()
	type record struct {
		Name string    `json:"name"`
		At   doze.Time `json:"at"`
		Tags []string  `json:"tags"`
		Text string    `json:"text"`
	}
	r := record{"web", doze.Time{Time: testNow().Add(-26 * time.Hour)}, []string{"a", "true"}, "<x>: y"}
	rows := [][]string{{"NAME", "AT", extra + "TEXT"}, {r.Name, moment(r.At), r.Text}}
	for format, want := range map[string]string{
		formatTable: "NAME  AT\nweb   1d ago\n",
		formatWide:  "NAME  AT                    TEXT\nweb   2026-01-01T01:09:06Z  <x>: y\n",
		formatName:  "web\n",
		formatJSON:  "{\n  \"name\": \"web\",\n  \"at\": \"2026-01-01T01:09:06.000Z\",\n  \"tags\": [\n    \"a\",\n    \"true\"\n  ],\n  \"text\": \"<x>: y\"\n}\n",
		formatYAML:  "name: web\nat: \"2026-01-01T01:09:06.000Z\"\ntags:\n  - a\n  - \"true\"\ntext: '<x>: y'\n",
	} {
		var out bytes.Buffer
		a := app{out: &out, now: testNow, format: format}
		if err := a.show(r, rows); err != nil {
			t.Errorf("%s: %v", format, err)
		}
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("%s:\n%s", format, diff)
		}
	}
}

func TestAgo(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0: "0s ago", 59 * time.Second: "59s ago", 90 * time.Minute: "1h ago", -3 * time.Minute: "in 3m",
		25 * time.Hour: "1d ago", 366 * 24 * time.Hour: "1y ago",
	} {
		if got := ago(d); got != want {
			t.Errorf("%v is %q, want %q", d, got, want)
		}
	}
	// Text of others that looks like a moment of ours stays text, without what draws.
	var out bytes.Buffer
	a := app{out: &out, now: testNow, format: formatTable}
	if err := a.table([][]string{{"TEXT"}, {stamp + "\x1b[31mred"}}); err != nil || strings.ContainsAny(out.String(), "\x00\x1b") {
		t.Errorf("%q, %v", out.String(), err)
	}
}

func TestSuggest(t *testing.T) {
	t.Parallel()
	known := []string{"web", "worker", "worker-2", "x"}
	for word, want := range map[string]string{
		"wep": "; did you mean web?", "work": "; did you mean worker or worker-2?", "web": "", "nothing": "", "": "", "y": "",
	} {
		if got := suggest(word, known); got != want {
			t.Errorf("%q: %q, want %q", word, got, want)
		}
	}
}

// TestExitCodes: each kind of error has a code, each code is in the help and in the docs,
// and nothing else is.
func TestExitCodes(t *testing.T) {
	t.Parallel()
	codes := map[int]bool{0: true, exitTimeout: true, exitInterrupted: true}
	for status := 400; status < 600; status++ {
		kind := doze.KindOfStatus(status)
		if kind.Status() != status {
			continue
		}
		code, ok := exitOf[kind]
		if !ok {
			t.Errorf("the kind %s has no exit code", kind)
		}
		if got := exitCode(fmt.Errorf("a: %w", doze.Errorf(kind, "no"))); got != code {
			t.Errorf("the kind %s exits with %d, want %d", kind, got, code)
		}
		codes[code] = true
	}
	docs, err := os.ReadFile(filepath.Join("..", "..", "docs", "cli.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range exits {
		if !codes[e.code] {
			t.Errorf("the help explains %d, with which nothing ends", e.code)
		}
		delete(codes, e.code)
		if line := fmt.Sprintf("| %d | %s |\n", e.code, e.text); !strings.Contains(string(docs), line) {
			t.Errorf("docs/cli.md lacks the line %s", line)
		}
	}
	if len(codes) > 0 {
		t.Errorf("the help does not explain %v", codes)
	}
	if code := exitCode(timeoutError(time.Second)); code != exitTimeout {
		t.Errorf("a timeout exits with %d", code)
	}
	if code := exitCode(usagef("no")); code != exitUsage {
		t.Errorf("a mistake in the command line exits with %d", code)
	}
	if code := exitCode(os.ErrNotExist); code != exitFailed {
		t.Errorf("an error of this host exits with %d", code)
	}
}
