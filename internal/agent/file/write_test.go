package file

import (
	"bytes"
	"errors"
	"mime/multipart"
	"os"
	"path"
	"strings"
	"testing"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/owner"
	"github.com/dozehq/doze/internal/agent/place"
)

// FuzzUpload checks that no body makes a half-written or a stray file.
func FuzzUpload(f *testing.F) {
	const head = "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"x\"\r\n\r\n"
	for _, s := range []string{
		head + "content\r\n--b--\r\n", head + "cut", "--b--\r\n", "", head, "--b\r\n\r\n\r\n--b--",
		"--b\r\nContent-Disposition: form-data; name=permissions\r\n\r\n0755\r\n" + head + "\r\n--b--",
		strings.ReplaceAll(head, "x", "../../x") + "up\r\n--b--\r\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		dir := t.TempDir()
		file := path.Join(dir, "f")
		if err := os.WriteFile(file, []byte("old"), 0o640); err != nil {
			t.Fatal(err)
		}
		_, err := writeUpload(owner.AsAgent, place.Place{Abs: file, Shown: file}, multipart.NewReader(bytes.NewReader(b), "b"))
		got, readErr := os.ReadFile(file)
		if readErr != nil {
			t.Fatal(readErr)
		}
		if err != nil {
			if e, ok := errors.AsType[*doze.Error](err); !ok || e.Kind != doze.Invalid {
				t.Errorf("%v", err)
			}
			if string(got) != "old" {
				t.Errorf("a broken upload left %q", got)
			}
		}
		if info, _ := os.Stat(file); info.Mode().Perm() != 0o640 {
			t.Errorf("the mode is %v", info.Mode())
		}
		if entries, _ := os.ReadDir(dir); len(entries) != 1 {
			t.Errorf("files: %v", entries)
		}
	})
}
