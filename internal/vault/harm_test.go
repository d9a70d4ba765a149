package vault_test

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/dozehq/doze/internal/vault"
)

// Variables of the environment of a test that is a process of its own.
const childDir, childServer, childBucket, childCredentials = "VAULT_TEST_DIR", "VAULT_TEST_SERVER", "VAULT_TEST_BUCKET", "VAULT_TEST_CREDENTIALS"

// TestChild is no test: it saves in a process that [TestKilled] kills.
func TestChild(t *testing.T) {
	dir := os.Getenv(childDir) //nolint:forbidigo // of a test
	if dir == "" {
		t.Skip("SKIPPED: this is the process that TestKilled kills")
	}
	tree, err := vault.Tree(dir)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := credentials.NewFileAWSCredentials(os.Getenv(childCredentials), "default").GetWithContext(nil) //nolint:forbidigo // of a test
	if err != nil {
		t.Fatal(err)
	}
	p := &place{bucket: os.Getenv(childBucket), direct: os.Getenv(childServer), keys: credentials.NewStaticV4(keys.AccessKeyID, keys.SecretAccessKey, "")} //nolint:forbidigo // of a test
	save(t, p.open(t, false, vault.Options{Parallel: 2}), "a", gen(1, 2), tree)
}

// TestKilled kills a process in the middle of a save, at different moments. What counted
// before counts, until another process saves the same: it sends the rest.
func TestKilled(t *testing.T) {
	t.Parallel()
	for server, serve := range servers {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			p := serve(t)
			before, tree := content{"f": {1}}.write(t)
			after, next := content{"f": {1, 2, 3, 4, 5, 6, 7}, "g": {8, 9}}.write(t)
			keys, err := p.keys.GetWithContext(nil)
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(t.TempDir(), "credentials")
			if err := os.WriteFile(file, []byte("[default]\naws_access_key_id = "+keys.AccessKeyID+"\naws_secret_access_key = "+keys.SecretAccessKey+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			v := p.open(t, false, vault.Options{})
			for kind, number := range map[string]int64{"/c/": 4, "/p/": 1, "/m/": 1} { // which request of a kind is the last
				if err := v.Drop(t.Context(), "a"); err != nil {
					t.Fatal(err)
				}
				if _, err := v.Sweep(t.Context(), "a", keyOf(t, "a"), 1, 0); err != nil {
					t.Fatal(err)
				}
				save(t, v, "a", gen(1, 1), tree)
				child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestChild$")
				child.Env = append(os.Environ(), childDir+"="+after, childServer+"="+p.proxy, childBucket+"="+p.bucket, childCredentials+"="+file)
				child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
				var puts atomic.Int64
				p.does(func(_ http.ResponseWriter, r *http.Request, pass func()) {
					if r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/a"+kind) && puts.Add(1) == number {
						if err := child.Process.Kill(); err != nil {
							t.Error(err)
						}
						return
					}
					pass()
				})
				if err := child.Run(); err == nil {
					t.Fatal("the process was not killed")
				}
				p.does(nil)
				got, g := load(t, v, "a")
				if g != gen(1, 1) {
					t.Errorf("%s: loaded %v", kind, g)
				}
				same(t, before, got)
				saved := save(t, p.open(t, false, vault.Options{}), "a", gen(1, 2), next)
				if saved.Chunks != 9 || kind == "/c/" && (saved.Sent == 0 || saved.Sent > 7) || kind != "/c/" && saved.Sent > 0 {
					t.Errorf("%s: the second save: %+v", kind, saved)
				}
				got, _ = load(t, v, "a")
				same(t, after, got)
				if n := len(p.objects(t, "a/p/")); n > 0 {
					t.Errorf("%s: %d manifests are pending", kind, n)
				}
			}
		})
	}
}

// TestOutage: a bucket that fails for a while costs time and no more. One that fails for
// longer is an error that says so.
func TestOutage(t *testing.T) {
	t.Parallel()
	refuse := func(w http.ResponseWriter, status int) {
		w.WriteHeader(status)
		_, _ = w.Write([]byte("<Error><Code>SlowDown</Code></Error>"))
	}
	cut := func(w http.ResponseWriter) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_ = conn.Close()
	}
	for name, harm := range map[string]func(w http.ResponseWriter, r *http.Request, pass func()){
		"503": func(w http.ResponseWriter, _ *http.Request, _ func()) { refuse(w, http.StatusServiceUnavailable) },
		"429": func(w http.ResponseWriter, _ *http.Request, _ func()) { refuse(w, http.StatusTooManyRequests) },
		"cut": func(w http.ResponseWriter, _ *http.Request, _ func()) { cut(w) },
		"half": func(w http.ResponseWriter, r *http.Request, pass func()) {
			if r.Method != http.MethodGet {
				pass()
				return
			}
			w.Header().Set("Content-Length", "100000")
			_, _ = w.Write([]byte("half"))
		},
		"slow": func(_ http.ResponseWriter, _ *http.Request, pass func()) { time.Sleep(50 * time.Millisecond); pass() },
		// The server does what it is asked, and nobody learns that.
		"no answer": func(w http.ResponseWriter, _ *http.Request, pass func()) { pass(); panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for server, serve := range servers {
				t.Run(server, func(t *testing.T) {
					t.Parallel()
					p := serve(t)
					v := p.open(t, true, vault.Options{})
					want, tree := machine.write(t)
					var seen sync.Map
					var n atomic.Int64
					// Each fourth request suffers, the first time.
					p.does(func(w http.ResponseWriter, r *http.Request, pass func()) {
						if _, again := seen.LoadOrStore(r.Method+r.URL.String(), true); again || n.Add(1)%4 != 0 {
							pass()
							return
						}
						harm(w, r, pass)
					})
					for i := range uint64(3) {
						save(t, v, "a", gen(1, i+1), tree)
						seen.Clear()
						got, _ := load(t, v, "a")
						same(t, want, got)
						seen.Clear()
						if _, err := v.Sweep(t.Context(), "a", keyOf(t, "a"), 1, 0); err != nil {
							t.Error(err)
						}
					}
					if name == "slow" {
						return
					}
					p.does(harm)
					ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
					defer cancel()
					dir := filepath.Join(t.TempDir(), "loaded")
					if _, err := v.Load(ctx, "a", keyOf(t, "a"), dir); !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("a load that gets nothing: %v", err)
					}
					if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
						t.Errorf("there is a directory: %v", err)
					}
				})
			}
		})
	}
	t.Run("for good", func(t *testing.T) {
		t.Parallel()
		p := memory(t)
		_, tree := content{"f": {1}}.write(t)
		p.does(func(w http.ResponseWriter, _ *http.Request, _ func()) { refuse(w, http.StatusForbidden) })
		begun := time.Now()
		if _, err := p.open(t, true, vault.Options{}).Save(t.Context(), "a", keyOf(t, "a"), gen(1, 1), tree); err == nil || time.Since(begun) > 5*time.Second {
			t.Errorf("a bucket that refuses: %v after %v", err, time.Since(begun))
		}
		p.does(func(_ http.ResponseWriter, r *http.Request, pass func()) { r.Header.Del("If-None-Match"); pass() })
		if err := p.open(t, true, vault.Options{}).Check(t.Context()); !errors.Is(err, vault.ErrUnconditional) {
			t.Errorf("a server that knows no conditions: %v", err)
		}
	})
}

// TestResume: a load that is cut goes on from what it has, and reads no chunk twice. What
// another generation left is no harm.
func TestResume(t *testing.T) {
	t.Parallel()
	p := memory(t)
	v := p.open(t, true, vault.Options{Parallel: 1})
	_, tree := content{"f": {1, 2, 3, 4, 5, 6, 7, 8}, "other": {1}, "dir/g": {9}}.write(t)
	save(t, v, "a", gen(1, 1), tree)
	dir := filepath.Join(t.TempDir(), "loaded")
	ctx, cancel := context.WithCancel(t.Context())
	var gets atomic.Int64
	count := func(then func()) {
		gets.Store(0)
		p.does(func(_ http.ResponseWriter, r *http.Request, pass func()) {
			if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/a/c/") && gets.Add(1) == 7 {
				then()
			}
			pass()
		})
	}
	count(cancel)
	if _, err := v.Load(ctx, "a", keyOf(t, "a"), dir); !errors.Is(err, context.Canceled) {
		t.Fatalf("a load that was cut: %v", err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("there is a directory: %v", err)
	}
	// Two parts are other ones now, one is a hole, and a directory is a file.
	want, tree := content{"f": {1, thin, 9, 0, 5, 6, 7, 8}, "dir": {2}}.write(t)
	save(t, v, "a", gen(1, 2), tree)
	count(func() {})
	if _, err := v.Load(t.Context(), "a", keyOf(t, "a"), dir); err != nil {
		t.Fatal(err)
	}
	same(t, want, dir)
	if n := gets.Load(); n > 6 {
		t.Errorf("it read %d chunks of 8", n)
	}
	if w, g := taken(t, want), taken(t, dir); g > w {
		t.Errorf("it takes %d bytes on disk, and what was saved %d", g, w)
	}
	if _, err := v.Load(t.Context(), "a", keyOf(t, "a"), dir); !errors.Is(err, fs.ErrExist) {
		t.Errorf("into a directory that is there: %v", err)
	}
	// Two loads of one directory do not meet.
	other := filepath.Join(t.TempDir(), "loaded")
	var busy error
	count(func() { _, busy = p.open(t, false, vault.Options{}).Load(t.Context(), "a", keyOf(t, "a"), other) })
	if _, err := v.Load(t.Context(), "a", keyOf(t, "a"), other); err != nil || !errors.Is(busy, vault.ErrBusy) {
		t.Errorf("%v, and the second %v", err, busy)
	}
	same(t, want, other)
}

// TestFullDisk: a load that finds no room says so, and leaves nothing.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: a small disk needs root")
	}
	p := memory(t)
	v := p.open(t, false, vault.Options{})
	_, tree := content{"f": {1, 2, 3, 4, 5, 6, 7, 8}}.write(t)
	save(t, v, "a", gen(1, 1), tree)
	small := t.TempDir()
	if err := syscall.Mount("tmpfs", small, "tmpfs", 0, "size=2m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(small, 0); err != nil {
			t.Error(err)
		}
	})
	_, err := v.Load(t.Context(), "a", keyOf(t, "a"), filepath.Join(small, "loaded"))
	if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "free some space") {
		t.Errorf("it says %v", err)
	}
	if left, err := os.ReadDir(small); err != nil || len(left) > 0 {
		t.Errorf("it left %v, %v", left, err)
	}
}

// TestChanged: a file that changes while it is read is not stored.
func TestChanged(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(file string) error{
		"written": func(file string) error {
			f, err := os.OpenFile(file, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteAt([]byte("new"), 7*mib)
			return errors.Join(err, f.Close())
		},
		"longer":  func(file string) error { return os.Truncate(file, 9*mib) },
		"shorter": func(file string) error { return os.Truncate(file, 3*mib) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := memory(t)
			v := p.open(t, true, vault.Options{Parallel: 1})
			dir, tree := content{"f": {1, 2, 3, 4, 5, 6, 7, 8}}.write(t)
			var once sync.Once
			p.does(func(_ http.ResponseWriter, r *http.Request, pass func()) {
				if strings.Contains(r.URL.Path, "/a/c/") {
					once.Do(func() {
						if err := change(filepath.Join(dir, "f")); err != nil {
							t.Error(err)
						}
					})
				}
				pass()
			})
			if _, err := v.Save(t.Context(), "a", keyOf(t, "a"), gen(1, 1), tree); !errors.Is(err, vault.ErrChanged) {
				t.Errorf("it says %v", err)
			}
			if _, err := v.Head(t.Context(), "a"); !errors.Is(err, vault.ErrNotFound) {
				t.Errorf("head: %v", err)
			}
			if _, err := v.Save(t.Context(), "a", keyOf(t, "a"), gen(1, 2), tree); name != "written" && !errors.Is(err, vault.ErrChanged) {
				t.Errorf("with another size: %v", err)
			}
		})
	}
}
