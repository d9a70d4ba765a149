package drive_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze/internal/drive"
	"github.com/dozehq/doze/internal/testkit/bucket"
)

// open returns an empty bucket and its server.
func open(t *testing.T) (*drive.Bucket, *bucket.Bucket) {
	t.Helper()
	srv := bucket.Serve(t)
	b, err := drive.Open(drive.Options{URL: srv.URL, Credentials: srv.Credentials, Region: "us-east-1"})
	if err != nil {
		t.Fatal(err)
	}
	return b, srv
}

// TestPurge removes a drive and no other, whose id begins like its own.
func TestPurge(t *testing.T) {
	t.Parallel()
	b, srv := open(t)
	if err := b.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"ab", "ab/", "ab/x", "ab/dir/y", "abc/x", "a/x"} {
		srv.Put(t, key, "text")
	}
	for range 2 { // the second time nothing is there
		if err := b.Purge(t.Context(), "ab"); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{"a/x", "ab", "abc/x"}, srv.Keys(t)); diff != "" {
		t.Errorf("what is left (-want +got):\n%s", diff)
	}
}

// TestKeysAreReadAgain: credentials that replace others in their file are used soon.
func TestKeysAreReadAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "credentials")
		write := func(key string) {
			if err := os.WriteFile(file, []byte("[default]\naws_access_key_id = "+key+"\naws_secret_access_key = secret\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write("one")
		b, err := drive.Open(drive.Options{URL: "https://s3.test/bucket", Credentials: file, Region: "us-east-1"})
		if err != nil {
			t.Fatal(err)
		}
		client, _ := b.Client()
		uses := func(want string) {
			t.Helper()
			if v, err := client.GetCreds(); err != nil || v.AccessKeyID != want {
				t.Errorf("it uses %s, not %s: %v", v.AccessKeyID, want, err)
			}
		}
		write("two")
		uses("one") // requests do not wait for the file
		time.Sleep(time.Minute)
		uses("two")
	})
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	srv := bucket.Serve(t)
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, []byte("[default]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		url, file, want string
	}{
		"no scheme":         {"s3.test/bucket", srv.Credentials, "https://"},
		"no bucket":         {"https://s3.test", srv.Credentials, "name of the bucket"},
		"a path":            {"https://s3.test/a/b", srv.Credentials, "name of the bucket"},
		"a password in it":  {"https://a:b@s3.test/bucket", srv.Credentials, "without credentials"},
		"no such file":      {srv.URL, "/nonexistent", "no such file"},
		"nothing in a file": {srv.URL, empty, "aws_secret_access_key"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := drive.Open(drive.Options{URL: tt.url, Credentials: tt.file, Region: "us-east-1"})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("it says %v, want %q", err, tt.want)
			}
		})
	}
}
