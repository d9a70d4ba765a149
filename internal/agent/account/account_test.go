package account

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
)

const (
	passwdFile = `root:x:0:0:root:/root:/bin/bash
# daemon:x:1:1::/:/bin/false

broken
app:x:1000:1001:An app:/home/app:/bin/sh
app:x:7:7:not the first:/:/bin/sh
homeless:x:1002:1002
1000:x:55:55::/odd:
huge:x:4294967295:0::/:
`
	groupFile = `root:x:0:
app:x:1001:
docker:x:999:other,app
audio:x:29:app
broken:x:many:app
staff:x:50:
`
)

// etc makes a directory with a user database.
func etc(tb testing.TB, passwd, group string) string {
	tb.Helper()
	dir := tb.TempDir()
	for name, content := range map[string]string{"passwd": passwd, "group": group} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			tb.Fatal(err)
		}
	}
	return dir
}

func TestAccount(t *testing.T) {
	t.Parallel()
	dir := etc(t, passwdFile, groupFile)
	app := Account{UID: 1000, GID: 1001, groups: []uint32{999, 29}, home: "/home/app"}
	tests := map[string]struct {
		want Account
		err  string
	}{
		"app":            {want: app},
		"app:":           {want: app},
		"1000":           {want: app}, // a number is an id, never a name
		"app:staff":      {want: Account{UID: 1000, GID: 50, home: "/home/app"}},
		"app:77":         {want: Account{UID: 1000, GID: 77, home: "/home/app"}},
		"4242":           {want: Account{UID: 4242, home: "/"}},
		"4242:staff":     {want: Account{UID: 4242, GID: 50, home: "/"}},
		"4242:4343":      {want: Account{UID: 4242, GID: 4343, home: "/"}},
		":staff":         {want: Account{GID: 50, home: "/root"}},
		"homeless":       {want: Account{UID: 1002, GID: 1002, home: "/"}},
		"nobody":         {err: `"nobody" is not in the sandbox's /etc/passwd`},
		"nobody:staff":   {err: `"nobody" is not in the sandbox's /etc/passwd`},
		"app:nobody":     {err: `"nobody" is not in the sandbox's /etc/group`},
		"app:staff:more": {err: `"staff:more" is not in the sandbox's /etc/group`},
		"huge":           {err: `"huge" is not in the sandbox's /etc/passwd`},
		"4294967296":     {err: `"4294967296" is not in the sandbox's /etc/passwd`},
		"-1":             {err: `"-1" is not in the sandbox's /etc/passwd`},
	}
	for user, test := range tests {
		got, err := User{user, dir}.Lookup()
		if test.err != "" {
			if err == nil || doze.Public(err).Kind != doze.Unprocessable || !strings.Contains(err.Error(), test.err) {
				t.Errorf("%s: %+v, %v", user, got, err)
			}
			continue
		}
		if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(Account{})); diff != "" || err != nil {
			t.Errorf("%s: %v\n%s", user, err, diff)
		}
	}
}

// TestAccountWithoutFiles: an id needs no user database, and what lies in the
// place of one is not waited for.
func TestAccountWithoutFiles(t *testing.T) {
	t.Parallel()
	pipes := t.TempDir()
	for _, name := range []string{"passwd", "group"} {
		if err := syscall.Mkfifo(filepath.Join(pipes, name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, dir := range map[string]string{"none": t.TempDir(), "pipes": pipes, "endless": etc(t, strings.Repeat("x", 2*accountsMax), "")} {
		got, err := User{"1000:1000", dir}.Lookup()
		if err != nil || got.UID != 1000 || got.GID != 1000 || got.home != "/" {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		if _, err := (User{"app", dir}).Credential(); err == nil {
			t.Errorf("%s: a name that nobody has is somebody", name)
		}
	}
}

func FuzzAccount(f *testing.F) {
	f.Add("app:staff", passwdFile, groupFile)
	f.Add("1000", passwdFile, groupFile)
	f.Add(":", ":", ":::,")
	f.Fuzz(func(t *testing.T, user, passwd, group string) {
		a, err := User{user, etc(t, passwd, group)}.Lookup()
		switch {
		case err != nil && doze.Public(err).Kind != doze.Unprocessable:
			t.Errorf("%q: %v", user, err)
		case err == nil && (int32(a.UID) < 0 || int32(a.GID) < 0 || !filepath.IsAbs(a.home)):
			t.Errorf("%q is %+v", user, a)
		}
	})
}
