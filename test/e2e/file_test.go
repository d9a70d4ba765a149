package e2e_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"math/rand/v2"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"

	"github.com/dozehq/doze/client"
)

// form is a multipart body with one file.
func form(t *testing.T, field string, content []byte) (contentType, body string) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	part, err := w.CreateFormFile(field, "any.bin")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := part.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return w.FormDataContentType(), b.String()
}

// TestFiles reads and writes files through the edge, byte for byte.
func TestFiles(t *testing.T) {
	t.Parallel()
	p, c := start(t)
	sb, agent := create(t, c, named("files", 512))
	url := sb.Metadata.URL

	t.Run("paths", func(t *testing.T) {
		t.Parallel()
		// Every way in which clients spell a path, and the file it means.
		for _, row := range []struct{ path, file string }{
			{"/filesystem/%2Ftmp%2Fp%2Fa%20b%2Fc.txt", "/tmp/p/a b/c.txt"},
			{"/filesystem%2Ftmp/p/slash.txt", "/tmp/p/slash.txt"},
			{"/filesystem//tmp/p/double.txt", "/tmp/p/double.txt"},
			{"/filesystem/tmp/p/relative.txt", "/tmp/p/relative.txt"},
			{"/filesystem/tmp%2Fp%2Fquirk.txt", "/tmp/p/quirk.txt"},
			{"/filesystem/%2Ftmp%2Fp%2F%C3%A4%2520%3F%23.txt", "/tmp/p/ä%20?#.txt"},
			{"/filesystem/%2Ftmp%2Fp%2Fplus+semi;colon.txt", "/tmp/p/plus+semi;colon.txt"},
		} {
			content := "content of " + row.file
			call{method: "PUT", url: url + row.path, body: encode(t, map[string]string{"content": content})}.want(t, p, 200)
			if got := sh(t, agent, "cat '"+row.file+"'"); got != content {
				t.Errorf("PUT %s: %s has %q", row.path, row.file, got)
			}
			var file struct{ Content string }
			call{url: url + row.path}.want(t, p, 200).into(t, &file)
			if file.Content != content {
				t.Errorf("GET %s: %q", row.path, file.Content)
			}
		}
		var dir client.Directory
		call{url: url + "/filesystem/%2Ftmp%2Fp"}.want(t, p, 200).into(t, &dir)
		if len(dir.Files) != 6 || len(dir.Subdirectories) != 1 {
			t.Errorf("the listing is %+v", dir)
		}
		call{url: url + "/filesystem/%2F"}.want(t, p, 200).into(t, &dir)
		if dir.Path != "/" {
			t.Errorf("the root is %q", dir.Path)
		}
	})

	t.Run("ranges", func(t *testing.T) {
		t.Parallel()
		put(t, agent, "/tmp/digits.txt", "0123456789")
		at := url + "/filesystem/%2Ftmp%2Fdigits.txt?download=true"
		a := call{url: at, header: map[string]string{"Range": "bytes=2-4"}}.want(t, p, http.StatusPartialContent)
		if a.body != "234" || a.header.Get("Content-Range") != "bytes 2-4/10" || a.header.Get("Content-Type") != "text/plain" {
			t.Errorf("%q, %v", a.body, a.header)
		}
		if a := (call{url: at, header: map[string]string{"Range": "bytes=-3"}}).want(t, p, http.StatusPartialContent); a.body != "789" {
			t.Errorf("the last three bytes are %q", a.body)
		}
		call{url: at, header: map[string]string{"Range": "bytes=20-"}}.want(t, p, http.StatusRequestedRangeNotSatisfiable)
	})

	t.Run("binary", func(t *testing.T) {
		t.Parallel()
		content := make([]byte, 6<<20)
		_, _ = rand.NewChaCha8([32]byte{7}).Read(content) // never fails
		kind, body := form(t, "file", content)
		a := call{method: "PUT", url: url + "/filesystem//tmp/binary", header: map[string]string{"Content-Type": kind}, body: body}.want(t, p, 200)
		if !strings.Contains(a.body, `"Binary file uploaded successfully"`) {
			t.Error(a.body)
		}
		want := sha256.Sum256(content)
		if got := sh(t, agent, "sha256sum </tmp/binary"); got != hex.EncodeToString(want[:])+"  -" {
			t.Errorf("inside it is %s", got)
		}
		back, err := agent.ReadFile(t.Context(), "/tmp/binary")
		if err != nil {
			t.Fatal(err)
		}
		defer back.Close()
		if got, err := io.ReadAll(back); err != nil || !bytes.Equal(got, content) {
			t.Errorf("%d bytes came back, %v", len(got), err)
		}
		kind, body = form(t, "wrong", content[:10])
		call{method: "PUT", url: url + "/filesystem//tmp/wrong", header: map[string]string{"Content-Type": kind}, body: body}.want(t, p, 400)
	})

	t.Run("tree", func(t *testing.T) {
		t.Parallel()
		at := url + "/filesystem/tree//tmp/tree"
		var dir client.Directory
		call{method: "PUT", url: at, body: `{"files":{"a.txt":"A","sub/b.txt":"B"}}`}.want(t, p, 200).into(t, &dir)
		if len(dir.Files) != 1 || dir.Files[0].Name != "a.txt" || len(dir.Subdirectories) != 1 || dir.Subdirectories[0].Path != "/tmp/tree/sub" {
			t.Errorf("%+v", dir)
		}
		call{url: at}.want(t, p, 200).into(t, &dir)
		call{method: "PUT", url: at, body: `{"files":{"../out.txt":"A"}}`}.want(t, p, 400)
		call{method: "DELETE", url: at}.want(t, p, 422)
		call{method: "DELETE", url: at + "?recursive=true"}.want(t, p, 200)
		call{url: at}.want(t, p, 400)
	})

	t.Run("mistakes", func(t *testing.T) {
		t.Parallel()
		put(t, agent, "/tmp/m/file", "x")
		for _, row := range []struct {
			method, path, body string
			status             int
		}{
			{"GET", "/filesystem/%2Ftmp%2Fm%2Fnone", "", 404},
			{"DELETE", "/filesystem/%2Ftmp%2Fm%2Fnone", "", 404},
			{"DELETE", "/filesystem/%2Ftmp%2Fm", "", 422},
			{"DELETE", "/filesystem/%2F?recursive=true", "", 422},
			{"PUT", "/filesystem/%2Ftmp%2Fm", `{"content":"x"}`, 422},
			{"PUT", "/filesystem/%2Ftmp%2Fm%2Fnew", `not json`, 400},
			{"PUT", "/filesystem/%2Ftmp%2Fm%2Fnew", ``, 400},
			{"PUT", "/filesystem/%2Ftmp%2Fm%2Fnew", `{"content":1}`, 400},
			{"PUT", "/filesystem/%2Ftmp%2Fm%2Fnew", `{"permissions":"9z"}`, 400},
			{"PUT", "/filesystem/%2Ftmp%2Fm%2Ffile%2Fbelow", `{"content":"x"}`, 422},
		} {
			var said struct{ Error string }
			call{method: row.method, url: url + row.path, body: row.body}.want(t, p, row.status).into(t, &said)
			if said.Error == "" {
				t.Errorf("%s %s: no message", row.method, row.path)
			}
		}
		if left := sh(t, agent, "ls /tmp/m"); left != "file" {
			t.Errorf("mistakes left %q", left)
		}
		if _, err := agent.Remove(t.Context(), "/tmp/m", true); err != nil {
			t.Error(err)
		}
	})

	t.Run("routes", func(t *testing.T) {
		t.Parallel()
		var health struct{ Status string }
		call{url: url + "/health"}.want(t, p, 200).into(t, &health)
		if health.Status != "ok" {
			t.Errorf("health is %q", health.Status)
		}
		call{url: url}.want(t, p, 200)
		call{url: url + "/"}.want(t, p, 200)
		for _, row := range []string{
			"GET /nothing", "PATCH /process", "POST /filesystem/%2Ftmp%2Fx", "PUT /codegen/nothing",
		} {
			method, path, _ := strings.Cut(row, " ")
			if a := (call{method: method, url: url + path}).want(t, p, 404); !strings.Contains(a.body, `"error":"no such path, or it does not take `+method) || !strings.HasPrefix(a.header.Get("Content-Type"), "application/json") {
				t.Errorf("%s: %q, %v", row, a.body, a.header)
			}
		}
		call{method: "OPTIONS", url: url + "/process"}.want(t, p, 204)
		call{method: "HEAD", url: url + "/process"}.want(t, p, 200)
	})
}
