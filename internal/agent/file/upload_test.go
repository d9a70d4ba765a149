package file_test

import (
	"crypto/md5"
	"encoding/hex"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dozehq/doze/internal/agent/agenttest"
)

// formPart is a multipart body with the boundary b and one part.
func formPart(name, content string) string {
	return "--b\r\nContent-Disposition: form-data; name=\"" + name + "\"\r\n\r\n" + content + "\r\n--b--\r\n"
}

const formType = "Content-Type: multipart/form-data; boundary=b"

type uploadPart struct {
	PartNumber int    `json:"partNumber"`
	ETag       string `json:"etag"`
	Size       int64  `json:"size,omitzero"`
	UploadedAt string `json:"uploadedAt,omitzero"`
}

func TestUploadInParts(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	old := s.Write(t, "new/target", "old") // keeps its mode
	if err := os.Chmod(old, 0o640); err != nil {
		t.Fatal(err)
	}
	begun := agenttest.Get[struct{ UploadID, Path string }](t, s, "POST", "/filesystem-multipart/initiate/new/deeper/file.bin", `{"permissions":"0600"}`)
	target := filepath.Join(s.Dir, "new/deeper/file.bin")
	if begun.Path != target {
		t.Errorf("the path is %q", begun.Path)
	}
	url := "/filesystem-multipart/" + begun.UploadID
	content := [2]string{strings.Repeat("a", 1<<20), "end\x00\xff"}
	var parts []uploadPart
	for _, i := range []int{1, 0} {
		status, body := s.Call(t, "PUT", url+"/part?partNumber="+string(rune('1'+i)), formPart("file", content[i]), formType)
		sum := md5.Sum([]byte(content[i]))
		want := agenttest.Object(t, uploadPart{i + 1, hex.EncodeToString(sum[:]), int64(len(content[i])), ""})
		if status != 200 || body != want {
			t.Fatalf("part %d: status %d: %s", i+1, status, body)
		}
		parts = append(parts, uploadPart{PartNumber: i + 1, ETag: hex.EncodeToString(sum[:])})
	}
	if got := agenttest.Get[struct{ Parts []uploadPart }](t, s, "GET", url+"/parts", ""); len(got.Parts) != 2 || got.Parts[0].PartNumber != 1 || got.Parts[0].UploadedAt == "" {
		t.Errorf("parts %+v", got)
	}
	type open struct {
		Permissions int
		Parts       map[string]uploadPart
	}
	if got := agenttest.Get[struct{ Uploads []open }](t, s, "GET", "/filesystem-multipart", ""); len(got.Uploads) != 1 || got.Uploads[0].Permissions != 0o600 || got.Uploads[0].Parts["2"].Size != 5 {
		t.Errorf("uploads %+v", got)
	}
	done := agenttest.Get[struct{ Path, Message string }](t, s, "POST", url+"/complete", agenttest.Object(t, map[string]any{"parts": parts}))
	if done.Path != target || done.Message != "Multipart upload completed successfully" {
		t.Errorf("completed: %+v", done)
	}
	got, err := os.ReadFile(target)
	if info, e := os.Stat(target); err != nil || e != nil || string(got) != content[0]+content[1] || info.Mode() != 0o600 {
		t.Errorf("%d bytes, %v, %v", len(got), info, err)
	}
	if status, body := s.Call(t, "GET", "/filesystem-multipart", ""); status != 200 || body != `{"uploads":[]}`+"\n" {
		t.Errorf("status %d: %s", status, body)
	}
	s.Fails(t, 404, "upload not found", "POST", url+"/complete", agenttest.Object(t, map[string]any{"parts": parts}))

	// To begin needs no body, and none that can be read.
	for _, body := range []string{"", "{", `{"permissions":7}`} {
		up := agenttest.Get[struct{ UploadID string }](t, s, "POST", "/filesystem-multipart/initiate/%2Ftmp%2Fdoze-none", body)
		if got := agenttest.Get[struct{ Path, Message string }](t, s, "DELETE", "/filesystem-multipart/"+up.UploadID+"/abort", ""); got.Path != "" || got.Message != "Multipart upload aborted successfully" {
			t.Errorf("aborted: %+v", got)
		}
	}
}

func TestUploadErrors(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	up := agenttest.Get[struct{ UploadID string }](t, s, "POST", "/filesystem-multipart/initiate/x", "")
	url := "/filesystem-multipart/" + up.UploadID
	if err := os.MkdirAll(filepath.Join(s.Dir, "dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		method, path, body string
		headers            []string
		status             int
		want               string
	}{
		"bad permissions":     {"POST", "/filesystem-multipart/initiate/x", `{"permissions":"9"}`, nil, 400, "octal"},
		"no path":             {"POST", "/filesystem-multipart/initiate/", "", nil, 400, "is a directory"},
		"a directory":         {"POST", "/filesystem-multipart/initiate/dir", "", nil, 400, "is a directory"},
		"like a directory":    {"POST", "/filesystem-multipart/initiate/new/", "", nil, 400, "is a directory"},
		"the root":            {"POST", "/filesystem-multipart/initiate/%2F", "", nil, 400, "is a directory"},
		"bad path":            {"POST", "/filesystem-multipart/initiate/%00", "", nil, 400, "NUL"},
		"no number":           {"PUT", url + "/part", formPart("file", "x"), []string{formType}, 400, "partNumber"},
		"no integer":          {"PUT", url + "/part?partNumber=x", formPart("file", "x"), []string{formType}, 400, "partNumber"},
		"number 0":            {"PUT", url + "/part?partNumber=0", formPart("file", "x"), []string{formType}, 500, "1 to 10000"},
		"number too high":     {"PUT", url + "/part?partNumber=10001", formPart("file", "x"), []string{formType}, 500, "1 to 10000"},
		"no form":             {"PUT", url + "/part?partNumber=1", "x", nil, 400, "multipart/form-data"},
		"no part named file":  {"PUT", url + "/part?partNumber=1", formPart("other", "x"), []string{formType}, 400, "no part named file"},
		"cut":                 {"PUT", url + "/part?partNumber=1", formPart("file", "xyz")[:55], []string{formType}, 400, "send the part again"},
		"unknown":             {"PUT", "/filesystem-multipart/none/part?partNumber=1", formPart("file", "x"), []string{formType}, 500, "not found"},
		"an id like a path":   {"PUT", "/filesystem-multipart/..%2F..%2Fetc/part?partNumber=1", formPart("file", "x"), []string{formType}, 500, "not found"},
		"unknown parts":       {"GET", "/filesystem-multipart/none/parts", "", nil, 404, "not found"},
		"unknown, complete":   {"POST", "/filesystem-multipart/none/complete", `{"parts":[{"partNumber":1,"etag":"x"}]}`, nil, 404, "not found"},
		"no parts":            {"POST", url + "/complete", `{}`, nil, 400, "parts is required"},
		"no JSON":             {"POST", url + "/complete", `x`, nil, 400, "must be a JSON object"},
		"part that is not":    {"POST", url + "/complete", `{"parts":[{"partNumber":1,"etag":"x"}]}`, nil, 500, "part 1 is missing"},
		"unknown, abort":      {"DELETE", "/filesystem-multipart/none/abort", "", nil, 404, "not found"},
		"a path for a number": {"GET", "/filesystem-multipart/a/b/parts", "", nil, 404, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if test.want == "" {
				if status, _ := s.Call(t, test.method, test.path, test.body); status != http.StatusNotFound {
					t.Errorf("status %d", status)
				}
				return
			}
			s.Fails(t, test.status, test.want, test.method, test.path, test.body, test.headers...)
		})
	}
}

// FuzzForm sends whatever may be a multipart body.
func FuzzForm(f *testing.F) {
	s := agenttest.Start(f)
	f.Add("multipart/form-data; boundary=b", formPart("file", "x"))
	f.Add("multipart/form-data; boundary=\"", "--\r\n\r\n")
	f.Add("multipart/form-data; boundary=b", "--b\r\nContent-Disposition: form-data; name=file; filename=\"../x\"\r\n\r\n")
	up := agenttest.Get[struct{ UploadID string }](f, s, "POST", "/filesystem-multipart/initiate/x", "")
	f.Fuzz(func(t *testing.T, contentType, body string) {
		if strings.ContainsFunc(contentType, func(r rune) bool { return r < ' ' || r >= 0x7f }) {
			return // no client could send it
		}
		for _, path := range []string{"/filesystem/fuzzed", "/filesystem-multipart/" + up.UploadID + "/part?partNumber=1"} {
			if status, answer := s.Call(t, "PUT", path, body, "Content-Type: "+contentType); status != 200 && status != 400 {
				t.Errorf("%s: status %d: %s", path, status, answer)
			}
		}
		entries, err := os.ReadDir(s.Dir)
		if err != nil || len(entries) > 1 {
			t.Errorf("the directory has %v, %v", entries, err)
		}
	})
}
