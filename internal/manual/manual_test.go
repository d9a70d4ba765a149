package manual_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"flag"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze/internal/agent/description"
	"github.com/dozehq/doze/internal/manual"
)

var update = flag.Bool("update", false, "write docs/openapi-sandbox.json and sandbox.json.gz")

const (
	golden = "../../docs/openapi-sandbox.json"
	packed = "sandbox.json.gz"
	// packedMax bounds what each agent has in its file for the description, in bytes.
	packedMax = 16 << 10
)

// TestDescriptionIsCurrent compares what agents serve, and what is documented, with
// what the types of the handlers say.
func TestDescriptionIsCurrent(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal(description.Describe())
	if err != nil {
		t.Fatal(err)
	}
	var lines bytes.Buffer
	if err := json.Indent(&lines, text, "", "  "); err != nil {
		t.Fatal(err)
	}
	lines.WriteByte('\n')
	if *update {
		write(t, lines.Bytes(), text)
		return // the program has what was there before
	}
	documented, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(documented), "\n"), strings.Split(lines.String(), "\n")); diff != "" {
		t.Errorf("%s differs (run make gen and read what changed):\n%s", golden, diff)
	}
	served, err := manual.Sandbox()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(served, text) {
		t.Errorf("%s is not of %s: run make gen", packed, golden)
	}
	if info, err := os.Stat(packed); err != nil || info.Size() > packedMax {
		t.Errorf("%s is too large for each sandbox, or cannot be read: %v, %v", packed, info, err)
	}
}

func write(t *testing.T, lines, text []byte) {
	t.Helper()
	var small bytes.Buffer
	w, err := gzip.NewWriterLevel(&small, gzip.BestCompression)
	if err == nil {
		_, err = w.Write(text)
	}
	if err == nil {
		err = w.Close()
	}
	if err == nil {
		err = os.WriteFile(packed, small.Bytes(), 0o644)
	}
	if err == nil {
		err = os.WriteFile(golden, lines, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// An agent answers with the description.
func TestServe(t *testing.T) {
	t.Parallel()
	want, err := manual.Sandbox()
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	if err := manual.Serve(w, httptest.NewRequest(http.MethodGet, "/openapi.json", nil), ""); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(w.Body.Bytes(), want) || !strings.HasPrefix(w.Header().Get("Content-Type"), "application/json") {
		t.Errorf("%d bytes with %v", w.Body.Len(), w.Header())
	}
}
