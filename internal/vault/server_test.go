package vault_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/dozehq/doze/internal/testkit/bucket"
	"github.com/dozehq/doze/internal/testkit/freeport"
	"github.com/dozehq/doze/internal/vault"
)

// A place is a bucket on a real server, and a proxy before it that can do harm.
type place struct {
	bucket string
	keys   *credentials.Credentials
	direct string // address of the server
	proxy  string // address of the proxy

	mu   sync.Mutex
	harm func(w http.ResponseWriter, r *http.Request, pass func()) // guarded by mu; nil: none
}

// servers are those that tests run against.
var servers = map[string]func(testing.TB) *place{"memory": memory, "versitygw": gateway}

// memory is a server in this process.
func memory(tb testing.TB) *place {
	tb.Helper()
	srv := bucket.Serve(tb)
	u, err := url.Parse(srv.URL)
	if err != nil {
		tb.Fatal(err)
	}
	p := &place{bucket: strings.Trim(u.Path, "/"), keys: credentials.NewFileAWSCredentials(srv.Credentials, "default"), direct: u.Host}
	p.stand(tb)
	return p
}

// gateway is a server of its own, on a directory.
func gateway(tb testing.TB) *place {
	tb.Helper()
	program, err := filepath.Abs("../../bin/versitygw")
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := os.Stat(program); err != nil {
		tb.Skip("SKIPPED: make bin/versitygw builds the server: ", err)
	}
	const access, name = "vault", "sandboxes"
	dir := tb.TempDir()
	address, err := freeport.Address(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	p := &place{bucket: name, keys: credentials.NewStaticV4(access, bucket.Secret, ""), direct: address}
	ctx, end := context.WithCancel(context.WithoutCancel(tb.Context())) // it ends in the cleanup
	cmd := exec.CommandContext(ctx, program, "--quiet", "--port", p.direct, "--access", access, "--secret", bucket.Secret, "posix", dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		end()
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		end()
		_ = cmd.Wait()
		if tb.Failed() {
			tb.Logf("the server says:\n%s", out.Bytes())
		}
	})
	client := p.client(tb, p.direct)
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if err = client.MakeBucket(tb.Context(), name, minio.MakeBucketOptions{}); err == nil {
			break
		}
		if time.Now().After(deadline) {
			tb.Fatalf("the server does not start: %v", err)
		}
	}
	p.stand(tb)
	return p
}

// stand starts the proxy.
func (p *place) stand(tb testing.TB) {
	tb.Helper()
	pass := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = "http", p.direct, r.In.Host
		},
		Transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 16},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) {
			w.WriteHeader(http.StatusBadGateway)
		},
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		harm := p.harm
		p.mu.Unlock()
		if harm == nil {
			pass.ServeHTTP(w, r)
			return
		}
		harm(w, r, func() { pass.ServeHTTP(w, r) })
	}))
	srv.Config.ErrorLog = nil
	tb.Cleanup(srv.Close)
	p.proxy = srv.Listener.Addr().String()
}

// does says what happens to requests through the proxy from now on.
func (p *place) does(harm func(w http.ResponseWriter, r *http.Request, pass func())) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.harm = harm
}

// client returns a client that goes to an address, and repeats nothing by itself.
func (p *place) client(tb testing.TB, address string) *minio.Client {
	tb.Helper()
	c, err := minio.New(address, &minio.Options{Creds: p.keys, Region: "us-east-1", BucketLookup: minio.BucketLookupPath, MaxRetries: 1})
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

// open returns a vault that knows nothing yet; proxied or past the proxy.
func (p *place) open(tb testing.TB, proxied bool, o vault.Options) *vault.Vault {
	tb.Helper()
	address := p.direct
	if proxied {
		address = p.proxy
	}
	v, err := vault.New(p.client(tb, address), p.bucket, o)
	if err != nil {
		tb.Fatal(err)
	}
	return v
}

// A stopper ends a context after a write of a key that contains what, as a kill there
// would.
type stopper struct {
	what string
	stop func()
}

func (s *stopper) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := http.DefaultTransport.RoundTrip(r)
	if s.what != "" && r.Method == http.MethodPut && strings.Contains(r.URL.Path, s.what) {
		s.stop()
	}
	return answer, err
}

// openStopping returns a vault, and what makes it save until it wrote a key that contains
// what, and no further.
func (p *place) openStopping(tb testing.TB) (*vault.Vault, func(what, id string, g vault.Generation, tree []vault.File)) {
	tb.Helper()
	var s stopper
	client, err := minio.New(p.direct, &minio.Options{Creds: p.keys, Region: "us-east-1", BucketLookup: minio.BucketLookupPath, MaxRetries: 1, Transport: &s})
	if err != nil {
		tb.Fatal(err)
	}
	v, err := vault.New(client, p.bucket, vault.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	return v, func(what, id string, g vault.Generation, tree []vault.File) {
		ctx, stop := context.WithCancel(tb.Context())
		defer stop()
		s = stopper{what, stop}
		if _, err := v.Save(ctx, id, keyOf(tb, id), g, tree); !errors.Is(err, context.Canceled) {
			tb.Errorf("a save that was stopped: %v", err)
		}
		s.what = ""
	}
}

// objects returns the keys of all objects that begin with a prefix, and their sizes.
func (p *place) objects(tb testing.TB, prefix string) map[string]int64 {
	tb.Helper()
	all := map[string]int64{}
	for o := range p.client(tb, p.direct).ListObjectsIter(tb.Context(), p.bucket, minio.ListObjectsOptions{Prefix: prefix, Recursive: true}) {
		if o.Err != nil {
			tb.Fatal(o.Err)
		}
		all[o.Key] = o.Size
	}
	return all
}

// put writes an object past everybody.
func (p *place) put(tb testing.TB, key string, raw []byte) {
	tb.Helper()
	_, err := p.client(tb, p.direct).PutObject(tb.Context(), p.bucket, key, bytes.NewReader(raw), int64(len(raw)), minio.PutObjectOptions{DisableContentSha256: len(raw) == 0})
	if err != nil {
		tb.Fatal(err)
	}
}

// read returns an object.
func (p *place) read(tb testing.TB, key string) []byte {
	tb.Helper()
	o, err := p.client(tb, p.direct).GetObject(tb.Context(), p.bucket, key, minio.GetObjectOptions{})
	if err != nil {
		tb.Fatal(err)
	}
	defer o.Close()
	var raw bytes.Buffer
	if _, err := raw.ReadFrom(o); err != nil {
		tb.Fatal(err)
	}
	return raw.Bytes()
}

// remove removes an object past everybody.
func (p *place) remove(tb testing.TB, key string) {
	tb.Helper()
	if err := p.client(tb, p.direct).RemoveObject(tb.Context(), p.bucket, key, minio.RemoveObjectOptions{}); err != nil {
		tb.Fatal(err)
	}
}

// master is a master key.
var master = bytes.Repeat([]byte("doze"), 8)

func keyOf(tb testing.TB, id string) vault.Key {
	tb.Helper()
	k, err := vault.Derive(master, id)
	if err != nil {
		tb.Fatal(err)
	}
	return k
}

const mib = vault.ChunkBytes

// content has the files of a tree: for each, what it has in its parts of 1 MiB. 0 is a
// hole, nought is zeros that are written, any other number another content. The last part
// has half of a MiB.
type content map[string][]byte

const nought = 255

// thin is content of one byte that is not zero.
const thin = 254

// write makes the files in a new directory, and returns them as a tree.
func (c content) write(tb testing.TB) (string, []vault.File) {
	tb.Helper()
	dir := tb.TempDir()
	for name, parts := range c {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			tb.Fatal(err)
		}
		f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY, 0o640)
		if err != nil {
			tb.Fatal(err)
		}
		for i, p := range parts {
			if p == 0 {
				continue
			}
			if _, err := f.WriteAt(part(p, i == len(parts)-1), int64(i)*mib); err != nil {
				tb.Fatal(err)
			}
		}
		if err := errors.Join(f.Truncate(max(0, int64(len(parts))*mib-mib/2)), f.Close()); err != nil {
			tb.Fatal(err)
		}
	}
	tree, err := vault.Tree(dir)
	if err != nil {
		tb.Fatal(err)
	}
	return dir, tree
}

// parts has the contents that were made before.
var parts sync.Map

// part returns content of a number: a half that does not compress, and a half that does.
func part(n byte, last bool) []byte {
	raw, ok := parts.Load(n)
	if !ok {
		b := make([]byte, mib)
		_, _ = rand.NewChaCha8([32]byte{n}).Read(b[:mib/4])
		for i := mib / 2; i < mib; i++ {
			b[i] = n
		}
		switch n {
		case thin:
			clear(b)
			b[0] = 1
		case nought:
			clear(b)
		}
		raw, _ = parts.LoadOrStore(n, b)
	}
	if last {
		return raw.([]byte)[:mib/2]
	}
	return raw.([]byte)
}

// same compares two directories: names, sizes, modes and bytes.
func same(tb testing.TB, want, got string) {
	tb.Helper()
	if diff := cmp.Diff(describe(tb, want), describe(tb, got)); diff != "" {
		tb.Errorf("what was loaded differs (-saved +loaded):\n%s", diff)
	}
}

// describe says what is in a directory.
func describe(tb testing.TB, dir string) (all []string) {
	tb.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		raw, err := os.ReadFile(path)
		rel, _ := filepath.Rel(dir, path)
		all = append(all, fmt.Sprintf("%s %v %x", rel, info.Mode(), sum(raw)))
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	slices.Sort(all)
	return all
}

// taken returns what the files of a directory take on disk, in bytes.
func taken(tb testing.TB, dir string) (all int64) {
	tb.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		var st syscall.Stat_t
		if err := syscall.Lstat(path, &st); err != nil {
			return err
		}
		all += st.Blocks * 512
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	return all
}

// save saves, and must not fail.
func save(tb testing.TB, v *vault.Vault, id string, g vault.Generation, tree []vault.File) vault.Saved {
	tb.Helper()
	saved, err := v.Save(tb.Context(), id, keyOf(tb, id), g, tree)
	if err != nil {
		tb.Fatalf("save %v: %v", g, err)
	}
	return saved
}

// load loads into a new directory, and must not fail.
func load(tb testing.TB, v *vault.Vault, id string) (string, vault.Generation) {
	tb.Helper()
	dir := filepath.Join(tb.TempDir(), "loaded")
	g, err := v.Load(tb.Context(), id, keyOf(tb, id), dir)
	if err != nil {
		tb.Fatalf("load: %v", err)
	}
	return dir, g
}

func gen(epoch, seq uint64) vault.Generation { return vault.Generation{Epoch: epoch, Seq: seq} }
