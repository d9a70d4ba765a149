package file_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"mime/multipart"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dozehq/doze/internal/agent/agenttest"
)

// large returns more bytes than any memory of the agent has at once. Few of them
// are text.
func large() []byte {
	b := make([]byte, 5<<20+123)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}

// formWith returns a form with a file, and its type.
func formWith(t *testing.T, content []byte) (kind string, body []byte) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	part, err := w.CreateFormFile("file", "f")
	if err == nil {
		_, err = part.Write(content)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return w.FormDataContentType(), b.Bytes()
}

func TestLargeUploads(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	want := large()
	kind, form := formWith(t, want)
	text := strings.Repeat("0123456789 \"quoted\" and äöü\n", 200_000)
	asJSON, err := json.Marshal(map[string]string{"content": text})
	if err != nil {
		t.Fatal(err)
	}
	for name, up := range map[string]struct {
		kind string
		body io.Reader
		want []byte
	}{
		"length":    {kind, bytes.NewReader(form), want},
		"no-length": {kind, io.MultiReader(bytes.NewReader(form)), want},
		"json":      {"application/json", bytes.NewReader(asJSON), []byte(text)},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, s.URL+"/filesystem/"+name, up.body)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", up.kind)
		resp, err := (&http.Client{Timeout: agenttest.Patience}).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		got, err := os.ReadFile(filepath.Join(s.Dir, name))
		if err != nil || resp.StatusCode != http.StatusOK || !bytes.Equal(got, up.want) {
			t.Errorf("%s: %s, %d of %d bytes, or others, %v", name, resp.Status, len(got), len(up.want), err)
		}
	}
}

// An upload whose connection ends leaves the file as it was, and nothing else.
func TestLargeUploadCutOff(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	old := filepath.Join(s.Dir, "old")
	if err := os.WriteFile(old, []byte("as it was"), 0o644); err != nil {
		t.Fatal(err)
	}
	kind, form := formWith(t, large())
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "PUT /filesystem/old HTTP/1.1\r\nHost: x\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n", kind, len(form))
	if _, err := conn.Write(form[:len(form)-1000]); err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	said, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusBadRequest || !strings.Contains(string(said), "the file is unchanged") {
		t.Errorf("%s: %s, %v", resp.Status, said, err)
	}
	if got, err := os.ReadFile(old); err != nil || string(got) != "as it was" {
		t.Errorf("the file has %d bytes, %v", len(got), err)
	}
	if entries, err := os.ReadDir(s.Dir); err != nil || len(entries) != 1 {
		t.Errorf("the directory has %v, %v", entries, err)
	}
}
